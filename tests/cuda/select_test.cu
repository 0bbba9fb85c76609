/* select_test.cu - mass, top and select of the CUDA backend against plain references, then how long they take.
 *
 *     select_test            all checks
 *     select_test small      few and small ones, for compute-sanitizer
 *     select_test time       milliseconds at 75,600 and 32,760 tokens, 40 heads
 *     select_test mass       of mass alone, also at D = 64
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
 * rounded and multiplied.  u |x|: the fused multiply-add.  e: of exp2, 2^-22.  40 u:
 * 32 additions in a thread, 2 across, and slack.  2^-125: results below 2^-126 are cut off.
 *
 * Chosen keys: with m' the kernel's masses and |m' - m| <= e, the K-th largest m' is no less than that of m - e and no
 * more than that of m + e; kept keys must have m + e no less than the first, others m - e no more than the second.
 * Against the very masses that the kernel made, the bits must be equal to those of the CPU's selection. */
#include "check.h"
#include "cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {
#include "cpu/kth.h"
}

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

__device__ static double element(const mcsa_tensor &t, int h, int n, int d)
{
    uint16_t bits = ((const uint16_t *)t.data)[h * t.stride[0] + n * t.stride[1] + d];
    return t.dtype == MCSA_BF16 ? __uint_as_float((uint32_t)bits << 16) : __half2float(__ushort_as_half(bits));
}

/* lse of 8 queries a block, over every `stride`-th key, in double */
enum { LSE_QUERIES = 8, LSE_THREADS = 128 };
__global__ void reference_lse(mcsa_qkv x, mcsa_tensor q, mcsa_tensor k, int stride, float *lse)
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
__global__ void reference_mass(mcsa_qkv x, mcsa_tensor q, mcsa_tensor k, const float *lse, const int32_t *order, int h,
                               int g, double *mass, double *bound)
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

/* The sum of each row. */
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

/* Runs top twice and compares every `step`-th row with the host's.  kept: [rows, words] of the last run, or NULL */
static void check_top(const char *name, const mcsa_cuda_top_job *rows, int64_t step, uint64_t *kept)
{
    int N = rows->N, K = rows->K;
    int64_t words = (N + 63) / 64, bytes = rows->rows * words * 8, wrong = 0;
    check_buffer buffer = check_buffer_make(bytes);
    mcsa_cuda_top_job job = *rows;
    job.kept = (uint64_t *)buffer.data;
    uint64_t *bits[2], *expected = (uint64_t *)check_alloc(words * 8);
    float *row = (float *)check_alloc((size_t)N * 4);
    for (int run = 0; run < 2; run++) {
        bits[run] = (uint64_t *)check_alloc(bytes);
        check_buffer_poison(&buffer);
        CHECK_CUDA(mcsa_cuda_top(&job, 0));
        check_download(bits[run], &buffer);
    }
    check_same_bits(bits[0], bits[1], bytes, "top");
    for (int64_t r = 0; r < job.rows; r += step) {
        CHECK_CUDA(cudaMemcpy(row, job.mass + r * job.pitch, (size_t)N * 4, cudaMemcpyDeviceToHost));
        host_top(row, N, K, expected);
        wrong += memcmp(expected, bits[0] + r * words, words * 8) != 0;
    }
    CHECK_TRUE(wrong == 0, "%s, N %d K %d: %lld of %lld rows are not the CPU's", name, N, K, (long long)wrong,
               (long long)((job.rows + step - 1) / step));
    if (kept) memcpy(kept, bits[0], bytes);
    check_buffer_free(&buffer);
    free(row), free(expected), free(bits[0]), free(bits[1]);
}

/* The bits of one row against the reference's masses with slack. */
static int consistent(const uint64_t *kept, const double *mass, const double *bound, int N, int K)
{
    double *low = (double *)check_alloc((size_t)N * 8), *high = (double *)check_alloc((size_t)N * 8);
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
    free(low), free(high);
    return good && bits == K;
}

/* Sums of all rows against the queries of their groups.  The bound is that of a mass at the most that |q| |k| can be,
 * and the rounding of lse. */
static void check_sums(const char *name, const problem *p, const float *mass, int64_t rows, int64_t pitch)
{
    double each = p->kind == LARGE ? 300 : p->kind == CLUSTERED ? 15 : 7; /* normals end at 6.8 */
    double most = p->x.scale * each * each * p->D, u = 0x1p-24;
    double relative = expm1(2 * u * 17 * (p->D / 16) * most + 9 * u * (most + 12) + CHECK_EXP2) + 42 * u;
    check_buffer sums = check_buffer_make(rows * 8);
    double *host = (double *)check_alloc(rows * 8);
    row_sums<<<(unsigned)rows, 256>>>(mass, pitch, p->N, (double *)sums.data);
    CHECK_CUDA(cudaGetLastError());
    check_download(host, &sums);
    check_worst worst = {};
    for (int64_t r = 0; r < rows; r++) {
        int left = p->N - (int)(r % p->G) * 128, count = left < 128 ? left : 128;
        check_judge(&worst, host[r], count, count * relative, r, 0, 0);
    }
    check_report(&worst, "%s, sums of groups", name);
    check_buffer_free(&sums);
    free(host);
}

/* Sampled rows of masses and of the keys kept, against the reference.  kept[i]: [rows, words] with keeps[i] keys */
static void check_rows(const char *name, const problem *p, int head, const float *mass, int64_t rows, int samples,
                       uint64_t *const kept[4], const int keeps[4])
{
    int N = p->N, G = p->G, chosen = 1;
    int64_t pitch = (int64_t)G * 128, words = (N + 63) / 64;
    check_buffer reference = check_buffer_make((size_t)N * 8), bound = check_buffer_make((size_t)N * 8);
    double *m = (double *)check_alloc((size_t)N * 8), *e = (double *)check_alloc((size_t)N * 8);
    float *row = (float *)check_alloc((size_t)N * 4);
    check_worst worst = {};
    for (int i = 0; i < samples; i++) {
        int64_t r = i == 0 ? rows - 1 : (int64_t)(word_of(N, i) % rows); /* the last may be ragged */
        reference_mass<<<(N + 63) / 64, 64>>>(p->x, p->q, p->k, (const float *)p->lse.data,
                                              (const int32_t *)p->order.data, head + (int)(r / G), (int)(r % G),
                                              (double *)reference.data, (double *)bound.data);
        CHECK_CUDA(cudaGetLastError());
        check_download(m, &reference);
        check_download(e, &bound);
        CHECK_CUDA(cudaMemcpy(row, mass + r * pitch, (size_t)N * 4, cudaMemcpyDeviceToHost));
        for (int j = 0; j < N; j++) check_judge(&worst, row[j], m[j], e[j], r, j, 0);
        for (int k = 0; k < 4; k++) chosen &= consistent(kept[k] + r * words, m, e, N, keeps[k]);
    }
    check_report(&worst, "%s, masses", name);
    CHECK_TRUE(chosen, "%s: kept keys are not the largest, near ties aside", name);
    check_buffer_free(&reference);
    check_buffer_free(&bound);
    free(m), free(e), free(row);
}

/* Masses of heads H / 2 and on, their top, and select of all heads. */
static void check_select(problem p, int spread, int samples)
{
    make_problem(&p, 1, spread, 11 * p.N + p.D + p.bf16);
    int N = p.N, G = p.G, head = p.H / 2, heads = p.H - head;
    int64_t pitch = (int64_t)G * 128, rows = (int64_t)heads * G, words = (N + 63) / 64;
    static const char *const kinds[] = { "random", "clustered", "large" };
    char name[100];
    snprintf(name, sizeof name, "N %d D %d %s %s%s", N, p.D, p.bf16 ? "bf16" : "fp16", kinds[p.kind],
             spread ? " spread" : "");
    check_buffer mass = check_buffer_make(rows * pitch * 4), twin = check_buffer_make(rows * pitch * 4);
    mcsa_cuda_mass_job job = {
        &p.x, (const float *)p.lse.data, (const int32_t *)p.order.data, head, heads, (float *)mass.data, pitch
    };
    CHECK_CUDA(mcsa_cuda_mass(&job, 0));
    job.mass = (float *)twin.data;
    CHECK_CUDA(mcsa_cuda_mass(&job, 0));
    CHECK_CUDA(cudaDeviceSynchronize());
    check_sums(name, &p, (const float *)mass.data, rows, pitch);
    check_sums(name, &p, (const float *)twin.data, rows, pitch);

    int keeps[4] = { 1, N, (int)(0.15 * N + 0.5), (int)(0.25 * N + 0.5) };
    uint64_t *kept[4], *all = (uint64_t *)check_alloc((size_t)p.H * G * words * 8);
    check_buffer bits = check_buffer_make((size_t)p.H * G * words * 8);
    check_buffer scratch = check_buffer_make(mcsa_cuda_select_bytes(&p.x.dims, 0));
    mcsa_selection selection = selection_of(&p, &bits);
    for (int i = 0; i < 4; i++) {
        keeps[i] += !keeps[i];
        kept[i] = (uint64_t *)check_alloc(rows * words * 8);
        mcsa_cuda_top_job top = { (const float *)twin.data, rows, pitch, N, keeps[i], NULL };
        check_top(name, &top, 1, kept[i]);
        selection.K = keeps[i];
        check_buffer_poison(&bits);
        CHECK_CUDA(mcsa_cuda_select(&p.x, job.lse, &selection, scratch.data, 0));
        check_download(all, &bits);
        check_same_bits(all + head * G * words, kept[i], rows * words * 8, "select, and top of mass");
    }
    check_rows(name, &p, head, (const float *)mass.data, rows, samples, kept, keeps);
    for (int i = 0; i < 4; i++) free(kept[i]);
    free(all);
    check_buffer_free(&mass);
    check_buffer_free(&twin);
    check_buffer_free(&bits);
    check_buffer_free(&scratch);
    free_problem(&p);
}

/* The reference itself: masses and lse once more on the host. */
static void check_reference(void)
{
    enum { N = 300, D = 64 };
    problem p = shape(1, N, D, 1, RANDOM);
    make_problem(&p, 1, 0, 41);
    static uint16_t q[N * D], k[N * D];
    float lse[N];
    double host[N];
    check_buffer mass = check_buffer_make(sizeof host), bound = check_buffer_make(sizeof host);
    check_download(q, &p.q_data);
    check_download(k, &p.k_data);
    check_download(lse, &p.lse);
    reference_mass<<<5, 64>>>(p.x, p.q, p.k, (const float *)p.lse.data, (const int32_t *)p.order.data, 0, 1,
                              (double *)mass.data, (double *)bound.data);
    check_download(host, &mass);
    check_worst masses = {}, lses = {};
    for (int j = 0; j < N; j++) {
        double m = 0, l = 0;
        for (int g = 128; g < 256; g++) {
            double s = 0;
            int i = p.host_order[g];
            for (int d = 0; d < D; d++) s += (double)mcsa_from_bf16(q[i * D + d]) * mcsa_from_bf16(k[j * D + d]);
            m += exp(s * p.x.scale - lse[i]);
        }
        for (int t = 0; t < N; t++) {
            double s = 0;
            for (int d = 0; d < D; d++) s += (double)mcsa_from_bf16(q[j * D + d]) * mcsa_from_bf16(k[t * D + d]);
            l += exp(s * p.x.scale);
        }
        check_judge(&masses, host[j], m, 1e-12 * m, j, 0, 0);
        check_judge(&lses, lse[j], log(l), 1.01 * 0x1p-24 * fabs(log(l)), j, 0, 0);
    }
    check_report(&masses, "the reference's masses");
    check_report(&lses, "the reference's lse");
    check_buffer_free(&mass);
    check_buffer_free(&bound);
    free_problem(&p);
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

static void check_made_up(int N)
{
    int64_t pitch = N + N % 3; /* rows need not be aligned */
    float *host = (float *)check_alloc(SHAPES * pitch * 4);
    check_buffer mass = check_buffer_make(SHAPES * pitch * 4);
    for (int r = 0; r < SHAPES; r++)
        for (int64_t j = 0; j < pitch; j++)
            host[r * pitch + j] = made_up(r, word_of(1000 + r, (uint64_t)N << 32 | j), (int)j, N);
    check_upload(&mass, host);
    int keeps[] = { 1, 2, N, N - 1, N / 2, (int)(0.15 * N), (int)(0.9 * N) };
    for (int i = 0; i < 7; i++) {
        mcsa_cuda_top_job job = { (const float *)mass.data, SHAPES, pitch, N, keeps[i], NULL };
        if (keeps[i] >= 1 && keeps[i] <= N) check_top("made-up rows", &job, 1, NULL);
    }
    check_buffer_free(&mass);
    free(host);
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

enum verb { MASS, TOP, SELECT };

/* Median milliseconds of one verb over all heads, `mass->heads` at a time into the same memory. */
static float time_of(enum verb verb, const mcsa_cuda_mass_job *mass, const mcsa_cuda_top_job *top,
                     const mcsa_selection *s)
{
    enum { ROUNDS = 7 };
    float ms[ROUNDS];
    cudaEvent_t start, stop;
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&stop));
    for (int round = -1; round < ROUNDS; round++) {
        CHECK_CUDA(cudaEventRecord(start, 0));
        if (verb == SELECT) CHECK_CUDA(mcsa_cuda_select(mass->x, mass->lse, s, mass->mass, 0));
        for (int head = 0; verb != SELECT && head < s->H; head += mass->heads) {
            mcsa_cuda_mass_job part = *mass;
            mcsa_cuda_top_job rows = *top;
            part.head = head;
            if (part.heads > s->H - head) part.heads = s->H - head;
            rows.rows = (int64_t)part.heads * s->G;
            CHECK_CUDA(verb == MASS ? mcsa_cuda_mass(&part, 0) : mcsa_cuda_top(&rows, 0));
        }
        CHECK_CUDA(cudaEventRecord(stop, 0));
        CHECK_CUDA(cudaEventSynchronize(stop));
        if (round >= 0) CHECK_CUDA(cudaEventElapsedTime(&ms[round], start, stop));
    }
    qsort(ms, ROUNDS, sizeof ms[0], compare_float);
    CHECK_CUDA(cudaEventDestroy(start));
    CHECK_CUDA(cudaEventDestroy(stop));
    return ms[ROUNDS / 2];
}

static void time_select(problem p, int mass_only)
{
    make_problem(&p, 32, 0, 7);
    int H = p.H, N = p.N;
    int64_t words = (N + 63) / 64, pitch = (int64_t)p.G * 128;
    check_buffer scratch = check_buffer_make(mcsa_cuda_select_bytes(&p.x.dims, 0));
    check_buffer bits = check_buffer_make((size_t)H * p.G * words * 8);
    int chunk = (int)(scratch.bytes / (p.G * pitch * 4));
    mcsa_selection s = selection_of(&p, &bits);
    mcsa_cuda_mass_job mass = { &p.x, (const float *)p.lse.data, s.order, 0, chunk, (float *)scratch.data, pitch };
    mcsa_cuda_top_job top = { mass.mass, (int64_t)chunk * p.G, pitch, N, 1, s.kept };
    float ms = time_of(MASS, &mass, &top, &s);
    printf("%-9s H %d N %d D %d, %d heads a chunk: mass %7.2f ms, %3.0f TFLOP/s\n",
           p.kind == RANDOM ? "random" : "clustered", H, N, p.D, chunk, ms, 2.0 * H * N * (double)N * p.D / ms * 1e-9);
    for (int percent = 15; percent <= 25 && !mass_only; percent += 10) {
        s.K = top.K = (int)(percent * 0.01 * N + 0.5);
        CHECK_CUDA(mcsa_cuda_mass(&mass, 0));
        float top_ms = time_of(TOP, &mass, &top, &s), all_ms = time_of(SELECT, &mass, &top, &s);
        printf("    %d %%: top %6.2f ms, %4.2f TB/s; select %7.2f ms\n", percent, top_ms,
               4.0 * H * p.G * N / top_ms * 1e-9, all_ms);
    }
    check_buffer_free(&scratch);
    check_buffer_free(&bits);
    free_problem(&p);
}

static void check_all(void)
{
    const int made_up_sizes[] = { 1, 2, 63, 64, 65, 1000, 4097, 20000, 75600, 118800, 300000 };
    const int sizes[] = { 1, 63, 127, 129, 1000, 4097 };
    check_reference();
    for (int i = 0; i < 11; i++) check_made_up(made_up_sizes[i]);
    for (int i = 0; i < 6; i++)
        for (int D = 64; D <= 128; D += 64)
            for (int bf16 = 0; bf16 < 2; bf16++)
                for (int kind = RANDOM; kind <= CLUSTERED; kind++)
                    check_select(shape(3, sizes[i], D, bf16, kind), bf16 ^ kind, 8);
    check_select(shape(2, 4097, 128, 1, LARGE), 0, 8);
    check_select(shape(2, 1000, 64, 0, LARGE), 1, 8);
    check_select(shape(2, 32760, 128, 1, CLUSTERED), 0, 8);
    check_select(shape(1, 75600, 128, 1, RANDOM), 1, 8);
    check_select(shape(1, 75600, 128, 1, CLUSTERED), 0, 8);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    check_gpu();
    if (!strcmp(mode, "small")) {
        check_reference();
        check_made_up(300);
        check_made_up(4500);
        check_select(shape(2, 129, 128, 1, RANDOM), 0, 2);
        check_select(shape(2, 1000, 64, 0, CLUSTERED), 1, 2);
    } else if (!strcmp(mode, "mass")) {
        check_select(shape(2, 4097, 128, 1, CLUSTERED), 1, 8);
        if (!check_failures) time_select(shape(40, 75600, 128, 1, CLUSTERED), 1);
        if (!check_failures) time_select(shape(40, 32760, 64, 1, CLUSTERED), 1);
    } else if (!strcmp(mode, "time")) {
        check_select(shape(2, 4097, 128, 1, CLUSTERED), 1, 8);
        for (int kind = RANDOM; kind <= CLUSTERED && !check_failures; kind++) {
            time_select(shape(40, 75600, 128, 1, kind), 0);
            time_select(shape(40, 32760, 128, 1, kind), 0);
        }
    } else
        check_all();
    return check_done("select_test");
}
