/* attend_tile.cuh - the attention of 128 queries over a stream of key blocks: the consumers' side, shared by the dense
 * and the token-sparse kernel.
 *
 * A thread block is three warpgroups: one producer and two consumers of 64 query rows each.  The producer differs by
 * kernel (TMA or gather); through shared memory and these barriers both look alike:
 *
 *     q_full        producer -> consumers: the tile's Q rows are there      q_empty   consumers -> producer
 *     k_full[2]     producer -> consumers: a block of BN keys is there      k_empty[2]
 *     v_full[2]     the same of values, which run one block behind          v_empty[2]
 *
 * Blocks come last to first, so that only the first one visited is ragged and the loop has no mask.  Where keys stand
 * for several tokens (BIASED), the blocks visited first have a number a key beside K in shared memory, from which its
 * scores start: -infinity where there is no key.  One consumer:
 *
 *     S = Q K_last'                         wait, mask, softmax -> P
 *     for the other blocks, descending:
 *         turn: wait                        the consumers take turns (ping-pong): one issues its two products while
 *         issue S' = Q K_j'                 the other is in its softmax
 *         issue O += P V_j+1
 *         turn: pass
 *         wait S', free K_j; softmax of S'  runs under O += P V
 *         wait O, free V_j+1; S' -> P; shrink O
 *     O += P V_first; normalise; store
 *
 * Registers of a consumer thread at D = 128, BN = 176: S 88, P 44, O 64. */
#ifndef MCSA_CUDA_ATTEND_TILE_CUH
#define MCSA_CUDA_ATTEND_TILE_CUH

#include "mbarrier.cuh"
#include "softmax.cuh"

enum {
    ATTEND_ROWS = 128,    /* queries of a tile */
    ATTEND_STAGES = 2,    /* blocks of K, and of V, in shared memory; a power of 2 */
    ATTEND_THREADS = 384, /* producer warpgroup, two consumer warpgroups */
    ATTEND_CONSUMER_WARPS = 8
};

/* Slabs of 64 columns, each rows x 128 bytes, swizzled (wgmma.cuh). */
template <int D, int BN> struct attend_shared {
    uint16_t q[ATTEND_ROWS * D];
    uint16_t k[ATTEND_STAGES][BN * D];
    uint16_t v[ATTEND_STAGES][BN * D];
    float bias[ATTEND_STAGES][BN]; /* filled and freed with k */
    uint64_t q_full, q_empty;
    uint64_t k_full[ATTEND_STAGES], k_empty[ATTEND_STAGES];
    uint64_t v_full[ATTEND_STAGES], v_empty[ATTEND_STAGES];
};

/* Bytes to ask for: the struct starts on 1024 bytes. */
template <int D, int BN> static constexpr int attend_shared_bytes(void)
{
    return (int)sizeof(attend_shared<D, BN>) + 1024;
}

template <int D, int BN> static __device__ __forceinline__ attend_shared<D, BN> *attend_shared_at(char *raw)
{
    uint32_t slack = (uint32_t) - (int32_t)shared_address(raw) & 1023;
    return (attend_shared<D, BN> *)(raw + slack);
}

/* `producers`: arrivals that fill a slot.  `blocks`: blocks of the cluster whose consumers must free it.  `biased`:
 * keys may have a bias. */
template <int D, int BN>
static __device__ __forceinline__ void attend_init(attend_shared<D, BN> *sm, int producers, int blocks, int biased = 0)
{
    mbarrier_init(&sm->q_full, producers);
    mbarrier_init(&sm->q_empty, ATTEND_CONSUMER_WARPS);
    for (int s = 0; s < ATTEND_STAGES; s++) {
        mbarrier_init(&sm->k_full[s], producers);
        mbarrier_init(&sm->v_full[s], producers);
        mbarrier_init(&sm->k_empty[s], ATTEND_CONSUMER_WARPS * blocks * (biased ? 32 : 1));
        mbarrier_init(&sm->v_empty[s], ATTEND_CONSUMER_WARPS * blocks);
    }
    mbarrier_fence_init();
}

/* Blocks are numbered through all tiles of a thread block: n sits in slot n mod stages. */
static __device__ __forceinline__ int attend_slot(uint32_t n)
{
    return n % ATTEND_STAGES;
}

static __device__ __forceinline__ uint32_t attend_parity(uint32_t n)
{
    return n / ATTEND_STAGES & 1;
}

/* S = the bias of each column. */
template <int BN> static __device__ __forceinline__ void attend_bias(float (&s)[BN / 2], const float *bias)
{
    const float2 *mine = (const float2 *)bias + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < BN / 8; i++) {
        float2 x = mine[4 * i];
        s[4 * i] = s[4 * i + 2] = x.x;
        s[4 * i + 1] = s[4 * i + 3] = x.y;
    }
}

/* S = Q K', or S += Q K'.  q: this warpgroup's 64 rows in slabs of 128 rows; k: slabs of BN rows. */
template <typename T, int D, int BN>
static __device__ __forceinline__ void attend_scores(float (&s)[BN / 2], uint64_t q, uint64_t k, int accumulate)
{
#pragma unroll
    for (int step = 0; step < D / 16; step++)
        wgmma_ss<T, 0>(s, q + step / 4 * (ATTEND_ROWS * 128 / 16) + step % 4 * 2,
                       k + step / 4 * (BN * 128 / 16) + step % 4 * 2, step > 0 || accumulate);
}

/* O += P V. */
template <typename T, int D, int BN>
static __device__ __forceinline__ void attend_values(float (&o)[D / 2], const uint32_t (&p)[BN / 4], uint64_t v)
{
#pragma unroll
    for (int step = 0; step < BN / 16; step++) wgmma_rs<T, 1>(o, p + 4 * step, v + step * 128, 1);
}

/* Where a consumer stands in the streams, and whom its lane tells about free slots. */
typedef struct attend_cursor {
    uint32_t block; /* number of the next K, and V, block */
    uint32_t tile;  /* tiles done so far */
    uint32_t peer;  /* lane l: where the shared memory of block l of the cluster is */
} attend_cursor;

template <int D, int BN, int CLUSTER>
static __device__ __forceinline__ attend_cursor attend_begin(const attend_shared<D, BN> *sm)
{
    uint32_t here = shared_address(sm);
    attend_cursor at = { 0, 0, CLUSTER > 1 ? cluster_address(here, threadIdx.x % CLUSTER) : here };
    return at;
}

/* One warp of consumers is done with the slot of `empty`. */
template <int D, int BN, int CLUSTER>
static __device__ __forceinline__ void attend_free(const attend_shared<D, BN> *sm, const attend_cursor *at,
                                                   uint64_t *empty)
{
    int lane = threadIdx.x % 32;
    if (CLUSTER > 1) {
        if (lane < CLUSTER) mbarrier_arrive_cluster(at->peer + (uint32_t)((char *)empty - (char *)sm));
    } else {
        if (lane == 0) mbarrier_arrive(empty);
    }
}

/* One warp is done with a slot of K.  BIASED: each lane has read the bias and says so itself, which was as fast as one
 * for all. */
template <int D, int BN, int CLUSTER, int BIASED>
static __device__ __forceinline__ void attend_free_keys(const attend_shared<D, BN> *sm, const attend_cursor *at,
                                                        uint64_t *empty)
{
    if (BIASED)
        mbarrier_arrive(empty);
    else
        attend_free<D, BN, CLUSTER>(sm, at, empty);
}

/* The keys of one tile. */
typedef struct attend_span {
    int blocks;  /* at least 1 */
    int columns; /* keys in the first block visited, 1 to BN; BIASED says it by the bias */
    float scale; /* of the scores, times log2 e */
    int biased;  /* blocks, the first visited, that have a bias */
} attend_span;

/* Waits for a slot.  GATHERED: cp.async filled it, which to wgmma is an ordinary writer. */
template <int GATHERED> static __device__ __forceinline__ void attend_wait(uint64_t *full, uint32_t parity)
{
    mbarrier_wait(full, parity);
    if (GATHERED) fence_async_shared();
}

/* A constant as an argument: the two kinds of blocks are two loops, since a branch in one would spill. */
template <int VALUE> struct attend_flag {
    __device__ constexpr operator int() const
    {
        return VALUE;
    }
};

/* O and the softmax rows of one tile, not yet normalised.  The last product is left in flight. */
template <typename T, int D, int BN, int CLUSTER, int GATHERED, int BIASED = 0>
static __device__ __forceinline__ void attend_tile(attend_shared<D, BN> *sm, attend_cursor *at, attend_span span,
                                                   float (&o)[D / 2], softmax_rows *rows)
{
    const int consumer = threadIdx.x / 128 - 1;
    const int turn = 1 + consumer, other = 2 - consumer;
    const uint64_t q = wgmma_descriptor(shared_address(sm->q) + consumer * 64 * 128, 16);
    const uint64_t k = wgmma_descriptor(shared_address(sm->k), 16);
    const uint64_t v = wgmma_descriptor(shared_address(sm->v), BN * 128);
    const int slot = BN * D * 2 / 16, plain = span.blocks - span.biased;
    float s[BN / 2], shrink[2];
    uint32_t p[BN / 4];
    uint32_t n = at->block;

    attend_wait<GATHERED>(&sm->q_full, at->tile & 1);
    attend_wait<GATHERED>(&sm->k_full[attend_slot(n)], attend_parity(n));
    if (BIASED) attend_bias<BN>(s, sm->bias[attend_slot(n)]);
    wgmma_fence();
    attend_scores<T, D, BN>(s, q, k + attend_slot(n) * slot, BIASED);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    wgmma_wait<0>();
    wgmma_hold(s);
    attend_free_keys<D, BN, CLUSTER, BIASED>(sm, at, &sm->k_empty[attend_slot(n)]);
    if (span.blocks == 1) attend_free<D, BN, 1>(sm, at, &sm->q_empty);
    if (!BIASED && span.columns < BN) softmax_mask(s, span.columns);
    softmax_step<T, 1>(s, rows, shrink, span.scale);
    softmax_pack<T>(p, s);

    const auto next = [&](auto biased, int last) {
        if (biased) { /* under the other consumer's products */
            attend_wait<GATHERED>(&sm->k_full[attend_slot(n + 1)], attend_parity(n + 1));
            attend_bias<BN>(s, sm->bias[attend_slot(n + 1)]);
        }
        named_barrier_sync(turn, 256);
        attend_wait<GATHERED>(&sm->k_full[attend_slot(n + 1)], attend_parity(n + 1));
        wgmma_fence();
        attend_scores<T, D, BN>(s, q, k + attend_slot(n + 1) * slot, biased);
        wgmma_commit();
        attend_wait<GATHERED>(&sm->v_full[attend_slot(n)], attend_parity(n));
        wgmma_fence();
        attend_values<T, D, BN>(o, p, v + attend_slot(n) * slot);
        wgmma_commit();
        named_barrier_arrive(other, 256);

        wgmma_wait<1>();
        wgmma_hold(s);
        attend_free_keys<D, BN, CLUSTER, BIASED>(sm, at, &sm->k_empty[attend_slot(n + 1)]);
        if (last) attend_free<D, BN, 1>(sm, at, &sm->q_empty);
        softmax_step<T, 0>(s, rows, shrink, span.scale);

        wgmma_wait<0>();
        wgmma_hold(o);
        wgmma_hold(s);
        attend_free<D, BN, CLUSTER>(sm, at, &sm->v_empty[attend_slot(n)]);
        softmax_pack<T>(p, s);
        softmax_shrink(o, shrink);
        n++;
    };
    int left = span.blocks - 1;
    if constexpr (BIASED)
        for (; left > plain; left--) next(attend_flag<1>(), left == 1);
    for (; left > 0; left--) next(attend_flag<0>(), left == 1);

    attend_wait<GATHERED>(&sm->v_full[attend_slot(n)], attend_parity(n));
    wgmma_fence();
    attend_values<T, D, BN>(o, p, v + attend_slot(n) * slot);
    wgmma_commit();
    softmax_finish(rows);
    at->block = n + 1;
    at->tile++;
}

/* Waits for the last product of attend_tile and frees its V. */
template <typename T, int D, int BN, int CLUSTER>
static __device__ __forceinline__ void attend_tile_wait(attend_shared<D, BN> *sm, const attend_cursor *at,
                                                        float (&o)[D / 2])
{
    wgmma_wait<0>();
    wgmma_hold(o);
    attend_free<D, BN, CLUSTER>(sm, at, &sm->v_empty[attend_slot(at->block - 1)]);
}

#endif
