/* product.cuh - A B^T of 128 x 64 elements in FP32 from shared memory: the inner loop of assign, diagonal and
 * error.
 *
 * 256 threads; thread t has rows 8 (t / 16) + i and columns 4 (t mod 16) + j.  Operands lie with the depth outermost,
 * [depth][128 + 4] and [depth][64 + 4], so that a step reads 8 and 4 neighbours; the 4 that are not used keep the
 * writers, neighbours along the rows, off each other's banks.  The 16 threads of a row are neighbouring lanes. */
#ifndef RIVALS_CUDA_PRODUCT_CUH
#define RIVALS_CUDA_PRODUCT_CUH

#include "rows.cuh"

enum {
    PRODUCT_THREADS = 256,
    PRODUCT_M = 128,
    PRODUCT_N = 64,
    PRODUCT_A = PRODUCT_M + 4, /* floats from one step of the depth to the next */
    PRODUCT_B = PRODUCT_N + 4
};

typedef struct product_sums {
    float of[8][4];
} product_sums;

static __device__ __forceinline__ void product_clear(product_sums *c)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c->of[i][j] = 0;
}

static __device__ __forceinline__ int product_row(int i)
{
    return threadIdx.x / 16 * 8 + i;
}

static __device__ __forceinline__ int product_column(int j)
{
    return threadIdx.x % 16 * 4 + j;
}

/* c += a b^T over `depth` steps, in ascending order. */
static __device__ __forceinline__ void product_add(product_sums *c, const float *a, const float *b, int depth)
{
    a += product_row(0);
    b += product_column(0);
#pragma unroll 4
    for (int k = 0; k < depth; k++, a += PRODUCT_A, b += PRODUCT_B) {
        const float4 low = *(const float4 *)a, high = *(const float4 *)(a + 4), right = *(const float4 *)b;
        const float x[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
        const float y[4] = { right.x, right.y, right.z, right.w };
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) c->of[i][j] = fmaf(x[i], y[j], c->of[i][j]);
    }
}

/* ROWS rows of D numbers, transposed; source(row) is a row or NULL. */
template <typename T, int D, int ROWS, int PITCH, typename Source>
static __device__ __forceinline__ void product_load(float *to, Source source)
{
#pragma unroll 2
    for (int at = threadIdx.x; at < ROWS * (D / 8); at += PRODUCT_THREADS) {
        const int row = at % ROWS, chunk = at / ROWS * 8;
        const T *from = source(row);
        float value[8];
        row_load(value, from ? from + chunk : from);
#pragma unroll
        for (int i = 0; i < 8; i++) to[(chunk + i) * PITCH + row] = value[i];
    }
}

/* The same of float rows. */
template <int D, int ROWS, int PITCH, typename Source>
static __device__ __forceinline__ void product_load_floats(float *to, Source source)
{
#pragma unroll 2
    for (int at = threadIdx.x; at < ROWS * (D / 4); at += PRODUCT_THREADS) {
        const int row = at % ROWS, chunk = at / ROWS * 4;
        const float *from = source(row);
        const float4 value = from ? __ldg((const float4 *)(from + chunk)) : make_float4(0, 0, 0, 0);
        to[chunk * PITCH + row] = value.x;
        to[(chunk + 1) * PITCH + row] = value.y;
        to[(chunk + 2) * PITCH + row] = value.z;
        to[(chunk + 3) * PITCH + row] = value.w;
    }
}

/* Dynamic shared memory of more than 48 KiB has to be asked for. */
template <typename Kernel> static inline cudaError_t product_prepare(Kernel *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

#endif
