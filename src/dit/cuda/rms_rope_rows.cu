/* rms_rope_rows.cu - RMSNorm over all heads of a token and rotary positions, in place; see dit_rms_rope in rowwise.h.
 *
 * One block has one row, in registers between its read and its write:
 *
 *     x | sum of x^2 -> rate          | pairs of x rate gain, turned by the angles -> x
 *     angles of the token -> shared   barrier
 *
 * Bytes of a row: 4 dim.  For q or k of [75600, 5120] that is 1.55 GB, 0.37 ms at the 4.2 TB/s that copies
 * reach.  Measured on an H200: 0.40 ms, with 32 registers so that six blocks share a multiprocessor (0.43 with 36) and
 * the row on its way before its angles are looked up (0.61 after). */
#include "row.cuh"

enum { MAX_PAIRS = DIT_CUDA_MAX_HEAD_DIM / 2 };

/* job.rope lies in host memory: its tables come by value. */
struct angles {
    dit_rope rope;
    int pairs; /* of a head; 0: no rotation */
};

static __device__ __forceinline__ void place_angles(const angles &a, float *cosine, float *sine)
{
    for (int i = threadIdx.x; i < a.pairs; i += blockDim.x) {
        const int row = blockIdx.x, columns = a.rope.extent[2], lines = a.rope.extent[1];
        const int place[3] = { row / columns / lines, row / columns % lines, row % columns };
        int first = 0;
#pragma unroll
        for (int axis = 0; axis < 3; axis++) {
            const int pairs = a.rope.pairs[axis], within = i - first;
            if (within >= 0 && within < pairs) {
                cosine[i] = __ldg(a.rope.cosine[axis] + (int64_t)place[axis] * pairs + within);
                sine[i] = __ldg(a.rope.sine[axis] + (int64_t)place[axis] * pairs + within);
            }
            first += pairs;
        }
    }
}

static __global__ void __launch_bounds__(MAX_THREADS, 2) rms_rope_row(const dit_rms_rope job, const angles a)
{
    __shared__ float partial[32];
    __shared__ __align__(16) float cosine[MAX_PAIRS], sine[MAX_PAIRS];
    const int dim = job.heads * job.head_dim;
    __nv_bfloat16 *row = (__nv_bfloat16 *)job.x + (int64_t)blockIdx.x * job.stride;
    uint4 bits[CHUNKS];
    float square = 0.0f;

#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = CHANNELS * (c * blockDim.x + threadIdx.x);
        if (at < dim) bits[c] = __ldcs((const uint4 *)(row + at));
    }
    place_angles(a, cosine, sine); /* while the row is on its way */
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        if (CHANNELS * (c * blockDim.x + threadIdx.x) >= dim) continue;
        const eight x = unpack(bits[c]);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) square += x.v[i] * x.v[i];
    }
    const float rate = 1.0f / sqrtf(block_sum(square, partial) / dim + job.eps);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = CHANNELS * (c * blockDim.x + threadIdx.x);
        if (at >= dim) continue;
        const eight gain = load_shared_by_rows(job.gain + at);
        eight x = unpack(bits[c]);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) x.v[i] *= rate * gain.v[i];
        if (a.pairs) {
            const int pair = at % job.head_dim / 2;
            const float4 turn = *(const float4 *)(cosine + pair), lift = *(const float4 *)(sine + pair);
            const float cosines[4] = { turn.x, turn.y, turn.z, turn.w }, sines[4] = { lift.x, lift.y, lift.z, lift.w };
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float even = x.v[2 * i], odd = x.v[2 * i + 1];
                x.v[2 * i] = even * cosines[i] - odd * sines[i];
                x.v[2 * i + 1] = even * sines[i] + odd * cosines[i];
            }
        }
        store_eight(row + at, x);
    }
}

cudaError_t dit_cuda_rms_rope_rows(const dit_rms_rope *job, int64_t N, cudaStream_t stream)
{
    const int dim = job->heads * job->head_dim;
    angles a = {};
    if (job->head_dim % CHANNELS || job->head_dim > DIT_CUDA_MAX_HEAD_DIM || dim > DIT_CUDA_MAX_DIM ||
        job->stride % CHANNELS || job->dtype != MCSA_BF16 || N > INT32_MAX)
        return cudaErrorInvalidValue;
    if (job->rope) {
        a.rope = *job->rope;
        a.pairs = job->head_dim / 2;
    }
    rms_rope_row<<<dim3((unsigned)N), row_threads(dim), 0, stream>>>(*job, a);
    return cudaGetLastError();
}
