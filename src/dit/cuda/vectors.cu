/* vectors.cu - the small things: SiLU and modulation of the time embedding, and weights as they come to the device. */
#include "dit/random_weights.h"
#include "kernels.h"

#include <cuda_bf16.h>

enum { THREADS = 256, MAX_BLOCKS = 4096 };

static unsigned blocks_for(int64_t count)
{
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MAX_BLOCKS ? blocks : (int64_t)MAX_BLOCKS);
}

static __device__ __forceinline__ void put(float *out, int64_t i, float x)
{
    out[i] = x;
}

static __device__ __forceinline__ void put(__nv_bfloat16 *out, int64_t i, float x)
{
    out[i] = __float2bfloat16_rn(x);
}

static __global__ void silu(const float *x, float *out, int count)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = x[i] / (1.0f + expf(-x[i]));
}

static __global__ void modulate(const dit_modulation job)
{
    const int r = blockIdx.y, c = blockIdx.x * THREADS + threadIdx.x;
    const float one = (float)(job.scales >> r & 1);
    if (c < job.dim)
        job.out[(int64_t)r * job.dim + c] =
            job.table[(int64_t)r * job.dim + c] + job.value[(int64_t)r * job.value_stride + c] + one;
}

template <typename Out> static __global__ void cast(const float *x, Out *out, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS)
        put(out, i, x[i]);
}

template <typename Out> static __global__ void fill(const dit_cuda_random_job job)
{
    Out *out = (Out *)job.out;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < job.count; i += (int64_t)gridDim.x * THREADS)
        put(out, i, job.spread * dit_random_unit(job.seed, (uint64_t)(job.first + i)));
}

cudaError_t dit_cuda_silu(const float *x, float *out, int count, cudaStream_t stream)
{
    silu<<<(count + THREADS - 1) / THREADS, THREADS, 0, stream>>>(x, out, count);
    return cudaGetLastError();
}

cudaError_t dit_cuda_modulate(const dit_modulation *job, cudaStream_t stream)
{
    modulate<<<dim3((job->dim + THREADS - 1) / THREADS, job->rows), THREADS, 0, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t dit_cuda_cast(const float *x, void *out, mcsa_dtype dtype, int64_t count, cudaStream_t stream)
{
    if (dtype == MCSA_BF16)
        cast<<<blocks_for(count), THREADS, 0, stream>>>(x, (__nv_bfloat16 *)out, count);
    else
        cast<<<blocks_for(count), THREADS, 0, stream>>>(x, (float *)out, count);
    return cudaGetLastError();
}

cudaError_t dit_cuda_random(const dit_cuda_random_job *job, cudaStream_t stream)
{
    if (job->dtype == MCSA_BF16)
        fill<__nv_bfloat16><<<blocks_for(job->count), THREADS, 0, stream>>>(*job);
    else
        fill<float><<<blocks_for(job->count), THREADS, 0, stream>>>(*job);
    return cudaGetLastError();
}
