/* kernels.h - what the methods ask of the hardware: one table, filled for the CPU in cpu/ and for NVIDIA GPUs in cuda/.
 *
 * Tensors, lse and blocks from `memory` lie where the backend computes.  Partitions, maps and all arrays called float *
 * or int32_t * below are the host's: they are small, and methods decide on the host.  Each call returns when its
 * results can be read.  Work is deterministic: fixed orders of summation, ties to the lower index. */
#ifndef RIVALS_KERNELS_H
#define RIVALS_KERNELS_H

#include "core/plan.h"
#include "partition.h"

/* The keys that a query's part does not keep, one virtual key per part: in the same softmax, part k of the keys has the
 * logit scale q . key_k + log weight_k and the value value_k + slope^T q.  Parts with weight 0 are left out. */
typedef struct rival_tail {
    float *key;    /* [H, K, D] */
    float *value;  /* [H, K, D] */
    float *weight; /* [H, K] tokens of the part */
    float *slope;  /* [H, D, D] added as sum_d q_d slope[d, .], or NULL */
} rival_tail;

typedef struct rival_kernels {
    const char *name;
    const char *version; /* MCSA_VERSION */

    /* stream: a cudaStream_t; threads, isa: the CPU's */
    mcsa_status (*open)(void **state, const mcsa_config *config, mcsa_error *error);
    void (*close)(void *state);
    mcsa_allocator (*memory)(void *state); /* aligned to 256 bytes */
    /* Until all work that was put on the stream so far is done. */
    mcsa_status (*wait)(void *state, mcsa_error *error);

    /* mean [H, P, D] of the rows of each part, FP32 sums in ascending place; 0 for an empty part. */
    mcsa_status (*pool)(void *state, const mcsa_tensor *x, const rival_partition *parts, float *mean,
                        mcsa_error *error);

    /* cosine [H, P]: mean over all ordered pairs of rows of a part, a row with itself included, of the cosine of x -
     * shift; |sum of (x - shift) / |x - shift||^2 / count^2.  A zero row counts as a zero vector.  shift: [H, D], or
     * NULL. */
    mcsa_status (*cosine)(void *state, const mcsa_tensor *x, const rival_partition *parts, const float *shift,
                          float *cosine, mcsa_error *error);

    /* label [H, N]: the centre [H, P, D], rounded to the dtype of x, nearest to each row: squared distance
     * |c|^2 - 2 x . c in FP32. */
    mcsa_status (*assign)(void *state, const mcsa_tensor *x, int P, const float *centre, int32_t *label,
                          mcsa_error *error);

    /* mass [H, Q, K]: attention that the queries of each part give to the keys of each part,
     * sum_{i in q, j in k} exp(scale s_ij - lse_i).  lse: [H, N], the backend's memory. */
    mcsa_status (*mass)(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_partition *keys,
                        const float *lse, float *mass, mcsa_error *error);

    /* outer [H, D, D]: sum over parts and their rows of (k - mean_part)^T v.  mean: [H, P, D] of k. */
    mcsa_status (*outer)(void *state, const mcsa_qkv *x, const rival_partition *keys, const float *mean, float *outer,
                         mcsa_error *error);

    /* error [H, Q, K]: the natural log of sum_{j in k} |exp(a_j) v_j - exp(c) w|^2, a_j = scale query . k_j,
     * c = scale query . key_k, w = value_k: what replacing part k by its mean costs the query [H, Q, D].  Computed
     * relative to the part's largest exponent, so that no score overflows; -INFINITY for an empty part or no error. */
    mcsa_status (*error)(void *state, const mcsa_qkv *x, int Q, const float *query, const rival_partition *keys,
                         const float *key, const float *value, float *out, mcsa_error *error);

    /* block [H, B, B], B = ceil(N / size): softmax over strided keys of the antidiagonal sums
     * scale / stride * sum_r q_{u stride + stride - 1 - r} . k_{v stride + r}, summed over the (size / stride)^2
     * entries of each pair of blocks.  Rows past N are zero vectors in a sum, and a strided key or query with no row at
     * all is left out.  size is a multiple of stride. */
    mcsa_status (*diagonal)(void *state, const mcsa_qkv *x, int stride, int size, float *block, mcsa_error *error);

    /* out rows of the queries' parts = softmax over the kept keys; other rows stay as they are.  A part that keeps
     * nothing gets 0, lse -INFINITY.  lse: [H, N] natural log, the backend's memory, or NULL. */
    mcsa_status (*attend)(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_partition *keys,
                          const rival_map *map, float *lse, mcsa_error *error);

    /* Merges the tail into out and lse, both as attend left them. */
    mcsa_status (*tail)(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_map *map,
                        const rival_tail *tail, float *lse, mcsa_error *error);

    /* rows [H, count, D] of a tensor; index: [count] row numbers */
    mcsa_status (*read_rows)(void *state, const mcsa_tensor *x, const int32_t *index, int count, float *rows,
                             mcsa_error *error);

    /* Copies bytes of the backend's memory to the host. */
    mcsa_status (*read)(void *state, const void *from, size_t bytes, void *to, mcsa_error *error);
    /* Bytes of the host to the backend's memory. */
    mcsa_status (*write)(void *state, const void *from, size_t bytes, void *to, mcsa_error *error);

    /* The cached residual, BF16 [H, N, D]: residual = dense - sparse;  out += residual. */
    mcsa_status (*subtract)(void *state, const mcsa_tensor *dense, const mcsa_tensor *sparse, void *residual,
                            mcsa_error *error);
    mcsa_status (*add)(void *state, const mcsa_tensor *out, const void *residual, mcsa_error *error);
} rival_kernels;

extern const rival_kernels rival_kernels_cpu;

/* That of the CPU, or the one in libmcsa_rivals_cuda, loaded when first asked for; MCSA_EUNSUPPORTED says why it cannot
 * be. */
mcsa_status rival_kernels_find(const rival_kernels **out, mcsa_device device, mcsa_error *error);

#endif
