/* rank.cu - which clusters a group keeps: those of most worth whose keys fit into what K rows leave beside the means.
 *
 * One block a row, all of it in shared memory:
 *
 *     sort    worths descending, of equal ones the lower cluster first: a radix sort of the inverted bits by 4
 *             digits of 8.  A warp goes through a slab of neighbours in order, and the places of a digit are given to
 *             the warps in order, so every pass is stable and nothing depends on which warp comes first.
 *     weigh   rows that keeping a cluster takes: its keys for its mean, n - 1; empty ones are none
 *     walk    one warp goes down the ranks, 32 at a time
 *
 * What does not fit is passed over and smaller clusters further down may still fit.  Room only shrinks, so of 32
 * clusters those that do not fit by themselves are out for good; prefix sums over the others say which can be kept
 * before the first that cannot, and the rest is looked at again with the room that is left.
 *
 * While the warp of one block walks, which takes up to half the time, other blocks sort: small ones, so that many fit a
 * multiprocessor.  At H = 40, N = 75,600 an H200 takes 1.5 ms for 2520 clusters and 4.6 for 6300; with 512 threads 1.8
 * and 4.2.
 *
 * Worths are compared as the unsigned integers of their bits, which order as non-negative floats do. */
#include "cuda/kernels.h"

namespace
{

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    DIGIT_BITS = 8,
    DIGITS = 1 << DIGIT_BITS,
    SHARE = WARPS * DIGITS / THREADS /* bins of a thread in a scan: warps of one digit */
};

/* Shared memory; the parts follow it. */
struct smem_plan {
    int bins[WARPS][DIGITS]; /* counts, then places, of each warp's clusters */
    int totals[WARPS];
    int means; /* clusters that are not empty */
};

/* What the sort moves are clusters, from one half of `ranked` to the other and back; keys stay. */
struct parts {
    uint32_t *key;    /* [padded] inverted bits of worths; after the sort the weights */
    uint32_t *bits;   /* [2 words] clusters kept */
    uint16_t *ranked; /* [2, padded] */
};

struct params {
    const uint32_t *worth; /* [rows, P] */
    const int32_t *first;  /* [heads, P + 1] */
    uint64_t *kept;        /* [rows, words] */
    int64_t words;
    int G, P, K;
    int padded; /* P rounded up to whole warps */
};

__device__ parts lay_out(smem_plan *s, const params &p)
{
    uint32_t *key = (uint32_t *)(s + 1), *bits = key + p.padded;
    return { key, bits, (uint16_t *)(bits + 2 * p.words) };
}

__device__ __forceinline__ int prefix_sum(int n)
{
    int lane = threadIdx.x % 32;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, n, step);
        if (lane >= step) n += left;
    }
    return n;
}

/* Counts to places: digit by digit, inside a digit warp by warp. */
__device__ void scan_bins(smem_plan &s)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count[SHARE], mine = 0;
    int *bins = &s.bins[threadIdx.x % (WARPS / SHARE) * SHARE][threadIdx.x / (WARPS / SHARE)];
#pragma unroll
    for (int i = 0; i < SHARE; i++) mine += count[i] = bins[i * DIGITS];
    int sum = prefix_sum(mine);
    if (lane == 31) s.totals[warp] = sum;
    __syncthreads();
    int place = sum - mine + __reduce_add_sync(~0u, lane < warp ? s.totals[lane] : 0);
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        bins[i * DIGITS] = place;
        place += count[i];
    }
    __syncthreads();
}

/* The lanes of `among` that have this lane's digit. */
__device__ __forceinline__ uint32_t same_digit(uint32_t among, uint32_t digit)
{
#pragma unroll
    for (int bit = 0; bit < DIGIT_BITS; bit++) {
        uint32_t set = __ballot_sync(~0u, digit >> bit & 1);
        among &= digit >> bit & 1 ? set : ~set;
    }
    return among;
}

/* One pass of the sort, by the digit at `shift`. */
__device__ void sort_by_digit(smem_plan &s, const parts &a, const params &p, int shift)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slab = (p.P + THREADS - 1) / THREADS * 32;
    int begin = warp * slab, end = min(begin + slab, p.P), *bins = s.bins[warp];
    int from = shift / DIGIT_BITS % 2 * p.padded, to = p.padded - from;
    for (int i = lane; i < DIGITS; i += 32) bins[i] = 0;
    __syncwarp();
    for (int i = begin + lane; i < end; i += 32) atomicAdd(&bins[a.key[a.ranked[from + i]] >> shift & (DIGITS - 1)], 1);
    __syncthreads();
    scan_bins(s);
    for (int i = begin; i < end; i += 32) {
        int valid = i + lane < end, cluster = valid ? a.ranked[from + i + lane] : 0;
        uint32_t digit = a.key[cluster] >> shift & (DIGITS - 1);
        uint32_t same = same_digit(__ballot_sync(~0u, valid), digit);
        int before = __popc(same & ((1u << lane) - 1)), place = bins[digit] + before;
        __syncwarp();
        if (valid) {
            if (before == 0) bins[digit] = place + __popc(same);
            a.ranked[to + place] = (uint16_t)cluster;
        }
        __syncwarp();
    }
    __syncthreads();
}

/* Goes down the ranks with `room` rows to take; one warp. */
__device__ void walk(const parts &a, const params &p, int room)
{
    const int *weights = (const int *)a.key;
    int lane = threadIdx.x % 32;
    for (int first = 0; first < p.P; first += 32) {
        int cluster = first + lane < p.P ? a.ranked[first + lane] : 0;
        int weight = first + lane < p.P ? weights[cluster] : -1; /* -1 when empty or kept */
        while (__any_sync(~0u, weight >= 0 && weight <= room)) {
            int fits = weight >= 0 && weight <= room, rows = fits ? weight : 0, all = __reduce_add_sync(~0u, rows);
            if (all > room) rows = prefix_sum(rows);
            int keep = fits && rows <= room;
            if (keep) {
                atomicOr(&a.bits[cluster / 32], 1u << cluster % 32);
                weight = -1;
            }
            room -= all <= room ? all : __reduce_max_sync(~0u, keep ? rows : 0);
        }
    }
}

__global__ void __launch_bounds__(THREADS) rank(const params p)
{
    extern __shared__ __align__(16) unsigned char raw[];
    smem_plan &s = *(smem_plan *)raw;
    parts a = lay_out(&s, p);
    int64_t row = blockIdx.x;
    const uint32_t *worth = p.worth + row * p.P;
    const int32_t *first = p.first + row / p.G * (p.P + 1);
    if (threadIdx.x == 0) s.means = 0;
    for (int i = threadIdx.x; i < 2 * p.words; i += THREADS) a.bits[i] = 0;
    for (int i = threadIdx.x; i < p.P; i += THREADS) {
        a.key[i] = ~worth[i];
        a.ranked[i] = (uint16_t)i;
    }
    __syncthreads();
    for (int shift = 0; shift < 32; shift += DIGIT_BITS) sort_by_digit(s, a, p, shift);

    int means = 0;
    for (int i = threadIdx.x; i < p.P; i += THREADS) {
        int weight = first[i + 1] - first[i] - 1;
        a.key[i] = (uint32_t)weight;
        means += weight >= 0;
    }
    means = __reduce_add_sync(~0u, means);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.means, means);
    __syncthreads();
    if (threadIdx.x < 32) walk(a, p, p.K - s.means);
    __syncthreads();
    for (int word = threadIdx.x; word < p.words; word += THREADS)
        p.kept[row * p.words + word] = a.bits[2 * word] | (uint64_t)a.bits[2 * word + 1] << 32;
}

} // namespace

extern "C" cudaError_t mcsa_cuda_rank(const mcsa_cuda_rank_job *job, cudaStream_t stream)
{
    int64_t words = (job->P + 63) / 64;
    int padded = (job->P + 31) / 32 * 32;
    params p = { (const uint32_t *)job->worth, job->first, job->kept, words, job->G, job->P, job->K, padded };
    size_t bytes = sizeof(smem_plan) + padded * (sizeof(uint32_t) + 2 * sizeof(uint16_t)) + words * sizeof(uint64_t);
    cudaError_t error = cudaFuncSetAttribute(rank, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error != cudaSuccess) return error;
    rank<<<(unsigned)job->rows, THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}
