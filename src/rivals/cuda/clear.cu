/* clear.cu - rows of the queries that keep no key: zeros, and nothing in their denominators. */
#include "rows.cuh"

template <typename T, int D> static __global__ void __launch_bounds__(D) clear_kernel(const rival_clear_job job)
{
    const rival_tile tile = job.tiles[blockIdx.x];
    for (int i = 0; i < tile.rows; i++) {
        const int32_t row = job.order[(int64_t)tile.head * job.out.N + tile.place + i];
        row_round((T *)row_of<T>(job.out, tile.head, row) + threadIdx.x, 0.0f);
        if (job.lse && threadIdx.x == 0) job.lse[(int64_t)tile.head * job.out.N + row] = -INFINITY;
    }
}

template <typename T, int D> static cudaError_t clear_start(const rival_clear_job *job, cudaStream_t stream)
{
    clear_kernel<T, D><<<job->count, D, 0, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_clear(const rival_clear_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->out, clear_start, job, stream);
}
