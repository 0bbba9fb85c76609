/* test.h - what the tests of the library share: random numbers, tensors of any dtype and layout between
 * canaries, the attention of METHOD.md once more in double, error bounds, and an allocator that counts and
 * fails.
 *
 * Errors are judged by bounds that follow from the roundings a kernel makes, never by guesses; every
 * comparison prints the percent of its bound that it used, so that a kernel which creeps from 8 % to 60 %
 * is seen before it fails.  A worst-case bound can hide a small mistake, so whole-call comparisons also
 * have a ceiling on relative L2, recorded from a good run.
 *
 * u below is the unit roundoff 2^-p of a format with p significant bits: 2^-24 for float, 2^-11 for f16,
 * 2^-8 for bf16. */
#ifndef MCSA_TESTS_TEST_H
#define MCSA_TESTS_TEST_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/tensor.h"
#include "core/cache.h"
#include "cpu/features.h"
#include "cpu/kernels.h"
#include "mcsa.h"

#define U_F32 0x1p-24
#define U_F16 0x1p-11
#define U_BF16 0x1p-8
#define U_EXP2 2e-7 /* relative error of every exp2, as simd_*.h promise; the C library keeps to one ulp */

#define TEST_COUNT(array) (sizeof(array) / sizeof *(array))

/* splitmix64: a seed names its data on every machine */

static inline uint64_t test_word(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline double test_uniform(uint64_t *seed) /* [0, 1) */
{
    return (double)(test_word(seed) >> 11) * 0x1p-53;
}

static inline double test_normal(uint64_t *seed)
{
    double radius = sqrt(-2 * log(1 - test_uniform(seed)));
    return radius * cos(6.283185307179586 * test_uniform(seed));
}

static inline int test_below(uint64_t *seed, int n)
{
    return (int)(test_word(seed) % (uint64_t)n);
}

static inline void *test_alloc(size_t bytes)
{
    void *block = calloc(bytes ? bytes : 1, 1);
    if (!block) fail_msg("no memory for %zu bytes of test data", bytes);
    return block;
}

typedef enum test_layout {
    TEST_HND,   /* contiguous */
    TEST_NHD,   /* contiguous, as a linear layer leaves it */
    TEST_SPREAD /* columns two apart, rows padded: nothing is contiguous */
} test_layout;

enum { TEST_CANARY = 64, TEST_CANARY_BYTE = 0xa5 };

typedef struct test_tensor {
    mcsa_tensor view;
    unsigned char *storage; /* [bytes], canary bytes wherever the view has no element */
    size_t bytes;
} test_tensor;

static inline test_tensor test_tensor_make(int64_t H, int64_t N, int64_t D, mcsa_dtype dtype, test_layout layout)
{
    test_tensor t = { .view = { .dtype = dtype, .shape = { H, N, D } } };
    int64_t column = layout == TEST_SPREAD ? 2 : 1, row = layout == TEST_SPREAD ? 2 * D + 3 : D;
    t.view.stride[2] = column;
    t.view.stride[1] = layout == TEST_NHD ? H * D : row;
    t.view.stride[0] = layout == TEST_NHD ? D : N * row;
    t.bytes = (size_t)(H * N * row) * mcsa_dtype_bytes(dtype) + 2 * TEST_CANARY;
    t.storage = test_alloc(t.bytes);
    memset(t.storage, TEST_CANARY_BYTE, t.bytes);
    t.view.data = t.storage + TEST_CANARY;
    return t;
}

static inline void test_tensor_free(test_tensor *t)
{
    free(t->storage);
    t->storage = NULL;
}

static inline void *test_at(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d)
{
    return (char *)mcsa_tensor_row(t, h, n) + (int64_t)mcsa_dtype_bytes(t->dtype) * d * t->stride[2];
}

static inline double test_get(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d)
{
    float f;
    uint16_t half;
    if (t->dtype == MCSA_F32) {
        memcpy(&f, test_at(t, h, n, d), sizeof f);
        return (double)f;
    }
    memcpy(&half, test_at(t, h, n, d), sizeof half);
    return (double)(t->dtype == MCSA_BF16 ? mcsa_from_bf16(half) : mcsa_from_f16(half));
}

static inline void test_set(const mcsa_tensor *t, int64_t h, int64_t n, int64_t d, double x)
{
    float f = (float)x;
    uint16_t half = t->dtype == MCSA_BF16 ? mcsa_to_bf16(f) : mcsa_to_f16(f);
    if (t->dtype == MCSA_F32)
        memcpy(test_at(t, h, n, d), &f, sizeof f);
    else
        memcpy(test_at(t, h, n, d), &half, sizeof half);
}

static inline void test_fill_normal(const mcsa_tensor *t, uint64_t seed, double amplitude)
{
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t d = 0; d < t->shape[2]; d++) test_set(t, h, n, d, amplitude * test_normal(&seed));
}

static inline void test_copy(const mcsa_tensor *to, const mcsa_tensor *from)
{
    for (int64_t h = 0; h < to->shape[0]; h++)
        for (int64_t n = 0; n < to->shape[1]; n++)
            for (int64_t d = 0; d < to->shape[2]; d++)
                memcpy(test_at(to, h, n, d), test_at(from, h, n, d), mcsa_dtype_bytes(to->dtype));
}

static inline double test_largest(const mcsa_tensor *t)
{
    double largest = 0;
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t d = 0; d < t->shape[2]; d++) largest = fmax(largest, fabs(test_get(t, h, n, d)));
    return largest;
}

/* Elements whose bits differ. */
static inline int64_t test_different(const mcsa_tensor *a, const mcsa_tensor *b)
{
    int64_t different = 0;
    for (int64_t h = 0; h < a->shape[0]; h++)
        for (int64_t n = 0; n < a->shape[1]; n++)
            for (int64_t d = 0; d < a->shape[2]; d++)
                different += memcmp(test_at(a, h, n, d), test_at(b, h, n, d), mcsa_dtype_bytes(a->dtype)) != 0;
    return different;
}

#define assert_same_bits(a, b) assert_int_equal(test_different(a, b), 0)

/* Bytes outside the view's elements that were written to. */
static inline int64_t test_damage(const test_tensor *t)
{
    test_tensor shadow = *t;
    int64_t damaged = 0;
    shadow.storage = test_alloc(t->bytes);
    memset(shadow.storage, TEST_CANARY_BYTE, t->bytes);
    shadow.view.data = shadow.storage + TEST_CANARY;
    test_copy(&shadow.view, &t->view);
    for (size_t i = 0; i < t->bytes; i++) damaged += shadow.storage[i] != t->storage[i];
    test_tensor_free(&shadow);
    return damaged;
}

typedef struct test_call {
    test_tensor q, k, v, out; /* [H, N, D], [H, M, D], [H, M, D], [H, N, D] */
    int H, N, M, D;
    mcsa_dtype dtype;
} test_call;

static inline void test_call_refill(test_call *c, uint64_t seed, double amplitude)
{
    test_fill_normal(&c->q.view, seed, amplitude);
    test_fill_normal(&c->k.view, seed + 1, amplitude);
    test_fill_normal(&c->v.view, seed + 2, 1);
}

/* q, k ~ amplitude * normal and v ~ normal. */
static inline test_call test_call_make(const int shape[4] /* H, N, M, D */, mcsa_dtype dtype, test_layout layout,
                                       uint64_t seed, double amplitude)
{
    test_call c = { .H = shape[0], .N = shape[1], .M = shape[2], .D = shape[3], .dtype = dtype };
    c.q = test_tensor_make(c.H, c.N, c.D, dtype, layout);
    c.k = test_tensor_make(c.H, c.M, c.D, dtype, layout);
    c.v = test_tensor_make(c.H, c.M, c.D, dtype, layout);
    c.out = test_tensor_make(c.H, c.N, c.D, dtype, layout);
    test_call_refill(&c, seed, amplitude);
    return c;
}

static inline void test_call_free(test_call *c)
{
    test_tensor_free(&c->q);
    test_tensor_free(&c->k);
    test_tensor_free(&c->v);
    test_tensor_free(&c->out);
}

static inline mcsa_status test_attend(mcsa_run *run, int step, int layer, int branch, const test_call *c)
{
    return mcsa_attend(run, (mcsa_site){ step, layer, branch }, &c->q.view, &c->k.view, &c->v.view, &c->out.view);
}

#define assert_attends(run, step, layer, branch, call)                                            \
    do {                                                                                          \
        if (test_attend(run, step, layer, branch, call) != MCSA_OK)                               \
            fail_msg("step %d layer %d branch %d: %s", step, layer, branch, mcsa_run_error(run)); \
    } while (0)

/* A run of one thread unless the test asks for more: threads are the subject of test_determinism.c, and on
 * a busy machine waiting for one another would be most of the time of all other tests. */
static inline mcsa_run *test_run(const mcsa_config *config)
{
    char error[512];
    mcsa_run *run = NULL;
    mcsa_config one = *config;
    if (one.threads == 0) one.threads = 1;
    if (mcsa_run_create(&run, &one, error, sizeof error) != MCSA_OK) fail_msg("%s", error);
    return run;
}

/* The groups and keys that the calls of (layer, branch) use. */
static inline const mcsa_selection *test_selection(mcsa_run *run, int layer, int branch)
{
    mcsa_plan *plan = mcsa_cache_plan(run, layer, branch);
    return plan->follows ? &mcsa_cache_plan(run, layer, 0)->own : &plan->own;
}

static inline const uint64_t *test_kept(const mcsa_selection *s, int h, int g)
{
    return s->kept + ((int64_t)h * s->G + g) * s->words;
}

static inline int test_is_kept(const mcsa_selection *s, int h, int g, int j)
{
    return (int)((test_kept(s, h, g)[j / 64] >> (j % 64)) & 1);
}

/* [H, N] the bitmap that serves each query; the caller frees it. */
static inline const uint64_t **test_kept_by_query(const mcsa_selection *s)
{
    const uint64_t **kept = test_alloc(sizeof *kept * (size_t)s->H * (size_t)s->N);
    for (int h = 0; h < s->H; h++)
        for (int n = 0; n < s->N; n++) kept[h * s->N + s->order[(int64_t)h * s->N + n]] = test_kept(s, h, n / s->C);
    return kept;
}

/* Attention of all rows in double.  kept: [H, N] bitmaps of the keys that a row attends to, or NULL for
 * all. */
typedef struct test_reference {
    double *out;       /* [H, N, D] */
    double *lse;       /* [H, N] */
    double *out_bound; /* [H, N] before the rounding of out to its dtype */
    double *lse_bound; /* [H, N] */
} test_reference;

/* How the kernels under test round. */
typedef struct test_rounding {
    double probability; /* U_BF16 where probabilities are rounded before they meet v, else 0 */
    double out;         /* of the dtype of out */
    int exact_scores;   /* the dot products need no rounding: small integers */
} test_rounding;

static inline test_rounding test_rounding_of(mcsa_isa isa, mcsa_dtype dtype)
{
    test_rounding r = { 0 };
    r.probability = isa == MCSA_ISA_AVX512BF16 && dtype == MCSA_BF16 ? U_BF16 : 0;
    r.out = dtype == MCSA_F32 ? U_F32 : dtype == MCSA_BF16 ? U_BF16 : U_F16;
    return r;
}

/* The bounds of one row.  A weight w = 2^(scale2 s - max) is off by a factor of at most e^ds with
 *     ds = scale max_j sum_d |q_d k_jd| (D u + 8 u) + (blocks + 2) (e + 2 u)
 * : D u for the dot product; 8 u for scale2 and its product, the maximum and their difference; and one
 * exp2 of error e for the weight and one for each rescaling of a block of keys.  Normalised weights then
 * move by at most e^(2 ds) - 1 in sum, the two sums over K keys add K u each, and rounding the weights
 * before they meet v adds its unit once. */
static inline void test_row_bounds(double scaled_most /* scale max_j sum_d |q_d k_jd| */, int keys, int D,
                                   double most_v, const test_rounding *rounding, double *out, double *lse)
{
    double blocks = (double)(keys / MCSA_KEY_BLOCK + 1), dot = rounding->exact_scores ? 0 : D * U_F32;
    double ds = scaled_most * (dot + 8 * U_F32) + (blocks + 2) * (U_EXP2 + 2 * U_F32);
    double moved = expm1(2 * ds) + 2 * (keys + 4) * U_F32 + rounding->probability * (1 + 2 * ds);
    *out = fmin(moved, 2) * most_v; /* weights that sum to 1 cannot move further than 2 */
    *lse = ds + (keys + 4) * U_F32 + 4 * U_F32 * (scaled_most + log(keys) + 1);
}

/* [H, N, D] as doubles, contiguous; the caller frees it. */
static inline double *test_doubles(const mcsa_tensor *t)
{
    int64_t H = t->shape[0], N = t->shape[1], D = t->shape[2];
    double *x = test_alloc(sizeof *x * (size_t)(H * N * D));
    for (int64_t h = 0; h < H; h++)
        for (int64_t n = 0; n < N; n++)
            for (int64_t d = 0; d < D; d++) x[(h * N + n) * D + d] = test_get(t, h, n, d);
    return x;
}

/* One query q [D] against the keys k [M, D] and values v [M, D] of its head.  score: [M] scratch. */
typedef struct test_row {
    const double *q, *k, *v;
    const uint64_t *kept;
    int M, D;
    double scale, *score;
} test_row;

static inline int test_row_sees(const test_row *row, int j)
{
    return !row->kept || ((row->kept[j / 64] >> (j % 64)) & 1);
}

static inline void test_reference_row(const test_row *row, const test_rounding *rounding, const test_reference *r,
                                      int64_t at)
{
    double max = -INFINITY, most = 0, most_v = 0, sum = 0, *out = r->out + at * row->D;
    int keys = 0;
    for (int j = 0; j < row->M; j++) {
        if (!test_row_sees(row, j)) continue;
        double dot = 0, size = 0;
        for (int d = 0; d < row->D; d++) {
            double x = row->q[d] * row->k[(int64_t)j * row->D + d];
            dot += x;
            size += fabs(x);
            most_v = fmax(most_v, fabs(row->v[(int64_t)j * row->D + d]));
        }
        row->score[j] = row->scale * dot;
        max = fmax(max, row->score[j]);
        most = fmax(most, row->scale * size);
        keys++;
    }
    for (int d = 0; d < row->D; d++) out[d] = 0;
    for (int j = 0; j < row->M; j++) {
        if (!test_row_sees(row, j)) continue;
        double p = exp(row->score[j] - max);
        sum += p;
        for (int d = 0; d < row->D; d++) out[d] += p * row->v[(int64_t)j * row->D + d];
    }
    for (int d = 0; d < row->D; d++) out[d] /= sum;
    r->lse[at] = max + log(sum);
    test_row_bounds(most, keys, row->D, most_v, rounding, &r->out_bound[at], &r->lse_bound[at]);
}

static inline test_reference test_reference_make(const test_call *c, double scale, const uint64_t *const *kept,
                                                 const test_rounding *rounding)
{
    size_t rows = (size_t)c->H * (size_t)c->N;
    test_reference r = { test_alloc(sizeof(double) * rows * (size_t)c->D), test_alloc(sizeof(double) * rows),
                         test_alloc(sizeof(double) * rows), test_alloc(sizeof(double) * rows) };
    double *q = test_doubles(&c->q.view), *k = test_doubles(&c->k.view), *v = test_doubles(&c->v.view);
    test_row row = { .M = c->M, .D = c->D, .scale = scale, .score = test_alloc(sizeof(double) * (size_t)c->M) };
    for (int64_t at = 0; at < (int64_t)rows; at++) {
        row.q = q + at * c->D;
        row.k = k + at / c->N * c->M * c->D;
        row.v = v + at / c->N * c->M * c->D;
        row.kept = kept ? kept[at] : NULL;
        test_reference_row(&row, rounding, &r, at);
    }
    free(q);
    free(k);
    free(v);
    free(row.score);
    return r;
}

static inline void test_reference_free(test_reference *r)
{
    free(r->out);
    free(r->lse);
    free(r->out_bound);
    free(r->lse_bound);
}

typedef struct test_worst {
    double percent; /* of the bound, the worst so far; infinite after a NaN where a number was due */
    double got, expected, bound;
    int64_t place[3];
    double squared_error, squared_reference;
} test_worst;

/* A NaN or infinity is right exactly where the reference has the same. */
static inline void test_judge(test_worst *w, double got, double expected, double bound, int64_t a, int64_t b, int64_t c)
{
    double error = isfinite(expected) ? fabs(got - expected) : isnan(expected) ? !isnan(got) : got != expected;
    double percent = error == 0 ? 0 : error <= bound ? 100 * error / bound : INFINITY;
    if (isfinite(got) && isfinite(expected)) {
        w->squared_error += error * error;
        w->squared_reference += expected * expected;
        if (error > bound) percent = 100 * error / bound;
    }
    if (percent <= w->percent) return;
    *w = (test_worst){ percent, got, expected, bound, { a, b, c }, w->squared_error, w->squared_reference };
}

static inline double test_relative_l2(const test_worst *w)
{
    return w->squared_reference > 0 ? sqrt(w->squared_error / w->squared_reference) : sqrt(w->squared_error);
}

/* Prints the line and fails above 100 % of the bound or above `ceiling` of relative L2 (INFINITY: none). */
static inline void test_report(const test_worst *w, double ceiling, const char *format, ...)
{
    char what[160];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    print_message("  %-58s %6.2f %% of bound, relative L2 %.1e\n", what, w->percent, test_relative_l2(w));
    if (!(w->percent <= 100))
        fail_msg("%s at [%lld, %lld, %lld]: %.9g is not %.9g within %.3g", what, (long long)w->place[0],
                 (long long)w->place[1], (long long)w->place[2], w->got, w->expected, w->bound);
    if (!(test_relative_l2(w) <= ceiling))
        fail_msg("%s: relative L2 %.3e is above the recorded %.3e", what, test_relative_l2(w), ceiling);
}

/* Ceiling on relative L2 over a whole call, recorded from good runs of every level (gcc 12, Zen 5) with a
 * factor of two to spare: float is limited by exp2 (2e-7), the 16-bit dtypes by the rounding of out. */
static inline double test_ceiling(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 ? 1e-6 : dtype == MCSA_F16 ? 5e-4 : 5e-3;
}

/* out of a call against its reference. */
static inline void test_judge_out(test_worst *w, const test_call *c, const test_reference *r,
                                  const test_rounding *rounding)
{
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) {
                int64_t row = (int64_t)h * c->N + n;
                double expected = r->out[row * c->D + d], bound = r->out_bound[row];
                bound += rounding->out * (fabs(expected) + bound) + 0x1p-25; /* half the smallest f16 */
                test_judge(w, test_get(&c->out.view, h, n, d), expected, bound, h, n, d);
            }
}

static const mcsa_isa test_levels[] = { MCSA_ISA_SCALAR, MCSA_ISA_AVX2, MCSA_ISA_AVX512BF16 };
static const mcsa_dtype test_dtypes[] = { MCSA_F32, MCSA_BF16, MCSA_F16 };

static inline const char *test_dtype_name(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 ? "f32" : dtype == MCSA_BF16 ? "bf16" : "f16";
}

/* Says so when the machine lacks the level. */
static inline int test_has(mcsa_isa isa)
{
    if (isa <= mcsa_cpu_isa()) return 1;
    print_message("  skip: this machine has no %s\n", mcsa_isa_name(isa));
    return 0;
}

/* The tables of kernels.h that this machine can run. */
typedef struct test_table {
    const char *name;
    mcsa_kernels kernel;
    mcsa_isa isa;
} test_table;

/* tables: [4].  Returns how many there are, and says which are missing. */
static inline size_t test_tables(test_table *tables)
{
    static const char *const names[] = { "", "scalar", "avx2", "avx512bf16, float words" };
    size_t count = 0;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        mcsa_kernel_set set;
        if (!test_has(test_levels[l])) continue;
        mcsa_kernels_fill(&set, test_levels[l]);
        tables[count++] = (test_table){ names[test_levels[l]], set.f32, set.isa };
        if (set.bf16.word_elements == 2) tables[count++] = (test_table){ "avx512bf16, bf16 pairs", set.bf16, set.isa };
    }
    return count;
}

/* An array of `count` words between canaries; index 0 is the first word behind the front canary. */
static inline void *test_words(size_t count)
{
    uint32_t *words = test_alloc(sizeof *words * (count + 32));
    memset(words, TEST_CANARY_BYTE, sizeof *words * (count + 32));
    return words + 16;
}

static inline void test_words_free(const void *data, size_t count)
{
    const uint32_t *words = (const uint32_t *)data - 16;
    const unsigned char *front = (const unsigned char *)words, *back = (const unsigned char *)(words + 16 + count);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(front[i], TEST_CANARY_BYTE);
        assert_int_equal(back[i], TEST_CANARY_BYTE);
    }
    free((uint32_t *)(uintptr_t)words);
}

/* Element t of column i in words [depth, columns] of one float or two bf16 that are neighbours along the
 * depth. */
static inline void test_put(const test_table *table, uint32_t *words, int t, int i, int columns, double x)
{
    int pair = table->kernel.word_elements;
    uint32_t *word = words + (ptrdiff_t)(t / pair) * columns + i;
    float f = (float)x;
    if (pair == 1)
        memcpy(word, &f, sizeof f);
    else
        memcpy((uint16_t *)(void *)word + t % 2, &(uint16_t){ mcsa_to_bf16(f) }, 2);
}

static inline double test_take(const test_table *table, const uint32_t *words, int t, int i, int columns)
{
    int pair = table->kernel.word_elements;
    const uint32_t *word = words + (ptrdiff_t)(t / pair) * columns + i;
    float f;
    uint16_t half;
    memcpy(&f, word, sizeof f);
    memcpy(&half, (const uint16_t *)(const void *)word + t % 2, sizeof half);
    return (double)(pair == 1 ? f : mcsa_from_bf16(half));
}

/* Words along the depth. */
static inline int test_depth(const test_table *table, int elements)
{
    return (elements + table->kernel.word_elements - 1) / table->kernel.word_elements;
}

typedef struct test_heap {
    int64_t calls, blocks, bytes; /* asked for so far; held now */
    int64_t fail_at;              /* this call fails, counted from 1; 0: none */
    int64_t fail_from;            /* this call and all after it fail; 0: none */
    int64_t damaged;              /* blocks given back with the guard behind them overwritten */
} test_heap;

enum { TEST_GUARD = 64, TEST_GUARD_BYTE = 0xc3 };

static inline void *test_heap_alloc(void *user, size_t bytes)
{
    test_heap *heap = user;
    heap->calls++;
    if (heap->calls == heap->fail_at || (heap->fail_from && heap->calls >= heap->fail_from)) return NULL;
    unsigned char *block = aligned_alloc(64, (bytes + TEST_GUARD + 63) / 64 * 64);
    if (!block) return NULL;
    memset(block, TEST_CANARY_BYTE, bytes); /* the library must not count on zeros */
    memset(block + bytes, TEST_GUARD_BYTE, TEST_GUARD);
    heap->blocks++;
    heap->bytes += (int64_t)bytes;
    return block;
}

static inline void test_heap_free(void *user, void *data, size_t bytes)
{
    test_heap *heap = user;
    const unsigned char *block = data;
    int damaged = 0;
    for (int i = 0; i < TEST_GUARD; i++) damaged |= block[bytes + (size_t)i] != TEST_GUARD_BYTE;
    heap->damaged += damaged;
    heap->blocks--;
    heap->bytes -= (int64_t)bytes;
    free(data);
}

static inline mcsa_allocator test_heap_allocator(test_heap *heap)
{
    return (mcsa_allocator){ test_heap_alloc, test_heap_free, heap };
}

static inline void test_heap_settled(const test_heap *heap)
{
    assert_int_equal(heap->blocks, 0);
    assert_int_equal(heap->bytes, 0);
    assert_int_equal(heap->damaged, 0);
}

#endif
