/* diagonal.cu - the antidiagonal sums of XAttention, their softmax, and its sums over pairs of blocks.
 *
 * The sum over the `stride` scores of an antidiagonal is one product of rows `stride` D long: of a strided key k
 * ascending, of a strided query descending.  It is added D at a time. */
#include "product.cuh"

enum { DIAGONAL_THREADS = 256 };

/* scores [strided, strided] of one head */
template <typename T, int D>
static __global__ void __launch_bounds__(PRODUCT_THREADS, 2) diagonal_scores(const rival_diagonal_job job, int head)
{
    extern __shared__ float shared[];
    float *a = shared, *b = a + D * PRODUCT_A;
    const int u = blockIdx.y * PRODUCT_M, v = blockIdx.x * PRODUCT_N;
    product_sums c;
    product_clear(&c);
    for (int r = 0; r < job.stride; r++) {
        product_load<T, D, PRODUCT_M, PRODUCT_A>(a, [&](int row) {
            const int64_t n = (int64_t)(u + row) * job.stride + job.stride - 1 - r;
            return n < job.q.N ? row_of<T>(job.q, head, n) : (const T *)NULL;
        });
        product_load<T, D, PRODUCT_N, PRODUCT_B>(b, [&](int column) {
            const int64_t n = (int64_t)(v + column) * job.stride + r;
            return n < job.k.N ? row_of<T>(job.k, head, n) : (const T *)NULL;
        });
        __syncthreads();
        product_add(&c, a, b, D);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (u + product_row(i) < job.strided && v + product_column(j) < job.strided)
                job.scores[(int64_t)(u + product_row(i)) * job.strided + v + product_column(j)] =
                    job.factor * c.of[i][j];
}

/* Over the block, in every thread and in a fixed order; a barrier. */
template <int LARGEST> static __device__ float diagonal_reduce(float x)
{
    __shared__ float warps[DIAGONAL_THREADS / 32];
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, far);
        x = LARGEST ? fmaxf(x, other) : x + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
    for (int w = 1; w < DIAGONAL_THREADS / 32; w++) x = LARGEST ? fmaxf(x, warps[w]) : x + warps[w];
    return x;
}

/* One strided query: softmax over its scores, summed over each block of keys. */
static __global__ void __launch_bounds__(DIAGONAL_THREADS) diagonal_softmax(const rival_diagonal_job job)
{
    const float *scores = job.scores + (int64_t)blockIdx.x * job.strided;
    float *line = job.lines + (int64_t)blockIdx.x * job.blocks, most = -INFINITY, sum = 0;
    const int each = job.size / job.stride;
    for (int v = threadIdx.x; v < job.strided; v += DIAGONAL_THREADS) most = fmaxf(most, scores[v]);
    most = diagonal_reduce<1>(most);
    for (int b = threadIdx.x; b < job.blocks; b += DIAGONAL_THREADS) {
        float of_block = 0;
        for (int v = b * each; v < min((b + 1) * each, job.strided); v++) of_block += expf(scores[v] - most);
        line[b] = of_block;
        sum += of_block;
    }
    sum = diagonal_reduce<0>(sum);
    for (int b = threadIdx.x; b < job.blocks; b += DIAGONAL_THREADS) line[b] /= sum;
}

static __global__ void __launch_bounds__(DIAGONAL_THREADS) diagonal_blocks(const rival_diagonal_job job, int head)
{
    const int k = blockIdx.x * DIAGONAL_THREADS + threadIdx.x, q = blockIdx.y, each = job.size / job.stride;
    if (k >= job.blocks) return;
    float sum = 0;
    for (int u = q * each; u < min((q + 1) * each, job.strided); u++) sum += job.lines[(int64_t)u * job.blocks + k];
    job.block[((int64_t)head * job.blocks + q) * job.blocks + k] = sum;
}

template <typename T, int D> static cudaError_t diagonal_start(const rival_diagonal_job *job, cudaStream_t stream)
{
    const size_t bytes = sizeof(float) * D * (PRODUCT_A + PRODUCT_B);
    const dim3 tiles((job->strided + PRODUCT_N - 1) / PRODUCT_N, (job->strided + PRODUCT_M - 1) / PRODUCT_M);
    const dim3 blocks((job->blocks + DIAGONAL_THREADS - 1) / DIAGONAL_THREADS, job->blocks);
    cudaError_t error = product_prepare(diagonal_scores<T, D>, bytes);
    for (int head = 0; head < job->q.H && error == cudaSuccess; head++) {
        diagonal_scores<T, D><<<tiles, PRODUCT_THREADS, bytes, stream>>>(*job, head);
        diagonal_softmax<<<job->strided, DIAGONAL_THREADS, 0, stream>>>(*job);
        diagonal_blocks<<<blocks, DIAGONAL_THREADS, 0, stream>>>(*job, head);
        error = cudaGetLastError();
    }
    return error;
}

cudaError_t rival_launch_diagonal(const rival_diagonal_job *job, cudaStream_t stream)
{
    return ROWS_CHOOSE(job->q, diagonal_start, job, stream);
}
