/* row.cuh - how a block of threads holds a row: a thread has CHUNKS times 8 neighbouring channels in registers, chunk c
 * of thread t at channel 8 (c threads + t).  Every access is of 16 bytes, and neighbouring threads meet. */
#ifndef MCSA_DIT_CUDA_ROW_CUH
#define MCSA_DIT_CUDA_ROW_CUH

#include "kernels.h"

#include <cuda_bf16.h>

enum { CHUNKS = 2, CHANNELS = 8, MAX_THREADS = DIT_CUDA_MAX_DIM / (CHUNKS * CHANNELS) };

static inline int row_threads(int dim)
{
    const int each = (dim / CHANNELS + CHUNKS - 1) / CHUNKS;
    return (each + 31) / 32 * 32;
}

struct eight {
    float v[CHANNELS];
};

/* Streamed: read once, so they should not push the vectors of a row, which every block reads, out of the L1. */
static __device__ __forceinline__ eight load_streamed(const float *p)
{
    const float4 a = __ldcs((const float4 *)p), b = __ldcs((const float4 *)p + 1);
    return { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };
}

/* Eight BF16: the low half of a word comes first. */
static __device__ __forceinline__ eight unpack(uint4 bits)
{
    const unsigned word[4] = { bits.x, bits.y, bits.z, bits.w };
    eight x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.v[2 * i] = __uint_as_float(word[i] << 16);
        x.v[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
    }
    return x;
}

static __device__ __forceinline__ eight load_streamed(const __nv_bfloat16 *p)
{
    return unpack(__ldcs((const uint4 *)p));
}

static __device__ __forceinline__ eight load_shared_by_rows(const float *p)
{
    const float4 a = __ldg((const float4 *)p), b = __ldg((const float4 *)p + 1);
    return { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };
}

static __device__ __forceinline__ void store_eight(float *p, const eight &x)
{
    ((float4 *)p)[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
    ((float4 *)p)[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
}

static __device__ __forceinline__ unsigned pack_bf16(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const unsigned *)&pair;
}

static __device__ __forceinline__ void store_eight(__nv_bfloat16 *p, const eight &x)
{
    *(uint4 *)p = make_uint4(pack_bf16(x.v[0], x.v[1]), pack_bf16(x.v[2], x.v[3]), pack_bf16(x.v[4], x.v[5]),
                             pack_bf16(x.v[6], x.v[7]));
}

/* The sum over the block, in every thread and in a fixed order.  partial: [32] of shared memory, used by one call only;
 * the call is a barrier. */
static __device__ __forceinline__ float block_sum(float value, float *partial)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
    if (lane == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = lane < warps ? partial[lane] : 0.0f;
#pragma unroll
    for (int far = 16; far > 0; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
    return value;
}

#endif
