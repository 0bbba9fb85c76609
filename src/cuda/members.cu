/* members.cu - keys in the order of their clusters: a stable counting sort of the labels of each head.
 *
 *     count    a block per chunk of 4096 keys: how many of each cluster
 *     scan     a block per head: those of earlier chunks, and where each cluster begins
 *     place    a block per chunk: one warp walks the chunk 32 keys at a time with a cursor per cluster on chip; lanes
 *              of the same cluster find one another and take consecutive places
 *
 * Only integers are added, so the result depends on the order of nothing. */
#include "cluster.cuh"

namespace
{

enum { THREADS = 256, SCAN_THREADS = 1024 };

struct params {
    const uint16_t *label; /* [H, N] */
    int32_t *before;       /* [H, chunks, P]; from count: members in the chunk */
    int32_t *members;      /* [H, N] */
    int32_t *first;        /* [H, P + 1] */
    int N, P, chunks;
};

__global__ void __launch_bounds__(THREADS) count(const params p)
{
    extern __shared__ int32_t counts[]; /* [P] */
    const uint16_t *label = p.label + blockIdx.y * (int64_t)p.N;
    int begin = blockIdx.x * CLUSTER_CHUNK, end = min(begin + CLUSTER_CHUNK, p.N);
    for (int c = threadIdx.x; c < p.P; c += THREADS) counts[c] = 0;
    __syncthreads();
    for (int j = begin + threadIdx.x; j < end; j += THREADS) atomicAdd(&counts[label[j]], 1);
    __syncthreads();
    int32_t *to = p.before + (blockIdx.y * (int64_t)p.chunks + blockIdx.x) * p.P;
    for (int c = threadIdx.x; c < p.P; c += THREADS) to[c] = counts[c];
}

/* The sum of `value` over the threads before this one; *total: over all. */
__device__ int sum_before(int value, int *total)
{
    __shared__ int warps[SCAN_THREADS / 32];
    int lane = threadIdx.x % 32, sum = value;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += left;
    }
    __syncthreads(); /* of the call before */
    if (lane == 31) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    int whole = warps[lane];
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, whole, step);
        if (lane >= step) whole += left;
    }
    *total = __shfl_sync(~0u, whole, 31);
    int earlier = __shfl_sync(~0u, whole, (threadIdx.x / 32 + 31) % 32);
    return sum - value + (threadIdx.x < 32 ? 0 : earlier);
}

__global__ void __launch_bounds__(SCAN_THREADS) scan(const params p)
{
    int32_t *first = p.first + blockIdx.x * ((int64_t)p.P + 1);
    int begin = 0; /* of the clusters to come */
    for (int from = 0; from < p.P; from += SCAN_THREADS) {
        int c = from + threadIdx.x, members = 0, all;
        if (c < p.P) {
            int32_t *before = p.before + blockIdx.x * (int64_t)p.chunks * p.P + c;
#pragma unroll 4
            for (int chunk = 0; chunk < p.chunks; chunk++) {
                int here = before[(int64_t)chunk * p.P];
                before[(int64_t)chunk * p.P] = members;
                members += here;
            }
        }
        int earlier = sum_before(members, &all);
        if (c < p.P) first[c] = begin + earlier;
        begin += all;
    }
    if (threadIdx.x == 0) first[p.P] = begin;
}

__global__ void __launch_bounds__(THREADS) place(const params p)
{
    extern __shared__ int32_t cursor[]; /* [P] */
    const int32_t *first = p.first + blockIdx.y * ((int64_t)p.P + 1);
    const int32_t *before = p.before + (blockIdx.y * (int64_t)p.chunks + blockIdx.x) * p.P;
    for (int c = threadIdx.x; c < p.P; c += THREADS) cursor[c] = first[c] + before[c];
    __syncthreads();
    if (threadIdx.x >= 32) return;

    const uint16_t *label = p.label + blockIdx.y * (int64_t)p.N;
    int32_t *members = p.members + blockIdx.y * (int64_t)p.N;
    int lane = threadIdx.x, begin = blockIdx.x * CLUSTER_CHUNK, end = min(begin + CLUSTER_CHUNK, p.N);
    int next = begin + lane < end ? label[begin + lane] : -1;
    for (int j = begin + lane; j - lane < end; j += 32) {
        int c = next;
        next = j + 32 < end ? label[j + 32] : -1;
        unsigned same = __match_any_sync(~0u, c);
        int place = c < 0 ? 0 : cursor[c] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (c >= 0) {
            members[place] = j;
            if (same >> lane == 1) cursor[c] = place + 1; /* the last of them */
        }
        __syncwarp();
    }
}

} // namespace

cudaError_t cluster_members(const cluster_job *job, cudaStream_t stream)
{
    params p = { job->label, job->before, job->members, job->first, job->N, job->P, job->chunks };
    dim3 grid((unsigned)p.chunks, (unsigned)job->H);
    size_t bytes = (size_t)p.P * sizeof(int32_t);
    cudaError_t error;
    count<<<grid, THREADS, bytes, stream>>>(p);
    if ((error = cudaGetLastError()) != cudaSuccess) return error;
    scan<<<(unsigned)job->H, SCAN_THREADS, 0, stream>>>(p);
    if ((error = cudaGetLastError()) != cudaSuccess) return error;
    place<<<grid, THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}
