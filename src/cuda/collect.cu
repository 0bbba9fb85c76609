/* collect.cu - rows of a tensor copied into the order of the clusters, so that kernels that read keys one after the
 * other have those of a cluster side by side.
 *
 * A thread moves 16 bytes of AHEAD rows, all of them under way at once; neighbouring threads share a row. */
#include "cuda/kernels.h"

namespace
{

enum { THREADS = 256, AHEAD = 4 };

struct params {
    const uint16_t *x;      /* [H, N, D], from the first head on */
    int64_t x_head, x_row;  /* strides, elements */
    const int32_t *members; /* [heads, N] */
    uint16_t *rows;         /* [heads, N, D] */
    int N;
};

template <int D> __global__ void __launch_bounds__(THREADS) collect(const params p)
{
    const int chunks = D / 8, step = THREADS / chunks; /* rows of all threads at once */
    int64_t head = blockIdx.y;
    int first = blockIdx.x * (step * AHEAD) + threadIdx.x / chunks, column = threadIdx.x % chunks * 8;
    const int32_t *members = p.members + head * p.N;
    const uint16_t *x = p.x + head * p.x_head + column;
    uint16_t *rows = p.rows + head * p.N * D + column;
    uint4 values[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int n = first + i * step;
        if (n < p.N) values[i] = *(const uint4 *)(x + members[n] * p.x_row);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int64_t n = first + i * step;
        if (n < p.N) *(uint4 *)(rows + n * D) = values[i];
    }
}

template <int D> cudaError_t launch(const params &p, int heads, cudaStream_t stream)
{
    const int rows = THREADS / (D / 8) * AHEAD;
    collect<D><<<dim3((p.N + rows - 1) / rows, heads), THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t mcsa_cuda_collect(const mcsa_cuda_collect_job *job, cudaStream_t stream)
{
    const mcsa_tensor *x = job->x;
    int N = (int)x->shape[1];
    params p = { (const uint16_t *)x->data + job->head * x->stride[0],
                 x->stride[0],
                 x->stride[1],
                 job->members + (int64_t)job->head * N,
                 (uint16_t *)job->rows,
                 N };
    return x->shape[2] == 128 ? launch<128>(p, job->heads, stream) : launch<64>(p, job->heads, stream);
}
