/* group_kth.cuh - the threshold of the `want` largest of a CTA's 32-bit keys, by radix select in shared memory. */
#ifndef MCSA_CUDA_GROUP_KTH_CUH
#define MCSA_CUDA_GROUP_KTH_CUH

#include "group.cuh"

typedef struct kth_shared {
    __align__(16) int count[256];
    int bin, want;
} kth_shared;

typedef struct kth_result {
    uint32_t threshold;
    int ties; /* of the keys equal to it, this many belong to the largest */
} kth_result;

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

#endif
