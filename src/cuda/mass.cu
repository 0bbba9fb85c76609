#include "cuda/kernels.h"
#include "cuda/mbarrier.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"

#ifndef MODE
#define MODE 2
#endif
#ifndef LAG
#define LAG 2
#endif
#ifndef POLY
#define POLY 2
#endif
#ifndef DEGREE
#define DEGREE 4
#endif

namespace
{

enum {
    CONSUMERS = 2,
    THREADS = 128 * (1 + CONSUMERS),
    QUERIES = 2 * MCSA_CUDA_C,
    KEYS = 64 * CONSUMERS,
    STAGES = 4,
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240
};

template <int D> struct smem_plan {
    uint16_t q[D / 64][QUERIES][64];
    uint16_t k[STAGES][D / 64][KEYS][64];
    float bias[QUERIES];
    uint64_t full[STAGES], free[STAGES];
};
static_assert(sizeof(smem_plan<128>) <= 227 * 1024, "shared memory of a block");

struct params {
    CUtensorMap k;
    const uint16_t *q;
    int64_t q_head, q_row;
    const float *lse;
    const int32_t *order;
    float *mass;
    int64_t pitch;
    float scale_log2;
    int N, G, head;
};

__device__ float exp2_mufu(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ float exp2_polynomial(float x)
{
    const float round = 12582912.0f;
    x = fmaxf(x, -127.0f);
    float whole = x + round, part = x - (whole - round);
    float y;
    if (DEGREE == 5) {
        y = fmaf(part, 0x1.23a604p-10f, 0x1.3cbea8p-7f);
        y = fmaf(part, y, 0x1.c74322p-5f);
        y = fmaf(part, y, 0x1.ebfa4ep-3f);
        y = fmaf(part, y, 0x1.62e39ep-1f);
    } else {
        y = fmaf(part, 0x1.409104p-7f, 0x1.ca9008p-5f);
        y = fmaf(part, y, 0x1.ebf1b4p-3f);
        y = fmaf(part, y, 0x1.62dfcap-1f);
    }
    y = fmaf(part, y, 1.0f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(whole) << 23));
}

template <int D> __device__ void gather_queries(smem_plan<D> &s, const params &p)
{
    const int chunks = D / 8;
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
        s.bias[row] = -lse * 1.4426950408889634f;
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

template <typename T, int D, int R>
__device__ __forceinline__ void multiply_step(float (&d)[R], uint64_t keys, uint64_t queries, int step)
{
    wgmma_ss<T, 0>(d, keys + step / 4 * (KEYS * 8) + step % 4 * 2, queries + step / 4 * (QUERIES * 8) + step % 4 * 2, step > 0);
}

template <typename T, int D, int R>
__device__ __forceinline__ void multiply(float (&d)[R], uint64_t keys, uint64_t queries)
{
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; step++) multiply_step<T, D>(d, keys, queries, step);
    wgmma_commit();
}

/* sums of 128 columns of one group: rows r and r + 8 */
__device__ __forceinline__ void sum_columns(const float *d, const float *bias, float scale, float &low, float &high)
{
    low = high = 0;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        float x = fmaf(d[i], scale, bias[i / 4 * 2 + i % 2]);
        float y = i % 8 * POLY % 8 < POLY ? exp2_polynomial(x) : exp2_mufu(x);
        if (i % 4 < 2)
            low += y;
        else
            high += y;
    }
}

__device__ __forceinline__ float sum_rows(const float *d, const float *bias, float scale, int quad)
{
    float low, high;
    sum_columns(d, bias, scale, low, high);
    float kept = quad & 1 ? high : low, sent = quad & 1 ? low : high;
    return kept + __shfl_xor_sync(~0u, sent, 1);
}

__device__ __forceinline__ void store(float *out, float first, float second, int64_t pitch, int quad, int two)
{
    float m = quad & 2 ? second : first;
    m += __shfl_xor_sync(~0u, quad & 2 ? first : second, 2);
    if (!(quad & 2))
        out[0] = m;
    else if (two)
        out[pitch] = m;
}

template <typename T, int D> __device__ void consume(smem_plan<D> &s, const params &p, int tiles)
{
    registers_claim<CONSUMER_REGISTERS>();
    int consumer = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = thread % 32, quad = lane % 4;
    float bias[2][32];
#pragma unroll
    for (int i = 0; i < 32; i++) {
        bias[0][i] = s.bias[i / 2 * 8 + quad * 2 + i % 2];
        bias[1][i] = s.bias[128 + i / 2 * 8 + quad * 2 + i % 2];
    }
    uint64_t queries = wgmma_descriptor(shared_address(s.q), 16);
    uint64_t keys = wgmma_descriptor(shared_address(&s.k[0][0][consumer * 64]), 16);
    const int stage_step = sizeof s.k[0] / 16;
    int key = consumer * 64 + thread / 32 * 16 + lane / 4 + quad % 2 * 8;
    int64_t row = (int64_t)blockIdx.y * p.G + 2 * blockIdx.x;

#if MODE
    float a[64], b[64];
    int two = 2 * (int)blockIdx.x + 1 < p.G;
    float *out = p.mass + row * p.pitch + key;
#if MODE == 1
    for (int t = 0; t < tiles; t++) {
        int stage = t % STAGES;
        mbarrier_wait(&s.full[stage], t / STAGES % 2);
        multiply<T, D>(a, keys + stage * stage_step, queries);
        multiply<T, D>(b, keys + stage * stage_step, queries + 128 * 8);
        wgmma_wait<1>();
        wgmma_hold(a);
        float first = sum_rows(a, bias[0], p.scale_log2, quad);
        wgmma_wait<0>();
        wgmma_hold(b);
        if (thread == 0) mbarrier_arrive(&s.free[stage]);
        store(out, first, sum_rows(b, bias[1], p.scale_log2, quad), p.pitch, quad, two);
        out += KEYS;
    }
#else
    mbarrier_wait(&s.full[0], 0);
    multiply<T, D>(a, keys, queries);
    wgmma_wait<0>();
    wgmma_hold(a);
    for (int t = 0; t < tiles; t++) {
        int stage = t % STAGES, next = t + 1 < tiles ? t + 1 : t;
        multiply<T, D>(b, keys + stage * stage_step, queries + 128 * 8);
        float first = sum_rows(a, bias[0], p.scale_log2, quad);
        wgmma_wait<0>();
        wgmma_hold(b);
        mbarrier_wait(&s.full[next % STAGES], next / STAGES % 2);
        multiply<T, D>(a, keys + next % STAGES * stage_step, queries);
        if (thread == 0) mbarrier_arrive(&s.free[stage]);
        store(out, first, sum_rows(b, bias[1], p.scale_log2, quad), p.pitch, quad, two);
        wgmma_wait<0>();
        wgmma_hold(a);
        out += KEYS;
    }
#endif
#else
    float d[128];
    int group = quad / 2;
    int mine = 2 * (int)blockIdx.x + group < p.G;
    float *out = p.mass + (row + group) * p.pitch + key;
    if (consumer == 1) named_barrier_arrive(1, 256);
    for (int t = 0; t < tiles; t++, out += KEYS) {
        int stage = t % STAGES;
        mbarrier_wait(&s.full[stage], t / STAGES % 2);
        named_barrier_sync(1 + consumer, 256);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            multiply_step<T, D>(d, keys + stage * stage_step, queries, step);
            if (LAG > 0 && LAG < D / 16 && step == D / 16 - 1 - LAG) wgmma_commit();
        }
        wgmma_commit();
        if (LAG > 0 && LAG < D / 16) wgmma_wait<1>();
        if (LAG == 0) wgmma_wait<0>();
        if (consumer == 0 || t + 1 < tiles) named_barrier_arrive(2 - consumer, 256);
        wgmma_wait<0>();
        wgmma_hold(d);
        if (thread == 0) mbarrier_arrive(&s.free[stage]);
        float v0, v1, v2, v3;
        sum_columns(d, bias[0], p.scale_log2, v0, v1);
        sum_columns(d + 64, bias[1], p.scale_log2, v2, v3);
        float e = quad & 1 ? v1 : v0, f = quad & 1 ? v3 : v2;
        e += __shfl_xor_sync(~0u, quad & 1 ? v0 : v1, 1);
        f += __shfl_xor_sync(~0u, quad & 1 ? v2 : v3, 1);
        float m = quad & 2 ? f : e;
        m += __shfl_xor_sync(~0u, quad & 2 ? e : f, 2);
        if (mine) *out = m;
    }
#endif
}

template <typename T, int D> __global__ void __launch_bounds__(THREADS, 1) mass(const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char raw[];
    smem_plan<D> &s = *(smem_plan<D> *)raw;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&s.full[stage], 1);
            mbarrier_init(&s.free[stage], CONSUMERS);
        }
        mbarrier_fence_init();
    }
    gather_queries(s, p);
    fence_async_shared();
    __syncthreads();
    int tiles = (p.N + KEYS - 1) / KEYS;
    if (threadIdx.x < 128)
        produce(s, p, tiles);
    else
        consume<T>(s, p, tiles);
}

template <typename T, int D> cudaError_t launch(const mcsa_cuda_mass_job *job, const params &p, cudaStream_t stream)
{
    cudaError_t error = cudaFuncSetAttribute(mass<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(smem_plan<D>));
    if (error != cudaSuccess) return error;
    dim3 grid((p.N + QUERIES - 1) / QUERIES, job->heads);
    mass<T, D><<<grid, THREADS, sizeof(smem_plan<D>), stream>>>(p);
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
    p.scale_log2 = (float)(job->x->scale * 1.4426950408889634);
    p.N = dims->N;
    p.G = (dims->N + MCSA_CUDA_C - 1) / MCSA_CUDA_C;
    p.head = job->head;
    int bf16 = dims->dtype == MCSA_BF16;
    if (dims->D == 128)
        return bf16 ? launch<__nv_bfloat16, 128>(job, p, stream) : launch<__half, 128>(job, p, stream);
    return bf16 ? launch<__nv_bfloat16, 64>(job, p, stream) : launch<__half, 64>(job, p, stream);
}
