/* test_kernels_error.c - what replacing a part of the keys by its mean costs a query, against double. */
#include "verbs.h"

typedef struct costs {
    mcsa_qkv x;
    int Q;
    const float *query;
    const rival_partition *keys;
    const float *key, *value;
} costs;

static mcsa_status step(void *state, const void *user, float *out, mcsa_error *error)
{
    const costs *c = user;
    return verbs->error(state, &c->x, c->Q, c->query, c->keys, c->key, c->value, out, error);
}

/* The cost relative to exp(2 max), and how far it may be off.  The exponents of a and c are off by
 * ds = size (D + 8) u + 4 u |exponent| + the errors of exp2, one for each rescaling; so e^a v - e^c w is off by
 * ds (e^a |v| + e^c |w|), v - w by a unit of both, and the lengths of vectors by D units of their squares. */
typedef struct cost {
    double max, sum, bound;
} cost;

static cost reference(const costs *c, const double *q, const double *k, const double *v, int h, int part)
{
    int D = c->x.dims.D, N = c->x.dims.N, count;
    const int32_t *rows = rival_part(c->keys, h, part, &count);
    int64_t mean = ((int64_t)h * c->keys->P + part) * D;
    double key[MCSA_MAX_DIM], scale = (double)c->x.scale, size, most;
    for (int d = 0; d < D; d++) key[d] = (double)c->key[mean + d];
    double middle = verbs_dot(q, key, D, scale, &most);
    cost r = { middle, 0, 0 };
    double *exponent = test_alloc(sizeof *exponent * (size_t)(count + 1));
    for (int j = 0; j < count; j++) {
        exponent[j] = verbs_dot(q, k + ((int64_t)h * N + rows[j]) * D, D, scale, &size);
        r.max = fmax(r.max, exponent[j]);
        most = fmax(most, size);
    }
    double ds = expm1(most * (D + 8) * U_F32 + 4 * U_F32 * most + (count / MCSA_KEY_BLOCK + 3) * (U_EXP2 + 2 * U_F32));
    for (int j = 0; j < count; j++) {
        double p = exp(exponent[j] - r.max), mean_p = exp(middle - r.max), term = 0, v2 = 0, w2 = 0;
        for (int d = 0; d < D; d++) {
            double a = v[((int64_t)h * N + rows[j]) * D + d], w = (double)c->value[mean + d];
            term += (p * a - mean_p * w) * (p * a - mean_p * w);
            v2 += a * a;
            w2 += w * w;
        }
        double off = (ds + 2 * U_F32) * (p * sqrt(v2) + mean_p * sqrt(w2));
        r.sum += term;
        /* three products of squared lengths, of which p^2 |v - w|^2 + t^2 |w|^2 is at most 2 term + 3 t^2 |w|^2 */
        double t2 = (p - mean_p) * (p - mean_p) * w2;
        r.bound += 2 * sqrt(term) * off + off * off + (D + 12) * U_F32 * 2 * (2 * term + 3 * t2 + off * off);
    }
    r.bound += (count + 4) * U_F32 * r.sum + 0x1p-120;
    free(exponent);
    return r;
}

/* Logs are judged as the factors that they are: from the expected sum less and more its bound. */
static void judge(test_worst *worst, float got, const cost *r, int64_t h, int64_t q, int64_t k)
{
    double relative = exp((double)got - 2 * r->max); /* 0 for -INFINITY */
    double rounding = r->sum * 8 * U_F32 * (2 * fabs(r->max) + fabs(log(r->sum + 1e-300)) + 1);
    test_judge(worst, relative, r->sum, r->bound + rounding, h, q, k);
}

static void run_shape(const verbs_shape *s, mcsa_dtype dtype, double amplitude)
{
    test_call c = test_call_make((const int[]){ s->H, s->N, s->N, s->D }, dtype, TEST_NHD, 41, amplitude);
    rival_partition keys = verbs_partition(s->H, s->N, s->K, 42);
    size_t means = (size_t)(s->H * s->K) * (size_t)s->D, count = (size_t)(s->H * s->Q) * (size_t)s->K;
    float *query = verbs_normal((size_t)(s->H * s->Q) * (size_t)s->D, 43, amplitude);
    float *key = verbs_normal(means, 44, amplitude), *value = verbs_normal(means, 45, 1);
    const costs all = { verbs_call(&c, 1 / sqrtf((float)s->D)), s->Q, query, &keys, key, value };
    double *k = test_doubles(&c.k.view), *v = test_doubles(&c.v.view), q[MCSA_MAX_DIM];
    cost *expected = test_alloc(sizeof *expected * count);
    for (size_t i = 0; i < count; i++) {
        size_t row = i / (size_t)s->K;
        for (int d = 0; d < s->D; d++) q[d] = (double)query[row * (size_t)s->D + (size_t)d];
        expected[i] = reference(&all, q, k, v, (int)row / s->Q, (int)(i % (size_t)s->K));
    }
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (test_levels[l] > mcsa_cpu_isa()) continue;
        test_worst worst = { 0 };
        float *out = verbs_run(step, &all, count, test_levels[l]);
        for (size_t i = 0; i < count; i++) {
            int part = (int)(i % (size_t)s->K), head = (int)(i / (size_t)s->K) / s->Q;
            if (rival_part_size(&keys, head, part) == 0)
                assert_true(out[i] == -INFINITY);
            else
                assert_true(isfinite(out[i]));
            judge(&worst, out[i], &expected[i], head, (int64_t)i / s->K % s->Q, part);
        }
        test_report(&worst, amplitude > 1 ? 1e-3 : 1e-5, "N %d D %d, %d queries, %s %s, scores to %.0f", s->N, s->D,
                    s->Q, test_dtype_name(dtype), mcsa_isa_name(test_levels[l]), amplitude * amplitude * 4);
        test_words_free(out, count);
    }
    free(expected);
    free(k);
    free(v);
    free(query);
    free(key);
    free(value);
    rival_partition_free(&keys);
    test_call_free(&c);
}

static void costs_are_those_of_the_definition(void **state)
{
    (void)state;
    static const verbs_shape shapes[] = {
        { 2, 1, 16, 1, 1 },      { 2, 65, 64, 3, 5 },    { 2, 130, 24, 130, 70 },
        { 1, 1000, 128, 65, 9 }, { 2, 257, 17, 40, 33 },
    };
    for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++) {
        for (size_t s = 0; s < TEST_COUNT(shapes); s++) run_shape(&shapes[s], test_dtypes[d], 1);
        run_shape(&shapes[1], test_dtypes[d], 7);
        run_shape(&shapes[4], test_dtypes[d], 7);
    }
}

/* Keys and values that are all alike: the cost of the mean is the square of what the exponents are off by, where
 * expanding |p v - r w|^2 would leave 1e-7 of |v|^2. */
static void a_part_of_equal_tokens_costs_nothing(void **state)
{
    (void)state;
    enum { N = 50, D = 32, Q = 20 };
    test_call c = test_call_make((const int[]){ 1, N, N, D }, MCSA_BF16, TEST_HND, 51, 1);
    rival_partition keys = { 0 };
    mcsa_error why;
    assert_int_equal(rival_partition_blocks(&keys, 1, N, N, NULL, &why), MCSA_OK);
    float *query = verbs_normal(Q * D, 52, 1), key[D], value[D];
    double v2 = 0;
    for (int d = 0; d < D; d++) {
        for (int n = 1; n < N; n++) {
            test_set(&c.k.view, 0, n, d, test_get(&c.k.view, 0, 0, d));
            test_set(&c.v.view, 0, n, d, test_get(&c.v.view, 0, 0, d));
        }
        key[d] = (float)test_get(&c.k.view, 0, 0, d);
        value[d] = (float)test_get(&c.v.view, 0, 0, d);
        v2 += (double)value[d] * (double)value[d];
    }
    const costs all = { verbs_call(&c, 1 / sqrtf(D)), Q, query, &keys, key, value };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (test_levels[l] > mcsa_cpu_isa()) continue;
        float *out = verbs_run(step, &all, Q, test_levels[l]);
        for (int q = 0; q < Q; q++) {
            double most = 0, x[D], y[D];
            for (int d = 0; d < D; d++) {
                x[d] = (double)query[q * D + d];
                y[d] = (double)key[d];
            }
            double score = verbs_dot(x, y, D, (double)all.x.scale, &most);
            double ds = most * (D + 12) * U_F32 + 3 * (U_EXP2 + 2 * U_F32);
            assert_true((double)out[q] <= log(N * 4 * ds * ds * v2) + 2 * score + 1e-3);
        }
        test_words_free(out, Q);
    }
    free(query);
    rival_partition_free(&keys);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_those_of_the_definition),
        cmocka_unit_test(a_part_of_equal_tokens_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
