/* test_kernels_tail.c - the virtual keys of what is left out, merged with exact attention, against one softmax in
 * double; and what must stay as it was. */
#include "verbs.h"

typedef struct setting {
    test_call c;
    mcsa_qkv x;
    rival_partition queries;
    rival_map map;
    rival_tail tail;
    float *lse;  /* [H, N] as exact attention left it */
    double *out; /* [H, N, D] the same */
} setting;

/* A third of the parts is kept; part 2 has no weight; the first part of the queries keeps all that weigh anything. */
static void choose(setting *s, const verbs_shape *shape, uint64_t seed)
{
    mcsa_error why = { "" };
    if (rival_map_reserve(&s->map, shape->H, shape->Q, shape->K, &why) != MCSA_OK) fail_msg("%s", why.text);
    for (int h = 0; h < shape->H; h++)
        for (int q = 0; q < shape->Q; q++)
            for (int k = 0; k < shape->K; k++)
                if (test_below(&seed, 3) == 0 || (q == 0 && shape->Q > 1 && k != 2)) rival_map_keep(&s->map, h, q, k);
    for (int i = 0; i < shape->H * shape->K; i++)
        s->tail.weight[i] = i % shape->K == 2 ? 0 : (float)(1 + test_below(&seed, 500));
}

/* Exact attention is made up: any rows, and LSE about as large as the scores; every fifth row has no exact key. */
static setting make(const verbs_shape *shape, mcsa_dtype dtype, double amplitude, int slope)
{
    setting s = { .c = test_call_make((const int[]){ shape->H, shape->N, shape->N, shape->D }, dtype, TEST_NHD, 71,
                                      amplitude) };
    size_t rows = (size_t)shape->H * (size_t)shape->N, D = (size_t)shape->D;
    size_t parts = (size_t)shape->H * (size_t)shape->K;
    s.queries = verbs_partition(shape->H, shape->N, shape->Q, 72);
    s.tail.key = verbs_normal(parts * D, 73, amplitude);
    s.tail.value = verbs_normal(parts * D, 74, 1);
    s.tail.weight = test_alloc(sizeof *s.tail.weight * parts);
    s.tail.slope = slope ? verbs_normal((size_t)shape->H * D * D, 75, 0.1 / amplitude) : NULL;
    choose(&s, shape, 76);
    test_fill_normal(&s.c.out.view, 77, 1);
    s.lse = verbs_normal(rows, 78, 2 + amplitude * amplitude);
    for (size_t i = 0; i < rows; i += 5) {
        s.lse[i] = -INFINITY;
        for (int d = 0; d < shape->D; d++) test_set(&s.c.out.view, (int64_t)i / shape->N, (int64_t)i % shape->N, d, 0);
    }
    s.out = test_doubles(&s.c.out.view);
    return s;
}

static void release(setting *s)
{
    free(s->tail.key);
    free(s->tail.value);
    free(s->tail.weight);
    free(s->tail.slope);
    free(s->lse);
    free(s->out);
    rival_map_free(&s->map);
    rival_partition_free(&s->queries);
    test_call_free(&s->c);
}

/* Row n of head h, part q, merged in double. */
typedef struct merged {
    double out[MCSA_MAX_DIM], bound[MCSA_MAX_DIM], lse, lse_bound;
    int virtual_keys;
} merged;

/* Bounds: those of a softmax over the virtual keys (test_row_bounds) whose logits also carry log weight; merging moves
 * the two weights by what both LSE may be off by; the slope adds D + 3 units of its products. */
static void reference(const setting *s, int h, int n, int q, const test_rounding *rounding, merged *m)
{
    int D = s->c.D, K = s->map.K;
    int64_t row = (int64_t)h * s->c.N + n;
    double query[MCSA_MAX_DIM], key[MCSA_MAX_DIM], tail[MCSA_MAX_DIM] = { 0 },
                                                   *logit = test_alloc(sizeof *logit * (size_t)K);
    double scale = (double)s->x.scale, size, most = 0, most_v = 0, max = -INFINITY, sum = 0;
    for (int d = 0; d < D; d++) query[d] = test_get(&s->c.q.view, h, n, d);
    *m = (merged){ .lse = (double)s->lse[row] };
    for (int k = 0; k < K; k++) {
        double weight = (double)s->tail.weight[h * K + k];
        logit[k] = -INFINITY;
        if (rival_map_has(&s->map, h, q, k) || weight == 0) continue;
        for (int d = 0; d < D; d++) key[d] = (double)s->tail.key[((int64_t)h * K + k) * D + d];
        logit[k] = verbs_dot(query, key, D, scale, &size) + log(weight);
        most = fmax(most, size + log(weight));
        max = fmax(max, logit[k]);
        m->virtual_keys++;
    }
    for (int k = 0; k < K; k++) {
        double p = exp(logit[k] - max);
        sum += p;
        for (int d = 0; m->virtual_keys && d < D; d++) {
            double value = (double)s->tail.value[((int64_t)h * K + k) * D + d];
            tail[d] += p * value;
            most_v = fmax(most_v, fabs(value));
        }
    }
    double tail_bound, tail_lse = max + log(sum), top = fmax(m->lse, tail_lse);
    test_row_bounds(most, m->virtual_keys, D, most_v, &(test_rounding){ 0 }, &tail_bound, &m->lse_bound);
    double exact = exp(m->lse - top), rest = exp(tail_lse - top);
    double moved = expm1(m->lse_bound + 8 * U_F32 * (fabs(tail_lse) + (isfinite(m->lse) ? fabs(m->lse) : 0) + 2));
    for (int d = 0; d < D; d++) {
        double before = s->out[row * D + d], products = 0, linear = 0;
        for (int e = 0; s->tail.slope && e < D; e++) {
            double x = query[e] * (double)s->tail.slope[((int64_t)h * D + e) * D + d];
            linear += x;
            products += fabs(x);
        }
        double after = tail[d] / sum + linear;
        m->out[d] = m->virtual_keys ? (exact * before + rest * after) / (exact + rest) : before;
        m->bound[d] = m->virtual_keys
                          ? tail_bound + (D + 3) * U_F32 * products + (moved + 8 * U_F32) * (fabs(before) + fabs(after))
                          : 0;
        if (m->virtual_keys) m->bound[d] += rounding->out * (fabs(m->out[d]) + m->bound[d]) + 0x1p-25;
    }
    if (m->virtual_keys) m->lse = top + log(exact + rest);
    m->lse_bound = m->virtual_keys ? m->lse_bound + 8 * U_F32 * (fabs(m->lse) + 2) : 0;
    free(logit);
}

/* [H, N] the part that a row is in, or -1. */
static int32_t *parts_of(const rival_partition *p)
{
    int32_t *part = test_alloc(sizeof *part * (size_t)p->H * (size_t)p->N);
    for (int i = 0; i < p->H * p->N; i++) part[i] = -1;
    for (int h = 0; h < p->H; h++)
        for (int q = 0; q < p->P; q++) {
            int count;
            const int32_t *rows = rival_part(p, h, q, &count);
            for (int i = 0; i < count; i++) part[(int64_t)h * p->N + rows[i]] = q;
        }
    return part;
}

static void restore(const setting *s)
{
    for (int h = 0; h < s->c.H; h++)
        for (int n = 0; n < s->c.N; n++)
            for (int d = 0; d < s->c.D; d++)
                test_set(&s->c.out.view, h, n, d, s->out[((int64_t)h * s->c.N + n) * s->c.D + d]);
}

/* lse [H, N], and behind it out [H, N, D], so that both are compared. */
static mcsa_status step(void *state, const void *user, float *lse, mcsa_error *error)
{
    const setting *s = user;
    size_t rows = (size_t)s->c.H * (size_t)s->c.N;
    restore(s);
    memcpy(lse, s->lse, sizeof *lse * rows);
    TRY(verbs->tail(state, &s->x, &s->queries, &s->map, &s->tail, lse, error));
    double *out = test_doubles(&s->c.out.view);
    for (size_t i = 0; i < rows * (size_t)s->c.D; i++) lse[rows + i] = (float)out[i];
    free(out);
    return MCSA_OK;
}

static void judge(const setting *s, const float *lse, test_worst *out_worst, test_worst *lse_worst)
{
    test_rounding rounding = { .out = verbs_unit(s->c.dtype) };
    int32_t *part = parts_of(&s->queries);
    int untouched = 0;
    for (int h = 0; h < s->c.H; h++)
        for (int n = 0; n < s->c.N; n++) {
            int64_t row = (int64_t)h * s->c.N + n;
            merged m = { .lse = (double)s->lse[row] };
            if (part[row] >= 0)
                reference(s, h, n, part[row], &rounding, &m);
            else
                for (int d = 0; d < s->c.D; d++) m.out[d] = s->out[row * s->c.D + d];
            untouched += m.virtual_keys == 0;
            for (int d = 0; d < s->c.D; d++)
                test_judge(out_worst, test_get(&s->c.out.view, h, n, d), m.out[d], m.bound[d], h, n, d);
            test_judge(lse_worst, (double)lse[row], m.lse, m.lse_bound, h, n, 0);
        }
    if (s->c.N > 2) assert_true(untouched > 0);
    assert_int_equal(test_damage(&s->c.out), 0);
    free(part);
}

static void run_shape(const verbs_shape *shape, mcsa_dtype dtype, double amplitude, int slope)
{
    setting s = make(shape, dtype, amplitude, slope);
    s.x = verbs_call(&s.c, 1 / sqrtf((float)shape->D));
    size_t rows = (size_t)shape->H * (size_t)shape->N;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (test_levels[l] > mcsa_cpu_isa()) continue;
        test_worst out_worst = { 0 }, lse_worst = { 0 };
        float *lse = verbs_run(step, &s, rows * (size_t)(1 + shape->D), test_levels[l]);
        judge(&s, lse, &out_worst, &lse_worst);
        test_report(&out_worst, amplitude > 1 ? INFINITY : test_ceiling(dtype), "out N %d D %d%s %s %s", shape->N,
                    shape->D, slope ? " sloped" : "", test_dtype_name(dtype), mcsa_isa_name(test_levels[l]));
        test_report(&lse_worst, 1e-5, "lse");
        test_words_free(lse, rows * (size_t)(1 + shape->D));
    }
    release(&s);
}

static void tails_join_the_softmax(void **state)
{
    (void)state;
    static const verbs_shape shapes[] = {
        { 2, 1, 16, 1, 1 },      { 2, 65, 64, 3, 5 },    { 3, 130, 24, 2, 130 },
        { 1, 400, 128, 4, 400 }, { 2, 257, 17, 40, 33 },
    };
    for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++)
        for (int slope = 0; slope < 2; slope++) {
            for (size_t s = 0; s < TEST_COUNT(shapes); s++) run_shape(&shapes[s], test_dtypes[d], 1, slope);
            run_shape(&shapes[1], test_dtypes[d], 7, slope);
        }
}

/* Keys and values that are alike within each part: exact attention over any parts and the tail over the others are
 * dense attention, whatever is kept. */
static void tails_of_equal_tokens_complete_dense_attention(void **state)
{
    (void)state;
    enum { H = 2, N = 150, D = 32, K = 12 };
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_HND, 81, 1);
    rival_partition keys = verbs_partition(H, N, K, 82), queries = { 0 };
    rival_map map = { 0 };
    mcsa_error why;
    uint64_t seed = 83;
    float mean[2][H * K * D], weight[H * K], lse[H * N];
    for (int h = 0; h < H; h++) { /* rows in no part would be missed */
        keys.first[h * (K + 1)] = 0;
        keys.first[h * (K + 1) + K] = N;
    }
    assert_int_equal(rival_partition_blocks(&queries, H, N, 40, NULL, &why), MCSA_OK);
    assert_int_equal(rival_map_reserve(&map, H, queries.P, K, &why), MCSA_OK);
    memset(mean, 0, sizeof mean);
    for (int h = 0; h < H; h++)
        for (int k = 0; k < K; k++) {
            int count;
            const int32_t *rows = rival_part(&keys, h, k, &count);
            weight[h * K + k] = (float)count;
            for (int j = 0; j < count; j++)
                for (int d = 0; d < D; d++) {
                    test_set(&c.k.view, h, rows[j], d, test_get(&c.k.view, h, rows[0], d));
                    test_set(&c.v.view, h, rows[j], d, test_get(&c.v.view, h, rows[0], d));
                    mean[0][(h * K + k) * D + d] = (float)test_get(&c.k.view, h, rows[0], d);
                    mean[1][(h * K + k) * D + d] = (float)test_get(&c.v.view, h, rows[0], d);
                }
            for (int q = 0; q < queries.P; q++)
                if (q != 2 && test_below(&seed, 2)) rival_map_keep(&map, h, q, k); /* part 2 keeps nothing */
        }
    const rival_tail tail = { mean[0], mean[1], weight, NULL };
    const mcsa_qkv x = verbs_call(&c, 1 / sqrtf(D));
    test_rounding rounding = { .out = U_F32 };
    test_reference r = test_reference_make(&c, (double)x.scale, NULL, &rounding);
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (test_levels[l] > mcsa_cpu_isa()) continue;
        void *kernels = verbs_open(test_levels[l], 2);
        assert_ok(verbs->attend(kernels, &x, &queries, &keys, &map, lse, &error));
        assert_ok(verbs->tail(kernels, &x, &queries, &map, &tail, lse, &error));
        verbs->close(kernels);
        test_worst worst = { 0 };
        for (int64_t i = 0; i < H * N; i++) {
            for (int d = 0; d < D; d++) /* two softmaxes and their merge: three times the bound of one */
                test_judge(&worst, test_get(&c.out.view, i / N, i % N, d), r.out[i * D + d], 3 * r.out_bound[i], i / N,
                           i % N, d);
            test_judge(&worst, (double)lse[i], r.lse[i], 3 * r.lse_bound[i], i / N, i % N, -1);
        }
        test_report(&worst, 1e-6, "exact parts and the tail of the others, %s", mcsa_isa_name(test_levels[l]));
    }
    test_reference_free(&r);
    rival_map_free(&map);
    rival_partition_free(&queries);
    rival_partition_free(&keys);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tails_join_the_softmax),
        cmocka_unit_test(tails_of_equal_tokens_complete_dense_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
