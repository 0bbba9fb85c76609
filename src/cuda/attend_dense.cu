/* attend_dense.cu - dense attention with row log-sum-exp, equation (1) of METHOD.md.
 *
 * Persistent: one thread block per multiprocessor, or a cluster of two, walks the tiles of 128 queries, row tile
 * fastest, so that all blocks read the keys of one head at a time out of L2.
 *
 *     warpgroup 0   one lane issues TMA:      K_last  Q  K_j V_j+1 ...  V_first | next tile: K_last ...
 *     warpgroup 1   rows  0 to  63            attend_tile.cuh, normalise, store O and LSE from registers
 *     warpgroup 2   rows 64 to 127            the same, half a block later
 *
 *     q_full, k_full, v_full    count 1 + bytes: TMA -> consumers
 *     q_empty                   count 8: one lane per consumer warp, after its last Q K' of the tile
 *     k_empty, v_empty          count 8 per block of the cluster
 *
 * In a cluster two neighbouring row tiles share every K and V block: each thread block copies one slab of 64 columns
 * into both, which halves what L2 has to deliver.  A slot is refilled when both blocks have freed it.  An odd last tile
 * is paired with rows past N: they read as zeros and are not stored. */
#include "attend_tile.cuh"
#include "fragment.cuh"
#include "kernels.h"
#include "tma.cuh"

enum { DENSE_PRODUCER_REGISTERS = 24, DENSE_CONSUMER_REGISTERS = 240 };

/* What the kernel needs besides the maps. */
typedef struct dense_job {
    void *out;         /* [H, N, D] */
    float *lse;        /* [H, N] or NULL */
    int64_t head, row; /* strides of out, elements */
    int H, N, M;
    int units;   /* row tiles of a head, in clusters */
    float scale; /* times log2 e */
} dense_job;

/* The producer's side of one slot: whole blocks, or this block's slab of them for both. */
template <int D, int BN, int CLUSTER>
static __device__ __forceinline__ void dense_fill(uint16_t *slot, const CUtensorMap *map, uint64_t *full,
                                                  uint64_t *empty, uint32_t n, int row, int head)
{
    if (CLUSTER > 1) {
        int slab = (int)cluster_rank();
        mbarrier_wait_cluster(empty, attend_parity(n) ^ 1);
        mbarrier_expect_tx(full, BN * D * 2);
        tma_load_multicast(slot + slab * BN * 64, map, full, row, slab, head, 3, TMA_EVICT_LAST);
    } else {
        mbarrier_wait(empty, attend_parity(n) ^ 1);
        mbarrier_expect_tx(full, BN * D * 2);
        tma_load(slot, map, full, row, 0, head, TMA_EVICT_LAST);
    }
}

template <int D, int BN, int CLUSTER>
static __device__ __forceinline__ void dense_produce(attend_shared<D, BN> *sm, const dense_job &job,
                                                     const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v)
{
    const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;
    const int blocks = (job.M + BN - 1) / BN;
    uint32_t n = 0, tiles = 0;

    for (int unit = blockIdx.x / CLUSTER; unit < job.units * job.H; unit += gridDim.x / CLUSTER, tiles++) {
        int head = unit / job.units, tile = unit % job.units * CLUSTER + rank;
        for (int b = blocks - 1; b >= 0; b--, n++) {
            int s = attend_slot(n);
            dense_fill<D, BN, CLUSTER>(sm->k[s], k, &sm->k_full[s], &sm->k_empty[s], n, b * BN, head);
            if (b == blocks - 1) {
                mbarrier_wait(&sm->q_empty, tiles & 1 ^ 1);
                mbarrier_expect_tx(&sm->q_full, ATTEND_ROWS * D * 2);
                tma_load(sm->q, q, &sm->q_full, tile * ATTEND_ROWS, 0, head, TMA_EVICT_FIRST);
            } else {
                s = attend_slot(n - 1);
                dense_fill<D, BN, CLUSTER>(sm->v[s], v, &sm->v_full[s], &sm->v_empty[s], n - 1, (b + 1) * BN, head);
            }
        }
        int s = attend_slot(n - 1);
        dense_fill<D, BN, CLUSTER>(sm->v[s], v, &sm->v_full[s], &sm->v_empty[s], n - 1, 0, head);
    }
}

template <typename T, int D, int BN, int CLUSTER>
static __device__ __forceinline__ void dense_consume(attend_shared<D, BN> *sm, const dense_job &job)
{
    const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;
    const int in_tile = threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
    const int blocks = (job.M + BN - 1) / BN;
    const attend_span span = { blocks, job.M - (blocks - 1) * BN, job.scale };
    attend_cursor at = attend_begin<D, BN, CLUSTER>(sm);

    if (threadIdx.x >= 256) named_barrier_arrive(1, 256); /* the first turn is the first consumer's */
    for (int unit = blockIdx.x / CLUSTER; unit < job.units * job.H; unit += gridDim.x / CLUSTER) {
        int head = unit / job.units, tile = unit % job.units * CLUSTER + rank;
        float o[D / 2];
        softmax_rows rows;
        attend_tile<T, D, BN, CLUSTER, 0>(sm, &at, span, o, &rows);
        attend_tile_wait<T, D, BN, CLUSTER>(sm, &at, o);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = tile * ATTEND_ROWS + in_tile + 8 * i;
            T *out = row < job.N ? (T *)job.out + head * job.head + row * job.row : NULL;
            fragment_store(out, o, i, 1 / rows.sum[i]);
            if (out && job.lse && threadIdx.x % 4 == 0) job.lse[(int64_t)head * job.N + row] = softmax_lse<T>(&rows, i);
        }
    }
    if (threadIdx.x < 256) named_barrier_sync(1, 256); /* takes the turn that the second consumer passed last */
}

template <typename T, int D, int BN, int CLUSTER>
static __global__ void __launch_bounds__(ATTEND_THREADS, 1)
    dense_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, const __grid_constant__ dense_job job)
{
    extern __shared__ char raw[];
    attend_shared<D, BN> *sm = attend_shared_at<D, BN>(raw);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) attend_init(sm, 1, CLUSTER);
    if (CLUSTER > 1)
        cluster_sync();
    else
        __syncthreads();
    if (warp < 4) {
        registers_release<DENSE_PRODUCER_REGISTERS>();
        if (warp == 0 && elect_one()) dense_produce<D, BN, CLUSTER>(sm, job, &q, &k, &v);
        __syncwarp();
    } else {
        registers_claim<DENSE_CONSUMER_REGISTERS>();
        dense_consume<T, D, BN, CLUSTER>(sm, job);
    }
    if (CLUSTER > 1) cluster_sync(); /* the other block may still signal into this one */
}

template <typename T, int D, int BN, int CLUSTER>
static cudaError_t dense_launch(const mcsa_qkv *x, float *lse, cudaStream_t stream)
{
    const int tiles = (x->dims.N + ATTEND_ROWS - 1) / ATTEND_ROWS;
    const int slabs = CLUSTER > 1 ? 1 : D / 64;
    dense_job job = { x->out->data,
                      lse,
                      x->out->stride[0],
                      x->out->stride[1],
                      x->dims.H,
                      x->dims.N,
                      x->dims.M,
                      (tiles + CLUSTER - 1) / CLUSTER,
                      x->scale * 1.44269504088896f };
    CUtensorMap q, k, v;
    cudaError_t error = tma_describe(&q, x->q, ATTEND_ROWS, D / 64);
    if (error == cudaSuccess) error = tma_describe(&k, x->k, BN, slabs);
    if (error == cudaSuccess) error = tma_describe(&v, x->v, BN, slabs);
    if (error != cudaSuccess) return error;

    int device, processors, bytes = attend_shared_bytes<D, BN>();
    auto *kernel = dense_kernel<T, D, BN, CLUSTER>;
    error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;

    int64_t units = (int64_t)job.units * x->dims.H;
    int clusters = processors / CLUSTER;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = CLUSTER;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(units < clusters ? units : clusters) * CLUSTER);
    config.blockDim = dim3(ATTEND_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = CLUSTER > 1;
    error = cudaLaunchKernelEx(&config, kernel, q, k, v, job);
    return error == cudaSuccess ? cudaGetLastError() : error;
}

template <typename T> static cudaError_t dense_choose(const mcsa_qkv *x, float *lse, cudaStream_t stream)
{
    if (x->dims.D == 64) return dense_launch<T, 64, 176, 1>(x, lse, stream);
    return dense_launch<T, 128, 176, 2>(x, lse, stream);
}

cudaError_t mcsa_cuda_attend_dense(const mcsa_qkv *x, float *lse, cudaStream_t stream)
{
    if (x->dims.dtype == MCSA_BF16) return dense_choose<__nv_bfloat16>(x, lse, stream);
    return dense_choose<__half>(x, lse, stream);
}
