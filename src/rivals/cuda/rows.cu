/* rows.cu - single rows of a tensor as floats, and the cached residual. */
#include "rows.cuh"

enum { ROWS_THREADS = 256 };

/* A thread has 8 neighbouring columns of a row; rows are numbered through all heads. */
template <int D> static __device__ __forceinline__ int64_t rows_mine(int *column)
{
    const int64_t at = blockIdx.x * (int64_t)ROWS_THREADS + threadIdx.x;
    *column = (int)(at % (D / 8)) * 8;
    return at / (D / 8);
}

static unsigned rows_blocks(int64_t rows, int D)
{
    return (unsigned)((rows * (D / 8) + ROWS_THREADS - 1) / ROWS_THREADS);
}

template <typename T> static __device__ __forceinline__ void rows_store(T *to, const float (&x)[8])
{
    uint4 bits;
#pragma unroll
    for (int i = 0; i < 8; i++) row_round((T *)&bits + i, x[i]);
    *(uint4 *)to = bits;
}

template <typename T, int D>
static __global__ void __launch_bounds__(ROWS_THREADS)
    read_kernel(const rival_rows x, const int32_t *index, int count, float *rows)
{
    int column;
    const int64_t row = rows_mine<D>(&column);
    if (row >= (int64_t)x.H * count) return;
    float value[8];
    row_load(value, row_of<T>(x, (int)(row / count), index[row % count]) + column);
    float4 *to = (float4 *)(rows + row * D + column);
    to[0] = make_float4(value[0], value[1], value[2], value[3]);
    to[1] = make_float4(value[4], value[5], value[6], value[7]);
}

template <typename T, int D>
static __global__ void __launch_bounds__(ROWS_THREADS)
    subtract_kernel(const rival_rows dense, const rival_rows sparse, __nv_bfloat16 *residual)
{
    int column;
    const int64_t row = rows_mine<D>(&column);
    if (row >= (int64_t)dense.H * dense.N) return;
    const int head = (int)(row / dense.N);
    float value[8], less[8];
    row_load(value, row_of<T>(dense, head, row % dense.N) + column);
    row_load(less, row_of<T>(sparse, head, row % dense.N) + column);
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] -= less[i];
    rows_store(residual + row * D + column, value);
}

template <typename T, int D>
static __global__ void __launch_bounds__(ROWS_THREADS) add_kernel(const rival_rows out, const __nv_bfloat16 *residual)
{
    int column;
    const int64_t row = rows_mine<D>(&column);
    if (row >= (int64_t)out.H * out.N) return;
    T *to = (T *)row_of<T>(out, (int)(row / out.N), row % out.N) + column;
    const uint4 bits = *(const uint4 *)to;
    float value[8], more[8];
    row_load(more, residual + row * D + column);
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] = row_float(((const T *)&bits)[i]) + more[i];
    rows_store(to, value);
}

template <typename T, int D>
static cudaError_t read_start(const rival_rows *x, const int32_t *index, int count, float *rows, cudaStream_t stream)
{
    read_kernel<T, D><<<rows_blocks((int64_t)x->H * count, D), ROWS_THREADS, 0, stream>>>(*x, index, count, rows);
    return cudaGetLastError();
}

template <typename T, int D>
static cudaError_t subtract_start(const rival_rows *dense, const rival_rows *sparse, void *residual,
                                  cudaStream_t stream)
{
    subtract_kernel<T, D>
        <<<rows_blocks((int64_t)dense->H * dense->N, D), ROWS_THREADS, 0, stream>>>(*dense, *sparse,
                                                                                    (__nv_bfloat16 *)residual);
    return cudaGetLastError();
}

template <typename T, int D>
static cudaError_t add_start(const rival_rows *out, const void *residual, cudaStream_t stream)
{
    add_kernel<T, D>
        <<<rows_blocks((int64_t)out->H * out->N, D), ROWS_THREADS, 0, stream>>>(*out, (const __nv_bfloat16 *)residual);
    return cudaGetLastError();
}

cudaError_t rival_launch_read_rows(const rival_rows *x, const int32_t *index, int count, float *rows,
                                   cudaStream_t stream)
{
    return ROWS_CHOOSE(*x, read_start, x, index, count, rows, stream);
}

cudaError_t rival_launch_subtract(const rival_rows *dense, const rival_rows *sparse, void *residual,
                                  cudaStream_t stream)
{
    return ROWS_CHOOSE(*dense, subtract_start, dense, sparse, residual, stream);
}

cudaError_t rival_launch_add(const rival_rows *out, const void *residual, cudaStream_t stream)
{
    return ROWS_CHOOSE(*out, add_start, out, residual, stream);
}
