/* probe.h - what a run does not tell its caller, for comparison with the reference: what an anchor chose, the masses it
 * chose by, and the residual it cached.
 *
 * Masses exist one group at a time in a thread's scratch (src/cpu/select.c), so they are made again here with the same
 * two calls, in the scratch of thread 0. */
#ifndef MCSA_TESTS_REFERENCE_PROBE_H
#define MCSA_TESTS_REFERENCE_PROBE_H

#include "core/cache.h"
#include "cpu/cpu.h"
#include "cpu/residual.h"

/* The groups and keys that calls of (layer, branch) use. */
static inline const mcsa_selection *probe_selection(mcsa_run *run, int layer, int branch)
{
    mcsa_plan *plan = mcsa_cache_plan(run, layer, branch);
    return plan->follows ? &mcsa_cache_plan(run, layer, 0)->own : &plan->own;
}

/* mass [H, G, N] of the groups of `s`, from the scores of q and k [H, N, D] and lse [H, N]. */
static inline void probe_mass(mcsa_run *run, const mcsa_selection *s, const mcsa_tensor *q, const mcsa_tensor *k,
                              const float *lse, float *mass)
{
    mcsa_cpu *cpu = run->state;
    mcsa_tile *tile = &cpu->tiles[0];
    float scale = 1 / __builtin_sqrtf((float)q->shape[2]);
    for (int h = 0; h < s->H; h++)
        for (int g = 0; g < s->G; g++, mass += s->N) {
            int count = mcsa_group_size(s, g);
            const int32_t *order = s->order + (int64_t)h * s->N + (int64_t)g * s->C;
            mcsa_rows queries = mcsa_head_rows(q, h, order, 0, count), keys = mcsa_head_rows(k, h, NULL, 0, s->N);
            mcsa_tile_load(tile, mcsa_cpu_kernels(cpu, q->dtype), &queries);
            for (int i = 0; i < count; i++) tile->lse[i] = lse[(int64_t)h * s->N + order[i]];
            mcsa_tile_mass(tile, &keys, scale, tile->lse);
            memcpy(mass, tile->mass, sizeof *mass * (size_t)s->N);
        }
}

/* rows [H, N, D]: the cached residual of (layer, branch), by query. */
static inline void probe_residual(mcsa_run *run, int layer, int branch, float *rows)
{
    mcsa_plan *plan = mcsa_cache_plan(run, layer, branch);
    const mcsa_selection *s = probe_selection(run, layer, branch);
    const mcsa_kernels *kernels = mcsa_cpu_kernels(run->state, plan->dims.dtype);
    int D = plan->dims.D;
    int64_t bytes = (int64_t)residual_row_bytes(run->config.residual, D);
    memset(rows, 0, sizeof *rows * (size_t)s->H * (size_t)s->N * (size_t)D);
    for (int h = 0; h < s->H; h++)
        for (int n = 0; n < s->N; n++) {
            int64_t place = (int64_t)h * s->N + n, query = (int64_t)h * s->N + s->order[place];
            kernels->residual_add(run->config.residual, (const char *)plan->residual.data + place * bytes, D,
                                  rows + query * D);
        }
}

#endif
