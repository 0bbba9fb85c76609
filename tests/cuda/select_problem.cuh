/* select_problem.cuh - what the tests of selection share: queries and keys, their masses by the definition, rows made
 * to be difficult, and a stop-watch.
 *
 * Masses: the reference is the definition in double on the device, one thread a mass.  It takes the FP32 lse that the
 * kernel takes.  Let u = 2^-24.  The kernel's error in mass m = sum_i a_i, a_i = exp(x_i), x_i = scale s_i - lse_i, is
 * at most
 *
 *     sum_i a_i (exp(d_i) - 1) + 40 u sum_i a_i exp(d_i) + 128 2^-125,
 *     d_i = scale 2u 17 (D / 16) A_i + 3u |scale s_i| + 3u |lse_i| + u |x_i| + e
 *
 * A_i = sum_d |q_id k_jd|: products are exact; a wgmma step adds 16 of them to the sum after aligning all 17 to the
 * largest, each cut below 2u of it.  3u: the factor scale log2(e) is rounded twice and multiplied.  3u |lse|: log2(e)
 * rounded and multiplied.  u |x|: the fused multiply-add.  e: of exp2, 2^-22.  40 u: 32 additions in a thread, 2
 * across, and slack.  2^-125: results below 2^-126 are cut off. */
#ifndef MCSA_TESTS_CUDA_SELECT_PROBLEM_CUH
#define MCSA_TESTS_CUDA_SELECT_PROBLEM_CUH

#include "check.h"
#include "cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Data is made on the device: a word of noise for (seed, index), and normals from it. */
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
static __global__ void fill(uint16_t *data, int bf16, int64_t head_stride, int64_t row_stride, int N, int D, int kind,
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

__device__ static double element(const mcsa_tensor &t, int h, int n, int d)
{
    uint16_t bits = ((const uint16_t *)t.data)[h * t.stride[0] + n * t.stride[1] + d];
    return t.dtype == MCSA_BF16 ? __uint_as_float((uint32_t)bits << 16) : __half2float(__ushort_as_half(bits));
}

/* lse of 8 queries a block, over every `stride`-th key, in double */
enum { LSE_QUERIES = 8, LSE_THREADS = 128 };
static __global__ void reference_lse(mcsa_qkv x, mcsa_tensor q, mcsa_tensor k, int stride, float *lse)
{
    int N = x.dims.N, D = x.dims.D;
    __shared__ double query[LSE_QUERIES][128];
    __shared__ double best[LSE_THREADS][LSE_QUERIES], sum[LSE_THREADS][LSE_QUERIES];
    int h = blockIdx.y, first = blockIdx.x * LSE_QUERIES;
    for (int i = threadIdx.x; i < LSE_QUERIES * D; i += LSE_THREADS) {
        int row = first + i / D < N ? first + i / D : N - 1;
        query[i / D][i % D] = element(q, h, row, i % D);
    }
    __syncthreads();
    double m[LSE_QUERIES], l[LSE_QUERIES];
    for (int r = 0; r < LSE_QUERIES; r++) m[r] = -1e300, l[r] = 0;
    for (int j = threadIdx.x * stride; j < N; j += LSE_THREADS * stride) {
        double s[LSE_QUERIES] = { 0 };
        for (int d = 0; d < D; d++) {
            double key = element(k, h, j, d);
            for (int r = 0; r < LSE_QUERIES; r++) s[r] += key * query[r][d];
        }
        for (int r = 0; r < LSE_QUERIES; r++) {
            double score = s[r] * x.scale;
            if (score > m[r]) l[r] *= exp(m[r] - score), m[r] = score;
            l[r] += exp(score - m[r]);
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
    check_buffer q_data, k_data;
    mcsa_tensor q, k;
    mcsa_qkv x; /* points to q and k */
    check_buffer lse, order;
    int32_t *host_order;
};

static void make_tensor(mcsa_tensor *t, check_buffer *b, const problem *p, int spread, uint64_t seed)
{
    /* spread: [N, H, D] with 8 elements between rows */
    int64_t row = spread ? (int64_t)p->H * (p->D + 8) : p->D, head = spread ? p->D + 8 : (int64_t)p->N * p->D;
    *b = check_buffer_make(((p->H - 1) * head + (p->N - 1) * row + p->D) * 2);
    t->data = b->data;
    t->dtype = p->bf16 ? MCSA_BF16 : MCSA_F16;
    t->shape[0] = p->H, t->shape[1] = p->N, t->shape[2] = p->D;
    t->stride[0] = head, t->stride[1] = row, t->stride[2] = 1;
    fill<<<dim3(264, p->H), 256>>>((uint16_t *)t->data, p->bf16, head, row, p->N, p->D, p->kind, seed);
    CHECK_CUDA(cudaGetLastError());
}

/* Queries in the order of their clusters when clustered, shuffled when not. */
static void make_order(problem *p, uint64_t seed)
{
    int N = p->N;
    p->host_order = (int32_t *)check_alloc((size_t)p->H * N * sizeof(int32_t));
    for (int h = 0; h < p->H; h++) {
        int32_t *order = p->host_order + (int64_t)h * N;
        for (int i = 0; i < N; i++) order[i] = i;
        if (p->kind == CLUSTERED) {
            int at[65] = { 0 };
            for (int i = 0; i < N; i++) at[cluster_of(seed, h, i) + 1]++;
            for (int c = 0; c < 64; c++) at[c + 1] += at[c];
            for (int i = 0; i < N; i++) order[at[cluster_of(seed, h, i)]++] = i;
        } else
            for (int i = N - 1; i > 0; i--) {
                int j = (int)(word_of(seed + 9, (uint64_t)h << 32 | i) % (i + 1)), swap = order[i];
                order[i] = order[j], order[j] = swap;
            }
    }
    p->order = check_buffer_make((size_t)p->H * N * sizeof(int32_t));
    check_upload(&p->order, p->host_order);
}

static problem shape(int H, int N, int D, int bf16, int kind)
{
    problem p = {};
    p.H = H, p.N = N, p.D = D, p.bf16 = bf16, p.kind = kind;
    return p;
}

/* lse_stride: of the keys that lse is estimated from; 1: exact.  In place, because x points into the struct. */
static void make_problem(problem *p, int lse_stride, int spread, uint64_t seed)
{
    p->G = (p->N + 127) / 128;
    make_tensor(&p->q, &p->q_data, p, spread, seed);
    make_tensor(&p->k, &p->k_data, p, spread, seed + 1000);
    memset(&p->x, 0, sizeof p->x);
    p->x.q = &p->q, p->x.k = &p->k;
    p->x.dims = { p->H, p->N, p->N, p->D, p->q.dtype };
    p->x.scale = (float)(1 / sqrt((double)p->D));
    make_order(p, seed);
    p->lse = check_buffer_make((size_t)p->H * p->N * sizeof(float));
    reference_lse<<<dim3((p->N + LSE_QUERIES - 1) / LSE_QUERIES, p->H), LSE_THREADS>>>(p->x, p->q, p->k, lse_stride,
                                                                                       (float *)p->lse.data);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
}

static mcsa_selection selection_of(const problem *p, const check_buffer *kept)
{
    mcsa_selection s = {};
    s.H = p->H, s.N = p->N, s.C = 128, s.G = p->G;
    s.words = (p->N + 63) / 64;
    s.order = (int32_t *)p->order.data;
    s.kept = (uint64_t *)kept->data;
    return s;
}

static void free_problem(problem *p)
{
    check_buffer_free(&p->q_data);
    check_buffer_free(&p->k_data);
    check_buffer_free(&p->lse);
    check_buffer_free(&p->order);
    free(p->host_order);
}

/* Masses of group g of head h by their definition, and the bounds on a kernel's errors. */
static __global__ void reference_mass(mcsa_qkv x, mcsa_tensor q, mcsa_tensor k, const float *lse, const int32_t *order,
                                      int h, int g, double *mass, double *bound)
{
    int j = blockIdx.x * blockDim.x + threadIdx.x, N = x.dims.N, D = x.dims.D;
    if (j >= N) return;
    const double u = 0x1p-24;
    double m = 0, e = 0;
    for (int row = g * 128; row < N && row < g * 128 + 128; row++) {
        int i = order[(int64_t)h * N + row];
        double s = 0, a = 0;
        for (int d = 0; d < D; d++) {
            double product = element(q, h, i, d) * element(k, h, j, d);
            s += x.scale * product;
            a += x.scale * fabs(product);
        }
        double l = lse[(int64_t)h * N + i], attention = exp(s - l);
        double delta = 2 * u * 17 * (D / 16) * a + 3 * u * fabs(s) + 3 * u * fabs(l) + u * fabs(s - l) + CHECK_EXP2;
        m += attention;
        e += attention * expm1(delta) + 40 * u * attention * exp(delta) + 0x1p-125;
    }
    mass[j] = m;
    bound[j] = e;
}

/* Rows made to be difficult. */
enum { SHAPES = 12 };
static float made_up(int shape, uint64_t w, int j, int N)
{
    uint32_t bits = (uint32_t)w; /* any: NaN, infinity, negative */
    float x = (w >> 40) * 0x1p-24f;
    switch (shape) {
    case 0: return x;                                                       /* uniform */
    case 1: return 0;                                                       /* all equal */
    case 2: return w % 10 ? 0 : x;                                          /* mostly zero */
    case 3: return 1 + (float)(w % 3);                                      /* three values */
    case 4: return (float)j;                                                /* ascending */
    case 5: return (float)(N - j);                                          /* descending */
    case 6: return 1 + (float)(w % 4) * 0x1p-23f;                           /* neighbours of 1 */
    case 7: return j / 1000 % 3 ? x : 1e30f;                                /* plateaus */
    case 8: return expf(6 * ((x + (float)(w & 0xffff) * 0x1p-16f) - 1.0f)); /* like attention */
    case 9: bits %= 0x800000; break;                                        /* subnormal */
    case 10: bits %= 0x7f800000; break;                                     /* every exponent */
    }
    memcpy(&x, &bits, 4);
    return x;
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Median milliseconds of what `run` enqueues. */
template <typename F> static float median_ms(F run)
{
    enum { ROUNDS = 7 };
    float ms[ROUNDS];
    cudaEvent_t start, stop;
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&stop));
    for (int round = -1; round < ROUNDS; round++) {
        CHECK_CUDA(cudaEventRecord(start, 0));
        run();
        CHECK_CUDA(cudaEventRecord(stop, 0));
        CHECK_CUDA(cudaEventSynchronize(stop));
        if (round >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[round], start, stop));
    }
    qsort(ms, ROUNDS, sizeof ms[0], compare_float);
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(stop));
    return ms[ROUNDS / 2];
}

#endif
