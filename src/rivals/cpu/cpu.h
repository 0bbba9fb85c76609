/* cpu.h - the state of the CPU's kernels, shared by its verbs.  kernels.h says what each verb does. */
#ifndef RIVALS_CPU_CPU_H
#define RIVALS_CPU_CPU_H

#include "base/tensor.h"
#include "cpu/cpu.h"
#include "rivals/kernels.h"

typedef struct rival_cpu {
    mcsa_memory memory; /* of scratch */
    int threads;
    mcsa_kernel_set kernels;
    int D, M;         /* largest that the tiles are for */
    mcsa_block block; /* of the tiles */
    mcsa_tile *tiles; /* [threads] of MCSA_DENSE_TILE queries each */
} rival_cpu;

/* Makes the tiles hold queries and keys of D columns, lists of M keys, and M masses; contents unspecified. */
mcsa_status rival_cpu_reserve(rival_cpu *cpu, int D, int M, mcsa_error *error);

/* BF16 tensors have a table of their own where there is BF16 arithmetic; all others compute in float. */
static inline const mcsa_kernels *rival_cpu_kernels(const rival_cpu *cpu, mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? &cpu->kernels.bf16 : &cpu->kernels.f32;
}

mcsa_status rival_cpu_pool(void *state, const mcsa_tensor *x, const rival_partition *parts, float *mean,
                           mcsa_error *error);
mcsa_status rival_cpu_cosine(void *state, const mcsa_tensor *x, const rival_partition *parts, const float *shift,
                             float *cosine, mcsa_error *error);
mcsa_status rival_cpu_assign(void *state, const mcsa_tensor *x, int P, const float *centre, int32_t *label,
                             mcsa_error *error);
mcsa_status rival_cpu_mass(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_partition *keys,
                           const float *lse, float *mass, mcsa_error *error);
mcsa_status rival_cpu_outer(void *state, const mcsa_qkv *x, const rival_partition *keys, const float *mean,
                            float *outer, mcsa_error *error);
mcsa_status rival_cpu_error(void *state, const mcsa_qkv *x, int Q, const float *query, const rival_partition *keys,
                            const float *key, const float *value, float *out, mcsa_error *error);
mcsa_status rival_cpu_diagonal(void *state, const mcsa_qkv *x, int stride, int size, float *block, mcsa_error *error);
mcsa_status rival_cpu_attend(void *state, const mcsa_qkv *x, const rival_partition *queries,
                             const rival_partition *keys, const rival_map *map, float *lse, mcsa_error *error);
mcsa_status rival_cpu_tail(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_map *map,
                           const rival_tail *tail, float *lse, mcsa_error *error);
mcsa_status rival_cpu_read_rows(void *state, const mcsa_tensor *x, const int32_t *index, int count, float *rows,
                                mcsa_error *error);
mcsa_status rival_cpu_read(void *state, const void *from, size_t bytes, void *to, mcsa_error *error);
mcsa_status rival_cpu_write(void *state, const void *from, size_t bytes, void *to, mcsa_error *error);
mcsa_status rival_cpu_subtract(void *state, const mcsa_tensor *dense, const mcsa_tensor *sparse, void *residual,
                               mcsa_error *error);
mcsa_status rival_cpu_add(void *state, const mcsa_tensor *out, const void *residual, mcsa_error *error);

#endif
