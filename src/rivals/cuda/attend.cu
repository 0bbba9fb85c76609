/* attend.cu - exact attention of tiles of queries over lists of keys: the kernel of src/cuda/attend_tokens.cu for parts
 * and lists of any length.
 *
 * Persistent, with the producer and the consumers of that kernel.  Tiles come from a table and are dealt to the thread
 * blocks beforehand, the longest first; a tile of less than 128 queries computes with zeros for the others. */
#include "kernels.h"

#include "cuda/fragment.cuh"
#include "cuda/tokens.cuh"

typedef struct attend_job {
    tokens_tensors x;
    void *out;                 /* [H, N, D] */
    int64_t out_head, out_row; /* elements */
    int N;
    float scale; /* times log2 e */
    rival_attend_job of;

    __device__ __forceinline__ tokens_walk walk() const
    {
        return { of.deal[blockIdx.x], of.deal[blockIdx.x + 1], 1 };
    }

    __device__ __forceinline__ tokens_tile tile(int at) const
    {
        const rival_tile t = of.tiles[at];
        return { of.order + (int64_t)t.head * N + t.place, of.lists + t.list, t.head, t.rows, t.count };
    }
} attend_job;

template <typename T, int D, int BN>
static __device__ __forceinline__ void attend_consume(attend_shared<D, BN> *sm, const attend_job &job)
{
    const int in_tile = threadIdx.x / 32 * 16 - 64 + threadIdx.x % 32 / 4;
    const tokens_walk walk = job.walk();
    attend_cursor at = attend_begin<D, BN, 1>(sm);

    if (threadIdx.x >= 256) named_barrier_arrive(1, 256); /* the first turn is the first consumer's */
    for (int number = walk.first; number < walk.end; number += walk.step) {
        const tokens_tile tile = job.tile(number);
        float o[D / 2];
        softmax_rows rows;
        attend_tile<T, D, BN, 1, 1>(sm, &at, tokens_span<0, BN>(tile, job.scale), o, &rows);
        attend_tile_wait<T, D, BN, 1>(sm, &at, o);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int place = in_tile + 8 * i, row = place < tile.rows ? __ldg(tile.queries + place) : -1;
            T *out = row < 0 ? NULL : (T *)job.out + tile.head * job.out_head + row * job.out_row;
            fragment_store(out, o, i, 1 / rows.sum[i]);
            if (out && job.of.lse && threadIdx.x % 4 == 0)
                job.of.lse[(int64_t)tile.head * job.N + row] = softmax_lse<T>(&rows, i);
        }
    }
    if (threadIdx.x < 256) named_barrier_sync(1, 256); /* takes the turn that the second consumer passed last */
}

template <typename T, int D, int BN>
static __global__ void __launch_bounds__(ATTEND_THREADS, 1) attend_kernel(const __grid_constant__ attend_job job)
{
    extern __shared__ char raw[];
    attend_shared<D, BN> *sm = attend_shared_at<D, BN>(raw);
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) attend_init(sm, 128, 1);
    __syncthreads();
    if (warp < 4) {
        registers_release<tokens_registers<D>::PRODUCER>();
        tokens_produce<0, D, BN>(sm, job);
    } else {
        registers_claim<tokens_registers<D>::CONSUMER>();
        attend_consume<T, D, BN>(sm, job);
    }
}

template <typename T, int D> static cudaError_t attend_start(const attend_job *job, cudaStream_t stream)
{
    enum { BN = RIVAL_CUDA_KEY_BLOCK };
    int processors, bytes = attend_shared_bytes<D, BN>();
    auto *kernel = attend_kernel<T, D, BN>;
    cudaError_t error = tokens_prepare(kernel, bytes, &processors);
    if (error != cudaSuccess) return error;
    kernel<<<job->of.blocks, ATTEND_THREADS, bytes, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t rival_launch_attend(const mcsa_qkv *x, const rival_attend_job *of, cudaStream_t stream)
{
    attend_job job = { .out = x->out->data,
                       .out_head = x->out->stride[0],
                       .out_row = x->out->stride[1],
                       .N = x->dims.N,
                       .scale = x->scale * 1.44269504088896f,
                       .of = *of };
    cudaError_t error = tokens_describe(&job.x, x);
    if (error != cudaSuccess) return error;
    if (x->dims.dtype == MCSA_BF16)
        return x->dims.D == 64 ? attend_start<__nv_bfloat16, 64>(&job, stream)
                               : attend_start<__nv_bfloat16, 128>(&job, stream);
    return x->dims.D == 64 ? attend_start<__half, 64>(&job, stream) : attend_start<__half, 128>(&job, stream);
}
