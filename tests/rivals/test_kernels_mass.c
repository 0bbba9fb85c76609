/* test_kernels_mass.c - the attention between parts against sums in double. */
#include "verbs.h"

/* mass [Q, K] of head h and the bound of each: a term exp(scale s - lse) is off by a factor of at most e^ds with
 * ds = scale sum |q k| (D + 4) u + 4 u |lse| + the error of exp2, and adding up rows and keys costs a unit each. */
static void reference(const test_call *c, const rival_partition *queries, const rival_partition *keys, float scale,
                      const float *lse, double *mass, double *bound)
{
    double *q = test_doubles(&c->q.view), *k = test_doubles(&c->k.view);
    for (int h = 0; h < c->H; h++)
        for (int a = 0; a < queries->P; a++)
            for (int b = 0; b < keys->P; b++, mass++, bound++) {
                int rows, columns;
                const int32_t *row = rival_part(queries, h, a, &rows), *column = rival_part(keys, h, b, &columns);
                *mass = *bound = 0;
                for (int i = 0; i < rows; i++)
                    for (int j = 0; j < columns; j++) {
                        double size, l = (double)lse[(int64_t)h * c->N + row[i]];
                        double s = verbs_dot(q + ((int64_t)h * c->N + row[i]) * c->D,
                                             k + ((int64_t)h * c->N + column[j]) * c->D, c->D, (double)scale, &size);
                        double ds = size * (c->D + 4) * U_F32 + 4 * U_F32 * fabs(l) + U_EXP2;
                        *mass += exp(s - l);
                        *bound += exp(s - l) * (expm1(ds) + (rows + columns + 32) * U_F32);
                    }
                *bound += 0x1p-126 * rows * columns; /* no subnormals */
            }
    free(q);
    free(k);
}

typedef struct masses {
    mcsa_qkv x;
    const rival_partition *queries, *keys;
    const float *lse;
} masses;

static mcsa_status step(void *state, const void *user, float *out, mcsa_error *error)
{
    const masses *m = user;
    return verbs->mass(state, &m->x, m->queries, m->keys, m->lse, out, error);
}

static void run_shape(const verbs_shape *s, mcsa_dtype dtype, double amplitude)
{
    test_call c = test_call_make((const int[]){ s->H, s->N, s->N, s->D }, dtype, TEST_NHD, 11, amplitude);
    float scale = 1 / sqrtf((float)s->D);
    size_t rows = (size_t)s->H * (size_t)s->N, count = (size_t)(s->H * s->Q) * (size_t)s->K;
    rival_partition queries = verbs_partition(s->H, s->N, s->Q, 5), keys = verbs_partition(s->H, s->N, s->K, 6);
    float *lse = verbs_normal(rows, 7, 1);
    double *expected = test_alloc(sizeof *expected * count), *bound = test_alloc(sizeof *bound * count);
    for (size_t i = 0; i < rows; i++) lse[i] += (float)(amplitude * amplitude * 3);
    reference(&c, &queries, &keys, scale, lse, expected, bound);
    const masses m = { verbs_call(&c, scale), &queries, &keys, lse };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (test_levels[l] > mcsa_cpu_isa()) continue;
        test_worst worst = { 0 };
        float *mass = verbs_run(step, &m, count, test_levels[l]);
        for (size_t i = 0; i < count; i++)
            test_judge(&worst, (double)mass[i], expected[i], bound[i], (int64_t)i / s->K, (int64_t)i % s->K, 0);
        test_report(&worst, amplitude > 1 ? 1e-4 : 1e-6, "N %d D %d %s %s, scores to %.0f", s->N, s->D,
                    test_dtype_name(dtype), mcsa_isa_name(test_levels[l]), amplitude * amplitude * 4);
        test_words_free(mass, count);
    }
    free(expected);
    free(bound);
    free(lse);
    rival_partition_free(&queries);
    rival_partition_free(&keys);
    test_call_free(&c);
}

static void masses_are_those_of_the_scores(void **state)
{
    (void)state;
    for (size_t s = 0; s < TEST_COUNT(verbs_shapes); s++)
        for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++) run_shape(&verbs_shapes[s], test_dtypes[d], 1);
    for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++) run_shape(&verbs_shapes[1], test_dtypes[d], 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(masses_are_those_of_the_scores) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
