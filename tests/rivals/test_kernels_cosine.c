/* test_kernels_cosine.c - how alike the rows of parts are, against all pairs of them in double. */
#include "verbs.h"

typedef struct alike {
    const mcsa_tensor *x;
    const rival_partition *parts;
    const float *shift;
} alike;

static mcsa_status step(void *state, const void *user, float *out, mcsa_error *error)
{
    const alike *a = user;
    return verbs->cosine(state, a->x, a->parts, a->shift, out, error);
}

/* From all pairs of rows, as the definition has it.  A normalised row is off by (D / 2 + 6) u, their sum by `count`
 * more of the sum of sizes; squaring doubles that. */
static double mean_cosine(const double *x, const float *shift, const int32_t *rows, int count, int D, double *bound)
{
    double sum = 0, sizes = 0, lengths[64];
    assert_true(count <= 64);
    for (int i = 0; i < count; i++) {
        lengths[i] = 0;
        for (int d = 0; d < D; d++) {
            double y = x[(int64_t)rows[i] * D + d] - (shift ? (double)shift[d] : 0);
            lengths[i] += y * y;
        }
        lengths[i] = sqrt(lengths[i]);
        sizes += lengths[i] > 0;
    }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            if (lengths[i] == 0 || lengths[j] == 0) continue;
            double dot = 0;
            for (int d = 0; d < D; d++)
                dot += (x[(int64_t)rows[i] * D + d] - (shift ? (double)shift[d] : 0)) *
                       (x[(int64_t)rows[j] * D + d] - (shift ? (double)shift[d] : 0));
            sum += dot / (lengths[i] * lengths[j]);
        }
    *bound = count ? sizes * sizes * (2 * (D / 2.0 + 6 + count) + D + 4) * U_F32 / ((double)count * count) : 0;
    return count ? sum / ((double)count * count) : 0;
}

static void run_cosine(int N, int D, int P, int shifted, mcsa_dtype dtype, mcsa_isa isa)
{
    enum { H = 2 };
    test_tensor x = test_tensor_make(H, N, D, dtype, TEST_NHD);
    test_fill_normal(&x.view, 21, 1);
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++)
            for (int d = 0; d < D; d++) /* a common part, and every seventh row zero */
                test_set(&x.view, h, n, d, n % 7 == 6 ? 0 : test_get(&x.view, h, n, d) + (d % 3 ? 0.5 : -0.5));
    float *shift = shifted ? verbs_normal((size_t)H * (size_t)D, 22, 0.5) : NULL;
    rival_partition parts = verbs_partition(H, N, P, 23);
    const alike a = { &x.view, &parts, shift };
    double *rows = test_doubles(&x.view), bound;
    float *cosine = verbs_run(step, &a, (size_t)H * (size_t)P, isa);
    test_worst worst = { 0 };
    for (int h = 0; h < H; h++)
        for (int p = 0; p < P; p++) {
            int count;
            const int32_t *part = rival_part(&parts, h, p, &count);
            double expected =
                mean_cosine(rows + (int64_t)h * N * D, shift ? shift + h * D : NULL, part, count, D, &bound);
            test_judge(&worst, (double)cosine[h * P + p], expected, bound, h, p, 0);
        }
    test_report(&worst, 1e-6, "cosine N %d D %d%s %s %s", N, D, shift ? " shifted" : "", test_dtype_name(dtype),
                mcsa_isa_name(isa));
    test_words_free(cosine, (size_t)H * (size_t)P);
    rival_partition_free(&parts);
    free(rows);
    free(shift);
    test_tensor_free(&x);
}

static void cosines_are_those_of_all_pairs(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++)
        for (size_t d = 0; test_levels[l] <= mcsa_cpu_isa() && d < TEST_COUNT(test_dtypes); d++)
            for (int shifted = 0; shifted < 2; shifted++) {
                run_cosine(1, 16, 1, shifted, test_dtypes[d], test_levels[l]);
                run_cosine(65, 64, 5, shifted, test_dtypes[d], test_levels[l]);
                run_cosine(100, 128, 4, shifted, test_dtypes[d], test_levels[l]);
                run_cosine(37, 17, 37, shifted, test_dtypes[d], test_levels[l]);
            }
}

static void rows_of_one_direction_have_cosine_one(void **state)
{
    (void)state;
    enum { N = 40, D = 32 };
    test_tensor x = test_tensor_make(1, N, D, MCSA_F32, TEST_HND);
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++) test_set(&x.view, 0, n, d, (n + 1) * 1e-12 * (d - 15.5));
    rival_partition parts = { 0 };
    mcsa_error why;
    assert_int_equal(rival_partition_blocks(&parts, 1, N, N, NULL, &why), MCSA_OK);
    const alike a = { &x.view, &parts, NULL };
    float *cosine = verbs_run(step, &a, 1, MCSA_ISA_SCALAR);
    assert_true(fabsf(*cosine - 1) <= (2 * (D / 2.0f + 6 + N) + D + 4) * (float)U_F32);
    test_words_free(cosine, 1);
    rival_partition_free(&parts);
    test_tensor_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosines_are_those_of_all_pairs),
        cmocka_unit_test(rows_of_one_direction_have_cosine_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
