/* kernels.h - what a GPU does to the rows of a Wan transformer between its linear layers, one launcher each.
 *
 * A launcher puts work on `stream` and returns; it neither allocates nor waits.  Pointers are the device's, jobs those
 * of device.h and rowwise.h.  Rows are multiples of 8 channels and at most DIT_CUDA_MAX_DIM, 16-byte aligned; updates
 * and the rows of rms_rope are BF16.  Arithmetic is FP32, sums have a fixed order: the same rows give the same bits. */
#ifndef MCSA_DIT_CUDA_KERNELS_H
#define MCSA_DIT_CUDA_KERNELS_H

#include "dit/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DIT_CUDA_MAX_DIM = 16384, DIT_CUDA_MAX_HEAD_DIM = 256 };

cudaError_t dit_cuda_norm_rows(const dit_norm *job, int64_t N, cudaStream_t stream);
cudaError_t dit_cuda_rms_rope_rows(const dit_rms_rope *job, int64_t N, cudaStream_t stream);

cudaError_t dit_cuda_gather(const dit_patches *p, const float *latent, float *rows, cudaStream_t stream);
cudaError_t dit_cuda_scatter(const dit_patches *p, const float *rows, float *latent, cudaStream_t stream);

cudaError_t dit_cuda_silu(const float *x, float *out, int count, cudaStream_t stream);
cudaError_t dit_cuda_modulate(const dit_modulation *job, cudaStream_t stream);

/* Weights: [count] of `dtype` from floats, or the numbers first, first + 1, ... of a seed times `spread`. */
cudaError_t dit_cuda_cast(const float *x, void *out, mcsa_dtype dtype, int64_t count, cudaStream_t stream);
typedef struct dit_cuda_random_job {
    void *out;
    mcsa_dtype dtype;
    int64_t first, count;
    uint64_t seed;
    float spread;
} dit_cuda_random_job;
cudaError_t dit_cuda_random(const dit_cuda_random_job *job, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
