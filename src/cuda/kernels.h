/* kernels.h - the CUDA kernels behind the verbs of core/backend.h, one launcher each.
 *
 * A launcher enqueues work on `stream` and returns: it neither allocates nor synchronises, so any call can be captured
 * in a CUDA graph.  Scratch is the caller's, of the size that the matching *_bytes function gives for the same sizes.
 * All pointers are device pointers.  Checked before: dtype is BF16 or FP16, D is 64 or 128, C is 128, the stride along
 * D is 1, other strides and all addresses are multiples of 16 bytes.  Letters are those of METHOD.md. */
#ifndef MCSA_CUDA_KERNELS_H
#define MCSA_CUDA_KERNELS_H

#include "core/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MCSA_CUDA_C = 128,        /* queries of a group: the rows of one tile */
    MCSA_CUDA_KEY_BLOCK = 128 /* kept keys are padded to a multiple of it */
};

/* out = softmax(q k^T scale) v for q, out [H, N, D] and k, v [H, M, D].  lse: [H, N] natural log, or NULL. */
cudaError_t mcsa_cuda_attend_dense(const mcsa_qkv *x, float *lse, cudaStream_t stream);

/* Fast PDDP: selection->order [H, N] from q. */
size_t mcsa_cuda_group_bytes(const mcsa_dims *dims);
cudaError_t mcsa_cuda_group(const mcsa_qkv *x, int32_t *order, void *scratch, cudaStream_t stream);

/* Clusters of similar keys: selection->members and first from k. */
size_t mcsa_cuda_cluster_bytes(const mcsa_dims *dims, int P);
cudaError_t mcsa_cuda_cluster(const mcsa_qkv *x, const mcsa_selection *selection, void *scratch, cudaStream_t stream);

/* Means of the members of each cluster, rounded to the dtype of x: rows [H, P, D], FP32 sums in the order of the
 * members.  The row of an empty cluster stays as it was. */
cudaError_t mcsa_cuda_means(const mcsa_tensor *x, const mcsa_selection *selection, void *rows, cudaStream_t stream);

/* Group mass m_gj of equation (2) for heads [head, head + heads): mass [heads, G, pitch], pitch >= M a multiple of 128;
 * what lies past M is unspecified. */
typedef struct mcsa_cuda_mass_job {
    const mcsa_qkv *x;
    const float *lse;     /* [H, N] */
    const int32_t *order; /* [H, N] */
    int head, heads;
    float *mass;   /* [heads, G, pitch] */
    int64_t pitch; /* elements between rows */
} mcsa_cuda_mass_job;
cudaError_t mcsa_cuda_mass(const mcsa_cuda_mass_job *job, cudaStream_t stream);

/* The K largest of each row, of equal ones the lower index: kept [rows, ceil(N / 64)]. */
typedef struct mcsa_cuda_top_job {
    const float *mass; /* [rows, pitch], none negative */
    int64_t rows, pitch;
    int N, K;
    uint64_t *kept;
} mcsa_cuda_top_job;
cudaError_t mcsa_cuda_top(const mcsa_cuda_top_job *job, cudaStream_t stream);

/* Rows of heads [head, head + heads) of x [H, N, D] in the order of the clusters. */
typedef struct mcsa_cuda_collect_job {
    const mcsa_tensor *x;
    const int32_t *members; /* [H, N] */
    int head, heads;
    void *rows; /* [heads, N, D] */
} mcsa_cuda_collect_job;
cudaError_t mcsa_cuda_collect(const mcsa_cuda_collect_job *job, cudaStream_t stream);

/* Worth of each cluster, the mean mass of its members: FP32 sums in the order of the members; 0 when empty. */
typedef struct mcsa_cuda_fold_job {
    const float *mass;    /* [rows, pitch], masses in the order of the clusters */
    int64_t pitch;        /* a multiple of 4 */
    const int32_t *first; /* [rows / G, P + 1] */
    int64_t rows;
    int G, P;
    float *worth; /* [rows, P] */
} mcsa_cuda_fold_job;
cudaError_t mcsa_cuda_fold(const mcsa_cuda_fold_job *job, cudaStream_t stream);

/* Clusters in the order of worth, of equal worth the lower one first, each kept if its keys fit into K rows together
 * with those kept before and the means of all others that are not empty: kept [rows, ceil(P / 64)].  P is at most
 * MCSA_MAX_CLUSTERS. */
typedef struct mcsa_cuda_rank_job {
    const float *worth;   /* [rows, P], none negative */
    const int32_t *first; /* [rows / G, P + 1] */
    int64_t rows;
    int G, P, K;
    uint64_t *kept;
} mcsa_cuda_rank_job;
cudaError_t mcsa_cuda_rank(const mcsa_cuda_rank_job *job, cudaStream_t stream);

/* Selection over chunks of heads: selection->kept from q, k, lse, selection->order and, when P > 0, the clusters. */
size_t mcsa_cuda_select_bytes(const mcsa_dims *dims, int P);
cudaError_t mcsa_cuda_select(const mcsa_qkv *x, const float *lse, const mcsa_selection *selection, void *scratch,
                             cudaStream_t stream);

/* What each group attends to.  P = 0: K keys, ascending.  P > 0: the keys of its kept clusters, cluster after cluster,
 * then N + p for the mean of each other cluster p that has members, ascending; at most K rows. */
typedef struct mcsa_cuda_lists {
    int32_t *rows;  /* [H, G, pitch], -1 behind the last */
    int64_t pitch;  /* K rounded up to MCSA_CUDA_KEY_BLOCK */
    int32_t *plain; /* P > 0: [H, G] rows that are keys */
    float *bias;    /* P > 0: [H, P + 1] log(size of p) / scale; the last is -infinity */
} mcsa_cuda_lists;
cudaError_t mcsa_cuda_expand(const mcsa_selection *selection, const mcsa_cuda_lists *lists, cudaStream_t stream);
cudaError_t mcsa_cuda_expand_clusters(const mcsa_selection *selection, float scale, const mcsa_cuda_lists *lists,
                                      cudaStream_t stream);

/* Sparse attention of every group over its kept keys and the means of this call; residual->rows is [H, N, D] BF16 in
 * group order, or NULL. */
size_t mcsa_cuda_attend_tokens_bytes(const mcsa_dims *dims, int K, int P);
cudaError_t mcsa_cuda_attend_tokens(const mcsa_qkv *x, const mcsa_selection *selection,
                                    const mcsa_residual_rows *residual, void *scratch, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
