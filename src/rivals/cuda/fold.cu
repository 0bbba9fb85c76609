/* fold.cu - from numbers per token to numbers per part: the queries in tiles as the mass of tokens wants them, and what
 * lines of tokens hold in the columns of each part of the keys. */
#include "rows.cuh"

enum { FOLD_THREADS = 128 };

/* 16 bytes per thread; rows that are not there become zeros, and the first thread of a row writes
 * the rest. */
template <typename T, int D>
static __global__ void __launch_bounds__(FOLD_THREADS) pack_kernel(const rival_pack_job job)
{
    const int64_t at = blockIdx.x * (int64_t)FOLD_THREADS + threadIdx.x;
    const int row = (int)(at / (D / 8)), chunk = (int)(at % (D / 8)) * 8, head = blockIdx.y;
    if (row >= job.padded) return;
    const int64_t to = (int64_t)head * job.padded + row;
    const int32_t from = job.order[to];
    const uint4 *source = (const uint4 *)(row_of<T>(job.q, head, from < 0 ? 0 : from) + chunk);
    *(uint4 *)((T *)job.packed + to * D + chunk) = from < 0 ? make_uint4(0, 0, 0, 0) : __ldg(source);
    if (chunk > 0) return;
    job.packed_lse[to] = from < 0 ? INFINITY : job.lse[(int64_t)head * job.q.N + from];
    job.packed_order[to] = row;
}

template <typename T, int D> static cudaError_t pack_start(const rival_pack_job *job, cudaStream_t stream)
{
    const int64_t threads = (int64_t)job->padded * (D / 8);
    const dim3 grid((unsigned)((threads + FOLD_THREADS - 1) / FOLD_THREADS), job->q.H);
    pack_kernel<T, D><<<grid, FOLD_THREADS, 0, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_pack(const rival_pack_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->q, pack_start, job, stream);
}

/* One thread per pair of parts: lines in order, and in each the rows of the part in theirs. */
template <rival_fold FOLD> static __global__ void __launch_bounds__(FOLD_THREADS) fold_kernel(const rival_fold_job job)
{
    const int k = blockIdx.x * FOLD_THREADS + threadIdx.x, q = blockIdx.y, head = blockIdx.z;
    if (k >= job.keys.P) return;
    int count;
    const int32_t *rows = part_of(job.keys, job.head + head, k, &count);
    const int32_t *line = job.line ? job.line + (int64_t)(job.head + head) * (job.Q + 1) + q : NULL;
    const int place = (int)(rows - job.keys.order - (int64_t)(job.head + head) * job.keys.N);
    const int begin = line ? line[0] : q, end = line ? line[1] : q + 1;
    const float *x = job.x + (int64_t)head * job.L * job.pitch;
    float most = -INFINITY, sum = 0;
    if (FOLD == RIVAL_FOLD_LOG_SUM)
        for (int l = begin; l < end; l++)
            for (int i = 0; i < count; i++) most = fmaxf(most, x[l * job.pitch + (job.by_place ? place + i : rows[i])]);
    if (FOLD == RIVAL_FOLD_SUM || most > -INFINITY)
        for (int l = begin; l < end; l++)
            for (int i = 0; i < count; i++) {
                const float value = x[l * job.pitch + (job.by_place ? place + i : rows[i])];
                sum += FOLD == RIVAL_FOLD_LOG_SUM ? expf(value - most) : value;
            }
    if (FOLD == RIVAL_FOLD_LOG_SUM) sum = most > -INFINITY ? most + logf(sum) : -INFINITY;
    job.out[((int64_t)head * job.Q + q) * job.keys.P + k] = sum;
}

cudaError_t rival_launch_fold(const rival_fold_job *job, rival_fold fold, cudaStream_t stream)
{
    const dim3 grid((job->keys.P + FOLD_THREADS - 1) / FOLD_THREADS, job->Q, job->heads);
    if (fold == RIVAL_FOLD_SUM)
        fold_kernel<RIVAL_FOLD_SUM><<<grid, FOLD_THREADS, 0, stream>>>(*job);
    else
        fold_kernel<RIVAL_FOLD_LOG_SUM><<<grid, FOLD_THREADS, 0, stream>>>(*job);
    return cudaGetLastError();
}
