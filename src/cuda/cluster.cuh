/* cluster.cuh - what the kernels of k-means over keys share: its arrays, and its steps as launchers. */
#ifndef MCSA_CUDA_CLUSTER_CUH
#define MCSA_CUDA_CLUSTER_CUH

#include "kernels.h"

enum {
    CLUSTER_BLOCK = 128, /* centres are padded to a multiple of it */
    CLUSTER_CHUNK = 4096 /* keys that one block counts and places */
};

typedef struct cluster_job {
    const mcsa_tensor *keys; /* [H, N, D] */
    mcsa_tensor centres;     /* [H, P, D], contiguous */
    int H, N, D, P;
    float *offset;    /* [H, pitch] -|c|^2 / 2, what a centre adds to its products; -infinity past P */
    int64_t pitch;    /* P rounded up to CLUSTER_BLOCK */
    uint16_t *label;  /* [H, N] */
    int32_t *before;  /* [H, chunks, P] members that a cluster has in earlier chunks */
    int chunks;       /* of a head */
    int32_t *members; /* [H, N] */
    int32_t *first;   /* [H, P + 1] */
} cluster_job;

/* Places the arrays of one clustering in scratch; with `scratch` NULL only measures. */
size_t cluster_carve(cluster_job *job, const mcsa_dims *dims, int P, void *scratch);

/* keys -> centres: evenly spaced rows. */
cudaError_t cluster_start(const cluster_job *job, cudaStream_t stream);
/* centres -> offset */
cudaError_t cluster_offsets(const cluster_job *job, cudaStream_t stream);
/* keys, centres, offset -> label: the largest of product + offset, of equal ones the lower cluster; 0 where all are
 * NaN. */
cudaError_t cluster_nearest(const cluster_job *job, cudaStream_t stream);
/* label -> members and first */
cudaError_t cluster_members(const cluster_job *job, cudaStream_t stream);

#endif
