/* cosine.cu - the mean cosine of all pairs of rows of a part: |sum of rows of length 1|^2 / count^2.
 *
 * A block per part; each warp adds every fourth row, a lane D / 32 columns, and the four sums are added in order. */
#include "rows.cuh"

enum { COSINE_WARPS = 4 };

template <typename T, int D>
static __global__ void __launch_bounds__(COSINE_WARPS * 32)
    cosine_kernel(const rival_rows x, const rival_parts parts, const float *shift, float *cosine)
{
    __shared__ float sums[COSINE_WARPS][D];
    const int part = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int count;
    const int32_t *rows = part_of(parts, head, part, &count);
    float sum[D / 32] = {}, away[D / 32];
#pragma unroll
    for (int i = 0; i < D / 32; i++) away[i] = shift ? shift[(int64_t)head * D + 32 * i + lane] : 0.0f;
#pragma unroll 4
    for (int r = warp; r < count; r += COSINE_WARPS) {
        const T *row = row_of<T>(x, head, rows[r]);
        float value[D / 32], square = 0;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            value[i] = row_float(row[32 * i + lane]) - away[i];
            square = fmaf(value[i], value[i], square);
        }
        square = warp_sum(square);
        const float factor = square > 0 ? 1.0f / sqrtf(square) : 0.0f;
#pragma unroll
        for (int i = 0; i < D / 32; i++) sum[i] = fmaf(value[i], factor, sum[i]);
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) sums[warp][32 * i + lane] = sum[i];
    __syncthreads();
    if (warp > 0) return;
    float square = 0;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        float all = 0;
        for (int w = 0; w < COSINE_WARPS; w++) all += sums[w][32 * i + lane];
        square = fmaf(all, all, square);
    }
    square = warp_sum(square);
    if (lane == 0) cosine[(int64_t)head * parts.P + part] = count ? square / ((float)count * (float)count) : 0.0f;
}

template <typename T, int D>
static cudaError_t cosine_start(const rival_rows *x, const rival_parts *parts, const float *shift, float *cosine,
                                cudaStream_t stream)
{
    cosine_kernel<T, D><<<dim3(parts->P, parts->H), COSINE_WARPS * 32, 0, stream>>>(*x, *parts, shift, cosine);
    return cudaGetLastError();
}

cudaError_t rival_launch_cosine(const rival_rows *x, const rival_parts *parts, const float *shift, float *cosine,
                                cudaStream_t stream)
{
    return ROWS_CHOOSE(*x, cosine_start, x, parts, shift, cosine, stream);
}
