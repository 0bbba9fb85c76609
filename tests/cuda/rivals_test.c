/* rivals_test.c - what other methods ask a GPU before they choose (rivals/kernels.h): against the CPU's verbs where
 * both round alike, else against double precision within bounds that are derived here.  Ragged sizes, BF16 and FP16,
 * parts that are empty, small and large.
 *
 * U is 2^-24, half an ulp of a float.  A dot product over D of FP32 products is off by at most D U of the sum of
 * magnitudes, one of a tensor core by 17/16 D 2^-23 (check.h).  expf and expm1f of CUDA are within 2^-22. */
#include "rivals_check.h"

#include "base/clock.h"

static const double U = 0x1p-24, EXP = 0x1p-22;

/* Both add rows one after the other in FP32: equal bits. */
static void test_pool(const tables *t, const test_round *r)
{
    const int64_t count = (int64_t)r->of.H * r->keys.P * r->of.D;
    float *gpu = check_floats(count), *cpu = check_floats(count);
    CHECK_OK(t->gpu->pool(t->on_gpu, &r->c.k.device, &r->keys, gpu, CHECK_SAID));
    CHECK_OK(t->cpu->pool(t->on_cpu, &r->c.k.host, &r->keys, cpu, CHECK_SAID));
    CHECK_TRUE(memcmp(gpu, cpu, (size_t)count * sizeof *gpu) == 0, "%s: means differ from the CPU's", r->name);
    free(gpu);
    free(cpu);
}

/* A row of length 1 is off by (D / 2 + 4) U, the sum of n of them by another n U; the square doubles both. */
static void test_cosine(const tables *t, const test_round *r, int shifted)
{
    const int D = r->of.D;
    float *got = check_floats((int64_t)r->of.H * r->keys.P), *shift = check_normals((int64_t)r->of.H * D, 0.5, 3);
    check_worst worst = { 0 };
    CHECK_OK(t->gpu->cosine(t->on_gpu, &r->c.k.device, &r->keys, shifted ? shift : NULL, got, CHECK_SAID));
    for (int h = 0; h < r->of.H; h++)
        for (int p = 0; p < r->keys.P; p++) {
            int count;
            const int32_t *rows = rival_part(&r->keys, h, p, &count);
            double sum[128] = { 0 }, square = 0;
            for (int i = 0; i < count; i++) {
                double x[128], length = 0;
                for (int d = 0; d < D; d++) {
                    x[d] = check_get(&r->c.k.host, h, rows[i], d) - (shifted ? (double)shift[h * D + d] : 0);
                    length += x[d] * x[d];
                }
                for (int d = 0; d < D && length > 0; d++) sum[d] += x[d] / sqrt(length);
            }
            for (int d = 0; d < D; d++) square += sum[d] * sum[d];
            const double right = count ? square / count / count : 0;
            check_judge(&worst, (double)got[h * r->keys.P + p], right, 2.01 * (count + D / 2 + 8) * U, h, p, 0);
        }
    check_report(&worst, "cosine%s, %s", shifted ? " shifted" : "", r->name);
    free(got);
    free(shift);
}

/* The label's score may miss the best by what both may be off, D + 2 roundings each, and of two centres alike the
 * second is never taken. */
static void test_assign(const tables *t, const test_round *r)
{
    const int H = r->of.H, N = r->of.N, D = r->of.D, P = r->of.K ? r->of.K : 70;
    int32_t *label = check_alloc(sizeof *label * (size_t)H * (size_t)N);
    float *centre = check_normals((int64_t)H * P * D, 1, r->seed);
    check_worst worst = { 0 };
    memset(label, CHECK_POISON, sizeof *label * (size_t)H * (size_t)N);
    for (int h = 0; h < H; h++)
        memcpy(centre + ((int64_t)h * P + P - 1) * D, centre + (int64_t)h * P * D, sizeof *centre * (size_t)D);
    CHECK_OK(t->gpu->assign(t->on_gpu, &r->c.q.device, P, centre, label, CHECK_SAID));
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++) {
            const int got = label[(int64_t)h * N + n];
            double best = -INFINITY, chosen = -INFINITY, off = 0;
            CHECK_TRUE(got >= 0 && got < P && (P == 1 || got != P - 1), "%s: label %d of row %d", r->name, got, n);
            for (int p = 0; p < P; p++) {
                double score = 0, size = 0;
                for (int d = 0; d < D; d++) {
                    const double c =
                        (double)check_float(check_half(centre[((int64_t)h * P + p) * D + d], r->of.dtype), r->of.dtype);
                    const double x = check_get(&r->c.q.host, h, n, d) * c;
                    score += x - c * c / 2;
                    size += fabs(x) + c * c / 2;
                }
                best = fmax(best, score);
                off = fmax(off, (D + 2) * U * size);
                if (p == got) chosen = score;
            }
            check_judge(&worst, chosen, best, 2 * off, h, n, got);
        }
    check_report(&worst, "assign, %s, %d centres", r->name, P);
    free(label);
    free(centre);
}

/* Row LSE in double, rounded once, on the device. */
static check_buffer lse_make(const test_round *r, float **host)
{
    const int H = r->of.H, N = r->of.N;
    *host = check_floats((int64_t)H * N);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < N; i++) {
            double *score = check_alloc(sizeof *score * (size_t)N), most = -INFINITY, sum = 0, size;
            for (int j = 0; j < N; j++) {
                score[j] = (double)r->c.x.scale * check_dot(&r->c, h, i, j, &size);
                most = fmax(most, score[j]);
            }
            for (int j = 0; j < N; j++) sum += exp(score[j] - most);
            (*host)[(int64_t)h * N + i] = (float)(most + log(sum));
            free(score);
        }
    check_buffer b = check_buffer_make(sizeof(float) * (size_t)H * (size_t)N);
    check_upload(&b, *host);
    return b;
}

/* A probability is off by the score's error, by the roundings of scale and LSE to base 2 and of their sum, and by exp2;
 * sums of a part's queries and keys, in tiles of 128, by at most 128 + their number of additions. */
static void test_mass(const tables *t, const test_round *r, const rival_partition *keys)
{
    const int H = r->of.H, N = r->of.N, Q = r->queries.P, K = keys->P;
    float *got = check_floats((int64_t)H * Q * K), *lse;
    check_buffer on_gpu = lse_make(r, &lse);
    check_worst worst = { 0 };
    CHECK_OK(t->gpu->mass(t->on_gpu, &r->c.x, &r->queries, keys, on_gpu.data, got, CHECK_SAID));
    for (int h = 0; h < H; h++)
        for (int q = 0; q < Q; q++)
            for (int k = 0; k < K; k++) {
                int rows, columns;
                const int32_t *row = rival_part(&r->queries, h, q, &rows), *column = rival_part(keys, h, k, &columns);
                double sum = 0, bound = 0, size;
                for (int i = 0; i < rows; i++)
                    for (int j = 0; j < columns; j++) {
                        const double scale = (double)r->c.x.scale, l = (double)lse[(int64_t)h * N + row[i]];
                        const double p = exp(scale * check_dot(&r->c, h, row[i], column[j], &size) - l);
                        const double off =
                            scale * size * (17.0 / 16 * r->of.D * CHECK_MMA + 3 * U) + 3 * U * fabs(l) + CHECK_EXP2;
                        sum += p;
                        bound += p * expm1(off);
                    }
                bound += (sum + bound) * (128 + rows / 128 + columns) * U + rows * columns * 0x1p-126;
                check_judge(&worst, (double)got[((int64_t)h * Q + q) * K + k], sum, bound, h, q, k);
            }
    check_report(&worst, "mass, %s, keys in %d parts", r->name, K);
    check_buffer_free(&on_gpu);
    free(got);
    free(lse);
}

/* Each product is off by the rounding of k - mean and of the multiply-add, the sum by its rows and 64 pieces. */
static void test_outer(const tables *t, const test_round *r)
{
    const int H = r->of.H, D = r->of.D, P = r->keys.P;
    float *mean = check_normals((int64_t)H * P * D, 0.3, r->seed + 1), *got = check_floats((int64_t)H * D * D);
    double *sum = check_alloc(sizeof *sum * (size_t)(D * D)), *size = check_alloc(sizeof *size * (size_t)(D * D));
    check_worst worst = { 0 };
    CHECK_OK(t->gpu->outer(t->on_gpu, &r->c.x, &r->keys, mean, got, CHECK_SAID));
    for (int h = 0; h < H; h++) {
        memset(sum, 0, sizeof *sum * (size_t)(D * D));
        memset(size, 0, sizeof *size * (size_t)(D * D));
        for (int p = 0; p < P; p++) {
            int count;
            const int32_t *rows = rival_part(&r->keys, h, p, &count);
            for (int i = 0; i < count; i++)
                for (int a = 0; a < D; a++)
                    for (int b = 0; b < D; b++) {
                        const double x =
                            (check_get(&r->c.k.host, h, rows[i], a) - (double)mean[((int64_t)h * P + p) * D + a]) *
                            check_get(&r->c.v.host, h, rows[i], b);
                        sum[a * D + b] += x;
                        size[a * D + b] += fabs(x);
                    }
        }
        for (int at = 0; at < D * D; at++)
            check_judge(&worst, (double)got[(int64_t)h * D * D + at], sum[at], (r->of.N / 64 + 64 + 20) * U * size[at],
                        h, at / D, at % D);
    }
    check_report(&worst, "outer, %s", r->name);
    free(mean);
    free(got);
    free(sum);
    free(size);
}

/* What one key adds to the square, relative to exp(2 top), and how far the kernel may be from it: scores move the
 * vectors, and the polynomial of error.cu is off by its few roundings of (|v| + |w| + |d|)^2. */
typedef struct error_term {
    double a, c, a_off, c_off, vv, ww, dd, vw;
} error_term;

static error_term error_term_of(const test_round *r, int h, const float *query, int32_t key, const float *mean,
                                const float *value)
{
    error_term e = { 0 };
    double a_size = 0, c_size = 0;
    const double scale = (double)r->c.x.scale;
    for (int d = 0; d < r->of.D; d++) {
        const double q = (double)query[d], v = check_get(&r->c.v.host, h, key, d), w = (double)value[d];
        const double ka = q * check_get(&r->c.k.host, h, key, d), kc = q * (double)mean[d];
        e.a += scale * ka;
        e.c += scale * kc;
        a_size += scale * fabs(ka);
        c_size += scale * fabs(kc);
        e.vv += v * v;
        e.ww += w * w;
        e.vw += v * w;
    }
    e.dd = e.vv + e.ww - 2 * e.vw;
    e.a_off = (r->of.D + 1) * U * a_size;
    e.c_off = (r->of.D + 1) * U * c_size;
    return e;
}

static void error_add(const error_term *e, double top, int D, double *sum, double *off)
{
    const double x = exp(e->a - top), y = exp(e->c - top), most = fmax(x, y);
    const double square = fmax(x * x * e->vv + y * y * e->ww - 2 * x * y * e->vw, 0);
    const double lengths = sqrt(e->vv) + sqrt(e->ww) + sqrt(fmax(e->dd, 0));
    const double moved = x * sqrt(e->vv) * expm1(e->a_off) + y * sqrt(e->ww) * expm1(e->c_off);
    const double logs = (4 * (fabs(e->a) + fabs(e->c)) + 32) * U; /* of the log, its sum with 2 top, and exp */
    *sum += square;
    *off += 2 * sqrt(square) * moved + moved * moved + (D / 32 + 16) * U * 4 * most * most * lengths * lengths;
    *off += logs * square;
}

/* Compared as numbers, exp(2 top) taken out, since the log of what should be 0 is anything small. */
static void test_error(const tables *t, const test_round *r, double size)
{
    const int H = r->of.H, D = r->of.D, P = r->keys.P, Q = 37;
    float *query = check_normals((int64_t)H * Q * D, size, r->seed + 5), *key = check_floats((int64_t)H * P * D);
    float *value = check_floats((int64_t)H * P * D), *got = check_floats((int64_t)H * Q * P);
    check_worst worst = { 0 };
    CHECK_OK(t->cpu->pool(t->on_cpu, &r->c.k.host, &r->keys, key, CHECK_SAID));
    CHECK_OK(t->cpu->pool(t->on_cpu, &r->c.v.host, &r->keys, value, CHECK_SAID));
    CHECK_OK(t->gpu->error(t->on_gpu, &r->c.x, Q, query, &r->keys, key, value, got, CHECK_SAID));
    for (int h = 0; h < H; h++)
        for (int q = 0; q < Q; q++)
            for (int p = 0; p < P; p++) {
                int count;
                const int32_t *rows = rival_part(&r->keys, h, p, &count);
                const int64_t at = (int64_t)h * P + p;
                double top = -INFINITY, sum = 0, off = 0;
                error_term *terms = check_alloc(sizeof *terms * (size_t)count);
                for (int i = 0; i < count; i++) {
                    terms[i] =
                        error_term_of(r, h, query + ((int64_t)h * Q + q) * D, rows[i], key + at * D, value + at * D);
                    top = fmax(top, fmax(terms[i].a, terms[i].c));
                }
                for (int i = 0; i < count; i++) error_add(&terms[i], top, D, &sum, &off);
                const double log_square = (double)got[((int64_t)h * Q + q) * P + p];
                const double number = count ? exp(log_square - 2 * top) : log_square;
                check_judge(&worst, number, count ? sum : -INFINITY, (off + sum * count * U) * 1.01, h, q, p);
                free(terms);
            }
    check_report(&worst, "error, %s, queries of %g", r->name, size);
    free(query);
    free(key);
    free(value);
    free(got);
}

/* A strided score is off by stride D U of its magnitudes and two roundings, weights normalised by twice that and exp;
 * sums over a block pair and the row by their number of additions. */
static void test_diagonal(const tables *t, const test_round *r, int stride, int size)
{
    const int H = r->of.H, N = r->of.N, n = (N + stride - 1) / stride, B = (N + size - 1) / size;
    float *got = check_floats((int64_t)H * B * B);
    double *sum = check_alloc(sizeof *sum * (size_t)(B * B)), *bound = check_alloc(sizeof *bound * (size_t)(B * B));
    double *score = check_alloc(sizeof *score * (size_t)n);
    check_worst worst = { 0 };
    CHECK_OK(t->gpu->diagonal(t->on_gpu, &r->c.x, stride, size, got, CHECK_SAID));
    for (int h = 0; h < H; h++) {
        memset(sum, 0, sizeof *sum * (size_t)(B * B));
        memset(bound, 0, sizeof *bound * (size_t)(B * B));
        for (int u = 0; u < n; u++) {
            double most = -INFINITY, reach = 0, all = 0;
            for (int v = 0; v < n; v++) {
                double dot = 0, sizes = 0, one;
                for (int i = 0; i < stride; i++) {
                    const int row = u * stride + stride - 1 - i, column = v * stride + i;
                    if (row >= N || column >= N) continue;
                    dot += check_dot(&r->c, h, row, column, &one);
                    sizes += one;
                }
                score[v] = (double)r->c.x.scale / stride * dot;
                most = fmax(most, score[v]);
                reach = fmax(reach, (double)r->c.x.scale / stride * sizes);
            }
            for (int v = 0; v < n; v++) all += exp(score[v] - most);
            const double off = expm1(2 * (reach * (stride * r->of.D + 4) * U + EXP)) + (n + size + 16) * U;
            for (int v = 0; v < n; v++) {
                const int64_t at = (int64_t)(u * stride / size) * B + v * stride / size;
                sum[at] += exp(score[v] - most) / all;
                bound[at] += off * exp(score[v] - most) / all;
            }
        }
        for (int at = 0; at < B * B; at++)
            check_judge(&worst, (double)got[(int64_t)h * B * B + at], sum[at], bound[at], h, at / B, at % B);
    }
    check_report(&worst, "diagonal, %s, stride %d, blocks of %d", r->name, stride, size);
    free(got);
    free(sum);
    free(bound);
    free(score);
}

/* Nothing is added in more than one way: equal bits. */
static void test_rows(const tables *t, test_round *r)
{
    enum { COUNT = 9 };
    const int H = r->of.H, N = r->of.N, D = r->of.D;
    const int64_t count = (int64_t)H * COUNT * D;
    const size_t bytes = sizeof(uint16_t) * (size_t)H * (size_t)N * (size_t)D, extent = check_extent(&r->c.out.host);
    float *gpu = check_floats(count), *cpu = check_floats(count);
    uint16_t *missed = check_alloc(bytes), *right = check_alloc(bytes);
    void *sum = check_alloc(extent);
    check_buffer residual = check_buffer_make(bytes);
    int32_t index[COUNT];
    uint64_t seed = r->seed + 7;
    for (int i = 0; i < COUNT; i++) index[i] = i == 0 ? N - 1 : (int32_t)check_below(&seed, N);
    CHECK_OK(t->gpu->read_rows(t->on_gpu, &r->c.q.device, index, COUNT, gpu, CHECK_SAID));
    CHECK_OK(t->cpu->read_rows(t->on_cpu, &r->c.q.host, index, COUNT, cpu, CHECK_SAID));
    CHECK_TRUE(memcmp(gpu, cpu, (size_t)count * sizeof *gpu) == 0, "%s: read_rows differs from the CPU's", r->name);

    CHECK_OK(t->gpu->subtract(t->on_gpu, &r->c.q.device, &r->c.v.device, residual.data, CHECK_SAID));
    CHECK_OK(t->cpu->subtract(t->on_cpu, &r->c.q.host, &r->c.v.host, right, CHECK_SAID));
    CHECK_OK(t->gpu->read(t->on_gpu, residual.data, bytes, missed, CHECK_SAID));
    CHECK_TRUE(memcmp(missed, right, bytes) == 0, "%s: the residual differs from the CPU's", r->name);

    check_tensor_fill(&r->c.out, CHECK_NORMAL, r->seed + 8);
    CHECK_OK(t->gpu->write(t->on_gpu, right, bytes, residual.data, CHECK_SAID));
    CHECK_OK(t->gpu->add(t->on_gpu, &r->c.out.device, residual.data, CHECK_SAID));
    CHECK_OK(t->cpu->add(t->on_cpu, &r->c.out.host, right, CHECK_SAID));
    check_download(sum, &r->c.out.buffer);
    CHECK_TRUE(memcmp(sum, r->c.out.host.data, extent) == 0, "%s: adding the residual differs from the CPU's", r->name);
    check_buffer_free(&residual);
    free(gpu);
    free(cpu);
    free(missed);
    free(right);
    free(sum);
}

static const round_case rounds[] = {
    { 2, 517, 64, 5, 40, 7, MCSA_BF16, CHECK_NHD, CHECK_NORMAL },
    { 1, 300, 128, 9, 200, 0, MCSA_F16, CHECK_PADDED, CHECK_NORMAL },
    { 2, 390, 128, 0, 0, 0, MCSA_BF16, CHECK_HND, CHECK_CLUSTERED },
    { 1, 400, 64, 3, 6, 1, MCSA_BF16, CHECK_HND, CHECK_LARGE },
    { 1, 65, 64, 0, 0, 0, MCSA_F16, CHECK_HND, CHECK_NORMAL },
    { 3, 1, 64, 1, 1, 0, MCSA_BF16, CHECK_HND, CHECK_NORMAL },
};

/* One call of every verb at the sizes that methods use: 216 blocks of 64, 200 and 1,000 clusters, single tokens. */
typedef struct bench {
    const tables *t;
    test_round r; /* 200 x 1,000 clusters */
    rival_partition blocks, single;
    rival_map near, far; /* pairs of blocks, of clusters */
    rival_tail tail;
    check_buffer lse;
    float *query, *key, *value, *out;
    int32_t *label;
} bench;

enum {
    POOL,
    COSINE,
    ASSIGN,
    MASS_BLOCKS,
    MASS_TOKENS,
    OUTER,
    ERRORS,
    DIAGONAL,
    ATTEND_BLOCKS,
    ATTEND_CLUSTERS,
    TAIL,
    VERBS
};
static const char *const verb_names[VERBS] = {
    "pool, 1,000 clusters",      "cosine, 216 blocks",     "assign, 1,000 centres",       "mass, 216 x 216 blocks",
    "mass, 216 blocks x tokens", "outer, 216 blocks",      "error, 200 x 1,000 clusters", "diagonal, stride 8",
    "attend, blocks, 15 %",      "attend, clusters, 15 %", "tail, 200 x 1,000 clusters"
};

static mcsa_status bench_verb(bench *b, int verb, mcsa_error *error)
{
    const rival_kernels *gpu = b->t->gpu;
    void *state = b->t->on_gpu;
    const mcsa_qkv *x = &b->r.c.x;
    switch (verb) {
    case POOL: return gpu->pool(state, x->k, &b->r.keys, b->out, error);
    case COSINE: return gpu->cosine(state, x->k, &b->blocks, NULL, b->out, error);
    case ASSIGN: return gpu->assign(state, x->k, b->r.keys.P, b->key, b->label, error);
    case MASS_BLOCKS: return gpu->mass(state, x, &b->blocks, &b->blocks, b->lse.data, b->out, error);
    case MASS_TOKENS: return gpu->mass(state, x, &b->blocks, &b->single, b->lse.data, b->out, error);
    case OUTER: return gpu->outer(state, x, &b->blocks, b->key, b->out, error);
    case ERRORS: return gpu->error(state, x, b->r.queries.P, b->query, &b->r.keys, b->key, b->value, b->out, error);
    case DIAGONAL: return gpu->diagonal(state, x, 8, 128, b->out, error);
    case ATTEND_BLOCKS: return gpu->attend(state, x, &b->blocks, &b->blocks, &b->near, b->lse.data, error);
    case ATTEND_CLUSTERS: return gpu->attend(state, x, &b->r.queries, &b->r.keys, &b->far, b->lse.data, error);
    default: return gpu->tail(state, x, &b->r.queries, &b->far, &b->tail, b->lse.data, error);
    }
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bench_median(bench *b, int verb)
{
    enum { TIMES = 9 };
    double ms[TIMES];
    for (int i = -2; i < TIMES; i++) {
        const double begin = mcsa_seconds();
        CHECK_OK(bench_verb(b, verb, CHECK_SAID));
        if (i >= 0) ms[i] = 1e3 * (mcsa_seconds() - begin);
    }
    qsort(ms, TIMES, sizeof *ms, by_time);
    return ms[TIMES / 2];
}

static void time_verbs(const tables *t, int D)
{
    const round_case of = { 3, 13824, D, 200, 1000, 0, MCSA_BF16, CHECK_NHD, CHECK_NORMAL };
    const int H = of.H, N = of.N;
    static bench b;
    b.t = t;
    round_make(&b.r, &of, 1);
    b.blocks = check_blocks(H, N, RIVAL_TILE);
    b.single = check_blocks(H, N, 1);
    b.near = check_random_map(H, b.blocks.P, b.blocks.P, 0.15, 0, 2);
    b.far = check_random_map(H, of.Q, of.K, 0.15, 0, 3);
    b.query = check_normals((int64_t)H * of.Q * D, 1, 4);
    b.key = check_normals((int64_t)H * of.K * D, 1, 5);
    b.value = check_normals((int64_t)H * of.K * D, 1, 6);
    b.out = check_floats((int64_t)H * 216 * N);
    b.label = check_alloc(sizeof *b.label * (size_t)H * (size_t)N);
    b.lse = check_buffer_make(sizeof(float) * (size_t)H * (size_t)N);
    float *ones = check_normals((int64_t)H * N, 0, 7);
    for (int i = 0; i < H * N; i++) ones[i] = 14;
    check_upload(&b.lse, ones);
    b.tail = (rival_tail){ .key = b.key, .value = b.value, .weight = ones };
    for (int verb = 0; verb < VERBS; verb++)
        printf("D = %d  %-28s %.3f ms\n", D, verb_names[verb], bench_median(&b, verb));
    check_buffer_free(&b.lse);
    rival_partition_free(&b.blocks);
    rival_partition_free(&b.single);
    rival_map_free(&b.near);
    rival_map_free(&b.far);
    void *all[] = { b.query, b.key, b.value, b.out, b.label, ones };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    round_free(&b.r);
}

int main(int argc, char **argv)
{
    check_gpu();
    tables t = tables_open();
    const int timing = argc > 1 && strcmp(argv[1], "time") == 0;
    if (timing) {
        time_verbs(&t, 64);
        time_verbs(&t, 128);
    }
    for (size_t i = 0; !timing && i < sizeof rounds / sizeof *rounds; i++) {
        test_round r;
        round_make(&r, &rounds[i], 100 * i + 1);
        rival_partition single = check_blocks(r.of.H, r.of.N, 1);
        test_pool(&t, &r);
        test_cosine(&t, &r, 0);
        test_cosine(&t, &r, 1);
        test_assign(&t, &r);
        test_mass(&t, &r, &r.keys);
        test_mass(&t, &r, &single);
        test_outer(&t, &r);
        test_error(&t, &r, 0.3);
        test_error(&t, &r, 20);
        test_diagonal(&t, &r, 8, 128);
        test_diagonal(&t, &r, 4, 64);
        test_rows(&t, &r);
        rival_partition_free(&single);
        round_free(&r);
    }
    tables_close(&t);
    return check_done("rivals_test");
}
