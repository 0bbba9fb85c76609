/* mass.cu - the attention that each group of queries gives to every key, m_gj = sum_i exp(scale q_i k_j - lse_i).
 *
 * A block holds the 256 queries of two groups in shared memory and streams the keys of the head past them.  The product
 * is transposed, keys x queries, so that a thread has 32 queries of a key side by side: the sum over a group is 31
 * additions in the thread and 2 shuffles, no shared memory and no atomics.
 *
 *     producer, one thread        tile t of 128 keys into stage t mod 4
 *                                   waits free[stage] (16 warps), signals full[stage] (bytes)
 *     consumers, four warpgroups  c: keys 64 (c mod 2) ... + 63 of the tile, group c / 2
 *                                   waits full[stage], multiplies 64 x 128 x D, signals free[stage],
 *                                   exp2 and sums, stores 64 masses
 *
 *     c = 0   |multiply|exp2 ........|multiply|exp2 ........|
 *     c = 1            |multiply|exp2 ........|multiply|
 *     c = 2                     |multiply|exp2 ........|        ... found by themselves, there is no other barrier
 *
 * At D = 128 a tile is 2048 clocks of the tensor core and 2048 of the unit that does exp2, so both must be busy all
 * the time.  Four consumers with one accumulator each, whose turns nobody orders, do that best.  At H = 40, N = 75,600
 * an H200 takes 95 ms, at its limit of power: 73 without the sums (the tensor core then never rests, at 1.50 GHz), 90
 * without exp2 alone, 89 without scale and bias alone.  What adds operations to keep the units busier gains nothing: a
 * polynomial of degree 4 for 1/16 to 3/8 of the exponentials (96 to 116 ms), turns at the tensor core by named barriers
 * (94 to 98), clusters of two that share tiles (94.5).  Two consumers with 256 columns each take 101 to 132.
 *
 * Queries past N have lse = infinity and count 0.  Keys past M are zeros, and their masses mean nothing.  The order of
 * all sums is fixed. */
#include "cuda/kernels.h"
#include "cuda/mbarrier.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"

namespace
{

enum {
    CONSUMERS = 4, /* two halves of the keys x two groups */
    WARPGROUP = 128,
    THREADS = WARPGROUP * (1 + CONSUMERS),
    QUERIES = 2 * MCSA_CUDA_C,
    KEYS = 128, /* of a tile */
    STAGES = 4,
    /* A block starts with 96 registers a thread, 61,440 in all: 128 x 24 + 512 x 112 = 60,416. */
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 112
};

const float LOG2_E = 1.4426950408889634f;

template <int D> struct smem_plan {
    uint16_t q[D / 64][QUERIES][64];      /* slabs of 64 columns, swizzled: see wgmma.cuh */
    uint16_t k[STAGES][D / 64][KEYS][64]; /* the same */
    float bias[QUERIES];                  /* -lse log2(e) */
    uint64_t full[STAGES], free[STAGES];
};
static_assert(sizeof(smem_plan<128>) <= 227 * 1024, "more shared memory than a block can have");

struct params {
    CUtensorMap k;
    const uint16_t *q;     /* [H, N, D] */
    int64_t q_head, q_row; /* strides, elements */
    const float *lse;      /* [H, N] */
    const int32_t *order;  /* [H, N] */
    float *mass;           /* [heads, G, pitch] */
    int64_t pitch;
    float scale_log2; /* scale log2(e) */
    int N, M, G, head;
};

/* 2^x; relative error 2^-22; results below 2^-126 are 0. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* This block's 256 queries in `order`, once. */
template <int D> __device__ void gather_queries(smem_plan<D> &s, const params &p)
{
    const int chunks = D / 8; /* of 16 bytes, of a row */
    int first = blockIdx.x * QUERIES, head = p.head + blockIdx.y;
    const int32_t *order = p.order + (int64_t)head * p.N + first;
    const uint16_t *q = p.q + head * p.q_head;
#pragma unroll 4
    for (int i = threadIdx.x; i < QUERIES * chunks; i += THREADS) {
        int row = i / chunks, chunk = i % chunks;
        uint4 values = make_uint4(0, 0, 0, 0);
        if (first + row < p.N) values = *(const uint4 *)(q + order[row] * p.q_row + chunk * 8);
        *(uint4 *)&s.q[chunk / 8][row][(chunk % 8 ^ row % 8) * 8] = values;
    }
    for (int row = threadIdx.x; row < QUERIES; row += THREADS) {
        float lse = first + row < p.N ? p.lse[(int64_t)head * p.N + order[row]] : INFINITY;
        s.bias[row] = -lse * LOG2_E;
    }
}

template <int D> __device__ void produce(smem_plan<D> &s, const params &p, int tiles)
{
    registers_release<PRODUCER_REGISTERS>();
    if (threadIdx.x >= 32 || !elect_one()) return;
    for (int t = 0; t < tiles; t++) {
        int stage = t % STAGES;
        mbarrier_wait(&s.free[stage], t / STAGES % 2 ^ 1);
        mbarrier_expect_tx(&s.full[stage], sizeof s.k[0]);
        tma_load(s.k[stage], &p.k, &s.full[stage], t * KEYS, 0, p.head + blockIdx.y, TMA_EVICT_LAST);
    }
}

/* scores = 64 keys x 128 queries; `keys` and `queries` are the low words of descriptors. */
template <typename T, int D>
__device__ __forceinline__ void multiply(float (&scores)[64], uint32_t keys, uint32_t queries)
{
    const uint64_t high = wgmma_descriptor(0, 0); /* the constant half */
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t a = keys + step / 4 * (KEYS * 8) + step % 4 * 2, b = queries + step / 4 * (QUERIES * 8) + step % 4 * 2;
        wgmma_ss<T, 0>(scores, high | a, high | b, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(scores);
}

/* Masses of two keys from a thread's 32 queries, summed over the four threads that share them: threads 0 and 2 of the
 * four return that of row lane / 4, threads 1 and 3 that of row lane / 4 + 8. */
__device__ __forceinline__ float sum_queries(const float (&scores)[64], const float (&bias)[32], float scale_log2)
{
    float low = 0, high = 0;
    int odd = threadIdx.x & 1;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
        low += exp2_fast(fmaf(scores[i], scale_log2, bias[i / 2]));
        low += exp2_fast(fmaf(scores[i + 1], scale_log2, bias[i / 2 + 1]));
        high += exp2_fast(fmaf(scores[i + 2], scale_log2, bias[i / 2]));
        high += exp2_fast(fmaf(scores[i + 3], scale_log2, bias[i / 2 + 1]));
    }
    float sum = odd ? high : low;
    sum += __shfl_xor_sync(~0u, odd ? low : high, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

template <typename T, int D> __device__ void consume(smem_plan<D> &s, const params &p, int tiles)
{
    registers_claim<CONSUMER_REGISTERS>();
    int consumer = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1, half = consumer % 2, group = consumer / 2;
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, quad = lane % 4;
    float bias[32], scores[64];
#pragma unroll
    for (int i = 0; i < 32; i++) bias[i] = s.bias[group * MCSA_CUDA_C + i / 2 * 8 + quad * 2 + i % 2];

    uint32_t queries = (uint32_t)wgmma_descriptor(shared_address(&s.q[0][group * MCSA_CUDA_C]), 0);
    uint32_t keys = (uint32_t)wgmma_descriptor(shared_address(&s.k[0][0][half * 64]), 0);
    int64_t g = 2 * (int64_t)blockIdx.x + group;
    float *mass = p.mass + (blockIdx.y * (int64_t)p.G + g) * p.pitch + half * 64 + warp * 16 + lane / 4 + quad % 2 * 8;
    int stores = g < p.G && quad < 2;
    for (int t = 0; t < tiles; t++) {
        int stage = t % STAGES;
        mbarrier_wait(&s.full[stage], t / STAGES % 2);
        multiply<T, D>(scores, keys + stage * (int)(sizeof s.k[0] / 16), queries);
        if (lane == 0) mbarrier_arrive(&s.free[stage]);
        float sum = sum_queries(scores, bias, p.scale_log2);
        if (stores) mass[(int64_t)t * KEYS] = sum;
    }
}

/* Grid: pairs of groups x heads, one head after the other, so that L2 holds its keys. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS, 1) mass(const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char raw[];
    smem_plan<D> &s = *(smem_plan<D> *)raw;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&s.full[stage], 1);
            mbarrier_init(&s.free[stage], CONSUMERS * 4);
        }
        mbarrier_fence_init();
    }
    gather_queries(s, p);
    fence_async_shared();
    __syncthreads();
    int tiles = (p.M + KEYS - 1) / KEYS;
    if (threadIdx.x < WARPGROUP)
        produce(s, p, tiles);
    else
        consume<T>(s, p, tiles);
}

template <typename T, int D> cudaError_t launch(const params &p, int heads, cudaStream_t stream)
{
    const int bytes = sizeof(smem_plan<D>);
    cudaError_t error = cudaFuncSetAttribute(mass<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    mass<T, D><<<dim3((p.G + 1) / 2, heads), THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t mcsa_cuda_mass(const mcsa_cuda_mass_job *job, cudaStream_t stream)
{
    const mcsa_tensor *q = job->x->q;
    const mcsa_dims *dims = &job->x->dims;
    params p;
    cudaError_t error = tma_describe(&p.k, job->x->k, KEYS, dims->D / 64);
    if (error != cudaSuccess) return error;
    p.q = (const uint16_t *)q->data;
    p.q_head = q->stride[0];
    p.q_row = q->stride[1];
    p.lse = job->lse;
    p.order = job->order;
    p.mass = job->mass;
    p.pitch = job->pitch;
    p.scale_log2 = job->x->scale * LOG2_E;
    p.N = dims->N;
    p.M = dims->M;
    p.G = (dims->N + MCSA_CUDA_C - 1) / MCSA_CUDA_C;
    p.head = job->head;
    int bf16 = dims->dtype == MCSA_BF16;
    if (dims->D == 128)
        return bf16 ? launch<__nv_bfloat16, 128>(p, job->heads, stream) : launch<__half, 128>(p, job->heads, stream);
    return bf16 ? launch<__nv_bfloat16, 64>(p, job->heads, stream) : launch<__half, 64>(p, job->heads, stream);
}
