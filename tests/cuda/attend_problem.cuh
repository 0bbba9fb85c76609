/* attend_problem.cuh - what the tests of attention kernels share: inputs made on the device, rows in double precision,
 * and the bound that a kernel's rows are held to.
 *
 * The bound of an output element over n keys, a_j their probabilities (compare docs/NUMERICS.md):
 *
 *     (2 ds + n 2^-24 + u_p + 2^-16) sum_j a_j |v_j| + n 2^-36 max|v| + u_out |o|
 *
 * ds = scale max_j (sum_d |q_d k_jd| + |b_j|) D 2^-24 is how far a score may be off, b_j what it starts from, 0 for a
 * key and log(size) / scale for a mean: a k16 step of the multiply aligns 17 addends to the largest and keeps at least
 * 2 bits below 24: at most 5.25 units of 2^-23, and D / 16 of them, and the 3 units of 2^-24 of b_j, are below D 2^-24.
 * ds is 0 where q and k are integers whose sums stay below 2^24 and no mean takes part.  n 2^-24: the n / 16 steps of O
 * and the sums of the denominator.  u_p, u_out: 2^-8 for BF16, 2^-11 for FP16.  2^-16: exp2 and the argument it is
 * given, |argument| < 64.  n 2^-36: FP16 probabilities below 2^-25.  LSE: ds + n 2^-24 + 2^-16 + 2^-21 |lse|. */
#ifndef MCSA_TESTS_CUDA_ATTEND_PROBLEM_CUH
#define MCSA_TESTS_CUDA_ATTEND_PROBLEM_CUH

#include "check.h"
#include "cuda/kernels.h"

#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Inputs. */

static __host__ __device__ uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

enum fill { FILL_NORMAL, FILL_INTEGERS /* -300 to 300 */, FILL_NAN };

static __global__ void fill_kernel(mcsa_tensor x, fill what, uint64_t seed)
{
    int64_t count = x.shape[0] * x.shape[1] * x.shape[2];
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t d = i % x.shape[2], n = i / x.shape[2] % x.shape[1], h = i / x.shape[2] / x.shape[1];
        int64_t at = h * x.stride[0] + n * x.stride[1] + d;
        uint64_t bits = mix(seed ^ mix(i));
        float u = ((bits >> 40) + 1) * 0x1p-24f, w = (bits & 0xFFFFFF) * 0x1p-24f, value;
        if (what == FILL_NAN)
            value = NAN;
        else if (what == FILL_INTEGERS)
            value = (float)((int)(bits % 601) - 300);
        else
            value = sqrtf(-2 * logf(u)) * cospif(2 * w);
        if (x.dtype == MCSA_BF16)
            ((__nv_bfloat16 *)x.data)[at] = __float2bfloat16(value);
        else
            ((__half *)x.data)[at] = __float2half(value);
    }
}

static void fill(const mcsa_tensor *x, enum fill what, uint64_t seed)
{
    fill_kernel<<<2048, 256>>>(*x, what, seed);
    CHECK_CUDA(cudaGetLastError());
}

enum view { VIEW_HND, VIEW_NHD, VIEW_FUSED /* [N, 3, H, D] */, VIEW_FAR_HEADS, VIEW_FAR_ROWS };
static const char *const view_names[] = { "hnd", "nhd", "fused", "far-h", "far-n" };

/* A tensor of its own memory, `base`. */
static mcsa_tensor tensor_make(mcsa_dtype dtype, int64_t H, int64_t N, int64_t D, enum view view, check_buffer *base)
{
    mcsa_tensor x = { NULL, dtype, { H, N, D }, { N * D, D, 1 } };
    int64_t offset = 0;
    if (view == VIEW_NHD) x.stride[0] = D, x.stride[1] = H * D;
    if (view == VIEW_FUSED) x.stride[0] = D, x.stride[1] = 3 * H * D, offset = H * D;
    if (view == VIEW_FAR_HEADS) x.stride[0] = ((int64_t)1 << 31) + 64;
    if (view == VIEW_FAR_ROWS) x.stride[0] = D, x.stride[1] = ((int64_t)1 << 20) + 64;
    *base = check_buffer_make(2 * (offset + (H - 1) * x.stride[0] + (N - 1) * x.stride[1] + D));
    x.data = (uint16_t *)base->data + offset;
    return x;
}
/* [H, N] on the device: a permutation of the tokens of each head. */
static check_buffer order_make(int H, int N, uint64_t seed)
{
    check_buffer memory = check_buffer_make((size_t)H * N * 4);
    int32_t *order = (int32_t *)check_alloc((size_t)H * N * 4);
    for (int64_t h = 0; h < H; h++) {
        int32_t *of_head = order + h * N;
        for (int i = 0; i < N; i++) of_head[i] = i;
        for (int i = N - 1; i > 0; i--) std::swap(of_head[i], of_head[mix(seed + h * N + i) % (i + 1)]);
    }
    check_upload(&memory, order);
    free(order);
    return memory;
}

/* Double precision, one block of threads per sampled row. */

typedef struct sample {
    int h, i;             /* head, query */
    const int32_t *keys;  /* on the device: row numbers, -1 for none; or NULL: all */
    int64_t residual_row; /* of this query in group order */
} sample;

/* Rows from N on of each head are means of P clusters, which weigh as many keys as they have members. */
typedef struct truth_means {
    mcsa_tensor k, v;     /* [H, P, D] */
    const int32_t *first; /* [H, P + 1]; NULL: no means */
    int N;
} truth_means;

typedef struct truth {
    double o[128], spread[128], largest[128]; /* sum a v, sum a |v|, max |v| */
    double lse, reach;                        /* reach: max_j (sum_d |q k| + |log(size) / scale|) */
} truth;

static __device__ double element(const mcsa_tensor &x, int64_t h, int64_t n, int64_t d)
{
    int64_t at = h * x.stride[0] + n * x.stride[1] + d;
    return x.dtype == MCSA_BF16 ? (double)__bfloat162float(((const __nv_bfloat16 *)x.data)[at])
                                : (double)__half2float(((const __half *)x.data)[at]);
}

static __device__ double row_element(const mcsa_tensor &x, const mcsa_tensor &mean, int N, int64_t h, int64_t n, int d)
{
    return n < N ? element(x, h, n, d) : element(mean, h, n - N, d);
}

static __device__ double block_reduce(double x, int largest)
{
    __shared__ double part[256];
    part[threadIdx.x] = x;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            double y = part[threadIdx.x + step];
            part[threadIdx.x] = largest ? fmax(part[threadIdx.x], y) : part[threadIdx.x] + y;
        }
        __syncthreads();
    }
    double result = part[0];
    __syncthreads();
    return result;
}

static __global__ void __launch_bounds__(256)
    truth_kernel(mcsa_tensor q, mcsa_tensor k, mcsa_tensor v, truth_means m, double scale, const sample *samples, int n,
                 double *p, truth *out)
{
    __shared__ double query[128];
    const sample s = samples[blockIdx.x];
    const int D = (int)q.shape[2];
    p += (int64_t)blockIdx.x * n;
    if (threadIdx.x < D) query[threadIdx.x] = element(q, s.h, s.i, threadIdx.x);
    __syncthreads();
    double top = -INFINITY, reach = 0, sum = 0;
    for (int j = threadIdx.x; j < n; j += 256) {
        int64_t key = s.keys ? s.keys[j] : j;
        double dot = 0, size = 0, bias = 0;
        p[j] = -INFINITY;
        if (key < 0) continue;
        for (int d = 0; d < D; d++) {
            double x = query[d] * row_element(k, m.k, m.N, s.h, key, d);
            dot += x;
            size += fabs(x);
        }
        if (key >= m.N) {
            const int32_t *first = m.first + s.h * (m.k.shape[1] + 1) + key - m.N;
            bias = log((double)(first[1] - first[0]));
        }
        size += bias / scale;
        p[j] = dot * scale + bias;
        top = fmax(top, p[j]);
        reach = fmax(reach, size);
    }
    top = block_reduce(top, 1);
    reach = block_reduce(reach, 1);
    for (int j = threadIdx.x; j < n; j += 256) sum += p[j] = exp(p[j] - top);
    sum = block_reduce(sum, 0);
    if (threadIdx.x < D) {
        double o = 0, spread = 0, largest = 0;
        for (int j = 0; j < n; j++) {
            if (s.keys && s.keys[j] < 0) continue;
            double x = row_element(v, m.v, m.N, s.h, s.keys ? s.keys[j] : j, threadIdx.x);
            o += p[j] * x;
            spread += p[j] * fabs(x);
            largest = fmax(largest, fabs(x));
        }
        out[blockIdx.x].o[threadIdx.x] = o / sum;
        out[blockIdx.x].spread[threadIdx.x] = spread / sum;
        out[blockIdx.x].largest[threadIdx.x] = largest;
    }
    if (threadIdx.x == 0) {
        out[blockIdx.x].lse = top + log(sum);
        out[blockIdx.x].reach = reach;
    }
}

/* `means` may be NULL. */
static truth *truth_of(const mcsa_qkv *x, const truth_means *means, const sample *samples, int count, int n)
{
    check_buffer rows = check_buffer_make(count * sizeof(sample)), results = check_buffer_make(count * sizeof(truth));
    check_buffer p = check_buffer_make((size_t)count * n * 8);
    truth *result = (truth *)check_alloc(count * sizeof(truth));
    check_upload(&rows, samples);
    const truth_means none = { {}, {}, NULL, x->dims.M };
    truth_kernel<<<count, 256>>>(*x->q, *x->k, *x->v, means ? *means : none, (double)x->scale, (sample *)rows.data, n,
                                 (double *)p.data, (truth *)results.data);
    CHECK_CUDA(cudaGetLastError());
    check_download(result, &results);
    check_buffer_free(&rows);
    check_buffer_free(&results);
    check_buffer_free(&p);
    return result;
}

/* One row of D numbers to the host. */
static void row_read(double *row, const mcsa_tensor *x, int64_t h, int64_t n)
{
    uint16_t bits[128];
    CHECK_CUDA(cudaMemcpy(bits, (uint16_t *)x->data + h * x->stride[0] + n * x->stride[1], x->shape[2] * 2,
                          cudaMemcpyDeviceToHost));
    for (int d = 0; d < x->shape[2]; d++) row[d] = check_float(bits[d], x->dtype);
}

static __global__ void differ_kernel(mcsa_tensor x, mcsa_tensor y, unsigned long long *count)
{
    int64_t all = x.shape[0] * x.shape[1] * x.shape[2];
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < all; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t d = i % x.shape[2], n = i / x.shape[2] % x.shape[1], h = i / x.shape[2] / x.shape[1];
        if (((const uint16_t *)x.data)[h * x.stride[0] + n * x.stride[1] + d] !=
            ((const uint16_t *)y.data)[h * y.stride[0] + n * y.stride[1] + d])
            atomicAdd(count, 1);
    }
}

static int64_t differ(const mcsa_tensor *x, const mcsa_tensor *y)
{
    unsigned long long count = 0;
    check_buffer on_device = check_buffer_make(8);
    check_upload(&on_device, &count);
    differ_kernel<<<1024, 256>>>(*x, *y, (unsigned long long *)on_device.data);
    CHECK_CUDA(cudaGetLastError());
    check_download(&count, &on_device);
    check_buffer_free(&on_device);
    return (int64_t)count;
}
/* A row of a result against its truth over n keys: the worst part of the bound used, NaN as infinity.  `sign` of the
 * attention is added to `other`; u_out: the unit of the result's dtype. */
typedef struct judge {
    double ds, n, u_p, u_out;
    int sign;
} judge;

static double judge_row(const judge *j, const truth *w, const double *got, const double *other, int D)
{
    double worst = 0;
    for (int d = 0; d < D; d++) {
        double want = other[d] + j->sign * w->o[d];
        double bound = (2 * j->ds + j->n * 0x1p-24 + j->u_p + 0x1p-16) * w->spread[d] + j->n * 0x1p-36 * w->largest[d] +
                       j->u_out * fabs(want);
        double used = fabs(got[d] - want) / bound;
        worst = used <= worst ? worst : isnan(used) ? INFINITY : used;
    }
    return worst;
}

#endif
