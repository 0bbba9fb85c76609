/* group_split.cu - all rows projected on their node's direction, and every large node of a level split, stably, at the
 * rank that its left child needs.
 *
 * project_kernel, one CTA of 8 warps per (group, head): each warp has all of its 16 rows in flight; it reads every row
 * of q once and is bound by device memory.
 * partition_kernel, one CTA per (node, head); warp w owns the w-th run of the node's rows, so that counts by ballot and
 * one scan over warps give every row its place:
 *
 *     1  smallest and largest projection                                       | reads n floats
 *     2  histogram of 2,048 equal bins between them                            | reads n floats
 *     3  rows above the bin of the wanted rank are counted; those in it are kept aside, each warp's in its own run
 *     4  the threshold among the kept: ranked by every warp when they are few, else radix select (group_kth.cuh)
 *     5  each warp counts its kept rows above and at the threshold; scan over warps
 *     6  rows are written: the large ones right, of equal ones the lower index right, others left
 *
 * split_kernel, one CTA per (node, head), does both for nodes whose projections fit shared memory several times: some
 * CTAs of an SM wait for rows while others split.
 *
 * Kernels that read rows take heads alternately from the first and from the last, so that each finds in L2 what the one
 * before it read last: two heads of 75,600 rows.
 *
 * Equal bins instead of leading bits of the floats: bell-shaped projections fill a dozen exponents but hundreds of
 * bins, and atomics on one counter serialise.  Outliers only make step 4 longer. */
#include "group_kth.cuh"
#include "group_project.cuh"

enum {
    BINS = 2048,
    BATCH = 8,        /* loads that a thread has in flight */
    SPLIT_GROUPS = 40 /* of a node that split_kernel takes: 20 KiB of projections */
};

typedef struct partition_shared {
    kth_shared kth;
    int bins[BINS];
    float low[32], high[32];
    int total[32], above[32], ties[32];
    int bin, want;
} partition_shared;

typedef struct binning {
    float low, scale;
} binning;

/* Monotone in x; NaN falls in bin 0. */
static __device__ __forceinline__ int bin_of(binning b, float x)
{
    return min(max(__float2int_rz((x - b.low) * b.scale), 0), BINS - 1);
}

/* x[i + 32 k] of places before end, else `beyond`. */
static __device__ __forceinline__ void load_batch(float (&to)[BATCH], const float *x, int i, int end, float beyond)
{
#pragma unroll
    for (int k = 0; k < BATCH; k++) to[k] = i + 32 * k < end ? x[i + 32 * k] : beyond;
}

template <int WARPS>
static __device__ __forceinline__ binning find_range(const float *x, int begin, int end, partition_shared *shared)
{
    float low = INFINITY, high = -INFINITY;
    for (int i = begin; i < end; i += 32 * BATCH) {
        float batch[BATCH];
        load_batch(batch, x, i, end, NAN); /* which fminf and fmaxf ignore */
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            low = fminf(low, batch[k]);
            high = fmaxf(high, batch[k]);
        }
    }
    for (int mask = 16; mask; mask /= 2) {
        low = fminf(low, __shfl_xor_sync(~0u, low, mask));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, mask));
    }
    if (threadIdx.x % 32 == 0) {
        shared->low[threadIdx.x / 32] = low;
        shared->high[threadIdx.x / 32] = high;
    }
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        low = fminf(low, shared->low[w]);
        high = fmaxf(high, shared->high[w]);
    }
    float range = high - low;
    return binning{ low, range > 0 && range < INFINITY ? (float)BINS / range : 0.0f };
}

/* shared->bin and ->want: the bin in which, from the top, the want-th row lies, and its rank there. */
template <int WARPS> static __device__ __forceinline__ void find_bin(int want, partition_shared *shared)
{
    constexpr int EACH = BINS / (32 * WARPS);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = 0, top = BINS - 1 - EACH * (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < EACH; i++) sum += shared->bins[top - i];
    int upto = sum;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) shared->total[warp] = upto;
    __syncthreads();
    int above = upto - sum;
    for (int w = 0; w < warp; w++) above += shared->total[w];
    if (above < want && want <= above + sum)
        for (int i = 0; i < EACH; i++) {
            int here = shared->bins[top - i];
            if (above < want && want <= above + here) {
                shared->bin = top - i;
                shared->want = want - above;
            }
            above += here;
        }
    __syncthreads();
}

/* x: [n] projections of the node's rows, in shared or device memory.  All threads have synced since they were written.
 */
template <int WARPS>
static __device__ __forceinline__ void partition(const group_level &level, int h, group_node node, const float *x,
                                                 partition_shared &shared)
{
    int n = group_node_rows(level.N, node), left = (node.groups + 1) / 2 * GROUP_C;
    int64_t at = (int64_t)h * level.N + node.first * GROUP_C;
    uint32_t *kept = level.candidate + at;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int run = (n + 32 * WARPS - 1) / (32 * WARPS) * 32, begin = min(warp * run, n), end = min(begin + run, n);
    for (int i = threadIdx.x; i < BINS; i += 32 * WARPS) shared.bins[i] = 0;
    if (threadIdx.x == 0) shared.kth.listed = 0;
    binning binning = find_range<WARPS>(x, begin + lane, end, &shared);
    for (int i = begin + lane; i < end; i += 32 * BATCH) {
        float batch[BATCH];
        load_batch(batch, x, i, end, 0);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (i + 32 * k < end) atomicAdd(&shared.bins[bin_of(binning, batch[k])], 1);
    }
    __syncthreads();
    find_bin<WARPS>(n - left, &shared);
    int middle = shared.bin, few = shared.bins[middle] <= 32, above = 0, held = 0;
    uint32_t before = (1u << lane) - 1;
    for (int i = begin + lane; i - lane < end; i += 32 * BATCH) {
        float batch[BATCH];
        load_batch(batch, x, i, end, 0);
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int bin = i + 32 * k < end ? bin_of(binning, batch[k]) : -1;
            uint32_t here = __ballot_sync(~0u, bin == middle);
            if (bin == middle) {
                kept[begin + held + __popc(here & before)] = group_ordered(batch[k]);
                if (few) shared.kth.list[atomicAdd(&shared.kth.listed, 1)] = group_ordered(batch[k]);
            }
            held += __popc(here);
            above += __popc(__ballot_sync(~0u, bin > middle));
        }
    }
    __syncthreads();
    kth_result kth = few ? kth_ranked(shared.kth.list[lane], shared.bins[middle], shared.want)
                         : kth_largest(kept, begin + lane, begin + held, 32, shared.want, &shared.kth);
    int ties = 0;
    for (int i = begin; i < begin + held; i += 32) {
        uint32_t key = i + lane < begin + held ? kept[i + lane] : 0;
        int valid = i + lane < begin + held;
        above += __popc(__ballot_sync(~0u, valid && key > kth.threshold));
        ties += __popc(__ballot_sync(~0u, valid && key == kth.threshold));
    }
    if (lane == 0) {
        shared.above[warp] = above;
        shared.ties[warp] = ties;
    }
    __syncthreads();
    above = ties = 0; /* from here: before this row */
    for (int w = 0; w < warp; w++) {
        above += shared.above[w];
        ties += shared.ties[w];
    }
    const int32_t *from = level.from ? level.from + at : NULL;
    int32_t *to = level.to + at;
    for (int i = begin + lane; i - lane < end; i += 32 * BATCH) {
        float batch[BATCH];
        int query[BATCH];
        load_batch(batch, x, i, end, 0);
#pragma unroll
        for (int k = 0; k < BATCH; k++) query[k] = from && i + 32 * k < end ? from[i + 32 * k] : i + 32 * k;
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            int place = i + 32 * k, valid = place < end, bin = bin_of(binning, batch[k]);
            uint32_t key = group_ordered(batch[k]);
            int larger = valid && (bin > middle || (bin == middle && key > kth.threshold));
            int tie = valid && bin == middle && key == kth.threshold;
            uint32_t larger_mask = __ballot_sync(~0u, larger), tie_mask = __ballot_sync(~0u, tie);
            int ties_before = ties + __popc(tie_mask & before);
            int right = above + __popc(larger_mask & before) + min(ties_before, kth.ties);
            int up = larger || (tie && ties_before < kth.ties);
            if (valid) to[up ? left + right : place - right] = query[k];
            above += __popc(larger_mask);
            ties += __popc(tie_mask);
        }
    }
}

template <int WARPS>
static __global__ void __launch_bounds__(32 * WARPS) partition_kernel(const __grid_constant__ group_level level)
{
    __shared__ partition_shared shared;
    group_node node = group_node_at(level.G, level.depth, blockIdx.x);
    int h = blockIdx.y;
    partition<WARPS>(level, h, node, level.projection + (int64_t)h * level.N + node.first * GROUP_C, shared);
}

static __device__ __forceinline__ int node_of_group(const group_level &level, int group)
{
    int first = 0, groups = level.G, index = 0;
    for (int i = 0; i < level.depth; i++) {
        int left = (groups + 1) / 2, right = group >= first + left;
        first += right ? left : 0;
        groups = right ? groups - left : left;
        index = 2 * index + right;
    }
    return index;
}

template <typename T, int D>
static __global__ void __launch_bounds__(32 * PROJECT_WARPS) project_kernel(const __grid_constant__ group_level level)
{
    int h = gridDim.y - 1 - blockIdx.y, first = blockIdx.x * GROUP_C + threadIdx.x / 32 * PROJECT_ROWS;
    int64_t node = (int64_t)h << level.depth | node_of_group(level, blockIdx.x);
    float v[8];
    project_direction<D>(v, level.direction + node * D);
    float mine = project_rows<T, D>(level, h, first, level.N, v);
    int row = project_row<D>();
    if (row < PROJECT_ROWS && first + row < level.N) level.projection[(int64_t)h * level.N + first + row] = mine;
}

template <typename T, int D>
static __global__ void __launch_bounds__(32 * PROJECT_WARPS) split_kernel(const __grid_constant__ group_level level)
{
    __shared__ partition_shared shared;
    __shared__ float x[SPLIT_GROUPS * GROUP_C];
    group_node node = group_node_at(level.G, level.depth, blockIdx.x);
    int h = gridDim.y - 1 - blockIdx.y, start = node.first * GROUP_C, end = start + group_node_rows(level.N, node);
    float v[8];
    project_direction<D>(v, level.direction + ((int64_t)h * gridDim.x + blockIdx.x) * D);
    for (int first = start + threadIdx.x / 32 * PROJECT_ROWS; first < end; first += GROUP_C) {
        float mine = project_rows<T, D>(level, h, first, end, v);
        int row = project_row<D>();
        if (row < PROJECT_ROWS && first + row < end) x[first + row - start] = mine;
    }
    __syncthreads();
    partition<PROJECT_WARPS>(level, h, node, x, shared);
}

template <typename T, int D> static cudaError_t split(const group_level *level, cudaStream_t stream)
{
    dim3 nodes(1u << level->depth, level->H), groups(level->G, level->H);
    if (group_largest(level->G, level->depth) <= SPLIT_GROUPS) {
        split_kernel<T, D><<<nodes, 32 * PROJECT_WARPS, 0, stream>>>(*level);
        return cudaGetLastError();
    }
    project_kernel<T, D><<<groups, 32 * PROJECT_WARPS, 0, stream>>>(*level);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    partition_kernel<32><<<nodes, 1024, 0, stream>>>(*level);
    return cudaGetLastError();
}

cudaError_t group_split(const group_level *level, mcsa_dtype dtype, cudaStream_t stream)
{
    if (dtype == MCSA_BF16)
        return level->D == 128 ? split<__nv_bfloat16, 128>(level, stream) : split<__nv_bfloat16, 64>(level, stream);
    return level->D == 128 ? split<__half, 128>(level, stream) : split<__half, 64>(level, stream);
}
