/* expand_clusters.cu - bitmaps of kept clusters to lists: members of kept clusters, then the means of the others.
 *
 * One warp per group takes 32 clusters at a time, one a lane, twice: first it counts the members of kept clusters,
 * which is where the means start, then it writes both.  Members of 32 clusters are one run of places; the lane that
 * writes a place finds the cluster there by bisection over the ends that the lanes hold, so no lane idles whatever
 * the sizes are. */
#include "kernels.h"

#include <math_constants.h>

enum { CLUSTERS_WARPS = 4 };

typedef struct clusters_job {
    const uint64_t *kept;   /* [H, G, words] */
    const int32_t *members; /* [H, N] */
    const int32_t *first;   /* [H, P + 1] */
    mcsa_cuda_lists to;
    int64_t words;
    int H, N, P, G;
} clusters_job;

/* One group, as its warp sees it. */
typedef struct clusters_group {
    const uint64_t *kept;
    const int32_t *members, *first;
    int P;
} clusters_group;

/* The cluster of a lane. */
typedef struct clusters_lane {
    int from, size, kept;
} clusters_lane;

/* Clusters at, at + 1, ... of which those from P on are empty. */
static __device__ __forceinline__ clusters_lane clusters_read(const clusters_group &group, int at)
{
    const int p = at + threadIdx.x % 32;
    clusters_lane c = { 0, 0, 0 };
    if (p >= group.P) return c;
    c.from = __ldg(group.first + p);
    c.size = __ldg(group.first + p + 1) - c.from;
    c.kept = __ldg(group.kept + p / 64) >> p % 64 & 1;
    return c;
}

static __device__ __forceinline__ int clusters_kept_keys(const clusters_group &group)
{
    int keys = 0;
#pragma unroll 4
    for (int at = 0; at < group.P; at += 32) {
        const clusters_lane c = clusters_read(group, at);
        keys += c.kept ? c.size : 0;
    }
    return __reduce_add_sync(0xffffffff, keys);
}

/* Writes the members of the kept ones of 32 clusters; returns how many. */
static __device__ __forceinline__ int clusters_write_keys(int32_t *to, const clusters_group &group,
                                                          const clusters_lane &c)
{
    const int lane = threadIdx.x % 32, size = c.kept ? c.size : 0;
    int end = size;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int left = __shfl_up_sync(0xffffffff, end, step);
        if (lane >= step) end += left;
    }
    const int shift = c.from - (end - size), total = __shfl_sync(0xffffffff, end, 31);
    for (int first = 0; first < total; first += 32) {
        const int place = first + lane;
        int owner = 0; /* lanes that end at or before `place` */
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            if (__shfl_sync(0xffffffff, end, owner + step - 1) <= place) owner += step;
        const int from = __shfl_sync(0xffffffff, shift, owner) + place;
        if (place < total) to[place] = __ldg(group.members + from);
    }
    return total;
}

static __global__ void __launch_bounds__(CLUSTERS_WARPS * 32) clusters_kernel(const clusters_job job)
{
    const int lane = threadIdx.x % 32;
    const int64_t row = blockIdx.x * (int64_t)CLUSTERS_WARPS + threadIdx.x / 32;
    if (row >= (int64_t)job.H * job.G) return;
    const int64_t head = row / job.G;
    const clusters_group group = { job.kept + row * job.words, job.members + head * job.N,
                                   job.first + head * (job.P + 1), job.P };
    int32_t *rows = job.to.rows + row * job.to.pitch;
    const int plain = clusters_kept_keys(group);
    int keys = 0, means = plain;

    clusters_lane next = clusters_read(group, 0);
    for (int at = 0; at < job.P; at += 32) {
        const clusters_lane c = next;
        next = clusters_read(group, at + 32);
        keys += clusters_write_keys(rows + keys, group, c);
        const int mean = !c.kept && c.size > 0;
        const uint32_t all = __ballot_sync(0xffffffff, mean);
        if (mean) rows[means + __popc(all & ((1u << lane) - 1))] = job.N + at + lane;
        means += __popc(all);
    }
    for (int64_t i = means + lane; i < job.to.pitch; i += 32) rows[i] = -1;
    if (lane == 0) job.to.plain[row] = plain;
}

static __global__ void clusters_bias_kernel(const clusters_job job, float scale)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, all = (int64_t)job.H * (job.P + 1);
    if (i >= all) return;
    const float size = i % (job.P + 1) < job.P ? (float)(job.first[i + 1] - job.first[i]) : 0;
    job.to.bias[i] = size > 0 ? logf(size) / scale : -CUDART_INF_F;
}

cudaError_t mcsa_cuda_expand_clusters(const mcsa_selection *selection, float scale, const mcsa_cuda_lists *lists,
                                      cudaStream_t stream)
{
    const clusters_job job = { selection->kept, selection->members, selection->first, *lists,      selection->words,
                               selection->H,    selection->N,       selection->P,     selection->G };
    const int64_t warps = (int64_t)job.H * job.G, biases = (int64_t)job.H * (job.P + 1);
    clusters_bias_kernel<<<(unsigned)((biases + 255) / 256), 256, 0, stream>>>(job, scale);
    clusters_kernel<<<(unsigned)((warps + CLUSTERS_WARPS - 1) / CLUSTERS_WARPS), CLUSTERS_WARPS * 32, 0, stream>>>(job);
    return cudaGetLastError();
}
