/* kernels.h - the CUDA kernels behind the verbs of rivals/kernels.h, one launcher each.
 *
 * A launcher enqueues work on `stream` and returns.  All pointers are the device's; tensors are checked before
 * (state.h).  Arithmetic is FP32 of 16-bit rows; sums have a fixed order. */
#ifndef RIVALS_CUDA_KERNELS_H
#define RIVALS_CUDA_KERNELS_H

#include "core/plan.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor [H, N, D]; strides in elements. */
typedef struct rival_rows {
    void *data;
    int64_t head, row;
    int H, N, D;
    mcsa_dtype dtype;
} rival_rows;

/* A partition of N rows in each of H heads (rivals/partition.h). */
typedef struct rival_parts {
    const int32_t *order; /* [H, N] */
    const int32_t *first; /* [H, P + 1] */
    int H, N, P;
} rival_parts;

/* mean [H, P, D] */
cudaError_t rival_launch_pool(const rival_rows *x, const rival_parts *parts, float *mean, cudaStream_t stream);

/* cosine [H, P]; shift [H, D] or NULL */
cudaError_t rival_launch_cosine(const rival_rows *x, const rival_parts *parts, const float *shift, float *cosine,
                                cudaStream_t stream);

/* label [H, N].  centre [H, P, D]: rounded to the dtype of x before distances. */
cudaError_t rival_launch_assign(const rival_rows *x, int P, const float *centre, int32_t *label, cudaStream_t stream);

/* outer [H, D, D] = sum of (k - mean of its part)^T v over the rows of all parts */
enum { RIVAL_CUDA_OUTER_PIECES = 64 /* of a head's rows, summed apart */ };
typedef struct rival_outer_job {
    rival_rows k, v;
    rival_parts parts;
    const float *mean; /* [H, P, D] */
    float *pieces;     /* [H, RIVAL_CUDA_OUTER_PIECES, D, D] scratch */
    float *outer;
} rival_outer_job;
cudaError_t rival_launch_outer(const rival_outer_job *job, cudaStream_t stream);

/* Queries in tiles of 128 as mcsa_cuda_mass wants them: packed [H, padded, D], zeros where a tile has no row, their
 * LSE, infinite there, and their order, which is ascending. */
typedef struct rival_pack_job {
    rival_rows q;
    const float *lse;     /* [H, N] */
    const int32_t *order; /* [H, padded] row numbers, -1: none */
    int padded;
    void *packed; /* [H, padded, D] */
    float *packed_lse;
    int32_t *packed_order;
} rival_pack_job;
cudaError_t rival_launch_pack(const rival_pack_job *job, cudaStream_t stream);

/* out [heads, Q, K]: what lines [line .. line + lines) of x [heads, L, pitch] hold in the columns of part k of the
 * keys, added up, or for LOG_SUM the log of the sum of exponentials. */
typedef enum rival_fold { RIVAL_FOLD_SUM, RIVAL_FOLD_LOG_SUM } rival_fold;
typedef struct rival_fold_job {
    const float *x;
    int64_t pitch;
    int L;
    const int32_t *line; /* [H, Q + 1] lines of a part of the queries; NULL: line q is its own */
    int head, heads, Q;
    rival_parts keys;
    int by_place; /* columns are places in keys.order, not row numbers */
    float *out;
} rival_fold_job;
cudaError_t rival_launch_fold(const rival_fold_job *job, rival_fold fold, cudaStream_t stream);

/* Natural log of |exp(a) v - exp(c) w|^2 for each query and each place in the keys' order: out [heads, Q, N]. */
typedef struct rival_error_job {
    rival_rows k, v;
    rival_parts keys;
    const float *query;       /* [H, Q, D] */
    const float *key, *value; /* [H, P, D] */
    float4 *places;           /* [heads, N] scratch */
    float *centre;            /* [heads, Q, P] scratch: c */
    int head, heads, Q;
    float scale;
    float *out;
} rival_error_job;
cudaError_t rival_launch_error(const rival_error_job *job, cudaStream_t stream);

/* block [H, B, B] */
typedef struct rival_diagonal_job {
    rival_rows q, k;
    int stride, size;
    int strided, blocks; /* ceil(N / stride), ceil(N / size) */
    float factor;        /* scale / stride */
    float *scores;       /* [strided, strided] scratch, one head at a time */
    float *lines;        /* [strided, blocks] scratch */
    float *block;
} rival_diagonal_job;
cudaError_t rival_launch_diagonal(const rival_diagonal_job *job, cudaStream_t stream);

enum { RIVAL_CUDA_TILE = 128 /* queries */, RIVAL_CUDA_KEY_BLOCK = 176 /* keys that attend takes at a time */ };

/* Up to RIVAL_CUDA_TILE queries of one part. */
typedef struct rival_tile {
    int head, part;
    int place, rows; /* in the queries' order of the head */
    int count;       /* keys: at least 1 where there is a list */
    int64_t list;    /* where its keys begin */
} rival_tile;

/* Kept keys of every part of the queries: counts [H, Q] how many, then the rows of its kept parts in order,
 * lists + list[h Q + q] ...  single: each part of the keys is one row. */
typedef struct rival_expand_job {
    rival_parts keys;
    int single;
    const uint64_t *kept; /* [H, Q, words] */
    int64_t words;
    int Q;
    int32_t *counts;
    const int64_t *list; /* [H, Q] */
    int32_t *lists;
} rival_expand_job;
cudaError_t rival_launch_count(const rival_expand_job *job, cudaStream_t stream);
cudaError_t rival_launch_expand(const rival_expand_job *job, cudaStream_t stream);

typedef struct rival_attend_job {
    const rival_tile *tiles;
    const int32_t *deal; /* [blocks + 1] tiles of a thread block */
    int blocks;
    const int32_t *order; /* [H, N] of the queries */
    const int32_t *lists;
    float *lse; /* [H, N] natural log, or NULL */
} rival_attend_job;
cudaError_t rival_launch_attend(const mcsa_qkv *x, const rival_attend_job *job, cudaStream_t stream);

/* Zeros, and nothing in their denominators, for the rows of tiles that keep nothing. */
typedef struct rival_clear_job {
    rival_rows out;
    const rival_tile *tiles;
    int count;
    const int32_t *order;
    float *lse;
} rival_clear_job;
cudaError_t rival_launch_clear(const rival_clear_job *job, cudaStream_t stream);

typedef struct rival_tail_job {
    rival_rows q, out;
    const rival_tile *tiles;
    int count;
    const int32_t *order;
    const uint64_t *kept; /* [H, Q, words] */
    int64_t words;
    int Q, K;
    const float *key, *value, *weight, *slope; /* rival_tail; slope [H, D, D] or NULL */
    float scale;
    float *lse; /* [H, N] */
} rival_tail_job;
cudaError_t rival_launch_tail(const rival_tail_job *job, cudaStream_t stream);

/* rows [H, count, D] */
cudaError_t rival_launch_read_rows(const rival_rows *x, const int32_t *index, int count, float *rows,
                                   cudaStream_t stream);

/* residual [H, N, D] BF16 */
cudaError_t rival_launch_subtract(const rival_rows *dense, const rival_rows *sparse, void *residual,
                                  cudaStream_t stream);
cudaError_t rival_launch_add(const rival_rows *out, const void *residual, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
