/* test_kernels_outer.c - the products of centred keys and values against double. */
#include "verbs.h"

typedef struct products {
    mcsa_qkv x;
    const rival_partition *keys;
    const float *mean;
} products;

static mcsa_status step(void *state, const void *user, float *out, mcsa_error *error)
{
    const products *p = user;
    return verbs->outer(state, &p->x, p->keys, p->mean, out, error);
}

/* Each element is a sum over all rows: N + 3 units of the sum of sizes. */
static void judge_outer(test_worst *worst, const test_call *c, const rival_partition *keys, const float *mean,
                        const float *outer)
{
    int D = c->D;
    double *k = test_doubles(&c->k.view), *v = test_doubles(&c->v.view);
    double *expected = test_alloc(sizeof *expected * (size_t)D * (size_t)D),
           *size = test_alloc(sizeof *size * (size_t)D * (size_t)D);
    for (int h = 0; h < c->H; h++, outer += (int64_t)D * D) {
        memset(expected, 0, sizeof *expected * (size_t)D * (size_t)D);
        memset(size, 0, sizeof *size * (size_t)D * (size_t)D);
        for (int p = 0; p < keys->P; p++, mean += D) {
            int count;
            const int32_t *rows = rival_part(keys, h, p, &count);
            for (int j = 0; j < count; j++)
                for (int a = 0; a < D; a++)
                    for (int b = 0; b < D; b++) {
                        int64_t row = ((int64_t)h * c->M + rows[j]) * D;
                        double term = (k[row + a] - (double)mean[a]) * v[row + b];
                        expected[a * D + b] += term;
                        size[a * D + b] += fabs(term);
                    }
        }
        for (int i = 0; i < D * D; i++)
            test_judge(worst, (double)outer[i], expected[i], (c->M + 3) * U_F32 * size[i], h, i / D, i % D);
    }
    free(size);
    free(expected);
    free(k);
    free(v);
}

static void outer_products_are_those_of_all_rows(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++)
        for (size_t s = 0; test_levels[l] <= mcsa_cpu_isa() && s < TEST_COUNT(verbs_shapes); s++)
            for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++) {
                const verbs_shape *to = &verbs_shapes[s];
                if (to->N * to->D > 100000 && d != 1) continue; /* the largest in BF16 alone */
                test_call c =
                    test_call_make((const int[]){ to->H, to->N, to->N, to->D }, test_dtypes[d], TEST_SPREAD, 31, 1);
                rival_partition keys = verbs_partition(to->H, to->N, to->K, 32);
                float *mean = verbs_normal((size_t)(to->H * to->K) * (size_t)to->D, 33, 0.3);
                const products p = { verbs_call(&c, 1), &keys, mean };
                size_t count = (size_t)to->H * (size_t)to->D * (size_t)to->D;
                float *outer = verbs_run(step, &p, count, test_levels[l]);
                test_worst worst = { 0 };
                judge_outer(&worst, &c, &keys, mean, outer);
                test_report(&worst, 1e-6, "outer N %d D %d %s %s", to->N, to->D, test_dtype_name(test_dtypes[d]),
                            mcsa_isa_name(test_levels[l]));
                test_words_free(outer, count);
                free(mean);
                rival_partition_free(&keys);
                test_call_free(&c);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(outer_products_are_those_of_all_rows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
