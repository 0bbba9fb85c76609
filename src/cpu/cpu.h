/* cpu.h - the state of the CPU backend, shared by its verbs. */
#ifndef MCSA_CPU_CPU_H
#define MCSA_CPU_CPU_H

#include "core/backend.h"
#include "tile.h"

/* Scratch of grouping, for all heads at once. */
typedef struct mcsa_group_scratch {
    float *projection;  /* [H, N] on each node's principal direction */
    uint32_t *rank;     /* [H, N] the same in integer order */
    int32_t *order;     /* [H, N] the next level */
    int32_t *bounds[2]; /* [G + 1] first group of each node, and the end */
} mcsa_group_scratch;

/* Scratch of clusters of keys, for all heads at once.  A verb finds nothing there that another one left. */
typedef struct mcsa_cluster_scratch {
    void *key, *value; /* [H, P, D] centres, or mean keys and values of this step, in the dtype of the tensors */
    float *half;       /* [H, P] half the squared length of a centre */
    float *log2_size;  /* [H, P] of the keys that a mean stands for */
    int32_t *label;    /* [H, N] */
    uint64_t *rank;    /* [threads, P] clusters in the order of their worth to a group */
} mcsa_cluster_scratch;

typedef struct mcsa_cpu {
    mcsa_memory *memory;
    int threads, C;
    mcsa_kernel_set kernels;
    int D, M; /* largest that scratch is for */
    int64_t HN, HP, P;
    mcsa_block self, scratch;
    mcsa_tile *tiles; /* [threads] */
    mcsa_group_scratch group;
    mcsa_cluster_scratch clusters;
    double mark; /* seconds at the last lap */
} mcsa_cpu;

void mcsa_cpu_attend_dense(void *state, const mcsa_qkv *x, float *lse);
void mcsa_cpu_group(void *state, const mcsa_qkv *x, mcsa_selection *selection);
void mcsa_cpu_cluster(void *state, const mcsa_qkv *x, mcsa_selection *selection);
void mcsa_cpu_select(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *selection);
double mcsa_cpu_attend_select(void *state, const mcsa_qkv *x, mcsa_selection *selection);
int64_t mcsa_cpu_attend_tokens(void *state, const mcsa_qkv *x, const mcsa_selection *selection,
                               const mcsa_residual_rows *residual);

/* BF16 tensors have a table of their own where there is BF16 arithmetic; all others compute in float. */
static inline const mcsa_kernels *mcsa_cpu_kernels(const mcsa_cpu *cpu, mcsa_dtype dtype)
{
    return dtype == MCSA_BF16 ? &cpu->kernels.bf16 : &cpu->kernels.f32;
}

/* Keys of cluster p of head h. */
static inline const int32_t *mcsa_cluster(const mcsa_selection *s, int h, int p, int *count)
{
    const int32_t *first = s->first + (int64_t)h * (s->P + 1) + p;
    *count = first[1] - first[0];
    return s->members + (int64_t)h * s->N + first[0];
}

/* Row `hp` of one of the scratch arrays [H, P, D]. */
static inline void *mcsa_cluster_row(void *rows, const mcsa_dims *dims, int64_t hp)
{
    return (char *)rows + (dims->dtype == MCSA_F32 ? 4 : 2) * hp * dims->D;
}

/* All rows of head h, or the rows that index names. */
static inline mcsa_rows mcsa_head_rows(const mcsa_tensor *t, int h, const int32_t *index, int64_t first, int count)
{
    int64_t bytes = t->dtype == MCSA_F32 ? 4 : 2;
    const void *data = (const char *)t->data + bytes * h * t->stride[0];
    return (mcsa_rows){ data, t->dtype, t->stride[1], t->stride[2], index, first, count, (int)t->shape[2] };
}

#endif
