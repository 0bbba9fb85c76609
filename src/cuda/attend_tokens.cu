/* attend_tokens.cu - attention of every group over its kept keys, equation (3) of METHOD.md, and the residual (4).
 *
 * Persistent: one thread block per multiprocessor walks the groups, head after head, so that all blocks sweep the rows
 * of one head at a time, in the same direction, out of L2.
 *
 *     warpgroup 0   gathers rows with cp.async:   K_last  Q  K_j V_j+1 ...  V_first | next group: K_last ...
 *     warpgroup 1   queries  0 to  63             attend_tile.cuh, then residual and store
 *     warpgroup 2   queries 64 to 127             the same, half a block later
 *
 *     q_full, k_full, v_full    count 128: every gathering thread arrives when its own copies have landed
 *     q_empty, k_empty, v_empty count 8: one lane per consumer warp
 *
 * Gathering thread t copies the 16-byte chunk t mod 8 of each slab of rows t / 8 + 16 i, so that its place in the
 * swizzle is the same for all of them.  The 8 threads that share rows hold each others' row numbers, one load per
 * thread and 8 rows, and pass them round by shuffles. */
#include "attend_tile.cuh"
#include "fragment.cuh"
#include "gather.cuh"
#include "kernels.h"

enum { TOKENS_PRODUCER_REGISTERS = 40, TOKENS_CONSUMER_REGISTERS = 232 };

typedef struct tokens_job {
    const void *q, *k, *v;          /* [H, N, D] */
    void *out;                      /* [H, N, D] */
    const int32_t *order;           /* [H, N] */
    const int32_t *keys;            /* [H, G, pitch], ascending */
    __nv_bfloat16 *residual;        /* [H, N, D] in group order, or NULL */
    int64_t q_head, k_head, v_head; /* bytes between heads */
    uint32_t q_row, k_row, v_row;   /* bytes between rows */
    int64_t out_head, out_row;      /* elements */
    int64_t pitch;
    int record;
    int H, N, G, K;
    float scale; /* times log2 e */
} tokens_job;

/* Where rows come from. */
typedef struct tokens_source {
    const char *rows; /* row 0 of the head */
    uint32_t stride;  /* bytes between rows */
} tokens_source;

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

/* Copies the rows to `tile`, slabs of ROWS rows, from `source`, row 0, `stride` bytes apart.  FULL: none is -1. */
template <int FULL, int D, int ROWS>
static __device__ __forceinline__ void tokens_gather(uint16_t *tile, const tokens_rows<ROWS> *rows, const char *source,
                                                     uint32_t stride)
{
    int lane = threadIdx.x % TOKENS_LANES, first = threadIdx.x / TOKENS_LANES;
    uint32_t to = shared_address(tile) + first * 128 + (lane ^ first % 8) * 16;
    source += lane * 16;
#pragma unroll
    for (int i = 0; i < tokens_rows<ROWS>::PASSES; i++) {
        int row = __shfl_sync(0xffffffff, rows->row[i / TOKENS_LANES], i % TOKENS_LANES, TOKENS_LANES);
        const char *from = source + (uint64_t)(uint32_t)(FULL || row >= 0 ? row : 0) * stride;
#pragma unroll
        for (int slab = 0; slab < D / 64; slab++) {
            uint32_t line = to + (slab * ROWS + i * TOKENS_STEP) * 128;
            if (FULL)
                gather_16(line, from + slab * 128);
            else
                gather_16_or_zero(line, from + slab * 128, row >= 0);
        }
    }
}

/* One slot: waits until it is free, fills it with block number n of the stream. */
template <int FULL, int D, int BN>
static __device__ __forceinline__ void tokens_fill(uint16_t (*slots)[BN * D], uint64_t *full, uint64_t *empty,
                                                   uint32_t n, const tokens_rows<BN> *rows, tokens_source from)
{
    int s = attend_slot(n);
    mbarrier_wait(&empty[s], attend_parity(n) ^ 1);
    tokens_gather<FULL, D>(slots[s], rows, from.rows, from.stride);
    gather_arrive(&full[s]);
}

template <int D, int BN>
static __device__ __forceinline__ void tokens_produce(attend_shared<D, BN> *sm, const tokens_job &job)
{
    const int blocks = (job.K + BN - 1) / BN, ragged = job.K - (blocks - 1) * BN;
    uint32_t n = 0, tiles = 0;

    for (int tile = blockIdx.x; tile < job.G * job.H; tile += gridDim.x, tiles++) {
        int head = tile / job.G, group = tile % job.G;
        const int32_t *keys = job.keys + tile * job.pitch + (int64_t)(blocks - 1) * BN;
        const tokens_source k = { (const char *)job.k + head * job.k_head, job.k_row };
        const tokens_source v = { (const char *)job.v + head * job.v_head, job.v_row };
        tokens_rows<BN> before, now, next;
        tokens_rows<ATTEND_ROWS> queries;

        tokens_read(&now, keys, ragged);
        tokens_read(&queries, job.order + (int64_t)head * job.N + group * ATTEND_ROWS, job.N - group * ATTEND_ROWS);
        if (blocks > 1) tokens_read(&next, keys -= BN, BN);
        tokens_fill<0, D>(sm->k, sm->k_full, sm->k_empty, n, &now, k);
        mbarrier_wait(&sm->q_empty, tiles & 1 ^ 1);
        tokens_gather<0, D>(sm->q, &queries, (const char *)job.q + head * job.q_head, job.q_row);
        gather_arrive(&sm->q_full);
        for (int b = 1; b < blocks; b++, n++) {
            before = now;
            now = next;
            if (b + 1 < blocks) tokens_read(&next, keys -= BN, BN);
            tokens_fill<1, D>(sm->k, sm->k_full, sm->k_empty, n + 1, &now, k);
            if (b == 1)
                tokens_fill<0, D>(sm->v, sm->v_full, sm->v_empty, n, &before, v);
            else
                tokens_fill<1, D>(sm->v, sm->v_full, sm->v_empty, n, &before, v);
        }
        if (blocks == 1)
            tokens_fill<0, D>(sm->v, sm->v_full, sm->v_empty, n++, &now, v);
        else
            tokens_fill<1, D>(sm->v, sm->v_full, sm->v_empty, n++, &now, v);
    }
}

template <typename T, int D, int BN>
static __device__ __forceinline__ void tokens_consume(attend_shared<D, BN> *sm, const tokens_job &job)
{
    const int in_tile = threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
    const int blocks = (job.K + BN - 1) / BN;
    const attend_span span = { blocks, job.K - (blocks - 1) * BN, job.scale };
    attend_cursor at = attend_begin<D, BN, 1>(sm);

    if (threadIdx.x >= 256) named_barrier_arrive(1, 256); /* the first turn is the first consumer's */
    for (int tile = blockIdx.x; tile < job.G * job.H; tile += gridDim.x) {
        int head = tile / job.G;
        float o[D / 2];
        softmax_rows rows;
        attend_tile<T, D, BN, 1, 1>(sm, &at, span, o, &rows);

        T *out[2];
        __nv_bfloat16 *residual[2];
        uint4 other[2][D / 32]; /* the residual to add, or the dense output to subtract from */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = tile % job.G * ATTEND_ROWS + in_tile + 8 * i; /* in group order */
            int64_t place = (int64_t)head * job.N + row;
            out[i] = NULL;
            residual[i] = NULL;
            if (row < job.N) {
                out[i] = (T *)job.out + head * job.out_head + __ldg(job.order + place) * job.out_row;
                if (job.residual) residual[i] = job.residual + place * D;
            }
            fragment_load(other[i], job.record ? (const void *)out[i] : (const void *)residual[i]);
        }
        attend_tile_wait<T, D, BN, 1>(sm, &at, o);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float factor = 1 / rows.sum[i];
            if (job.record) {
                fragment_add<T>(o, other[i], i, -factor);
                fragment_store(residual[i], o, i, 1);
            } else {
                if (job.residual) fragment_add<__nv_bfloat16>(o, other[i], i, factor);
                fragment_store(out[i], o, i, job.residual ? 1 : factor);
            }
        }
    }
    if (threadIdx.x < 256) named_barrier_sync(1, 256); /* takes the turn that the second consumer passed last */
}

template <typename T, int D, int BN>
static __global__ void __launch_bounds__(ATTEND_THREADS, 1) tokens_kernel(const __grid_constant__ tokens_job job)
{
    extern __shared__ char raw[];
    attend_shared<D, BN> *sm = attend_shared_at<D, BN>(raw);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) attend_init(sm, 128, 1);
    __syncthreads();
    if (warp < 4) {
        registers_release<TOKENS_PRODUCER_REGISTERS>();
        tokens_produce<D, BN>(sm, job);
    } else {
        registers_claim<TOKENS_CONSUMER_REGISTERS>();
        tokens_consume<T, D, BN>(sm, job);
    }
}

template <typename T, int D, int BN> static cudaError_t tokens_launch(const tokens_job *job, cudaStream_t stream)
{
    int device, processors, bytes = attend_shared_bytes<D, BN>();
    auto *kernel = tokens_kernel<T, D, BN>;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;

    int64_t tiles = (int64_t)job->H * job->G;
    kernel<<<(unsigned)(tiles < processors ? tiles : processors), ATTEND_THREADS, bytes, stream>>>(*job);
    return cudaGetLastError();
}

template <typename T> static cudaError_t tokens_choose(const tokens_job *job, int D, cudaStream_t stream)
{
    if (D == 64) return tokens_launch<T, 64, 176>(job, stream);
    return tokens_launch<T, 128, 176>(job, stream);
}

static int64_t tokens_pitch(int K)
{
    return ((int64_t)K + MCSA_CUDA_KEY_BLOCK - 1) / MCSA_CUDA_KEY_BLOCK * MCSA_CUDA_KEY_BLOCK;
}

size_t mcsa_cuda_attend_tokens_bytes(const mcsa_dims *dims, int K)
{
    int64_t groups = ((int64_t)dims->N + MCSA_CUDA_C - 1) / MCSA_CUDA_C;
    return sizeof(int32_t) * dims->H * groups * tokens_pitch(K);
}

cudaError_t mcsa_cuda_attend_tokens(const mcsa_qkv *x, const mcsa_selection *selection,
                                    const mcsa_residual_rows *residual, void *scratch, cudaStream_t stream)
{
    /* Row strides travel as 32 bits: one multiply-add a row.  With one row the stride may be anything. */
    if (x->dims.N > 1 && (x->q->stride[1] >> 31 || x->k->stride[1] >> 31 || x->v->stride[1] >> 31))
        return cudaErrorInvalidValue;
    int kept = residual && residual->form != MCSA_RESIDUAL_OFF && residual->rows;
    tokens_job job = {
        .q = x->q->data,
        .k = x->k->data,
        .v = x->v->data,
        .out = x->out->data,
        .order = selection->order,
        .keys = (const int32_t *)scratch,
        .residual = kept ? (__nv_bfloat16 *)residual->rows : NULL,
        .q_head = x->q->stride[0] * 2,
        .k_head = x->k->stride[0] * 2,
        .v_head = x->v->stride[0] * 2,
        .q_row = (uint32_t)(x->q->stride[1] * 2),
        .k_row = (uint32_t)(x->k->stride[1] * 2),
        .v_row = (uint32_t)(x->v->stride[1] * 2),
        .out_head = x->out->stride[0],
        .out_row = x->out->stride[1],
        .pitch = tokens_pitch(selection->K),
        .record = kept && residual->record,
        .H = x->dims.H,
        .N = x->dims.N,
        .G = selection->G,
        .K = selection->K,
        .scale = x->scale * 1.44269504088896f,
    };
    cudaError_t error = mcsa_cuda_expand(selection, (int32_t *)scratch, stream);
    if (error != cudaSuccess) return error;
    if (x->dims.dtype == MCSA_BF16) return tokens_choose<__nv_bfloat16>(&job, x->dims.D, stream);
    return tokens_choose<__half>(&job, x->dims.D, stream);
}
