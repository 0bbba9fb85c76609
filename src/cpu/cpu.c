/* cpu.c - the CPU backend: scratch, and the table that binds the verbs. */
#include "cpu.h"

#include "base/clock.h"
#include "residual.h"

static size_t carve(mcsa_cpu *cpu, void *data)
{
    mcsa_arena arena = { data, 0 };
    mcsa_tile measured, *tiles = mcsa_arena_take(&arena, sizeof *tiles * (size_t)cpu->threads);
    int queries = cpu->C > MCSA_DENSE_TILE ? cpu->C : MCSA_DENSE_TILE;
    for (int t = 0; t < cpu->threads; t++)
        mcsa_tile_carve(data ? &tiles[t] : &measured, &arena, queries, cpu->D, cpu->M);
    size_t rows = (size_t)cpu->HN, clusters = (size_t)cpu->HP;
    cpu->tiles = tiles;
    cpu->group.projection = mcsa_arena_take(&arena, sizeof(float) * rows);
    cpu->group.rank = mcsa_arena_take(&arena, sizeof(uint32_t) * rows);
    cpu->group.order = mcsa_arena_take(&arena, sizeof(int32_t) * rows);
    for (int i = 0; i < 2; i++)
        cpu->group.bounds[i] = mcsa_arena_take(&arena, sizeof(int32_t) * (rows / (size_t)cpu->C + 2));
    cpu->clusters.key = mcsa_arena_take(&arena, sizeof(float) * clusters * (size_t)cpu->D);
    cpu->clusters.value = mcsa_arena_take(&arena, sizeof(float) * clusters * (size_t)cpu->D);
    cpu->clusters.half = mcsa_arena_take(&arena, sizeof(float) * clusters);
    cpu->clusters.log2_size = mcsa_arena_take(&arena, sizeof(float) * clusters);
    cpu->clusters.label = mcsa_arena_take(&arena, clusters ? sizeof(int32_t) * rows : 0);
    cpu->clusters.rank = mcsa_arena_take(&arena, sizeof(uint64_t) * (size_t)cpu->threads * (size_t)cpu->P);
    return arena.used;
}

/* On failure the old scratch stays, so that plans of the old shape can still be reused. */
static mcsa_status reserve(void *state, const mcsa_dims *dims, int K, int P)
{
    (void)K; /* lists of rows in a tile are as long as all keys */
    mcsa_cpu *cpu = state;
    int64_t HN = (int64_t)dims->H * dims->N, HP = (int64_t)dims->H * P;
    if (dims->D <= cpu->D && dims->M <= cpu->M && HN <= cpu->HN && HP <= cpu->HP && P <= cpu->P) return MCSA_OK;
    mcsa_cpu wanted = *cpu;
    if (dims->D > wanted.D) wanted.D = dims->D;
    if (dims->M > wanted.M) wanted.M = dims->M;
    if (HN > wanted.HN) wanted.HN = HN;
    if (HP > wanted.HP) wanted.HP = HP;
    if (P > wanted.P) wanted.P = P;
    if (mcsa_block_reserve(wanted.memory, &wanted.scratch, carve(&wanted, NULL))) return MCSA_ENOMEM;
    *cpu = wanted;
    carve(cpu, cpu->scratch.data);
    return MCSA_OK;
}

static mcsa_status open_cpu(void **state, const mcsa_backend_options *options)
{
    mcsa_block self = { 0 };
    if (mcsa_block_reserve(options->memory, &self, sizeof(mcsa_cpu))) return MCSA_ENOMEM;
    mcsa_cpu *cpu = self.data;
    *cpu = (mcsa_cpu){ .memory = options->memory, .threads = options->threads, .C = options->C, .self = self };
    mcsa_kernels_fill(&cpu->kernels, options->isa);
    *state = cpu;
    return MCSA_OK;
}

static void close_cpu(void *state)
{
    mcsa_cpu *cpu = state;
    mcsa_memory *memory = cpu->memory;
    mcsa_block self = cpu->self;
    mcsa_block_release(memory, &cpu->scratch);
    mcsa_block_release(memory, &self);
}

static int64_t scratch_bytes(const void *state)
{
    return (int64_t)((const mcsa_cpu *)state)->scratch.bytes;
}

static int64_t residual_bytes(mcsa_residual form, const mcsa_dims *dims)
{
    return (int64_t)residual_row_bytes(form, dims->D) * dims->H * dims->N;
}

static mcsa_status supports(const void *state, const mcsa_qkv *x, mcsa_error *error)
{
    (void)state;
    if (x->dims.D <= MCSA_MAX_DIM) return MCSA_OK;
    return mcsa_fail(error, MCSA_EUNSUPPORTED, "head dimension %d; 1 to %d are supported", x->dims.D, MCSA_MAX_DIM);
}

static mcsa_status outcome(void *state, mcsa_error *error)
{
    (void)state;
    (void)error;
    return MCSA_OK;
}

static void lap(void *state, double *stage)
{
    mcsa_cpu *cpu = state;
    double now = mcsa_seconds();
    if (stage) *stage += now - cpu->mark;
    cpu->mark = now;
}

static void settle(void *state)
{
    (void)state;
}

const mcsa_backend mcsa_backend_cpu = {
    .name = "cpu",
    .version = MCSA_VERSION,
    .open = open_cpu,
    .close = close_cpu,
    .supports = supports,
    .reserve = reserve,
    .scratch_bytes = scratch_bytes,
    .residual_bytes = residual_bytes,
    .attend_dense = mcsa_cpu_attend_dense,
    .group = mcsa_cpu_group,
    .cluster = mcsa_cpu_cluster,
    .select = mcsa_cpu_select,
    .attend_select = mcsa_cpu_attend_select,
    .attend_tokens = mcsa_cpu_attend_tokens,
    .outcome = outcome,
    .lap = lap,
    .settle = settle,
};
