/* top.cu - the K largest masses of each row, of equal ones the lower index, as a bitmap.
 *
 * One block a row, two blocks a multiprocessor: while one waits for memory, the other counts.
 *
 *     sample   4096 masses, one from a scattered place of each of 4096 equal strata of the row
 *     narrow   histograms of the sample bracket the threshold: [low, high], about 4 % of the row
 *     sweep    the only pass over the row: what exceeds `high` sets its bit in shared memory, what lies inside the
 *              bracket joins its warp's list
 *     narrow   histograms of the lists find the threshold itself, and among its ties the last index that is kept
 *     store    the listed that are kept set their bits; the bitmap goes out
 *
 * Only the sweep touches every mass, and it needs no atomics there: a histogram of the whole row would have the masses
 * of attention, which span few exponents, meet in few bins.  The sweep counts what it saw, so a bracket that missed the
 * threshold or a list that ran over is noticed; such a row (many ties, mostly), and any row longer than MAX_SWEPT, is
 * read up to five times instead: histograms over the row, ties, and the bits.  Either way the result is exact, so the
 * sample decides speed only.
 *
 * Masses are compared as the unsigned integers of their bits, which order as non-negative floats do; NaN and negative
 * values count as large.  All sums are of integers: the result depends on the order of nothing. */
#include "cuda/kernels.h"

#include <math.h>

namespace
{

enum {
    THREADS = 512,
    WARPS = THREADS / 32,
    BLOCKS = 2,         /* of a multiprocessor */
    BINS = 4 * THREADS, /* 11 bits a pass */
    SAMPLE_BITS = 12,
    SAMPLES = 1 << SAMPLE_BITS,
    AHEAD = 12,           /* words of 32 masses that a warp has in flight: 12 x 128 bytes x 32 warps = 48 KiB */
    MAX_SWEPT = 1 << 18,  /* tokens of which bitmap and lists fit shared memory */
    MAX_LISTED = 64 * 18, /* a warp's list at that size: 16 x 1152 x 8 = 144 KiB */
};

/* Shared memory; the bitmap (32-bit words of the row) and the lists follow it. */
struct smem_plan {
    int bins[BINS];
    int totals[WARPS];
    int bin_first, bin_last, above, end; /* what a scan of the bins found */
    int over[WARPS], listed[WARPS];      /* of each warp's sweep: masses above the bracket, inside it */
};

/* A warp's list of keys (x) and their places in the row (y). */
struct list {
    uint2 *entries; /* [capacity] */
    int count, capacity;
};

/* Keys of interest lie in [low, high]; `above` keys are larger and `inside` lie in it. */
struct bracket {
    uint32_t low, high;
    int above, inside;
};

struct params {
    const uint32_t *keys; /* [rows, pitch] */
    int64_t pitch, words; /* words: 64-bit, of a row's bitmap */
    int N, K;
    int listed;      /* capacity of a warp's list; 0: rows are too long to be swept */
    int first, last; /* ranks in the sample between which the threshold is looked for */
    uint64_t *kept;  /* [rows, words] */
};

/* Right shift that spreads the bracket over the bins. */
__device__ int bin_shift(const bracket &b)
{
    int bits = 32 - __clz(b.high - b.low);
    return bits > 11 ? bits - 11 : 0;
}

/* Adds a key to the histogram; bin 0 holds the largest. */
__device__ void count(smem_plan &s, const bracket &b, int shift, uint32_t key)
{
    if (key - b.low <= b.high - b.low) atomicAdd(&s.bins[(b.high - key) >> shift], 1);
}

/* Narrows the bracket to the bins from the one that holds rank `first` to that of rank `last` (1 is the largest of all
 * keys), and empties the histogram.  Both ranks lie inside the bracket. */
__device__ void narrow(smem_plan &s, bracket &b, int shift, int first, int last)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();
    int4 *own = (int4 *)s.bins + threadIdx.x;
    const int n[4] = { own->x, own->y, own->z, own->w };
    *own = make_int4(0, 0, 0, 0);
    int mine = n[0] + n[1] + n[2] + n[3], sum = mine;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += left;
    }
    if (lane == 31) s.totals[warp] = sum;
    __syncthreads();
    int before = b.above + sum - mine + __reduce_add_sync(~0u, lane < warp ? s.totals[lane] : 0);
    for (int i = 0; i < 4; i++) {
        int through = before + n[i];
        if (before < first && first <= through) {
            s.bin_first = 4 * threadIdx.x + i;
            s.above = before;
        }
        if (before < last && last <= through) {
            s.bin_last = 4 * threadIdx.x + i;
            s.end = through;
        }
        before = through;
    }
    __syncthreads();
    uint32_t below = ((uint32_t)s.bin_last << shift) + ((1u << shift) - 1); /* from high to the foot of the last bin */
    if (below < b.high - b.low) b.low = b.high - below;
    b.high -= (uint32_t)s.bin_first << shift;
    b.above = s.above;
    b.inside = s.end - s.above;
}

/* Brackets the threshold by the sample.  Strata are picked from by a fixed hash, so that no period of the row is met.
 */
__device__ bracket bracket_by_sample(smem_plan &s, const params &p, const uint32_t *row)
{
    uint32_t sample[SAMPLES / THREADS];
    for (int i = 0; i < SAMPLES / THREADS; i++) {
        uint32_t stratum = i * THREADS + threadIdx.x, within = stratum * 0x9e3779b9u >> 20;
        sample[i] = row[((uint64_t)(stratum << 12 | within) * p.N) >> (SAMPLE_BITS + 12)];
    }
    int first = max(p.first, 1), last = min(p.last, (int)SAMPLES), enough = (last - first) * 5 / 4 + 1;
    bracket b = { 0, ~0u, 0, SAMPLES };
    for (int pass = 0; pass < 3 && b.inside > enough; pass++) {
        int shift = bin_shift(b);
        for (int i = 0; i < SAMPLES / THREADS; i++) count(s, b, shift, sample[i]);
        narrow(s, b, shift, first, last);
    }
    if (p.first < 1) b.high = ~0u;
    if (p.last > SAMPLES) b.low = 0;
    return b;
}

/* AHEAD words of the row from `word` on, WARPS apart.  EDGE: the row may end in them, or the list run over. */
template <int EDGE>
__device__ __forceinline__ void sweep_words(const params &p, const uint32_t *row, const bracket &b, int word,
                                            uint32_t *bits, list &own)
{
    int lane = threadIdx.x & 31, j = word * 32 + lane, left = p.N - j;
    uint32_t before = (1u << lane) - 1, key[AHEAD];
    const uint32_t *from = row + j;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) key[i] = !EDGE || i * THREADS < left ? __ldcs(from + i * THREADS) : 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int valid = !EDGE || i * THREADS < left;
        int larger = valid && key[i] > b.high, inside = valid && key[i] - b.low <= b.high - b.low;
        uint32_t set = __ballot_sync(~0u, larger), join = __ballot_sync(~0u, inside);
        int at = own.count + __popc(join & before);
        if (inside && (!EDGE || at < own.capacity)) own.entries[at] = make_uint2(key[i], j + i * THREADS);
        own.count += __popc(join);
        if (lane == 0 && (!EDGE || word + i * WARPS < 2 * p.words)) bits[word + i * WARPS] = set;
    }
}

/* Reads the row once: bits of what exceeds the bracket, and this warp's list of what lies in it.  Warps take turns word
 * by word, so that neighbours, which are alike, spread over all lists. */
__device__ void sweep(smem_plan &s, const params &p, const uint32_t *row, const bracket &b, uint32_t *bits, list &own)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, over = 0;
    for (int word = warp; word < 2 * p.words; word += AHEAD * WARPS)
        if ((word + (AHEAD - 1) * WARPS + 1) * 32 <= p.N && own.count + AHEAD * 32 <= own.capacity)
            sweep_words<0>(p, row, b, word, bits, own);
        else
            sweep_words<1>(p, row, b, word, bits, own);
    __syncwarp();
    for (int word = warp + lane * WARPS; word < 2 * p.words; word += 32 * WARPS) over += __popc(bits[word]);
    over = __reduce_add_sync(~0u, over);
    if (lane == 0) {
        s.over[warp] = over;
        s.listed[warp] = own.count;
    }
    __syncthreads();
}

/* Keeps the K largest by sample, sweep and lists; 0: the bracket missed or a list ran over, and nothing was stored. */
__device__ int keep_by_sweep(smem_plan &s, const params &p, const uint32_t *row, uint64_t *kept)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, share = ((2 * (int)p.words + WARPS - 1) / WARPS) * 32;
    uint32_t *bits = (uint32_t *)(&s + 1);
    list own = { (uint2 *)(bits + 2 * p.words) + warp * p.listed, 0, p.listed };
    bracket b = { 0, ~0u, 0, 0 };
    if (share > own.capacity) b = bracket_by_sample(s, p, row);
    sweep(s, p, row, b, bits, own);

    int listed = lane < WARPS ? s.listed[lane] : 0;
    b.above = __reduce_add_sync(~0u, lane < WARPS ? s.over[lane] : 0);
    b.inside = __reduce_add_sync(~0u, listed);
    if (__any_sync(~0u, listed > own.capacity) || b.above >= p.K || b.above + b.inside < p.K) return 0;

    while (b.low < b.high && b.above + b.inside > p.K) {
        int shift = bin_shift(b);
#pragma unroll 2
        for (int i = lane; i < own.count; i += 32) count(s, b, shift, own.entries[i].x);
        narrow(s, b, shift, p.K, p.K);
    }
    int ties = p.K - b.above;
    bracket last = { 0, ~0u, 0, b.inside }; /* of ~index of the keys in [low, high] */
    while (last.above + last.inside > ties) {
        int shift = bin_shift(last);
#pragma unroll 2
        for (int i = lane; i < own.count; i += 32)
            if (own.entries[i].x == b.low) count(s, last, shift, ~own.entries[i].y);
        narrow(s, last, shift, ties, ties);
    }
#pragma unroll 2
    for (int i = lane; i < own.count; i += 32) {
        uint2 entry = own.entries[i];
        if (entry.x > b.high || (entry.x >= b.low && ~entry.y >= last.low))
            atomicOr(&bits[entry.y / 32], 1u << entry.y % 32);
    }
    __syncthreads();
    for (int word = threadIdx.x; word < p.words; word += THREADS)
        kept[word] = bits[2 * word] | (uint64_t)bits[2 * word + 1] << 32;
    return 1;
}

/* Keeps the K largest with histograms over the whole row. */
__device__ void keep_by_reading(smem_plan &s, const params &p, const uint32_t *row, uint64_t *kept)
{
    bracket b = { 0, ~0u, 0, p.N };
    while (b.low < b.high && b.above + b.inside > p.K) {
        int shift = bin_shift(b);
        for (int j = threadIdx.x; j < p.N; j += THREADS) count(s, b, shift, row[j]);
        narrow(s, b, shift, p.K, p.K);
    }
    int ties = p.K - b.above;
    bracket last = { 0, ~0u, 0, b.inside };
    while (last.above + last.inside > ties) {
        int shift = bin_shift(last);
        for (int j = threadIdx.x; j < p.N; j += THREADS)
            if (row[j] == b.low) count(s, last, shift, ~(uint32_t)j);
        narrow(s, last, shift, ties, ties);
    }
    int lane = threadIdx.x & 31, words = (int)p.words;
#pragma unroll 2
    for (int word = threadIdx.x >> 5; word < words; word += WARPS) {
        uint32_t half[2];
        for (int i = 0; i < 2; i++) {
            uint32_t j = word * 64 + i * 32 + lane, key = j < p.N ? row[j] : 0;
            half[i] = __ballot_sync(~0u, j < p.N && (key > b.high || (key >= b.low && ~j >= last.low)));
        }
        if (lane == 0) kept[word] = half[0] | (uint64_t)half[1] << 32;
    }
}

__global__ void __launch_bounds__(THREADS, BLOCKS) top(const params p)
{
    extern __shared__ __align__(16) unsigned char raw[];
    smem_plan &s = *(smem_plan *)raw;
    const uint32_t *row = p.keys + blockIdx.x * p.pitch;
    uint64_t *kept = p.kept + blockIdx.x * p.words;
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) s.bins[bin] = 0;
    __syncthreads();
    if (!p.listed || !keep_by_sweep(s, p, row, kept)) keep_by_reading(s, p, row, kept);
}

} // namespace

/* Ranks and capacity.  A threshold of rank K among N has the rank K / N SAMPLES in the sample, with a standard
 * deviation of sqrt(SAMPLES p (1 - p)) or, strata being alike inside, less; 3.5 of them either way miss one row in 2000
 * at most. */
extern "C" cudaError_t mcsa_cuda_top(const mcsa_cuda_top_job *job, cudaStream_t stream)
{
    params p = { (const uint32_t *)job->mass, job->pitch, (job->N + 63) / 64, job->N, job->K, 0, 0, 0, job->kept };
    size_t bytes = sizeof(smem_plan);
    if (job->N <= MAX_SWEPT) {
        double share = (double)job->K / job->N, margin = 1 + 3.5 * sqrt(SAMPLES * share * (1 - share));
        p.first = (int)floor(share * SAMPLES - margin);
        p.last = (int)ceil(share * SAMPLES + margin);
        double expected = 1.25 * 2 * margin / SAMPLES * job->N / WARPS; /* narrowing stops a quarter early */
        p.listed = (int)fmin(MAX_LISTED, 64 * ceil((1.5 * expected + 128) / 64));
        bytes += p.words * sizeof(uint64_t) + (size_t)WARPS * p.listed * sizeof(uint2);
        cudaError_t error = cudaFuncSetAttribute(top, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) return error;
    }
    top<<<(unsigned)job->rows, THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}
