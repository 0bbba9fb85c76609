/* cluster.cu - clusters of similar keys: k-means from evenly spaced keys, a fixed number of rounds, no state.
 *
 *     nearest -> members -> means -> offsets,  three times;  nearest -> members
 *
 * Centres are rounded to the dtype of the keys, so that the tensor cores multiply them as they are. */
#include "cluster.cuh"

#include "group_rows.cuh"
#include "scratch.cuh"

namespace
{

enum { ROUNDS = 4, WARPS = 8 };

struct params {
    const uint16_t *keys; /* [H, N, D] */
    int64_t head, row;    /* strides of keys */
    uint16_t *centres;    /* [H, P, D] */
    float *offset;        /* [H, pitch] */
    int64_t pitch;
    int N, P;
};

/* Grid: warps of a head's centres x heads.  A row is 16 bytes a lane. */
template <int D> __global__ void __launch_bounds__(WARPS * 32) start(const params p)
{
    const int lanes = D / 8;
    int lane = threadIdx.x % 32, c = (blockIdx.x * WARPS + threadIdx.x / 32) * (32 / lanes) + lane / lanes;
    if (c >= p.P) return;
    int64_t row = (2 * (int64_t)c + 1) * p.N / (2 * (int64_t)p.P);
    const uint16_t *from = p.keys + blockIdx.y * p.head + row * p.row;
    uint16_t *to = p.centres + (blockIdx.y * (int64_t)p.P + c) * D;
    ((uint4 *)to)[lane % lanes] = ((const uint4 *)from)[lane % lanes];
}

/* One warp a centre; 2 or 4 elements a lane in order, then over lanes in the order of a butterfly. */
template <typename T, int D> __global__ void __launch_bounds__(WARPS * 32) offsets(const params p)
{
    int lane = threadIdx.x % 32, c = blockIdx.x * WARPS + threadIdx.x / 32;
    if (c >= p.pitch) return;
    float square = INFINITY;
    if (c < p.P) {
        const uint32_t *row = (const uint32_t *)(p.centres + (blockIdx.y * (int64_t)p.P + c) * D);
        square = 0;
#pragma unroll
        for (int i = 0; i < D / 64; i++) {
            float2 pair = rows_pair<T>(row[i * 32 + lane]);
            square = fmaf(pair.y, pair.y, fmaf(pair.x, pair.x, square));
        }
    }
    for (int step = 16; step; step /= 2) square += __shfl_xor_sync(~0u, square, step);
    if (lane == 0) p.offset[blockIdx.y * p.pitch + c] = -0.5f * square;
}

params params_of(const cluster_job *job)
{
    params p = { (const uint16_t *)job->keys->data,
                 job->keys->stride[0],
                 job->keys->stride[1],
                 (uint16_t *)job->centres.data,
                 job->offset,
                 job->pitch,
                 job->N,
                 job->P };
    return p;
}

template <typename T> void launch_offsets(const cluster_job *job, dim3 grid, cudaStream_t stream)
{
    params p = params_of(job);
    if (job->D == 128)
        offsets<T, 128><<<grid, WARPS * 32, 0, stream>>>(p);
    else
        offsets<T, 64><<<grid, WARPS * 32, 0, stream>>>(p);
}

/* Members of the last labels, and their means as centres. */
cudaError_t follow(const cluster_job *job, const mcsa_selection *selection, cudaStream_t stream)
{
    cudaError_t error = mcsa_cuda_means(job->keys, selection, job->centres.data, stream);
    if (error != cudaSuccess) return error;
    return cluster_offsets(job, stream);
}

} // namespace

size_t cluster_carve(cluster_job *job, const mcsa_dims *dims, int P, void *scratch)
{
    size_t used = 0, H = (size_t)dims->H, N = (size_t)dims->M;
    job->H = dims->H;
    job->N = dims->M;
    job->D = dims->D;
    job->P = P;
    job->pitch = ((int64_t)P + CLUSTER_BLOCK - 1) / CLUSTER_BLOCK * CLUSTER_BLOCK;
    job->chunks = (dims->M + CLUSTER_CHUNK - 1) / CLUSTER_CHUNK;
    mcsa_tensor centres = {};
    centres.data = scratch_take(scratch, &used, H * (size_t)P * (size_t)dims->D * sizeof(uint16_t));
    centres.dtype = dims->dtype;
    centres.shape[0] = dims->H, centres.shape[1] = P, centres.shape[2] = dims->D;
    centres.stride[0] = (int64_t)P * dims->D, centres.stride[1] = dims->D, centres.stride[2] = 1;
    job->centres = centres;
    job->offset = (float *)scratch_take(scratch, &used, H * (size_t)job->pitch * sizeof(float));
    job->label = (uint16_t *)scratch_take(scratch, &used, H * N * sizeof(uint16_t));
    job->before = (int32_t *)scratch_take(scratch, &used, H * (size_t)job->chunks * (size_t)P * sizeof(int32_t));
    return used;
}

cudaError_t cluster_start(const cluster_job *job, cudaStream_t stream)
{
    int each = WARPS * 32 * 8 / job->D;
    dim3 grid((unsigned)((job->P + each - 1) / each), (unsigned)job->H);
    if (job->D == 128)
        start<128><<<grid, WARPS * 32, 0, stream>>>(params_of(job));
    else
        start<64><<<grid, WARPS * 32, 0, stream>>>(params_of(job));
    return cudaGetLastError();
}

cudaError_t cluster_offsets(const cluster_job *job, cudaStream_t stream)
{
    dim3 grid((unsigned)(job->pitch / WARPS), (unsigned)job->H);
    if (job->keys->dtype == MCSA_BF16)
        launch_offsets<__nv_bfloat16>(job, grid, stream);
    else
        launch_offsets<__half>(job, grid, stream);
    return cudaGetLastError();
}

size_t mcsa_cuda_cluster_bytes(const mcsa_dims *dims, int P)
{
    cluster_job job = {};
    return cluster_carve(&job, dims, P, NULL);
}

cudaError_t mcsa_cuda_cluster(const mcsa_qkv *x, const mcsa_selection *selection, void *scratch, cudaStream_t stream)
{
    cluster_job job = {};
    cluster_carve(&job, &x->dims, selection->P, scratch);
    job.keys = x->k;
    job.members = selection->members;
    job.first = selection->first;
    cudaError_t error;
    if ((error = cluster_start(&job, stream)) != cudaSuccess) return error;
    if ((error = cluster_offsets(&job, stream)) != cudaSuccess) return error;
    for (int round = 0; round < ROUNDS; round++) {
        if (round > 0 && (error = follow(&job, selection, stream)) != cudaSuccess) return error;
        if ((error = cluster_nearest(&job, stream)) != cudaSuccess) return error;
        if ((error = cluster_members(&job, stream)) != cudaSuccess) return error;
    }
    return cudaSuccess;
}
