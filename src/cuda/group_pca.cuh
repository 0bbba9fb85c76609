/* group_pca.cuh - the principal direction of rows in shared memory, by one CTA of PCA_WARPS warps.
 *
 * The Gram matrix X^T X is symmetric, so of its 4 x 4 blocks of D/4 columns only the ten with I <= J are made, one a
 * warp, in registers (mma.sync; both operands come from the same rows through ldmatrix.trans).  The four warps with
 * I = J load half as much and also make the column sums, as a product with ones; they sit on warps 2, 3, 6, 7, which
 * gives each of the four schedulers 24 mma per 16 rows at D = 128.  Then the blocks are centred, C = G - s s^T / n, and
 * multiplied PCA_PRODUCTS times with a vector: each warp multiplies with its block and, off the diagonal, with its
 * transpose; the four partial sums of an element are added in a fixed order.
 *
 * C is divided by its largest diagonal element, so the largest eigenvalue is in [1, D] and the vector, which starts at
 * the unit vector of that element, neither vanishes nor overflows in 8 products: D^8 < 1e17.  It needs no
 * normalisation, since only the order of projections counts.
 *
 * Cancellation in G - s s^T / n: FP32 sums over at most 1,024 rows lose about 1e-6 |mean|^2, which is 1 % of the
 * largest variance only where the mean is 100 standard deviations off. */
#ifndef MCSA_CUDA_GROUP_PCA_CUH
#define MCSA_CUDA_GROUP_PCA_CUH

#include "group_rows.cuh"

enum { PCA_WARPS = 10, PCA_THREADS = 32 * PCA_WARPS, PCA_PRODUCTS = 8 };

typedef struct pca_shared {
    float part[4][128];
    float vector[128], sum[128], diagonal[128];
} pca_shared;

/* The block of one warp: rows 16 i + l / 4 (+ 8), columns 8 j + 2 (l % 4) (+ 1) of lane l. */
template <int D> struct pca_block {
    static constexpr int B = D / 4, MI = B / 16, NJ = B / 8;
    int I, J;
    float gram[MI][NJ][4];
    float sum[NJ][4]; /* all 16 rows alike; only where I = J */
};

template <int D> static __device__ __forceinline__ void pca_begin(pca_block<D> &block)
{
    int warp = threadIdx.x / 32;
    block.I = (int)(0x2132101000ull >> 4 * warp & 15);
    block.J = (int)(0x3332231021ull >> 4 * warp & 15);
#pragma unroll
    for (int j = 0; j < block.NJ; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            block.sum[j][e] = 0;
#pragma unroll
            for (int i = 0; i < block.MI; i++) block.gram[i][j][e] = 0;
        }
}

/* Adds rows [0, 16 steps), which start at shared address `rows`, a row number that 8 divides. */
template <typename T, int D>
static __device__ __forceinline__ void pca_add(pca_block<D> &block, uint32_t rows, int steps)
{
    constexpr int B = block.B, MI = block.MI, NJ = block.NJ;
    int lane = threadIdx.x % 32, tile = lane / 8, row = lane % 8 + 8 * (tile / 2);
    uint32_t at_i[MI], at_j[MI], x[MI][4], y[MI][4];
    const uint32_t ones[4] = { rows_ones(T()), rows_ones(T()), rows_ones(T()), rows_ones(T()) };
#pragma unroll
    for (int i = 0; i < MI; i++) {
        at_i[i] = rows + rows_offset<D>(row, block.I * (B / 8) + 2 * i + tile % 2);
        at_j[i] = rows + rows_offset<D>(row, block.J * (B / 8) + 2 * i + tile % 2);
    }
    if (block.I == block.J) {
#pragma unroll 2
        for (int step = 0; step < steps; step++) {
#pragma unroll
            for (int i = 0; i < MI; i++) rows_load_transposed(x[i], at_i[i] + step * (32 * D));
#pragma unroll
            for (int j = 0; j < NJ; j++) {
#pragma unroll
                for (int i = 0; i < MI; i++)
                    rows_multiply(T(), block.gram[i][j], x[i], x[j / 2][j % 2], x[j / 2][j % 2 + 2]);
                rows_multiply(T(), block.sum[j], ones, x[j / 2][j % 2], x[j / 2][j % 2 + 2]);
            }
        }
    } else {
#pragma unroll 2
        for (int step = 0; step < steps; step++) {
#pragma unroll
            for (int i = 0; i < MI; i++) {
                rows_load_transposed(x[i], at_i[i] + step * (32 * D));
                rows_load_transposed(y[i], at_j[i] + step * (32 * D));
            }
#pragma unroll
            for (int j = 0; j < NJ; j++)
#pragma unroll
                for (int i = 0; i < MI; i++)
                    rows_multiply(T(), block.gram[i][j], x[i], y[j / 2][j % 2], y[j / 2][j % 2 + 2]);
        }
    }
}

/* gram -> centred, divided by its largest diagonal element; vector -> the unit vector of that element. */
template <int D> static __device__ __forceinline__ void pca_centre(pca_block<D> &block, int count, pca_shared *shared)
{
    constexpr int B = block.B, MI = block.MI, NJ = block.NJ;
    int lane = threadIdx.x % 32, row = block.I * B + lane / 4, column = block.J * B + 2 * (lane % 4);
    if (block.I == block.J && lane < 4)
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            shared->sum[column + 8 * j] = block.sum[j][0];
            shared->sum[column + 8 * j + 1] = block.sum[j][1];
        }
    __syncthreads();
    float inverse = 1.0f / (float)count;
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NJ; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = row + 16 * i + 8 * (e / 2), c = column + 8 * j + e % 2;
                block.gram[i][j][e] -= shared->sum[r] * inverse * shared->sum[c];
                if (r == c) shared->diagonal[r] = block.gram[i][j][e];
            }
    __syncthreads();
    float largest = 0;
    for (int d = lane; d < D; d += 32) largest = fmaxf(largest, shared->diagonal[d]);
    for (int mask = 16; mask; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
    int start = D;
    for (int d = lane; d < D; d += 32)
        if (shared->diagonal[d] == largest && d < start) start = d;
    start = __reduce_min_sync(~0u, start);
    if (start == D) start = 0; /* NaN everywhere */
    float scale = largest > 0 ? 1.0f / largest : 0.0f;
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NJ; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) block.gram[i][j][e] *= scale;
    if (threadIdx.x < D) shared->vector[threadIdx.x] = threadIdx.x == start ? 1.0f : 0.0f;
    __syncthreads();
}

/* Sums x[0, n) over the lanes that differ in the bits of mask from `high` down to `low`, leaving each lane one sum:
 * that of x[i] where the bits of i are, from the top, those bits of the lane.  Halving what is sent costs n - 1
 * shuffles instead of n log. */
template <int n> static __device__ __forceinline__ float pca_scatter(float (&x)[n], int high, int low, int *index)
{
    int lane = threadIdx.x % 32, kept = 0;
#pragma unroll
    for (int mask = high, half = n / 2; mask >= low; mask /= 2, half /= 2) {
        int upper = (lane & mask) != 0;
        if (half == 0) {
            x[0] += __shfl_xor_sync(~0u, x[0], mask);
            continue;
        }
#pragma unroll
        for (int i = 0; i < half; i++) {
            float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + half], mask);
            x[i] = (upper ? x[i + half] : x[i]) + other;
        }
        kept += upper ? half : 0;
    }
    *index = kept;
    return x[0];
}

/* part[J] <- block vector_J, and off the diagonal part[I] <- block^T vector_I. */
template <int D> static __device__ __forceinline__ void pca_multiply(const pca_block<D> &block, pca_shared *shared)
{
    constexpr int B = block.B, MI = block.MI, NJ = block.NJ;
    int lane = threadIdx.x % 32, row = block.I * B + lane / 4, column = block.J * B + 2 * (lane % 4), index;
    float2 right[NJ];
    float along[2 * MI], across[2 * NJ];
#pragma unroll
    for (int j = 0; j < NJ; j++) {
        right[j] = *(const float2 *)&shared->vector[column + 8 * j];
        across[2 * j] = across[2 * j + 1] = 0;
    }
#pragma unroll
    for (int i = 0; i < 2 * MI; i++) {
        float left = shared->vector[row + 8 * i];
        along[i] = 0;
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            float x = block.gram[i / 2][j][i % 2 * 2], y = block.gram[i / 2][j][i % 2 * 2 + 1];
            along[i] = fmaf(x, right[j].x, fmaf(y, right[j].y, along[i]));
            across[2 * j] = fmaf(x, left, across[2 * j]);
            across[2 * j + 1] = fmaf(y, left, across[2 * j + 1]);
        }
    }
    float sum = pca_scatter(along, 2, 1, &index);
    shared->part[block.J][row + 8 * index] = sum;
    if (block.I == block.J) return;
    sum = pca_scatter(across, 16, 4, &index);
    shared->part[block.I][column + 8 * (index / 2) + index % 2] = sum;
}

/* shared->vector <- the principal direction of `count` rows, of any length. */
template <int D>
static __device__ __forceinline__ void pca_direction(pca_block<D> &block, int count, pca_shared *shared)
{
    pca_centre<D>(block, count, shared);
    for (int product = 0; product < PCA_PRODUCTS; product++) {
        pca_multiply<D>(block, shared);
        __syncthreads();
        int d = threadIdx.x;
        if (d < D)
            shared->vector[d] = shared->part[0][d] + shared->part[1][d] + shared->part[2][d] + shared->part[3][d];
        __syncthreads();
    }
}

#endif
