/* means.cu - the mean of the rows of each cluster, their FP32 sum in the order of the members.
 *
 * One warp a cluster: a row is 8 bytes a lane at D = 128, 4 at D = 64, and 16 rows are under way at a time.  The adds
 * of a column are a chain, so a large cluster takes as long as its rows do one batch after the other. */
#include "group_rows.cuh"
#include "kernels.h"

namespace
{

enum { WARPS = 4, BATCH = 16 };

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
    if (begin == end) return;

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

template <typename T> void launch(const params &p, int D, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((p.clusters + WARPS - 1) / WARPS);
    if (D == 128)
        means<T, 128><<<blocks, WARPS * 32, 0, stream>>>(p);
    else
        means<T, 64><<<blocks, WARPS * 32, 0, stream>>>(p);
}

} // namespace

cudaError_t mcsa_cuda_means(const mcsa_tensor *x, const mcsa_selection *selection, void *rows, cudaStream_t stream)
{
    const mcsa_selection *s = selection;
    params p = { (const uint16_t *)x->data, x->stride[0],         x->stride[1], s->members, s->first,
                 (uint16_t *)rows,          (int64_t)s->H * s->P, s->N,         s->P };
    if (x->dtype == MCSA_BF16)
        launch<__nv_bfloat16>(p, (int)x->shape[2], stream);
    else
        launch<__half>(p, (int)x->shape[2], stream);
    return cudaGetLastError();
}
