/* group_pca.cuh - the principal direction of rows in shared memory, by one CTA of two warpgroups.
 *
 * The Gram matrix X^T X is made by wgmma, both operands transposed views of the same rows: warpgroup w makes rows
 * [64 w, 64 w + 64) of the D x D result in registers (at D = 64 the second repeats the first).  Another wgmma, of 8
 * columns of ones, makes the column sums s: adding them up from shared memory took as long as the Gram matrix, since
 * that uses three quarters of its bandwidth.  Then every thread centres what it holds, C = X^T X - s s^T / n, and C is
 * multiplied PCA_PRODUCTS times with a vector in shared memory; a row of the result lies in four lanes of one warp, so
 * a product is 64 multiply-adds, two shuffles and one barrier.
 *
 * C is divided by its largest diagonal element, so the largest eigenvalue is in [1, D] and the vector, which starts at
 * the unit vector of that element, neither vanishes nor overflows in 8 products: D^8 < 1e17.
 *
 * Cancellation in C: FP32 sums over n <= 4,096 rows, cut at 2^-23 of the largest addend in each of n / 16 steps, lose
 * up to n / 16 2^-23 = 3e-5 of |mean|^2.  That is 1 % of the largest variance where the mean is 18 standard deviations
 * off, and what is lost is nearly a multiple of mean mean^T, which moves the direction only where that matters as
 * little. */
#ifndef MCSA_CUDA_GROUP_PCA_CUH
#define MCSA_CUDA_GROUP_PCA_CUH

#include "group_rows.cuh"

enum { PCA_THREADS = 256, PCA_WARPS = PCA_THREADS / 32, PCA_ROWS = 128, PCA_PRODUCTS = 8 };

typedef struct pca_shared {
    __align__(1024) uint32_t ones[256]; /* pairs of ones: an operand [8, 64] */
    float sum[128], diagonal[128];
    float vector[2][128];
    uint32_t split[3][64]; /* pairs of the vector's elements as 16-bit floats: rounded, what that left, zeros */
} pca_shared;

/* What one thread holds: rows r and r + 8 of the matrix, r = 16 warp + lane / 4, columns 8 j + 2 (lane % 4) (+ 1) in
 * gram[4 j] ..., and the sums of columns r and r + 8 of X in sum[0] and sum[2]. */
template <int D> struct pca_block {
    float gram[D / 2];
    float sum[4];
};

/* Once per CTA, before a barrier. */
template <typename T> static __device__ __forceinline__ void pca_ones(pca_shared *shared)
{
    for (int i = threadIdx.x; i < 256; i += PCA_THREADS) shared->ones[i] = wgmma_pack<T>(1.0f, 1.0f);
    fence_async_shared();
}

template <int D> static __device__ __forceinline__ void pca_begin(pca_block<D> &block)
{
#pragma unroll
    for (int i = 0; i < D / 2; i++) block.gram[i] = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) block.sum[i] = 0;
}

/* d [64, N] += A^T B of 16 rows, A [16, 64] and B [16, N] by descriptor, N twice the length of d. */
#define PCA_GRAM(N, R, TYPE, X0, X1)                                                                     \
    asm volatile("{\n"                                                                                   \
                 ".reg .pred p;\n"                                                                       \
                 "setp.eq.u32 p, 0, 0;\n"                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_OF_##R \
                 "}, %" #X0 ", %" #X1 ", p, 1, 1, 1, 1;\n"                                               \
                 "}"                                                                                     \
                 : WGMMA_VALUES_OF_##R                                                                   \
                 : "l"(a), "l"(b))

template <typename T> static __device__ __forceinline__ void pca_gram(float (&d)[64], uint64_t a, uint64_t b)
{
    if constexpr (wgmma_type<T>::bf16)
        PCA_GRAM(128, 64, "bf16", 64, 65);
    else
        PCA_GRAM(128, 64, "f16", 64, 65);
}

template <typename T> static __device__ __forceinline__ void pca_gram(float (&d)[32], uint64_t a, uint64_t b)
{
    if constexpr (wgmma_type<T>::bf16)
        PCA_GRAM(64, 32, "bf16", 32, 33);
    else
        PCA_GRAM(64, 32, "f16", 32, 33);
}

#undef PCA_GRAM

/* d [64, 8] += A^T B of 16 rows, A [16, 64] and B [8, 16] of ones by descriptor. */
#define PCA_SUM(TYPE)                                                       \
    asm volatile("{\n"                                                      \
                 ".reg .pred p;\n"                                          \
                 "setp.eq.u32 p, 0, 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE \
                 " {%0, %1, %2, %3}, %4, %5, p, 1, 1, 1, 0;\n"              \
                 "}"                                                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])           \
                 : "l"(a), "l"(b))

template <typename T> static __device__ __forceinline__ void pca_sum(float (&d)[4], uint64_t a, uint64_t b)
{
    if constexpr (wgmma_type<T>::bf16)
        PCA_SUM("bf16");
    else
        PCA_SUM("f16");
}

#undef PCA_SUM

/* Starts to add rows [first, first + PCA_ROWS) of a tile of R rows; 8 divides first.  All threads have waited for the
 * rows. */
template <typename T, int D, int R>
static __device__ __forceinline__ void pca_add(pca_block<D> &block, const char *tile, int first,
                                               const pca_shared *shared)
{
    uint32_t at = shared_address(tile) + first * 128;
    uint64_t b = wgmma_descriptor(at, R * 128), ones = wgmma_descriptor(shared_address(shared->ones), 16);
    uint64_t a = wgmma_descriptor(at + threadIdx.x / 128 % (D / 64) * (R * 128), R * 128);
    wgmma_hold(block.gram);
    wgmma_hold(block.sum);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < PCA_ROWS / 16; step++) {
        pca_gram<T>(block.gram, a + 128 * step, b + 128 * step);
        pca_sum<T>(block.sum, a + 128 * step, ones);
    }
    wgmma_commit();
}

/* Waits for what pca_add started; after a barrier the tile may be overwritten. */
template <int D> static __device__ __forceinline__ void pca_wait(pca_block<D> &block)
{
    wgmma_wait<0>();
    wgmma_hold(block.gram);
    wgmma_hold(block.sum);
}

/* gram -> C / its largest diagonal element; vector[0] -> the unit vector of that element. */
template <int D> static __device__ __forceinline__ void pca_centre(pca_block<D> &block, int count, pca_shared *shared)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = 16 * warp + lane / 4, column = 2 * (lane % 4);
    if (row < D && lane % 4 == 0) {
        shared->sum[row] = block.sum[0];
        shared->sum[row + 8] = block.sum[2];
    }
    __syncthreads();
    if (row < D) {
        float inverse = -1.0f / (float)count, upper = block.sum[0] * inverse, lower = block.sum[2] * inverse;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float2 sum = *(const float2 *)&shared->sum[column + 8 * j];
            block.gram[4 * j] = fmaf(upper, sum.x, block.gram[4 * j]);
            block.gram[4 * j + 1] = fmaf(upper, sum.y, block.gram[4 * j + 1]);
            block.gram[4 * j + 2] = fmaf(lower, sum.x, block.gram[4 * j + 2]);
            block.gram[4 * j + 3] = fmaf(lower, sum.y, block.gram[4 * j + 3]);
        }
#pragma unroll
        for (int w = 0; w < D / 16; w++)
            if (w == warp && lane / 4 / 2 == lane % 4) { /* rows 16 w + lane / 4 (+ 8) meet their columns here */
                int odd = lane / 4 % 2;
                shared->diagonal[row] = odd ? block.gram[8 * w + 1] : block.gram[8 * w];
                shared->diagonal[row + 8] = odd ? block.gram[8 * w + 7] : block.gram[8 * w + 6];
            }
    }
    __syncthreads();
    uint32_t best = 0; /* the leading 25 bits of a positive float, and below them 127 - its place */
    for (int d = lane; d < D; d += 32)
        best = max(best, (__float_as_uint(fmaxf(shared->diagonal[d], 0.0f)) & ~127u) | (127u - d));
    best = __reduce_max_sync(~0u, best);
    float largest = __uint_as_float(best & ~127u), scale = largest > 0 ? 1.0f / largest : 0.0f;
#pragma unroll
    for (int i = 0; i < D / 2; i++) block.gram[i] *= scale;
    if (threadIdx.x < D) shared->vector[0][threadIdx.x] = threadIdx.x == 127u - (best & 127u) ? 1.0f : 0.0f;
    __syncthreads();
}

/* vector [D] -> next [D] */
template <int D>
static __device__ __forceinline__ void pca_multiply(const pca_block<D> &block, const float *vector, float *next)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = 2 * (lane % 4);
    if (row >= D) return;
    float2 upper = make_float2(0, 0), lower = make_float2(0, 0);
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        float2 v = *(const float2 *)&vector[column + 8 * j];
        upper.x = fmaf(block.gram[4 * j], v.x, upper.x);
        upper.y = fmaf(block.gram[4 * j + 1], v.y, upper.y);
        lower.x = fmaf(block.gram[4 * j + 2], v.x, lower.x);
        lower.y = fmaf(block.gram[4 * j + 3], v.y, lower.y);
    }
    int second = lane & 2; /* half of the lanes finish row, half row + 8 */
    float mine = upper.x + upper.y, other = lower.x + lower.y;
    float sum = (second ? other : mine) + __shfl_xor_sync(~0u, second ? mine : other, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (lane % 2 == 0) next[row + (second ? 8 : 0)] = sum;
}

/* shared->vector[0] <- the principal direction of the `count` rows added, of any length. */
template <int D>
static __device__ __forceinline__ void pca_direction(pca_block<D> &block, int count, pca_shared *shared)
{
    pca_centre<D>(block, count, shared);
    for (int product = 0; product < PCA_PRODUCTS; product++) {
        pca_multiply<D>(block, shared->vector[product % 2], shared->vector[1 - product % 2]);
        __syncthreads();
    }
}

/* shared->split <- vector[0] over its largest element, in two 16-bit floats: 2^-16 of the direction is lost. */
template <typename T, int D> static __device__ __forceinline__ void pca_split(pca_shared *shared)
{
    static_assert(PCA_PRODUCTS % 2 == 0, "the last product is in vector[0]");
    int lane = threadIdx.x % 32, i = threadIdx.x;
    uint32_t most = 0;
    for (int d = lane; d < D; d += 32) most = max(most, __float_as_uint(fabsf(shared->vector[0][d])));
    most = __reduce_max_sync(~0u, most);
    float scale = most ? 1.0f / __uint_as_float(most) : 0.0f;
    if (i < D / 2) {
        float2 v = *(const float2 *)&shared->vector[0][2 * i];
        v.x *= scale;
        v.y *= scale;
        uint32_t high = wgmma_pack<T>(v.x, v.y);
        float2 rounded = rows_pair<T>(high);
        shared->split[0][i] = high;
        shared->split[1][i] = wgmma_pack<T>(v.x - rounded.x, v.y - rounded.y);
        shared->split[2][i] = 0;
    }
    __syncthreads();
}

/* Projections of rows [first, first + 16) of a tile of R rows by one warp: lane 4 r has those of rows r and r + 8.
 * `split` is the caller's copy of its part of shared->split (pca_operand). */
template <typename T, int D, int R>
static __device__ __forceinline__ float2 pca_project(const char *tile, int first, const uint32_t (&split)[D / 8])
{
    int lane = threadIdx.x % 32;
    float c[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t x[4];
        rows_load(x, shared_address(tile) + rows_offset<R>(first + lane % 16, 2 * step + lane / 16));
        rows_multiply<T>(c, x, split[2 * step], split[2 * step + 1]);
    }
    return make_float2(c[0] + c[1], c[2] + c[3]);
}

/* The B operand of pca_project: column 0 is the rounded vector, column 1 the rest, others zero. */
template <int D> static __device__ __forceinline__ void pca_operand(uint32_t (&split)[D / 8], const pca_shared *shared)
{
    int lane = threadIdx.x % 32;
    const uint32_t *from = &shared->split[min(lane / 4, 2)][lane % 4];
#pragma unroll
    for (int i = 0; i < D / 8; i++) split[i] = from[4 * i];
}

#endif
