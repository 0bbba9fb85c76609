/* select_test.cu - mass, top and select of the CUDA backend against plain references, then how long they take.
 *
 *     select_test            all checks
 *     select_test small      few and small ones, for compute-sanitizer
 *     select_test time       milliseconds at 75,600 and 32,760 tokens, 40 heads
 *
 * Masses: the reference is the definition in double on the device, one thread a mass, for sampled (head, group) rows,
 * itself compared with the same sums on the host.  It takes the FP32 lse that the kernel takes.  Let u = 2^-24.  The
 * kernel's error in mass m = sum_i a_i, a_i = exp(x_i), x_i = scale s_i - lse_i, is at most
 *
 *     sum_i a_i (exp(d_i) - 1) + 40 u sum_i a_i exp(d_i) + 128 2^-125,
 *     d_i = scale 2u 17 (D / 16) A_i + 3u |scale s_i| + 3u |lse_i| + u |x_i| + e
 *
 * A_i = sum_d |q_id k_jd|: products are exact; a wgmma step adds 16 of them to the sum after aligning all 17 to the
 * largest, each cut below 2u of it.  3u: the factor scale log2(e) is rounded twice and multiplied.  3u |lse|: log2(e)
 * rounded and multiplied.  u |x|: the fused multiply-add.  e: of exp2, 3.7e-6, the polynomial's (MUFU: 2^-22).  40 u: 32
 * additions in a thread, 2 across, and slack.  2^-125: results below 2^-126 are cut off.
 *
 * Chosen keys: with m' the kernel's masses and |m' - m| <= e, the K-th largest m' is no less than that of m - e and no more
 * than that of m + e; kept keys must have m + e no less than the first, others m - e no more than the second.
 * Against the very masses that the kernel made, the bits must be equal to those of the CPU's selection. */
#include "cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/half.h"
#include "cpu/kth.h"
}

#define CHECK_CUDA(call) check_cuda((call), #call, __LINE__)

static int failures;

static void check_cuda(cudaError_t error, const char *call, int line)
{
    if (error == cudaSuccess) return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorString(error));
    exit(1);
}

static void check(int good, const char *what)
{
    if (good) return;
    printf("FAILED: %s\n", what);
    failures++;
}

static void *device_alloc(size_t bytes)
{
    void *block;
    CHECK_CUDA(cudaMalloc(&block, bytes));
    CHECK_CUDA(cudaMemset(block, 0xff, bytes)); /* NaN until written */
    return block;
}

/* Data.  A word of noise for (seed, index), and normals from it. */

__host__ __device__ static uint64_t word_of(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + index * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

__device__ static float normal_of(uint64_t seed, uint64_t index)
{
    uint64_t w = word_of(seed, index);
    float a = ((uint32_t)(w >> 32) + 1.0f) * 0x1p-32f, b = (uint32_t)w * 0x1p-32f;
    return sqrtf(-2 * logf(a)) * cospif(2 * b);
}

__host__ __device__ static int cluster_of(uint64_t seed, int head, int token)
{
    return (int)(word_of(seed + 77, (uint64_t)head << 32 | (token / 24)) % 64);
}

enum kind { RANDOM, CLUSTERED, LARGE };

/* One tensor of normals; CLUSTERED: tokens in runs of 24 share one of 64 directions.  LARGE: up to +-300 */
__global__ void fill(uint16_t *data, int bf16, int64_t head_stride, int64_t row_stride, int N, int D, int kind,
                     uint64_t seed)
{
    int h = blockIdx.y;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)N * D;
         i += (int64_t)gridDim.x * blockDim.x) {
        int token = (int)(i / D), d = (int)(i % D);
        float x = normal_of(seed, ((uint64_t)h << 40) + i);
        if (kind == CLUSTERED)
            x = 0.7f * x + 1.4f * normal_of(seed + 5, ((uint64_t)h << 40) + cluster_of(seed, h, token) * D + d);
        if (kind == LARGE) x = fminf(fmaxf(75 * x, -300), 300);
        uint16_t bits = bf16 ? __bfloat16_as_ushort(__float2bfloat16(x)) : __half_as_ushort(__float2half(x));
        data[h * head_stride + token * row_stride + d] = bits;
    }
}

__device__ static float load16(const uint16_t *p, int bf16)
{
    return bf16 ? __uint_as_float((uint32_t)*p << 16) : __half2float(__ushort_as_half(*p));
}

/* lse of 8 queries a block, over every `stride`-th key, in double */
enum { LSE_QUERIES = 8, LSE_THREADS = 128 };
__global__ void reference_lse(const uint16_t *q, const uint16_t *k, int bf16, int64_t q_head, int64_t q_row,
                              int64_t k_head, int64_t k_row, int N, int D, float scale, int stride, float *lse)
{
    __shared__ double query[LSE_QUERIES][128];
    __shared__ double best[LSE_THREADS][LSE_QUERIES], sum[LSE_THREADS][LSE_QUERIES];
    int h = blockIdx.y, first = blockIdx.x * LSE_QUERIES;
    for (int i = threadIdx.x; i < LSE_QUERIES * D; i += LSE_THREADS) {
        int row = first + i / D < N ? first + i / D : N - 1;
        query[i / D][i % D] = load16(q + h * q_head + row * q_row + i % D, bf16);
    }
    __syncthreads();
    double m[LSE_QUERIES], l[LSE_QUERIES];
    for (int r = 0; r < LSE_QUERIES; r++) {
        m[r] = -1e300;
        l[r] = 0;
    }
    for (int j = threadIdx.x * stride; j < N; j += LSE_THREADS * stride) {
        double s[LSE_QUERIES] = { 0 };
        const uint16_t *key = k + h * k_head + j * k_row;
        for (int d = 0; d < D; d++) {
            double x = load16(key + d, bf16);
            for (int r = 0; r < LSE_QUERIES; r++) s[r] += x * query[r][d];
        }
        for (int r = 0; r < LSE_QUERIES; r++) {
            double x = s[r] * scale;
            if (x > m[r]) {
                l[r] *= exp(m[r] - x);
                m[r] = x;
            }
            l[r] += exp(x - m[r]);
        }
    }
    for (int r = 0; r < LSE_QUERIES; r++) {
        best[threadIdx.x][r] = m[r];
        sum[threadIdx.x][r] = l[r];
    }
    __syncthreads();
    if (threadIdx.x < LSE_QUERIES && first + threadIdx.x < N) {
        double top = -1e300, all = 0;
        for (int t = 0; t < LSE_THREADS; t++) top = fmax(top, best[t][threadIdx.x]);
        for (int t = 0; t < LSE_THREADS; t++) all += sum[t][threadIdx.x] * exp(best[t][threadIdx.x] - top);
        lse[(int64_t)h * N + first + threadIdx.x] = (float)(top + log(all * stride));
    }
}

struct problem {
    int H, N, D, G, bf16, kind;
    mcsa_tensor q, k;
    mcsa_qkv x;
    float *lse;     /* [H, N] */
    int32_t *order; /* [H, N] */
    int32_t *host_order;
};

static mcsa_tensor make_tensor(const problem *p, int spread, uint64_t seed)
{
    /* spread: [N, H, D] with 8 elements between rows */
    mcsa_tensor t;
    int64_t row = spread ? (int64_t)p->H * (p->D + 8) : p->D, head = spread ? p->D + 8 : (int64_t)p->N * p->D;
    t.data = device_alloc(((p->H - 1) * head + (p->N - 1) * row + p->D) * 2);
    t.dtype = p->bf16 ? MCSA_BF16 : MCSA_F16;
    t.shape[0] = p->H, t.shape[1] = p->N, t.shape[2] = p->D;
    t.stride[0] = head, t.stride[1] = row, t.stride[2] = 1;
    fill<<<dim3(264, p->H), 256>>>((uint16_t *)t.data, p->bf16, head, row, p->N, p->D, p->kind, seed);
    CHECK_CUDA(cudaGetLastError());
    return t;
}

/* lse_stride: of the keys that lse is estimated from; 1: exact */
static problem make_problem(int H, int N, int D, int bf16, int kind, int spread, int lse_stride, uint64_t seed)
{
    problem p = { H, N, D, (N + 127) / 128, bf16, kind };
    p.q = make_tensor(&p, spread, seed);
    p.k = make_tensor(&p, spread, seed + 1000);
    p.x = { NULL, NULL, NULL, NULL, { H, N, N, D, p.q.dtype }, (float)(1 / sqrt((double)D)) };
    p.lse = (float *)device_alloc((size_t)H * N * sizeof(float));
    p.order = (int32_t *)device_alloc((size_t)H * N * sizeof(int32_t));
    p.host_order = (int32_t *)malloc((size_t)H * N * sizeof(int32_t));
    for (int h = 0; h < H; h++) { /* by cluster when clustered, and shuffled when not */
        int32_t *order = p.host_order + (int64_t)h * N;
        if (kind == CLUSTERED) {
            int at = 0;
            for (int c = 0; c < 64; c++)
                for (int i = 0; i < N; i++)
                    if (cluster_of(seed, h, i) == c) order[at++] = i;
        } else {
            for (int i = 0; i < N; i++) order[i] = i;
            for (int i = N - 1; i > 0; i--) {
                int j = (int)(word_of(seed + 9, (uint64_t)h << 32 | i) % (i + 1)), swap = order[i];
                order[i] = order[j], order[j] = swap;
            }
        }
    }
    CHECK_CUDA(cudaMemcpy(p.order, p.host_order, (size_t)H * N * 4, cudaMemcpyHostToDevice));
    reference_lse<<<dim3((N + LSE_QUERIES - 1) / LSE_QUERIES, H), LSE_THREADS>>>(
        (uint16_t *)p.q.data, (uint16_t *)p.k.data, bf16, p.q.stride[0], p.q.stride[1], p.k.stride[0], p.k.stride[1], N,
        D, p.x.scale, lse_stride, p.lse);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
    return p;
}

static mcsa_qkv call_of(problem *p)
{
    mcsa_qkv x = p->x;
    x.q = &p->q, x.k = &p->k;
    return x;
}

static void free_problem(problem *p)
{
    CHECK_CUDA(cudaFree(p->q.data));
    CHECK_CUDA(cudaFree(p->k.data));
    CHECK_CUDA(cudaFree(p->lse));
    CHECK_CUDA(cudaFree(p->order));
    free(p->host_order);
}

/* Mass and bound of every key for the group [first, first + count) of `order` of one head, by definition. */
__global__ void reference_mass(const uint16_t *q, const uint16_t *k, int bf16, int64_t q_row, int64_t k_row, int N,
                               int D, float scale, const float *lse, const int32_t *order, int count, double *mass,
                               double *bound)
{
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= N) return;
    const double u = 0x1p-24;
    double m = 0, e = 0;
    for (int i = 0; i < count; i++) {
        double s = 0, a = 0;
        for (int d = 0; d < D; d++) {
            double product = (double)load16(q + order[i] * q_row + d, bf16) * load16(k + j * k_row + d, bf16);
            s += product;
            a += fabs(product);
        }
        double l = lse[order[i]], x = scale * s - l, attention = exp(x);
        double delta = scale * 2 * u * 17 * (D / 16) * a + 3 * u * fabs(scale * s) + 3 * u * fabs(l) + u * fabs(x) + 3.7e-6;
        m += attention;
        e += attention * expm1(delta) + 40 * u * attention * exp(delta) + 0x1p-125;
    }
    mass[j] = m;
    bound[j] = e;
}

/* Sum of each row, and the largest length of rows of q times that of k for the bound on it. */
__global__ void row_sums(const float *mass, int64_t pitch, int N, double *sums)
{
    __shared__ double part[256];
    double s = 0;
    for (int j = threadIdx.x; j < N; j += 256) s += mass[blockIdx.x * pitch + j];
    part[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x) return;
    for (int t = 1; t < 256; t++) s += part[t];
    sums[blockIdx.x] = s;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Bits of the K largest, as src/cpu/select.c sets them. */
static void host_top(const float *mass, int N, int K, uint64_t *bits)
{
    const uint32_t *key = (const uint32_t *)mass;
    mcsa_kth kth = mcsa_kth_largest(key, N, K);
    memset(bits, 0, (size_t)(N + 63) / 64 * 8);
    for (int j = 0; j < N; j++) {
        int tie = key[j] == kth.threshold && kth.ties > 0;
        kth.ties -= tie;
        if (key[j] > kth.threshold || tie) bits[j / 64] |= (uint64_t)1 << j % 64;
    }
}

/* Runs top between canaries, twice, and compares the rows listed (NULL: all) with the host. */
static void check_top(const char *name, const float *mass, int64_t rows, int64_t pitch, int N, int K, int64_t step)
{
    int64_t words = (N + 63) / 64, canary = 64, bytes = (rows * words + 2 * canary) * 8;
    uint64_t *kept = (uint64_t *)device_alloc(bytes), *host = (uint64_t *)malloc(bytes), *again = (uint64_t *)malloc(bytes);
    mcsa_cuda_top_job job = { mass, rows, pitch, N, K, kept + canary };
    CHECK_CUDA(cudaMemset(kept, 0xa5, bytes));
    CHECK_CUDA(mcsa_cuda_top(&job, 0));
    CHECK_CUDA(cudaMemcpy(host, kept, bytes, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemset(kept, 0x5a, bytes));
    CHECK_CUDA(mcsa_cuda_top(&job, 0));
    CHECK_CUDA(cudaMemcpy(again, kept, bytes, cudaMemcpyDeviceToHost));
    char what[200];
    snprintf(what, sizeof what, "top %s N %d K %d: same bits twice", name, N, K);
    check(!memcmp(host + canary, again + canary, rows * words * 8), what);
    int intact = 1;
    for (int64_t i = 0; i < canary; i++)
        intact &= host[i] == 0xa5a5a5a5a5a5a5a5u && host[canary + rows * words + i] == 0xa5a5a5a5a5a5a5a5u;
    snprintf(what, sizeof what, "top %s N %d K %d: nothing written outside", name, N, K);
    check(intact, what);
    float *row = (float *)malloc((size_t)N * 4);
    uint64_t *expected = (uint64_t *)malloc(words * 8);
    int64_t wrong = 0, tried = 0;
    for (int64_t r = 0; r < rows; r += step, tried++) {
        CHECK_CUDA(cudaMemcpy(row, mass + r * pitch, (size_t)N * 4, cudaMemcpyDeviceToHost));
        host_top(row, N, K, expected);
        wrong += memcmp(expected, host + canary + r * words, words * 8) != 0;
    }
    snprintf(what, sizeof what, "top %s N %d K %d: %lld of %lld rows differ from the CPU's", name, N, K, (long long)wrong,
             (long long)tried);
    check(!wrong, what);
    free(row);
    free(expected);
    free(host);
    free(again);
    CHECK_CUDA(cudaFree(kept));
}

/* The selection of one row against the reference's masses with slack. */
static int consistent(const uint64_t *kept, const double *mass, const double *bound, int N, int K)
{
    double *low = (double *)malloc((size_t)N * 8), *high = (double *)malloc((size_t)N * 8);
    for (int j = 0; j < N; j++) {
        low[j] = mass[j] - bound[j];
        high[j] = mass[j] + bound[j];
    }
    qsort(low, N, 8, compare_double);
    qsort(high, N, 8, compare_double);
    double least = low[N - K], most = high[N - K];
    int bits = 0, good = 1;
    for (int j = 0; j < N; j++) {
        int set = kept[j / 64] >> j % 64 & 1;
        bits += set;
        good &= set ? mass[j] + bound[j] >= least : mass[j] - bound[j] <= most;
    }
    free(low);
    free(high);
    return good && bits == K;
}

static double norm_product(const problem *p)
{
    /* sqrt(D) 300 each is the most that LARGE can have; normals end at 6.8 */
    double each = p->kind == LARGE ? 300 : p->kind == CLUSTERED ? 15 : 7;
    return each * each * p->D;
}

/* Masses of heads [head, H) of a problem, sampled rows against the reference, sums of all; then top and select. */
static void check_select(int H, int N, int D, int bf16, int kind, int spread, int samples, uint64_t seed)
{
    problem p = make_problem(H, N, D, bf16, kind, spread, 1, seed);
    mcsa_qkv x = call_of(&p);
    int head = H / 2, heads = H - head, G = p.G;
    int64_t pitch = (int64_t)G * 128, rows = (int64_t)heads * G, words = (N + 63) / 64;
    char name[100], what[200];
    snprintf(name, sizeof name, "N %d D %d %s %s%s", N, D, bf16 ? "bf16" : "fp16",
             kind == RANDOM ? "random" : kind == CLUSTERED ? "clustered" : "large", spread ? " spread" : "");
    float *mass = (float *)device_alloc(rows * pitch * 4), *again = (float *)device_alloc(rows * pitch * 4);
    mcsa_cuda_mass_job job = { &x, p.lse, p.order, head, heads, mass, pitch };
    CHECK_CUDA(mcsa_cuda_mass(&job, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    job.mass = again;
    CHECK_CUDA(mcsa_cuda_mass(&job, 0));
    CHECK_CUDA(cudaDeviceSynchronize());

    double *sums = (double *)device_alloc(rows * 8), *host_sums = (double *)malloc(rows * 8);
    row_sums<<<(unsigned)rows, 256>>>(mass, pitch, N, sums);
    CHECK_CUDA(cudaMemcpy(host_sums, sums, rows * 8, cudaMemcpyDeviceToHost));
    double product = p.x.scale * norm_product(&p), u = 0x1p-24, sum_percent = 0;
    double relative = expm1(2 * u * 17 * (D / 16) * product + 9 * u * product + 9 * u * 12 + 3.7e-6) + 42 * u;
    for (int64_t r = 0; r < rows; r++) {
        int g = (int)(r % G), count = N - g * 128 < 128 ? N - g * 128 : 128;
        double error = fabs(host_sums[r] - count) / (count * relative) * 100;
        if (!(error <= sum_percent)) sum_percent = error;
    }
    snprintf(what, sizeof what, "%s: masses of a group add up to its queries", name);
    check(sum_percent <= 100, what);

    int keeps[4] = { 1, N, (int)(0.15 * N + 0.5), (int)(0.25 * N + 0.5) };
    mcsa_selection selection = { H, N, 128, G, 0, words, p.order, NULL, 1 };
    selection.kept = (uint64_t *)device_alloc((size_t)H * G * words * 8);
    mcsa_dims dims = x.dims;
    void *scratch = device_alloc(mcsa_cuda_select_bytes(&dims));
    uint64_t *kept[4];
    for (int i = 0; i < 4; i++) {
        selection.K = keeps[i] < 1 ? 1 : keeps[i];
        kept[i] = (uint64_t *)malloc(rows * words * 8);
        CHECK_CUDA(cudaMemset(selection.kept, 0xa5, (size_t)H * G * words * 8));
        CHECK_CUDA(mcsa_cuda_select(&x, p.lse, &selection, scratch, 0));
        CHECK_CUDA(cudaMemcpy(kept[i], selection.kept + head * G * words, rows * words * 8, cudaMemcpyDeviceToHost));
        check_top(name, mass, rows, pitch, N, selection.K, rows > 600 ? 16 : 1);
        uint64_t *direct = (uint64_t *)device_alloc(rows * words * 8), *host = (uint64_t *)malloc(rows * words * 8);
        mcsa_cuda_top_job top = { mass, rows, pitch, N, selection.K, direct };
        CHECK_CUDA(mcsa_cuda_top(&top, 0));
        CHECK_CUDA(cudaMemcpy(host, direct, rows * words * 8, cudaMemcpyDeviceToHost));
        snprintf(what, sizeof what, "%s: select is top of mass", name);
        check(!memcmp(host, kept[i], rows * words * 8), what);
        CHECK_CUDA(cudaFree(direct));
        free(host);
    }

    double *reference = (double *)device_alloc((size_t)N * 8), *bound = (double *)device_alloc((size_t)N * 8);
    double *m = (double *)malloc((size_t)N * 8), *e = (double *)malloc((size_t)N * 8), worst = 0, l2 = 0;
    float *row = (float *)malloc((size_t)N * 4), *twin = (float *)malloc((size_t)N * 4);
    int same = 1, chosen = 1;
    for (int i = 0; i < samples; i++) {
        int64_t r = i == 0 ? rows - 1 : (int64_t)(word_of(seed + 3, i) % rows);
        int h = head + (int)(r / G), g = (int)(r % G), count = N - g * 128 < 128 ? N - g * 128 : 128;
        reference_mass<<<(N + 63) / 64, 64>>>((uint16_t *)p.q.data + h * p.q.stride[0],
                                              (uint16_t *)p.k.data + h * p.k.stride[0], bf16, p.q.stride[1],
                                              p.k.stride[1], N, D, x.scale, p.lse + (int64_t)h * N,
                                              p.order + (int64_t)h * N + g * 128, count, reference, bound);
        CHECK_CUDA(cudaGetLastError());
        CHECK_CUDA(cudaMemcpy(m, reference, (size_t)N * 8, cudaMemcpyDeviceToHost));
        CHECK_CUDA(cudaMemcpy(e, bound, (size_t)N * 8, cudaMemcpyDeviceToHost));
        CHECK_CUDA(cudaMemcpy(row, mass + r * pitch, (size_t)N * 4, cudaMemcpyDeviceToHost));
        CHECK_CUDA(cudaMemcpy(twin, again + r * pitch, (size_t)N * 4, cudaMemcpyDeviceToHost));
        same &= !memcmp(row, twin, (size_t)N * 4);
        double off = 0, all = 0;
        for (int j = 0; j < N; j++) {
            double percent = fabs(row[j] - m[j]) / e[j] * 100;
            if (!(percent <= worst)) worst = percent; /* NaN too */
            off += (row[j] - m[j]) * (row[j] - m[j]);
            all += m[j] * m[j];
        }
        l2 = fmax(l2, sqrt(off / all));
        for (int k = 0; k < 4; k++)
            chosen &= consistent(kept[k] + r * words, m, e, N, keeps[k] < 1 ? 1 : keeps[k]);
    }
    printf("%-36s worst mass %6.2f %% of bound, relative L2 %.1e, sum %6.2f %% of bound\n", name, worst, l2,
           sum_percent);
    snprintf(what, sizeof what, "%s: masses within bounds", name);
    check(worst <= 100, what);
    snprintf(what, sizeof what, "%s: same masses twice", name);
    check(same, what);
    snprintf(what, sizeof what, "%s: kept keys are the largest, but for near ties", name);
    check(chosen, what);
    for (int i = 0; i < 4; i++) free(kept[i]);
    free(m), free(e), free(row), free(twin), free(host_sums);
    CHECK_CUDA(cudaFree(reference));
    CHECK_CUDA(cudaFree(bound));
    CHECK_CUDA(cudaFree(sums));
    CHECK_CUDA(cudaFree(mass));
    CHECK_CUDA(cudaFree(again));
    CHECK_CUDA(cudaFree(scratch));
    CHECK_CUDA(cudaFree(selection.kept));
    free_problem(&p);
}

/* The reference itself: a few masses once more on the host. */
static void check_reference(void)
{
    problem p = make_problem(1, 300, 64, 1, RANDOM, 0, 1, 41);
    uint16_t q[300 * 64], k[300 * 64];
    float lse[300];
    double *mass = (double *)device_alloc(300 * 8), *bound = (double *)device_alloc(300 * 8), host[300];
    CHECK_CUDA(cudaMemcpy(q, p.q.data, sizeof q, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(k, p.k.data, sizeof k, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(lse, p.lse, sizeof lse, cudaMemcpyDeviceToHost));
    reference_mass<<<5, 64>>>((uint16_t *)p.q.data, (uint16_t *)p.k.data, 1, 64, 64, 300, 64, p.x.scale, p.lse,
                              p.order + 128, 128, mass, bound);
    CHECK_CUDA(cudaMemcpy(host, mass, sizeof host, cudaMemcpyDeviceToHost));
    double worst_mass = 0, worst_lse = 0;
    for (int j = 0; j < 300; j++) {
        double m = 0;
        for (int g = 128; g < 256; g++) {
            int i = p.host_order[g];
            double s = 0;
            for (int d = 0; d < 64; d++) s += (double)mcsa_from_bf16(q[i * 64 + d]) * mcsa_from_bf16(k[j * 64 + d]);
            m += exp(s * p.x.scale - lse[i]);
        }
        worst_mass = fmax(worst_mass, fabs(m - host[j]) / m);
        double l = 0;
        for (int t = 0; t < 300; t++) {
            double s = 0;
            for (int d = 0; d < 64; d++) s += (double)mcsa_from_bf16(q[j * 64 + d]) * mcsa_from_bf16(k[t * 64 + d]);
            l += exp(s * p.x.scale);
        }
        worst_lse = fmax(worst_lse, fabs(log(l) - lse[j]) / fabs(lse[j]));
    }
    printf("reference against the host: masses %.1e, lse %.1e\n", worst_mass, worst_lse);
    check(worst_mass < 1e-12 && worst_lse < 0x1p-23, "the reference on the device is that of the host");
    CHECK_CUDA(cudaFree(mass));
    CHECK_CUDA(cudaFree(bound));
    free_problem(&p);
}

/* Rows made to be difficult. */
static float made_up(int shape, uint64_t w, int j, int N)
{
    uint32_t bits;
    float x = (w >> 40) * 0x1p-24f;
    switch (shape) {
    case 0: return x;                                  /* uniform */
    case 1: return 0;                                  /* all equal */
    case 2: return w % 10 ? 0 : x;                     /* mostly zero */
    case 3: return 1 + w % 3;                          /* three values */
    case 4: bits = (uint32_t)(w % 0x800000); break;    /* subnormal */
    case 5: bits = (uint32_t)(w % 0x7f800000u); break; /* every exponent */
    case 6: return (float)j;                           /* ascending */
    case 7: return (float)(N - j);                     /* descending */
    case 8: return 1 + (float)(w % 4) * 0x1p-23f;      /* neighbours of 1 */
    case 9: return j / 1000 % 3 ? x : 1e30f;           /* plateaus */
    case 10: bits = (uint32_t)w; break;                /* any bits: NaN, infinity, negative */
    default: return expf(3 * (float)((w & 0xffff) + (w >> 16 & 0xffff) + (w >> 32 & 0xffff) - 98302) * 0x1p-15f);
    }
    memcpy(&x, &bits, 4);
    return x;
}

static void check_made_up(int N, int shapes)
{
    int64_t pitch = N + N % 3; /* rows need not be aligned */
    float *host = (float *)malloc((size_t)shapes * pitch * 4), *mass = (float *)device_alloc((size_t)shapes * pitch * 4);
    for (int r = 0; r < shapes; r++)
        for (int64_t j = 0; j < pitch; j++)
            host[r * pitch + j] = made_up(r, word_of(1000 + r, (uint64_t)N << 32 | j), (int)j, N);
    CHECK_CUDA(cudaMemcpy(mass, host, (size_t)shapes * pitch * 4, cudaMemcpyHostToDevice));
    int keeps[] = { 1, N, (int)(0.15 * N), N / 2, N - 1, 2, (int)(0.9 * N) };
    for (int i = 0; i < 7; i++)
        if (keeps[i] >= 1) check_top("made-up rows", mass, shapes, pitch, N, keeps[i], 1);
    CHECK_CUDA(cudaFree(mass));
    free(host);
}

/* Median milliseconds of `rounds` runs, each of `repeat` calls. */
static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

enum what { MASS, TOP, SELECT };

static float time_of(enum what what, const mcsa_cuda_mass_job *mass, const mcsa_cuda_top_job *top,
                     const mcsa_selection *s, int chunk, void *scratch)
{
    enum { ROUNDS = 7 };
    float ms[ROUNDS];
    cudaEvent_t start, stop;
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&stop));
    for (int round = -1; round < ROUNDS; round++) {
        CHECK_CUDA(cudaEventRecord(start));
        if (what == SELECT) CHECK_CUDA(mcsa_cuda_select(mass->x, mass->lse, s, scratch, 0));
        for (int head = 0; what != SELECT && head < s->H; head += chunk) {
            mcsa_cuda_mass_job part = *mass;
            mcsa_cuda_top_job rows = *top;
            part.head = head;
            part.heads = s->H - head < chunk ? s->H - head : chunk;
            rows.rows = (int64_t)part.heads * s->G;
            CHECK_CUDA(what == MASS ? mcsa_cuda_mass(&part, 0) : mcsa_cuda_top(&rows, 0));
        }
        CHECK_CUDA(cudaEventRecord(stop));
        CHECK_CUDA(cudaEventSynchronize(stop));
        if (round >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[round], start, stop));
    }
    qsort(ms, ROUNDS, sizeof ms[0], compare_float);
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(stop));
    return ms[ROUNDS / 2];
}

static void time_select(int H, int N, int D, int kind, int mass_only)
{
    problem p = make_problem(H, N, D, 1, kind, 0, N > 2048 ? 32 : 1, 7);
    mcsa_qkv x = call_of(&p);
    int64_t words = (N + 63) / 64, pitch = (int64_t)p.G * 128;
    mcsa_dims dims = x.dims;
    size_t bytes = mcsa_cuda_select_bytes(&dims);
    int chunk = (int)(bytes / (p.G * pitch * 4));
    void *scratch = device_alloc(bytes);
    mcsa_selection s = { H, N, 128, p.G, 0, words, p.order, NULL, 1 };
    s.kept = (uint64_t *)device_alloc((size_t)H * p.G * words * 8);
    mcsa_cuda_mass_job mass = { &x, p.lse, p.order, 0, chunk, (float *)scratch, pitch };
    mcsa_cuda_top_job top = { (float *)scratch, (int64_t)chunk * p.G, pitch, N, 1, s.kept };
    float ms = time_of(MASS, &mass, &top, &s, chunk, scratch);
    double flop = 2.0 * H * N * (double)N * D;
    printf("%-9s H %d N %d D %d, %d heads a chunk: mass %7.2f ms, %3.0f TFLOP/s\n",
           kind == RANDOM ? "random" : "clustered", H, N, D, chunk, ms, flop / ms * 1e-9);
    for (int percent = 15; percent <= 25 && !mass_only; percent += 10) {
        s.K = (int)(percent * 0.01 * N + 0.5);
        mass.head = 0, mass.heads = chunk < H ? chunk : H;
        CHECK_CUDA(mcsa_cuda_mass(&mass, 0));
        top.K = s.K;
        float top_ms = time_of(TOP, &mass, &top, &s, chunk, scratch);
        float all_ms = time_of(SELECT, &mass, &top, &s, chunk, scratch);
        printf("    %d %%: top %6.2f ms, %4.2f TB/s; select %7.2f ms\n", percent, top_ms,
               4.0 * H * p.G * N / top_ms * 1e-9, all_ms);
    }
    CHECK_CUDA(cudaFree(scratch));
    CHECK_CUDA(cudaFree(s.kept));
    free_problem(&p);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(mode, "small")) {
        check_reference();
        check_made_up(4500, 12);
        check_made_up(300, 12);
        check_select(2, 129, 128, 1, RANDOM, 0, 2, 3);
        check_select(2, 1000, 64, 0, CLUSTERED, 1, 2, 4);
    } else if (!strcmp(mode, "mass")) {
        check_select(2, 4097, 128, 1, CLUSTERED, 1, 8, 3);
        if (!failures) time_select(40, 75600, 128, CLUSTERED, 1);
        if (!failures) time_select(40, 32760, 64, CLUSTERED, 1);
    } else if (!strcmp(mode, "time")) {
        check_select(2, 4097, 128, 1, CLUSTERED, 1, 8, 3);
        for (int kind = RANDOM; kind <= CLUSTERED && !failures; kind++) {
            time_select(40, 75600, 128, kind, 0);
            time_select(40, 32760, 128, kind, 0);
        }
    } else {
        check_reference();
        const int made_up_sizes[] = { 1, 2, 63, 64, 65, 1000, 4097, 20000, 75600, 118800, 300000 };
        for (int i = 0; i < 11; i++) check_made_up(made_up_sizes[i], 12);
        const int sizes[] = { 1, 63, 127, 129, 1000, 4097 };
        for (int i = 0; i < 6; i++)
            for (int D = 64; D <= 128; D += 64)
                for (int bf16 = 0; bf16 < 2; bf16++)
                    for (int kind = RANDOM; kind <= CLUSTERED; kind++)
                        check_select(3, sizes[i], D, bf16, kind, bf16 ^ kind, 8, 11 + i);
        check_select(2, 4097, 128, 1, LARGE, 0, 8, 5);
        check_select(2, 1000, 64, 0, LARGE, 1, 8, 6);
        check_select(2, 32760, 128, 1, CLUSTERED, 0, 8, 7);
        check_select(1, 75600, 128, 1, RANDOM, 1, 8, 8);
        check_select(1, 75600, 128, 1, CLUSTERED, 0, 8, 9);
    }
    printf(failures ? "%d checks FAILED\n" : "all checks passed\n", failures);
    return failures != 0;
}
