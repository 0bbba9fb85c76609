/* expand.cu - from kept parts to lists of key rows, the rows of all kept parts of a part of the queries in order.
 *
 * A block of 8 warps per list; a warp has an eighth of the parts, counts what they bring, and writes behind the warps
 * before it.  Of 32 parts at a time each lane knows one: small ones it copies itself, so that single tokens take one
 * store each; larger ones the warp copies together. */
#include "rows.cuh"

enum { EXPAND_WARPS = 8, EXPAND_SMALL = 4 /* rows that a lane copies alone */ };

/* Rows that part `p` brings, 0 when it is not kept, and where they lie in the order. */
static __device__ __forceinline__ int expand_size(const uint64_t *kept, const int32_t *first, int p, int end, int *from)
{
    *from = 0;
    if (p >= end || !(kept[p / 64] >> p % 64 & 1)) return 0;
    *from = first[p];
    return first[p + 1] - first[p];
}

static __device__ __forceinline__ int warp_total(int x)
{
#pragma unroll
    for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

/* Where this lane's rows go, the sum over the lanes before it. */
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

static __device__ __forceinline__ void expand_copy(int32_t *to, const int32_t *order, int size, int from)
{
    const int lane = threadIdx.x % 32, before = warp_before(size);
    if (__all_sync(0xffffffffu, size <= EXPAND_SMALL)) {
        for (int i = 0; i < size; i++) to[before + i] = order[from + i];
        return;
    }
    for (uint32_t left = __ballot_sync(0xffffffffu, size > 0); left; left &= left - 1) {
        const int owner = __ffs(left) - 1;
        const int its_size = __shfl_sync(0xffffffffu, size, owner), its_from = __shfl_sync(0xffffffffu, from, owner);
        int32_t *there = to + __shfl_sync(0xffffffffu, before, owner);
        for (int i = lane; i < its_size; i += 32) there[i] = order[its_from + i];
    }
}

static __global__ void __launch_bounds__(EXPAND_WARPS * 32) expand_kernel(const rival_expand_job job)
{
    __shared__ int totals[EXPAND_WARPS];
    const int q = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, P = job.keys.P;
    const int64_t row = (int64_t)head * job.Q + q;
    const uint64_t *kept = job.kept + row * job.words;
    const int32_t *first = job.keys.first + (int64_t)head * (P + 1),
                  *order = job.keys.order + (int64_t)head * job.keys.N;
    const int each = (P + EXPAND_WARPS - 1) / EXPAND_WARPS, begin = min(warp * each, P), end = min(begin + each, P);
    int from, total = 0;
    for (int p = begin + lane; p < end; p += 32) total += expand_size(kept, first, p, end, &from);
    total = warp_total(total);
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    int32_t *to = job.lists + job.list[row];
    for (int w = 0; w < warp; w++) to += totals[w];
    for (int p = begin; p < end; p += 32) {
        const int size = expand_size(kept, first, p + lane, end, &from);
        expand_copy(to, order, size, from);
        to += warp_total(size);
    }
}

cudaError_t rival_launch_expand(const rival_expand_job *job, cudaStream_t stream)
{
    expand_kernel<<<dim3(job->Q, job->keys.H), EXPAND_WARPS * 32, 0, stream>>>(*job);
    return cudaGetLastError();
}
