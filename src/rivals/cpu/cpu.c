/* cpu.c - the CPU's kernels: their state, and the table that binds the verbs. */
#include "cpu.h"

#include "cpu/features.h"

#include <stdlib.h>

#include <omp.h>

static size_t carve(rival_cpu *cpu, void *data)
{
    mcsa_arena arena = { data, 0 };
    mcsa_tile measured, *tiles = mcsa_arena_take(&arena, sizeof *tiles * (size_t)cpu->threads);
    for (int t = 0; t < cpu->threads; t++)
        mcsa_tile_carve(data ? &tiles[t] : &measured, &arena, MCSA_DENSE_TILE, cpu->D, cpu->M);
    cpu->tiles = tiles;
    return arena.used;
}

mcsa_status rival_cpu_reserve(rival_cpu *cpu, int D, int M, mcsa_error *error)
{
    if (D <= cpu->D && M <= cpu->M) return MCSA_OK;
    rival_cpu wanted = *cpu;
    if (D > wanted.D) wanted.D = D;
    if (M > wanted.M) wanted.M = M;
    if (mcsa_block_reserve(&wanted.memory, &wanted.block, carve(&wanted, NULL)))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for tiles of %d keys, D = %d, in %d threads", M, D,
                         cpu->threads);
    *cpu = wanted;
    carve(cpu, cpu->block.data);
    return MCSA_OK;
}

static mcsa_status open_cpu(void **state, const mcsa_config *config, mcsa_error *error)
{
    rival_cpu *cpu = malloc(sizeof *cpu);
    if (!cpu) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the CPU's kernels");
    *cpu = (rival_cpu){ .memory = mcsa_memory_from(&config->allocator) };
    cpu->threads = config->threads ? config->threads : omp_get_max_threads();
    mcsa_kernels_fill(&cpu->kernels, config->isa == MCSA_ISA_AUTO ? mcsa_cpu_isa() : config->isa);
    *state = cpu;
    return MCSA_OK;
}

static void close_cpu(void *state)
{
    rival_cpu *cpu = state;
    mcsa_block_release(&cpu->memory, &cpu->block);
    free(cpu);
}

static void *alloc_256(void *user, size_t bytes)
{
    (void)user;
    size_t rounded = (bytes + 255) / 256 * 256; /* aligned_alloc wants a multiple */
    return rounded < bytes ? NULL : aligned_alloc(256, rounded ? rounded : 256);
}

static void free_256(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(block);
}

static mcsa_allocator memory(void *state)
{
    (void)state;
    return (mcsa_allocator){ alloc_256, free_256, NULL };
}

static mcsa_status wait_for_nothing(void *state, mcsa_error *error)
{
    (void)state;
    (void)error;
    return MCSA_OK;
}

const rival_kernels rival_kernels_cpu = {
    .name = "cpu",
    .version = MCSA_VERSION,
    .open = open_cpu,
    .close = close_cpu,
    .memory = memory,
    .wait = wait_for_nothing,
    .pool = rival_cpu_pool,
    .cosine = rival_cpu_cosine,
    .assign = rival_cpu_assign,
    .mass = rival_cpu_mass,
    .outer = rival_cpu_outer,
    .error = rival_cpu_error,
    .diagonal = rival_cpu_diagonal,
    .attend = rival_cpu_attend,
    .tail = rival_cpu_tail,
    .read_rows = rival_cpu_read_rows,
    .read = rival_cpu_read,
    .write = rival_cpu_write,
    .subtract = rival_cpu_subtract,
    .add = rival_cpu_add,
};
