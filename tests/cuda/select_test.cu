/* select_test.cu - mass, top and select of the CUDA backend against plain references, then how long they take.
 *
 *     select_test            all checks
 *     select_test small      few and small ones, for compute-sanitizer
 *     select_test time       milliseconds at 75,600 and 32,760 tokens, 40 heads
 *     select_test mass       of mass alone, also at D = 64
 *
 * Masses are compared with the reference for sampled (head, group) rows, and the reference with the same sums on the
 * host.
 *
 * more than that of m + e; kept keys must have m + e no less than the first, others m - e no more than the second.
 * Against the very masses that the kernel made, the bits must be equal to those of the CPU's selection. */
#include "check.h"
#include "select_problem.cuh"

extern "C" {
#include "cpu/kth.h"
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

enum verb { MASS, TOP, SELECT };

/* Median milliseconds of one verb over all heads, `mass->heads` at a time into the same memory. */
static float time_of(enum verb verb, const mcsa_cuda_mass_job *mass, const mcsa_cuda_top_job *top,
                     const mcsa_selection *s)
{
    return median_ms([=] {
        if (verb == SELECT) CHECK_CUDA(mcsa_cuda_select(mass->x, mass->lse, s, mass->mass, 0));
        for (int head = 0; verb != SELECT && head < s->H; head += mass->heads) {
            mcsa_cuda_mass_job part = *mass;
            mcsa_cuda_top_job rows = *top;
            part.head = head;
            if (part.heads > s->H - head) part.heads = s->H - head;
            rows.rows = (int64_t)part.heads * s->G;
            CHECK_CUDA(verb == MASS ? mcsa_cuda_mass(&part, 0) : mcsa_cuda_top(&rows, 0));
        }
    });
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
