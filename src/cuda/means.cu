/* means.cu - the mean of the rows of each cluster, their FP32 sum in the order of the members.
 *
 *     means          one warp a cluster: a row is 8 bytes a lane at D = 128, 4 at D = 64, and 16 rows are under way
 *     means_large    one block a cluster of more than LARGE rows, one thread a column: 128 rows are under way
 *
 * The adds of a column are a chain, so a cluster takes as long as its rows do one batch after the other: 4.5 ms for one
 * of 75,600 by a warp, 1.6 by a block.  Such clusters come from keys that hardly differ. */
#include "gather.cuh"
#include "group_rows.cuh"
#include "kernels.h"

namespace
{

enum {
    WARPS = 4,
    BATCH = 16,
    LARGE = 512,
    THREADS = 256, /* of means_large */
    CLUSTERS = THREADS,
    TILE = 32, /* rows */
    STAGES = 5 /* tiles, 40 KiB at D = 128 */
};

struct params {
    const uint16_t *x;      /* [H, N, D] */
    int64_t head, row;      /* strides of x */
    const int32_t *members; /* [H, N] */
    const int32_t *first;   /* [H, P + 1] */
    uint16_t *rows;         /* [H, P, D] */
    int64_t clusters;       /* of all heads */
    int N, P;
};

/* A lane's part of a row: pairs of elements. */
template <int D> struct part {
    uint32_t pair[D / 64];
};

template <int D> __device__ __forceinline__ part<D> load_part(const uint16_t *row)
{
    part<D> x;
    if constexpr (D == 128) {
        uint2 pairs = __ldg((const uint2 *)row);
        x.pair[0] = pairs.x, x.pair[1] = pairs.y;
    } else
        x.pair[0] = __ldg((const uint32_t *)row);
    return x;
}

template <typename T, int D> __device__ __forceinline__ void add_part(float (&sum)[D / 32], const part<D> &x)
{
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        float2 pair = rows_pair<T>(x.pair[i]);
        sum[2 * i] += pair.x;
        sum[2 * i + 1] += pair.y;
    }
}

/* Adds the rows that lanes 0 to count - 1 name.  A batch that is not full reads its last row again, which L1 has, and
 * adds +0 instead: every sum stays as it is, since none is -0. */
template <typename T, int D>
__device__ __forceinline__ void add_rows(float (&sum)[D / 32], const uint16_t *x, int64_t stride, int member, int count)
{
    for (int from = 0; from < count; from += BATCH) {
        part<D> batch[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            batch[i] = load_part<D>(x + __shfl_sync(~0u, member, min(from + i, count - 1)) * stride);
#pragma unroll
        for (int i = 0; i < BATCH; i++) add_part<T, D>(sum, from + i < count ? batch[i] : part<D>{});
    }
}

template <typename T, int D> __global__ void __launch_bounds__(WARPS * 32) means(const params p)
{
    int64_t cluster = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    if (cluster >= p.clusters) return;
    int h = (int)(cluster / p.P), lane = threadIdx.x % 32;
    const int32_t *first = p.first + cluster + h, *members = p.members + h * (int64_t)p.N;
    int begin = first[0], end = first[1];
    if (begin == end || end - begin > LARGE) return;

    const uint16_t *x = p.x + h * p.head + lane * (D / 32);
    float sum[D / 32] = {};
    int member = begin + lane < end ? members[begin + lane] : 0;
    for (int from = begin; from < end; from += 32) {
        int next = from + 32 + lane < end ? members[from + 32 + lane] : 0;
        add_rows<T, D>(sum, x, p.row, member, min(end - from, 32));
        member = next;
    }
    uint32_t mean[D / 64];
    float n = (float)(end - begin);
#pragma unroll
    for (int i = 0; i < D / 64; i++) mean[i] = wgmma_pack<T>(sum[2 * i] / n, sum[2 * i + 1] / n);
    uint16_t *to = p.rows + cluster * D + lane * (D / 32);
    if constexpr (D == 128)
        *(uint2 *)to = make_uint2(mean[0], mean[1]);
    else
        *(uint32_t *)to = mean[0];
}

/* A cluster's rows on their way to shared memory, in tiles. */
template <int D> struct stream {
    enum { CHUNKS = D / 8, STEP = THREADS / CHUNKS, EACH = TILE / STEP }; /* EACH: chunks of 16 bytes of a thread */
    const uint16_t *x;
    int64_t row;
    const int32_t *members;
    int count;          /* rows */
    int32_t next[EACH]; /* members of the tile to come; -1 past the last */
};

template <int D> __device__ __forceinline__ void look_ahead(stream<D> &s, int from)
{
#pragma unroll
    for (int i = 0; i < s.EACH; i++) {
        int place = from + threadIdx.x / s.CHUNKS + i * s.STEP;
        s.next[i] = place < s.count ? s.members[place] : -1;
    }
}

/* Sends the tile that was looked at, rows `from` and on, and looks at the one behind it. */
template <int D> __device__ __forceinline__ void send(stream<D> &s, uint16_t (*tile)[D], int from)
{
    int chunk = threadIdx.x % s.CHUNKS;
#pragma unroll
    for (int i = 0; i < s.EACH; i++)
        if (s.next[i] >= 0)
            gather_16(shared_address(&tile[threadIdx.x / s.CHUNKS + i * s.STEP][chunk * 8]),
                      s.x + s.next[i] * s.row + chunk * 8);
    rows_commit();
    look_ahead(s, from + TILE);
}

/* The mean of column threadIdx.x, of the threads below D. */
template <typename T, int D> __device__ float mean_of_column(stream<D> &s, uint16_t (&tiles)[STAGES][TILE][D])
{
    float sum = 0;
    __syncthreads(); /* tiles of the cluster before are read */
    look_ahead(s, 0);
    for (int stage = 0; stage < STAGES - 1; stage++) send(s, tiles[stage], stage * TILE);
    for (int from = 0, t = 0; from < s.count; from += TILE, t++) {
        rows_wait<STAGES - 2>();
        __syncthreads();
        send(s, tiles[(t + STAGES - 1) % STAGES], from + (STAGES - 1) * TILE);
        if (threadIdx.x >= D) continue;
        const uint16_t(*tile)[D] = tiles[t % STAGES];
        int rows = min(s.count - from, TILE);
#pragma unroll 16
        for (int r = 0; r < rows; r++) sum += rows_pair<T>(tile[r][threadIdx.x]).x;
    }
    return sum / (float)s.count;
}

/* Grid: runs of CLUSTERS clusters, of which a block finds the large ones. */
template <typename T, int D> __global__ void __launch_bounds__(THREADS) means_large(const params p)
{
    __shared__ uint16_t tiles[STAGES][TILE][D];
    __shared__ unsigned large[CLUSTERS / 32];
    int64_t run = blockIdx.x * (int64_t)CLUSTERS, mine = run + threadIdx.x;
    const int32_t *first = p.first + mine + mine / p.P;
    int is_large = mine < p.clusters && first[1] - first[0] > LARGE;
    unsigned found = __ballot_sync(~0u, is_large);
    if (threadIdx.x % 32 == 0) large[threadIdx.x / 32] = found;
    if (!__syncthreads_or(is_large)) return;
    for (int i = 0; i < CLUSTERS; i++) {
        if (!(large[i / 32] >> i % 32 & 1)) continue;
        int64_t cluster = run + i, h = cluster / p.P;
        int begin = p.first[cluster + h];
        stream<D> s = { p.x + h * p.head, p.row, p.members + h * p.N + begin, p.first[cluster + h + 1] - begin, {} };
        float mean = mean_of_column<T, D>(s, tiles);
        if (threadIdx.x < D) p.rows[cluster * D + threadIdx.x] = (uint16_t)wgmma_pack<T>(mean, 0);
    }
}

template <typename T, int D> cudaError_t launch(const params &p, cudaStream_t stream)
{
    means<T, D><<<(unsigned)((p.clusters + WARPS - 1) / WARPS), WARPS * 32, 0, stream>>>(p);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    means_large<T, D><<<(unsigned)((p.clusters + CLUSTERS - 1) / CLUSTERS), THREADS, 0, stream>>>(p);
    return cudaGetLastError();
}

} // namespace

cudaError_t mcsa_cuda_means(const mcsa_tensor *x, const mcsa_selection *selection, void *rows, cudaStream_t stream)
{
    const mcsa_selection *s = selection;
    params p = { (const uint16_t *)x->data, x->stride[0],         x->stride[1], s->members, s->first,
                 (uint16_t *)rows,          (int64_t)s->H * s->P, s->N,         s->P };
    int bf16 = x->dtype == MCSA_BF16;
    if (x->shape[2] == 128) return bf16 ? launch<__nv_bfloat16, 128>(p, stream) : launch<__half, 128>(p, stream);
    return bf16 ? launch<__nv_bfloat16, 64>(p, stream) : launch<__half, 64>(p, stream);
}
