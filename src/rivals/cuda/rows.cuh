/* rows.cuh - rows of 16-bit numbers as floats. */
#ifndef RIVALS_CUDA_ROWS_CUH
#define RIVALS_CUDA_ROWS_CUH

#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> static __device__ __forceinline__ const T *row_of(const rival_rows &x, int head, int64_t row)
{
    return (const T *)x.data + head * x.head + row * x.row;
}

static __device__ __forceinline__ float row_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float row_float(__half x)
{
    return __half2float(x);
}

static __device__ __forceinline__ void row_round(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

static __device__ __forceinline__ void row_round(__half *to, float x)
{
    *to = __float2half_rn(x);
}

/* Eight neighbours from a multiple of 16 bytes, or zeros where `from` is NULL. */
template <typename T> static __device__ __forceinline__ void row_load(float (&to)[8], const T *from)
{
    uint4 bits = from ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
    const T *values = (const T *)&bits;
#pragma unroll
    for (int i = 0; i < 8; i++) to[i] = row_float(values[i]);
}

/* Calls `launch<T, D>` for the dtype and width of `rows`. */
#define ROWS_CHOOSE(rows, launch, ...)                                                                         \
    ((rows).dtype == MCSA_BF16                                                                                 \
         ? ((rows).D == 64 ? launch<__nv_bfloat16, 64>(__VA_ARGS__) : launch<__nv_bfloat16, 128>(__VA_ARGS__)) \
         : ((rows).D == 64 ? launch<__half, 64>(__VA_ARGS__) : launch<__half, 128>(__VA_ARGS__)))

/* Rows of one part. */
static __device__ __forceinline__ const int32_t *part_of(const rival_parts &parts, int head, int part, int *count)
{
    const int32_t *first = parts.first + (int64_t)head * (parts.P + 1) + part;
    *count = first[1] - first[0];
    return parts.order + (int64_t)head * parts.N + first[0];
}

/* The part that holds a place of the order; first [P + 1] is that of the head. */
static __device__ __forceinline__ int part_at(const int32_t *first, int P, int place)
{
    int low = 0, high = P; /* first[low] <= place < first[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The sum over a warp, in every lane and in a fixed order. */
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

#endif
