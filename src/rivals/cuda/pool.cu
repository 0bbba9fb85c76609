/* pool.cu - means of the rows of each part.
 *
 * One thread per part and column adds the rows in their order; 16 loads are on their way at a time. */
#include "rows.cuh"

enum { POOL_AHEAD = 16 };

template <typename T, int D>
static __global__ void __launch_bounds__(D) pool_kernel(const rival_rows x, const rival_parts parts, float *mean)
{
    const int part = blockIdx.x, head = blockIdx.y;
    const T *column = row_of<T>(x, head, 0) + threadIdx.x;
    int count;
    const int32_t *rows = part_of(parts, head, part, &count);
    float sum = 0;
    for (int first = 0; first < count; first += POOL_AHEAD) {
        float value[POOL_AHEAD];
#pragma unroll
        for (int i = 0; i < POOL_AHEAD; i++)
            value[i] = first + i < count ? row_float(column[__ldg(rows + first + i) * x.row]) : 0.0f;
#pragma unroll
        for (int i = 0; i < POOL_AHEAD; i++) sum += value[i];
    }
    mean[((int64_t)head * parts.P + part) * D + threadIdx.x] = count ? sum / (float)count : 0.0f;
}

template <typename T, int D>
static cudaError_t pool_start(const rival_rows *x, const rival_parts *parts, float *mean, cudaStream_t stream)
{
    pool_kernel<T, D><<<dim3(parts->P, parts->H), D, 0, stream>>>(*x, *parts, mean);
    return cudaGetLastError();
}

cudaError_t rival_launch_pool(const rival_rows *x, const rival_parts *parts, float *mean, cudaStream_t stream)
{
    return ROWS_CHOOSE(*x, pool_start, x, parts, mean, stream);
}
