/* tokens.cuh - the producer's side of attention over lists of key rows, and where its tiles come from: shared by
 * attend_tokens.cu and the kernel of other methods, which differ in their tiles and in what becomes of the output.
 *
 * Gathering thread t copies the 16-byte chunk t mod 8 of each slab of rows t / 8 + 16 i, so that its place in the
 * swizzle is the same for all of them.  The 8 threads that share rows hold each others' row numbers, one load per
 * thread and 8 rows, and pass them round by shuffles.
 *
 * With MEANS a list has keys first, j for key j, then means of clusters, N + p for that of cluster p, then -1.  Blocks
 * of keys alone go as without; the others, which come first, are gathered row by row from where each lies, with a bias.
 *
 * A job of a kernel names its tensors and tiles:
 *
 *     tokens_tensors x
 *     tokens_means means        where MEANS
 *     tokens_walk walk()        the tiles of this thread block
 *     tokens_tile tile(at) */
#ifndef MCSA_CUDA_TOKENS_CUH
#define MCSA_CUDA_TOKENS_CUH

#include "attend_tile.cuh"
#include "core/plan.h"
#include "gather.cuh"

#include <cuda_runtime.h>

/* Of 168 a thread that the launch gives.  Consumers at D = 128 need nearly all of theirs. */
template <int D> struct tokens_registers {
    enum { PRODUCER = D == 64 ? 56 : 40, CONSUMER = D == 64 ? 224 : 232 };
};

typedef struct tokens_tensors {
    const void *q, *k, *v;          /* [H, N, D] */
    int64_t q_head, k_head, v_head; /* bytes between heads */
    uint32_t q_row, k_row, v_row;   /* bytes between rows */
} tokens_tensors;

typedef struct tokens_means {
    const void *k, *v; /* [H, P, D] */
    const float *bias; /* [H, P + 1] in units of a score before the scale; the last, -infinity, is that of no row */
    int N, P;
} tokens_means;

/* Numbers first, first + step, ... below end. */
typedef struct tokens_walk {
    int first, end, step;
} tokens_walk;

typedef struct tokens_tile {
    const int32_t *queries; /* [rows] row numbers */
    const int32_t *keys;    /* [count] */
    int head, rows;         /* rows past ATTEND_ROWS are another tile's */
    int count;              /* at least 1 */
    int plain;              /* MEANS: of which the first are keys */
} tokens_tile;

/* Where rows come from. */
typedef struct tokens_source {
    const char *rows;  /* row 0 of the head */
    uint32_t stride;   /* bytes between rows */
    const char *means; /* MEANS: [H, P, D] */
    int head;
} tokens_source;

/* What the rows of a block may be. */
enum { TOKENS_KEYS, TOKENS_RAGGED /* keys and -1 */, TOKENS_MIXED /* keys, means and -1 */ };

/* Row numbers of a tile of ROWS rows as one gathering thread holds them, -1 for rows that are not there. */
enum { TOKENS_LANES = 8 /* threads that share a row */, TOKENS_STEP = 16 /* rows that the warpgroup copies at once */ };
template <int ROWS> struct tokens_rows {
    enum { PASSES = ROWS / TOKENS_STEP, HELD = (PASSES + TOKENS_LANES - 1) / TOKENS_LANES };
    int row[HELD];
};

/* list[0 .. count) */
template <int ROWS>
static __device__ __forceinline__ void tokens_read(tokens_rows<ROWS> *rows, const int32_t *list, int count)
{
    int lane = threadIdx.x % TOKENS_LANES, first = threadIdx.x / TOKENS_LANES;
#pragma unroll
    for (int i = 0; i < tokens_rows<ROWS>::HELD; i++) {
        int at = (i * TOKENS_LANES + lane) * TOKENS_STEP + first;
        rows->row[i] = at < count ? __ldg(list + at) : -1;
    }
}

/* This thread's chunk of a row.  `means` is read when KIND is mixed.  Numbers of means fit 32 bits: 2^32 of them would
 * be half a terabyte. */
template <int KIND, int D>
static __device__ __forceinline__ const char *tokens_at(const tokens_source &source, const tokens_means *means, int row)
{
    const int chunk = threadIdx.x % TOKENS_LANES * 16;
    if (KIND == TOKENS_MIXED && row >= means->N)
        return source.means + chunk + (uint64_t)(uint32_t)(source.head * means->P + row - means->N) * (2 * D);
    return source.rows + chunk + (uint64_t)(uint32_t)(KIND == TOKENS_KEYS || row >= 0 ? row : 0) * source.stride;
}

/* Copies the rows to `tile`, slabs of ROWS rows. */
template <int KIND, int D, int ROWS>
static __device__ __forceinline__ void tokens_gather(uint16_t *tile, const tokens_rows<ROWS> *rows,
                                                     const tokens_source &source, const tokens_means *means)
{
    int lane = threadIdx.x % TOKENS_LANES, first = threadIdx.x / TOKENS_LANES;
    uint32_t to = shared_address(tile) + first * 128 + (lane ^ first % 8) * 16;
#pragma unroll
    for (int i = 0; i < tokens_rows<ROWS>::PASSES; i++) {
        int row = __shfl_sync(0xffffffff, rows->row[i / TOKENS_LANES], i % TOKENS_LANES, TOKENS_LANES);
        const char *from = tokens_at<KIND, D>(source, means, row);
#pragma unroll
        for (int slab = 0; slab < D / 64; slab++) {
            uint32_t line = to + (slab * ROWS + i * TOKENS_STEP) * 128;
            if (KIND == TOKENS_KEYS)
                gather_16(line, from + slab * 128);
            else
                gather_16_or_zero(line, from + slab * 128, row >= 0);
        }
    }
}

/* What the scores of each row start from: 0 for a key.  A thread copies it for the rows whose numbers it holds. */
template <int ROWS>
static __device__ __forceinline__ void tokens_gather_bias(float *bias, const tokens_rows<ROWS> *rows, int head,
                                                          const tokens_means *means)
{
    int lane = threadIdx.x % TOKENS_LANES, first = threadIdx.x / TOKENS_LANES;
#pragma unroll
    for (int i = 0; i < tokens_rows<ROWS>::HELD; i++) {
        int at = (i * TOKENS_LANES + lane) * TOKENS_STEP + first, row = rows->row[i];
        int cluster = row < 0 ? means->P : max(row - means->N, 0);
        const float *from = means->bias + (uint32_t)(head * (means->P + 1) + cluster);
        if (at < ROWS) gather_4_or_zero(shared_address(bias + at), from, row < 0 || row >= means->N);
    }
}

/* One slot of K or of V: waits until it is free, fills it with block number n of the stream. */
template <int KIND, int VALUES, int D, int BN>
static __device__ __forceinline__ void tokens_fill(attend_shared<D, BN> *sm, uint32_t n, const tokens_rows<BN> *rows,
                                                   const tokens_source &source, const tokens_means *means)
{
    int s = attend_slot(n);
    mbarrier_wait(VALUES ? &sm->v_empty[s] : &sm->k_empty[s], attend_parity(n) ^ 1);
    tokens_gather<KIND, D>(VALUES ? sm->v[s] : sm->k[s], rows, source, means);
    if (KIND == TOKENS_MIXED && !VALUES) tokens_gather_bias(sm->bias[s], rows, source.head, means);
    gather_arrive(VALUES ? &sm->v_full[s] : &sm->k_full[s]);
}

/* Blocks, the first visited, whose rows may be no keys. */
template <int MEANS, int BN> static __device__ __forceinline__ int tokens_others(const tokens_tile &tile, int blocks)
{
    return MEANS ? max(blocks - tile.plain / BN, 1) : 1;
}

template <int MEANS, int D, int BN, typename Job>
static __device__ __forceinline__ void tokens_produce(attend_shared<D, BN> *sm, const Job &job)
{
    enum { OTHER = MEANS ? TOKENS_MIXED : TOKENS_RAGGED };
    const tokens_walk walk = job.walk();
    const tokens_means *means = NULL;
    uint32_t n = 0, tiles = 0;
    if constexpr (MEANS) means = &job.means;

    for (int at = walk.first; at < walk.end; at += walk.step, tiles++) {
        const tokens_tile tile = job.tile(at);
        const int blocks = (tile.count + BN - 1) / BN, ragged = tile.count - (blocks - 1) * BN;
        const int others = tokens_others<MEANS, BN>(tile, blocks);
        const int32_t *keys = tile.keys + (int64_t)(blocks - 1) * BN;
        const tokens_source q = { (const char *)job.x.q + tile.head * job.x.q_head, job.x.q_row };
        tokens_source k = { (const char *)job.x.k + tile.head * job.x.k_head, job.x.k_row, NULL, tile.head };
        tokens_source v = { (const char *)job.x.v + tile.head * job.x.v_head, job.x.v_row, NULL, tile.head };
        if constexpr (MEANS) {
            k.means = (const char *)means->k;
            v.means = (const char *)means->v;
        }
        tokens_rows<BN> before, now, next;
        tokens_rows<ATTEND_ROWS> queries;

        tokens_read(&now, keys, ragged);
        tokens_read(&queries, tile.queries, tile.rows);
        if (blocks > 1) tokens_read(&next, keys -= BN, BN);
        tokens_fill<OTHER, 0>(sm, n, &now, k, means);
        mbarrier_wait(&sm->q_empty, tiles & 1 ^ 1);
        tokens_gather<TOKENS_RAGGED, D>(sm->q, &queries, q, means);
        gather_arrive(&sm->q_full);
        for (int b = 1; b < blocks; b++, n++) {
            before = now;
            now = next;
            if (b + 1 < blocks) tokens_read(&next, keys -= BN, BN);
            if (MEANS && b < others)
                tokens_fill<OTHER, 0>(sm, n + 1, &now, k, means);
            else
                tokens_fill<TOKENS_KEYS, 0>(sm, n + 1, &now, k, means);
            if (b <= others)
                tokens_fill<OTHER, 1>(sm, n, &before, v, means);
            else
                tokens_fill<TOKENS_KEYS, 1>(sm, n, &before, v, means);
        }
        if (blocks <= others)
            tokens_fill<OTHER, 1>(sm, n++, &now, v, means);
        else
            tokens_fill<TOKENS_KEYS, 1>(sm, n++, &now, v, means);
    }
}

/* The keys of one tile as its consumers see them. */
template <int MEANS, int BN>
static __device__ __forceinline__ attend_span tokens_span(const tokens_tile &tile, float scale)
{
    const int blocks = (tile.count + BN - 1) / BN;
    const attend_span span = { blocks, tile.count - (blocks - 1) * BN, scale, tokens_others<MEANS, BN>(tile, blocks) };
    return span;
}

/* Row strides travel as 32 bits, one multiply-add a row; longer ones are refused.  With one row the stride may be
 * anything. */
static inline cudaError_t tokens_describe(tokens_tensors *t, const mcsa_qkv *x)
{
    if (x->dims.N > 1 && (x->q->stride[1] >> 31 || x->k->stride[1] >> 31 || x->v->stride[1] >> 31))
        return cudaErrorInvalidValue;
    *t = { .q = x->q->data,
           .k = x->k->data,
           .v = x->v->data,
           .q_head = x->q->stride[0] * 2,
           .k_head = x->k->stride[0] * 2,
           .v_head = x->v->stride[0] * 2,
           .q_row = (uint32_t)(x->q->stride[1] * 2),
           .k_row = (uint32_t)(x->k->stride[1] * 2),
           .v_row = (uint32_t)(x->v->stride[1] * 2) };
    return cudaSuccess;
}

/* Thread blocks of a persistent kernel, and what it asks for before its launch. */
template <typename Kernel> static inline cudaError_t tokens_prepare(Kernel *kernel, int bytes, int *processors)
{
    int device;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return error;
}

#endif
