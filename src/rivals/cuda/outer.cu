/* outer.cu - sum over all parts and their rows of (k - mean of the part)^T v.
 *
 * The rows of a head, in the order of the parts, are cut into 64 pieces; a block adds one piece, 16 rows at a time from
 * shared memory, a second kernel the pieces in order. */
#include "rows.cuh"

enum { OUTER_THREADS = 256, OUTER_ROWS = 16 };

/* 16 rows from `place` of k less their means, and of v; zeros from `end` on. */
template <typename T, int D>
static __device__ __forceinline__ void outer_load(float (*k)[D], float (*v)[D], const rival_outer_job &job, int head,
                                                  int place, int end)
{
    const int32_t *order = job.parts.order + (int64_t)head * job.parts.N;
    const int32_t *first = job.parts.first + (int64_t)head * (job.parts.P + 1);
    for (int at = threadIdx.x; at < OUTER_ROWS * (D / 8); at += OUTER_THREADS) {
        const int row = at / (D / 8), d = at % (D / 8) * 8, here = place + row < end;
        float x[8] = {}, y[8] = {};
        if (here) {
            const int32_t token = order[place + row];
            const int part = part_at(first, job.parts.P, place + row);
            const float *mean = job.mean + ((int64_t)head * job.parts.P + part) * D + d;
            row_load(x, row_of<T>(job.k, head, token) + d);
            row_load(y, row_of<T>(job.v, head, token) + d);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] -= mean[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            k[row][d + i] = x[i];
            v[row][d + i] = y[i];
        }
    }
}

template <typename T, int D> static __global__ void __launch_bounds__(OUTER_THREADS) outer_kernel(rival_outer_job job)
{
    enum { EACH = D / 16 }; /* a thread has EACH x EACH elements, 16 apart */
    __shared__ float k[OUTER_ROWS][D], v[OUTER_ROWS][D];
    const int piece = blockIdx.x, head = blockIdx.y, row = threadIdx.x / 16, column = threadIdx.x % 16;
    const int rows = job.parts.first[(int64_t)head * (job.parts.P + 1) + job.parts.P];
    const int each = (rows + RIVAL_CUDA_OUTER_PIECES - 1) / RIVAL_CUDA_OUTER_PIECES;
    const int begin = min(piece * each, rows), end = min(begin + each, rows);
    float sum[EACH][EACH] = {};
    for (int place = begin; place < end; place += OUTER_ROWS) {
        outer_load<T, D>(k, v, job, head, place, end);
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < OUTER_ROWS; r++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) sum[i][j] = fmaf(k[r][row + 16 * i], v[r][column + 16 * j], sum[i][j]);
        __syncthreads();
    }
    float *out = job.pieces + ((int64_t)head * RIVAL_CUDA_OUTER_PIECES + piece) * D * D;
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) out[(row + 16 * i) * D + column + 16 * j] = sum[i][j];
}

static __global__ void __launch_bounds__(OUTER_THREADS) outer_add(const float *pieces, int size, float *outer)
{
    const int at = blockIdx.x * OUTER_THREADS + threadIdx.x, head = blockIdx.y;
    if (at >= size) return;
    float sum = 0;
    for (int p = 0; p < RIVAL_CUDA_OUTER_PIECES; p++)
        sum += pieces[((int64_t)head * RIVAL_CUDA_OUTER_PIECES + p) * size + at];
    outer[(int64_t)head * size + at] = sum;
}

template <typename T, int D> static cudaError_t outer_start(const rival_outer_job *job, cudaStream_t stream)
{
    outer_kernel<T, D><<<dim3(RIVAL_CUDA_OUTER_PIECES, job->k.H), OUTER_THREADS, 0, stream>>>(*job);
    outer_add<<<dim3(D * D / OUTER_THREADS, job->k.H), OUTER_THREADS, 0, stream>>>(job->pieces, D * D, job->outer);
    return cudaGetLastError();
}

cudaError_t rival_launch_outer(const rival_outer_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->k, outer_start, job, stream);
}
