/* attend_tokens.cu - attention of every group over its kept keys, equation (3) of METHOD.md, and the residual (4); with
 * clusters of keys also over the means of those that it does not keep, which weigh as many keys as they stand for.
 *
 * Persistent: one thread block per multiprocessor walks the groups, head after head, so that all blocks sweep the rows
 * of one head at a time, in the same direction, out of L2.
 *
 *     warpgroup 0   gathers rows (tokens.cuh):    K_last  Q  K_j V_j+1 ...  V_first | next group: K_last ...
 *     warpgroup 1   queries  0 to  63             attend_tile.cuh, then residual and store
 *     warpgroup 2   queries 64 to 127             the same, half a block later
 *
 *     q_full, k_full, v_full    count 128: every gathering thread arrives when its own copies have landed
 *     q_empty, k_empty, v_empty count 8: one lane per consumer warp; k_empty all 256 threads with means
 */
#include "fragment.cuh"
#include "kernels.h"
#include "scratch.cuh"
#include "tokens.cuh"

typedef struct tokens_job {
    tokens_tensors x;
    tokens_means means;
    void *out;                 /* [H, N, D] */
    const int32_t *order;      /* [H, N] */
    const int32_t *keys;       /* [H, G, pitch] */
    const int32_t *plain;      /* [H, G], with means */
    __nv_bfloat16 *residual;   /* [H, N, D] in group order, or NULL */
    int64_t out_head, out_row; /* elements */
    int64_t pitch;
    int record;
    int H, N, G, K;
    float scale; /* times log2 e */

    __device__ __forceinline__ tokens_walk walk() const
    {
        return { (int)blockIdx.x, G * H, (int)gridDim.x };
    }

    __device__ __forceinline__ tokens_tile tile(int at) const
    {
        int head = at / G, first = at % G * ATTEND_ROWS;
        return { order + (int64_t)head * N + first, keys + at * pitch, head, N - first, K, __ldg(plain + at) };
    }
} tokens_job;

template <typename T, int D, int BN, int MEANS>
static __device__ __forceinline__ void tokens_consume(attend_shared<D, BN> *sm, const tokens_job &job)
{
    const int in_tile = threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
    const tokens_walk walk = job.walk();
    attend_cursor at = attend_begin<D, BN, 1>(sm);

    if (threadIdx.x >= 256) named_barrier_arrive(1, 256); /* the first turn is the first consumer's */
    for (int number = walk.first; number < walk.end; number += walk.step) {
        const tokens_tile tile = job.tile(number);
        float o[D / 2];
        softmax_rows rows;
        attend_tile<T, D, BN, 1, 1, MEANS>(sm, &at, tokens_span<MEANS, BN>(tile, job.scale), o, &rows);

        T *out[2];
        __nv_bfloat16 *residual[2];
        uint4 other[2][D / 32]; /* the residual to add, or the dense output to subtract from */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int32_t *query = tile.queries + in_tile + 8 * i;
            out[i] = NULL;
            residual[i] = NULL;
            if (in_tile + 8 * i < tile.rows) {
                out[i] = (T *)job.out + tile.head * job.out_head + __ldg(query) * job.out_row;
                if (job.residual) residual[i] = job.residual + (query - job.order) * D;
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

template <typename T, int D, int BN, int MEANS>
static __global__ void __launch_bounds__(ATTEND_THREADS, 1) tokens_kernel(const __grid_constant__ tokens_job job)
{
    extern __shared__ char raw[];
    attend_shared<D, BN> *sm = attend_shared_at<D, BN>(raw);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) attend_init(sm, 128, 1, MEANS);
    __syncthreads();
    if (warp < 4) {
        registers_release<tokens_registers<D>::PRODUCER>();
        tokens_produce<MEANS, D, BN>(sm, job);
    } else {
        registers_claim<tokens_registers<D>::CONSUMER>();
        tokens_consume<T, D, BN, MEANS>(sm, job);
    }
}

template <typename T, int D, int MEANS> static cudaError_t tokens_launch(const tokens_job *job, cudaStream_t stream)
{
    enum { BN = 176 };
    int processors, bytes = attend_shared_bytes<D, BN>();
    auto *kernel = tokens_kernel<T, D, BN, MEANS>;
    cudaError_t error = tokens_prepare(kernel, bytes, &processors);
    if (error != cudaSuccess) return error;

    int64_t tiles = (int64_t)job->H * job->G;
    kernel<<<(unsigned)(tiles < processors ? tiles : processors), ATTEND_THREADS, bytes, stream>>>(*job);
    return cudaGetLastError();
}

template <typename T> static cudaError_t tokens_choose(const tokens_job *job, int D, cudaStream_t stream)
{
    if (job->means.P) return D == 64 ? tokens_launch<T, 64, 1>(job, stream) : tokens_launch<T, 128, 1>(job, stream);
    return D == 64 ? tokens_launch<T, 64, 0>(job, stream) : tokens_launch<T, 128, 0>(job, stream);
}

/* How a call uses its scratch. */
typedef struct tokens_scratch {
    mcsa_cuda_lists lists;
    void *k, *v; /* [H, P, D] means; NULL when P = 0 */
    size_t bytes;
} tokens_scratch;

static tokens_scratch tokens_carve(const mcsa_dims *dims, int K, int P, void *from)
{
    tokens_scratch s = {};
    size_t H = (size_t)dims->H, groups = H * (((size_t)dims->N + MCSA_CUDA_C - 1) / MCSA_CUDA_C);
    s.lists.pitch = ((int64_t)K + MCSA_CUDA_KEY_BLOCK - 1) / MCSA_CUDA_KEY_BLOCK * MCSA_CUDA_KEY_BLOCK;
    s.lists.rows = (int32_t *)scratch_take(from, &s.bytes, sizeof(int32_t) * groups * (size_t)s.lists.pitch);
    if (P == 0) return s;
    size_t means = sizeof(uint16_t) * H * (size_t)P * (size_t)dims->D;
    s.lists.plain = (int32_t *)scratch_take(from, &s.bytes, sizeof(int32_t) * groups);
    s.lists.bias = (float *)scratch_take(from, &s.bytes, sizeof(float) * H * ((size_t)P + 1));
    s.k = scratch_take(from, &s.bytes, means);
    s.v = scratch_take(from, &s.bytes, means);
    return s;
}

size_t mcsa_cuda_attend_tokens_bytes(const mcsa_dims *dims, int K, int P)
{
    return tokens_carve(dims, K, P, NULL).bytes;
}

/* Lists, and the means of the keys and values of this call. */
static cudaError_t tokens_prelude(const mcsa_qkv *x, const mcsa_selection *selection, const tokens_scratch *s,
                                  cudaStream_t stream)
{
    if (selection->P == 0) return mcsa_cuda_expand(selection, &s->lists, stream);
    cudaError_t error = mcsa_cuda_expand_clusters(selection, x->scale, &s->lists, stream);
    if (error == cudaSuccess) error = mcsa_cuda_means(x->k, selection, s->k, stream);
    if (error == cudaSuccess) error = mcsa_cuda_means(x->v, selection, s->v, stream);
    return error;
}

cudaError_t mcsa_cuda_attend_tokens(const mcsa_qkv *x, const mcsa_selection *selection,
                                    const mcsa_residual_rows *residual, void *scratch, cudaStream_t stream)
{
    const int kept = residual && residual->form != MCSA_RESIDUAL_OFF && residual->rows;
    const tokens_scratch s = tokens_carve(&x->dims, selection->K, selection->P, scratch);
    tokens_job job = {
        .means = { s.k, s.v, s.lists.bias, x->dims.N, selection->P },
        .out = x->out->data,
        .order = selection->order,
        .keys = s.lists.rows,
        .plain = s.lists.plain,
        .residual = kept ? (__nv_bfloat16 *)residual->rows : NULL,
        .out_head = x->out->stride[0],
        .out_row = x->out->stride[1],
        .pitch = s.lists.pitch,
        .record = kept && residual->record,
        .H = x->dims.H,
        .N = x->dims.N,
        .G = selection->G,
        .K = selection->K,
        .scale = x->scale * 1.44269504088896f,
    };
    cudaError_t error = tokens_describe(&job.x, x);
    if (error == cudaSuccess) error = tokens_prelude(x, selection, &s, stream);
    if (error != cudaSuccess) return error;
    if (x->dims.dtype == MCSA_BF16) return tokens_choose<__nv_bfloat16>(&job, x->dims.D, stream);
    return tokens_choose<__half>(&job, x->dims.D, stream);
}
