/* expand.cu - from kept parts to lists of key rows, the rows of all kept parts of a part of the queries in order.
 *
 * A block of 8 warps per list; a warp has an eighth of the parts, counts what they bring, and writes behind the warps
 * before it.  Of single tokens a lane takes a word of the map, 64 parts, at a time.  Of other parts it takes one: small
 * ones it copies itself, larger ones the warp copies together. */
#include "rows.cuh"

enum { EXPAND_WARPS = 8, EXPAND_SMALL = 4 /* rows that a lane copies alone */ };

static __device__ __forceinline__ int warp_total(int x)
{
#pragma unroll
    for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

/* The sum over the lanes before this one. */
static __device__ __forceinline__ int warp_before(int x)
{
    const int lane = threadIdx.x % 32;
    int end = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, end, step);
        if (lane >= step) end += left;
    }
    return end - x;
}

/* One list, as its block sees it, and the units, words or parts, of this warp. */
typedef struct expand_list {
    const uint64_t *kept;
    const int32_t *first, *order;
    int begin, end;
} expand_list;

template <int SINGLE> static __device__ __forceinline__ expand_list expand_begin(const rival_expand_job &job)
{
    const int head = blockIdx.y, warp = threadIdx.x / 32, units = SINGLE ? (int)job.words : job.keys.P;
    const int each = (units + EXPAND_WARPS - 1) / EXPAND_WARPS, begin = min(warp * each, units);
    return { job.kept + ((int64_t)head * job.Q + blockIdx.x) * job.words,
             job.keys.first + (int64_t)head * (job.keys.P + 1), job.keys.order + (int64_t)head * job.keys.N, begin,
             min(begin + each, units) };
}

/* Rows that unit `u` brings, 0 when it is not kept. */
template <int SINGLE> static __device__ __forceinline__ int expand_size(const expand_list &list, int u)
{
    if (u >= list.end) return 0;
    if (SINGLE) return __popcll(list.kept[u]);
    return list.kept[u / 64] >> u % 64 & 1 ? list.first[u + 1] - list.first[u] : 0;
}

/* What this warp's units bring, in all lanes. */
template <int SINGLE> static __device__ __forceinline__ int expand_total(const expand_list &list)
{
    int total = 0;
#pragma unroll 2
    for (int u = list.begin + threadIdx.x % 32; u < list.end; u += 32) total += expand_size<SINGLE>(list, u);
    return warp_total(total);
}

/* Rows of 32 units, one a lane, to `to` and on. */
template <int SINGLE>
static __device__ __forceinline__ void expand_copy(int32_t *to, const expand_list &list, int u, int size)
{
    const int lane = threadIdx.x % 32, before = warp_before(size);
    if (SINGLE) {
        const uint64_t kept = size ? list.kept[u] : 0;
        to += before;
        for (uint64_t left = kept; left; left &= left - 1) *to++ = list.order[u * 64 + __ffsll(left) - 1];
        return;
    }
    const int from = size ? list.first[u] : 0;
    if (__all_sync(0xffffffffu, size <= EXPAND_SMALL)) {
        for (int i = 0; i < size; i++) to[before + i] = list.order[from + i];
        return;
    }
    for (uint32_t left = __ballot_sync(0xffffffffu, size > 0); left; left &= left - 1) {
        const int owner = __ffs(left) - 1;
        const int its_size = __shfl_sync(0xffffffffu, size, owner), its_from = __shfl_sync(0xffffffffu, from, owner);
        int32_t *there = to + __shfl_sync(0xffffffffu, before, owner);
        for (int i = lane; i < its_size; i += 32) there[i] = list.order[its_from + i];
    }
}

template <int SINGLE>
static __global__ void __launch_bounds__(EXPAND_WARPS * 32) count_kernel(const rival_expand_job job)
{
    __shared__ int totals[EXPAND_WARPS];
    const int total = expand_total<SINGLE>(expand_begin<SINGLE>(job));
    if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x > 0) return;
    int all = 0;
    for (int w = 0; w < EXPAND_WARPS; w++) all += totals[w];
    job.counts[(int64_t)blockIdx.y * job.Q + blockIdx.x] = all;
}

template <int SINGLE>
static __global__ void __launch_bounds__(EXPAND_WARPS * 32) expand_kernel(const rival_expand_job job)
{
    __shared__ int totals[EXPAND_WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const expand_list list = expand_begin<SINGLE>(job);
    const int total = expand_total<SINGLE>(list);
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    int32_t *to = job.lists + job.list[(int64_t)blockIdx.y * job.Q + blockIdx.x];
    for (int w = 0; w < warp; w++) to += totals[w];
    for (int u = list.begin; u < list.end; u += 32) {
        const int size = expand_size<SINGLE>(list, u + lane);
        expand_copy<SINGLE>(to, list, u + lane, size);
        to += warp_total(size);
    }
}

cudaError_t rival_launch_count(const rival_expand_job *job, cudaStream_t stream)
{
    auto *kernel = job->single ? count_kernel<1> : count_kernel<0>;
    kernel<<<dim3(job->Q, job->keys.H), EXPAND_WARPS * 32, 0, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_expand(const rival_expand_job *job, cudaStream_t stream)
{
    auto *kernel = job->single ? expand_kernel<1> : expand_kernel<0>;
    kernel<<<dim3(job->Q, job->keys.H), EXPAND_WARPS * 32, 0, stream>>>(*job);
    return cudaGetLastError();
}
