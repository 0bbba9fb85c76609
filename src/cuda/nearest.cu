/* nearest.cu - the nearest centre of every key: the largest of k . c - |c|^2 / 2, by tensor cores.
 *
 * A block holds 512 keys of a head at a time in shared memory and streams the centres of the head past them.  The
 * product is keys x centres, so that a thread has 32 centres of a key side by side, and reduces them where they lie.
 *
 *     producer, one thread        the next keys into the place of each consumer, waits keys_free[c]
 *                                 tile t of 128 centres and their offsets into stage t mod 3, waits free[stage]
 *     consumers, 4 warpgroups     for each tile, for both halves of its 128 keys: multiplies 64 x 128 x D in turn, then
 *                                 the running maximum and its column
 *
 * At D = 128 a half is 512 clocks of the tensor core.  Comparisons and maxima go through a unit of half the rate of
 * additions: three of them a score would be 384 clocks of it, five for four scores are 160.  The turns, by barriers
 * with numbers, keep consumers apart that a tile's arrival would set off together.  At H = 40, N = 75,600 and 2,700
 * centres an H200 takes 3.0 ms, 700 TFLOP/s: 3.2 without turns, 3.5 with a compare a score and no turns.  Three
 * consumers with their keys in registers take 3.2, two with an accumulator for each half 3.5, all with turns.
 *
 * A thread sees ascending centres, so that a strictly larger score is all it asks for; the four threads that share a
 * key compare at the end.  A NaN is larger than nothing.  Keys past N are zeros and not stored; centres past P have the
 * offset -infinity. */
#include "cluster.cuh"
#include "mbarrier.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace
{

enum {
    CONSUMERS = 4,
    WARPGROUP = 128,
    THREADS = WARPGROUP * (1 + CONSUMERS),
    HALF = 64,
    ROWS = 2 * HALF, /* keys of a consumer */
    KEYS = CONSUMERS * ROWS,
    CENTRES = CLUSTER_BLOCK, /* of a tile */
    STAGES = 3,
    TURN = 1,              /* barrier of the first consumer's turn */
    MULTIPROCESSORS = 132, /* of an H200; another number costs speed only */
    /* A block starts with 96 registers a thread, 61,440 in all: 128 x 24 + 512 x 112 = 60,416. */
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 112
};

template <int D> struct smem_plan {
    uint16_t centres[STAGES][D / 64][CENTRES][64]; /* slabs of 64 columns, swizzled: see wgmma.cuh */
    uint16_t keys[CONSUMERS][D / 64][ROWS][64];    /* the same */
    float offset[STAGES][CENTRES];
    uint64_t full[STAGES], free[STAGES], keys_full[CONSUMERS], keys_free[CONSUMERS];
};
static_assert(sizeof(smem_plan<128>) <= 227 * 1024, "more shared memory than a block can have");

struct params {
    CUtensorMap keys, centres;
    const float *offset; /* [H, pitch] */
    int64_t pitch;
    uint16_t *label; /* [H, N] */
    int N, tiles;    /* tiles: of centres */
    int spans;       /* of keys, of a head */
    int items;       /* spans of all heads */
};

/* `bytes` from device memory to shared memory; completes on `bar`.  Both addresses and the size: multiples of 16. */
__device__ __forceinline__ void load_bulk(void *shared, const void *source, int bytes, uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(source), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}

template <int D> __device__ void produce(smem_plan<D> &s, const params &p)
{
    registers_release<PRODUCER_REGISTERS>();
    if (threadIdx.x >= 32 || !elect_one()) return;
    int tile = 0, round = 0;
    for (int item = blockIdx.x; item < p.items; item += gridDim.x, round++) {
        int head = item / p.spans, row = item % p.spans * KEYS;
        for (int c = 0; c < CONSUMERS; c++) {
            mbarrier_wait(&s.keys_free[c], round % 2 ^ 1);
            mbarrier_expect_tx(&s.keys_full[c], sizeof s.keys[0]);
            tma_load(s.keys[c], &p.keys, &s.keys_full[c], row + c * ROWS, 0, head, TMA_EVICT_FIRST);
        }
        const float *offset = p.offset + head * p.pitch;
        for (int t = 0; t < p.tiles; t++, tile++) {
            int stage = tile % STAGES;
            mbarrier_wait(&s.free[stage], tile / STAGES % 2 ^ 1);
            mbarrier_expect_tx(&s.full[stage], sizeof s.centres[0] + sizeof s.offset[0]);
            tma_load(s.centres[stage], &p.centres, &s.full[stage], t * CENTRES, 0, head, TMA_EVICT_LAST);
            load_bulk(s.offset[stage], offset + t * CENTRES, sizeof s.offset[0], &s.full[stage]);
        }
    }
}

/* scores = 64 keys x 128 centres; `keys` and `centres` are the low words of descriptors.  The turn passes to the next
 * consumer when all is issued. */
template <typename T, int D>
__device__ __forceinline__ void multiply(float (&scores)[64], uint32_t keys, uint32_t centres, int consumer)
{
    const uint64_t high = wgmma_descriptor(0, 0); /* the constant half */
    named_barrier_sync(TURN + consumer, 2 * WARPGROUP);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t a = keys + step / 4 * (ROWS * 8) + step % 4 * 2, b = centres + step / 4 * (CENTRES * 8) + step % 4 * 2;
        wgmma_ss<T, 0>(scores, high | a, high | b, step > 0);
    }
    wgmma_commit();
    named_barrier_arrive(TURN + (consumer + 1) % CONSUMERS, 2 * WARPGROUP);
    wgmma_wait<0>();
    wgmma_hold(scores);
}

/* The best so far of a thread's two keys. */
struct nearest_pair {
    float score[2];
    int centre[2];
};

/* offset: that of the thread's first column, which is centre `first`.  Four scores at a time meet the best as one;
 * which of them it was is told by equality once the tile is through. */
__device__ __forceinline__ void compare(nearest_pair &best, const float (&scores)[64], const float *offset, int first)
{
    int column[2] = { -1, -1 };                              /* of the first of the best four: a, b, c, d */
    float best_a[2] = {}, best_c[2] = {}, best_left[2] = {}; /* left: the larger of a and b */
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        float2 left_add = *(const float2 *)(offset + 8 * j), right_add = *(const float2 *)(offset + 8 * j + 8);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float *s = scores + 4 * j + 2 * row;
            float a = s[0] + left_add.x, b = s[1] + left_add.y, c = s[4] + right_add.x, d = s[5] + right_add.y;
            float left = fmaxf(a, b), largest = fmaxf(left, fmaxf(c, d));
            if (largest > best.score[row]) {
                column[row] = 8 * j;
                best_a[row] = a;
                best_c[row] = c;
                best_left[row] = left;
            }
            best.score[row] = fmaxf(best.score[row], largest);
        }
    }
#pragma unroll
    for (int row = 0; row < 2; row++) {
        int right = best_left[row] != best.score[row], odd = (right ? best_c[row] : best_a[row]) != best.score[row];
        if (column[row] >= 0) best.centre[row] = first + column[row] + 8 * right + odd;
    }
}

/* The best of the four threads that share two keys, of equal scores the lower centre, to label[0] and label[8]. */
__device__ __forceinline__ void settle(const nearest_pair &best, uint16_t *label, int left)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float score = best.score[row];
        int centre = best.centre[row];
        for (int step = 1; step < 4; step *= 2) {
            float other = __shfl_xor_sync(~0u, score, step);
            int from = __shfl_xor_sync(~0u, centre, step);
            if (other > score || (other == score && from < centre)) {
                score = other;
                centre = from;
            }
        }
        if (threadIdx.x % 4 == 0 && row * 8 < left) label[row * 8] = (uint16_t)centre;
    }
}

template <typename T, int D> __device__ void consume(smem_plan<D> &s, const params &p)
{
    registers_claim<CONSUMER_REGISTERS>();
    int consumer = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;
    int lane = threadIdx.x % 32, quad = lane % 4, row = consumer * ROWS + threadIdx.x / 32 % 4 * 16 + lane / 4;
    uint32_t centres = (uint32_t)wgmma_descriptor(shared_address(s.centres[0]), 0);
    uint32_t keys = (uint32_t)wgmma_descriptor(shared_address(s.keys[consumer]), 0);
    const int STAGE = sizeof s.centres[0] / 16; /* from stage to stage, in a descriptor */
    float scores[64];
    int tile = 0, round = 0;
    if (consumer == CONSUMERS - 1) named_barrier_arrive(TURN, 2 * WARPGROUP);
    for (int item = blockIdx.x; item < p.items; item += gridDim.x, round++) {
        mbarrier_wait(&s.keys_full[consumer], round % 2);
        nearest_pair best[2];
#pragma unroll
        for (int half = 0; half < 2; half++) best[half] = { { -INFINITY, -INFINITY }, { 0, 0 } };
        for (int t = 0; t < p.tiles; t++, tile++) {
            int stage = tile % STAGES;
            mbarrier_wait(&s.full[stage], tile / STAGES % 2);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                multiply<T, D>(scores, keys + half * (HALF * 8), centres + stage * STAGE, consumer);
                compare(best[half], scores, s.offset[stage] + quad * 2, t * CENTRES + quad * 2);
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(&s.free[stage]);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&s.keys_free[consumer]);
        int key = item % p.spans * KEYS + row;
        uint16_t *label = p.label + item / p.spans * (int64_t)p.N + key;
#pragma unroll
        for (int half = 0; half < 2; half++) settle(best[half], label + half * HALF, p.N - key - half * HALF);
    }
    if (consumer == 0) named_barrier_sync(TURN, 2 * WARPGROUP); /* meets the arrival that nobody else waits for */
}

/* Blocks take every gridDim-th span, so that those under way are of one head or two, whose centres L2 holds. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS, 1) nearest(const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char raw[];
    smem_plan<D> &s = *(smem_plan<D> *)raw;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&s.full[stage], 1);
            mbarrier_init(&s.free[stage], CONSUMERS * 4);
        }
        for (int c = 0; c < CONSUMERS; c++) {
            mbarrier_init(&s.keys_full[c], 1);
            mbarrier_init(&s.keys_free[c], 4);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP)
        produce(s, p);
    else
        consume<T>(s, p);
}

template <typename T, int D> cudaError_t launch(const params &p, cudaStream_t stream)
{
    const int bytes = sizeof(smem_plan<D>);
    cudaError_t error = cudaFuncSetAttribute(nearest<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    int blocks = p.items < MULTIPROCESSORS ? p.items : MULTIPROCESSORS;
    nearest<T, D><<<(unsigned)blocks, THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

cudaError_t cluster_nearest(const cluster_job *job, cudaStream_t stream)
{
    params p;
    cudaError_t error = tma_describe(&p.keys, job->keys, ROWS, job->D / 64);
    if (error == cudaSuccess) error = tma_describe(&p.centres, &job->centres, CENTRES, job->D / 64);
    if (error != cudaSuccess) return error;
    p.offset = job->offset;
    p.pitch = job->pitch;
    p.label = job->label;
    p.N = job->N;
    p.tiles = (int)(job->pitch / CENTRES);
    p.spans = (job->N + KEYS - 1) / KEYS;
    p.items = p.spans * job->H;
    int bf16 = job->keys->dtype == MCSA_BF16;
    if (job->D == 128) return bf16 ? launch<__nv_bfloat16, 128>(p, stream) : launch<__half, 128>(p, stream);
    return bf16 ? launch<__nv_bfloat16, 64>(p, stream) : launch<__half, 64>(p, stream);
}
