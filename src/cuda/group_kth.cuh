/* group_kth.cuh - the threshold of the `want` largest of a CTA's 32-bit keys, in shared memory.
 *
 * kth_largest is a radix select of four passes, for any keys.  kth_near is for a few hundred keys of floats: it counts
 * them in 256 equal bins between the smallest and the largest and, as a rule, leaves a handful in the bin that matters,
 * which every warp ranks for itself: 3 barriers instead of 12. */
#ifndef MCSA_CUDA_GROUP_KTH_CUH
#define MCSA_CUDA_GROUP_KTH_CUH

#include "group.cuh"

typedef struct kth_shared {
    __align__(16) int count[256];
    int bin, want;
    uint32_t low[8], high[8]; /* of the keys of each warp */
    uint32_t list[32];
    int listed;
} kth_shared;

typedef struct kth_result {
    uint32_t threshold;
    int ties; /* of the keys equal to it, this many belong to the largest */
} kth_result;

/* Unsigned integers in the order of the floats, NaN below all. */
static __device__ __forceinline__ uint32_t kth_key(float x)
{
    return x == x ? group_ordered(x) : 0;
}

static __device__ __forceinline__ float kth_float(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The first warp finds the bin in which, from the top, the want-th key lies. */
static __device__ __forceinline__ void kth_bin(kth_shared *shared, int want)
{
    int lane = threadIdx.x, sum = 0, above = 0;
    int4 low = *(const int4 *)&shared->count[248 - 8 * lane], high = *(const int4 *)&shared->count[252 - 8 * lane];
    const int count[8] = { high.w, high.z, high.y, high.x, low.w, low.z, low.y, low.x };
#pragma unroll
    for (int i = 0; i < 8; i++) sum += count[i];
    int upto = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
    }
    above = upto - sum;
    if (above >= want || want > upto) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (above < want && want <= above + count[i]) {
            shared->bin = 255 - 8 * lane - i;
            shared->want = want - above;
        }
        above += count[i];
    }
}

/* Each thread offers keys[begin], keys[begin + step] ... before end; 1 <= want <= all of them.  The caller has synced
 * since the keys were written. */
static __device__ __forceinline__ kth_result kth_largest(const uint32_t *keys, int begin, int end, int step, int want,
                                                         kth_shared *shared)
{
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) shared->count[i] = 0;
        __syncthreads();
        uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
        for (int i = begin; i < end; i += step) {
            uint32_t key = keys[i];
            if ((key & mask) == prefix) atomicAdd(&shared->count[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) kth_bin(shared, want);
        __syncthreads();
        prefix |= (uint32_t)shared->bin << shift;
        want = shared->want;
    }
    return kth_result{ prefix, want };
}

/* Before kth_near: the range of the keys that the caller's warps have; all keys are written on return. */
static __device__ __forceinline__ void kth_range(uint32_t low, uint32_t high, kth_shared *shared)
{
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (threadIdx.x % 32 == 0) {
        shared->low[threadIdx.x / 32] = low;
        shared->high[threadIdx.x / 32] = high;
    }
    for (int i = threadIdx.x; i < 256; i += blockDim.x) shared->count[i] = 0;
    if (threadIdx.x == 0) shared->listed = 0;
    __syncthreads();
}

/* Bin of a key, monotone; all keys are in bin 0 where the range is not a positive number. */
static __device__ __forceinline__ int kth_bin_of(uint32_t key, float base, float scale)
{
    return min(max(__float2int_rz((kth_float(key) - base) * scale), 0), 255);
}

/* Of at most 32 keys, by every warp. */
static __device__ __forceinline__ kth_result kth_ranked(uint32_t mine, int count, int want)
{
    int lane = threadIdx.x % 32, above = 0, equal = 0;
    for (int i = 0; i < count; i++) {
        uint32_t other = __shfl_sync(~0u, mine, i);
        above += other > mine;
        equal += other == mine;
    }
    int source = __ffs(__ballot_sync(~0u, lane < count && above < want && want <= above + equal)) - 1;
    return kth_result{ __shfl_sync(~0u, mine, source), want - __shfl_sync(~0u, above, source) };
}

/* keys [n] of a CTA of 8 warps, after kth_range; 1 <= want <= n */
static __device__ __forceinline__ kth_result kth_near(const uint32_t *keys, int n, int want, kth_shared *shared)
{
    uint32_t low = ~0u, high = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) {
        low = min(low, shared->low[w]);
        high = max(high, shared->high[w]);
    }
    float base = kth_float(low), range = kth_float(high) - base;
    float scale = range > 0 && range < INFINITY ? 256.0f / range : 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&shared->count[kth_bin_of(keys[i], base, scale)], 1);
    __syncthreads();
    if (threadIdx.x < 32) kth_bin(shared, want);
    __syncthreads();
    int middle = shared->bin, held = shared->count[middle], left = shared->want;
    if (held <= 32)
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            if (kth_bin_of(keys[i], base, scale) == middle) shared->list[atomicAdd(&shared->listed, 1)] = keys[i];
    __syncthreads();
    if (held > 32) return kth_largest(keys, threadIdx.x, n, blockDim.x, want, shared);
    return kth_ranked(shared->list[threadIdx.x % 32], held, left);
}

#endif
