/* test_kernels_assign.c - labels against the nearest centre in double, and of equal centres the first. */
#include "verbs.h"

typedef struct labels {
    const mcsa_tensor *x;
    const float *centre;
    int P;
} labels;

static mcsa_status step(void *state, const void *user, float *out, mcsa_error *error)
{
    const labels *l = user;
    return verbs->assign(state, l->x, l->P, l->centre, (int32_t *)(void *)out, error);
}

static double as_dtype(float f, mcsa_dtype dtype)
{
    if (dtype == MCSA_BF16) return (double)mcsa_from_bf16(mcsa_to_bf16(f));
    return (double)(dtype == MCSA_F16 ? mcsa_from_f16(mcsa_to_f16(f)) : f);
}

/* Distances of one row from the rounded centres [P, D], without |x|^2, and how far two of them may be off together:
 * twice 2 (D + 2) u sum |x c| for the products and 2 u |c|^2 for the rest. */
static double distance(const double *x, const float *centre, int D, mcsa_dtype dtype, double *bound)
{
    double products = 0, size = 0, squares = 0;
    for (int d = 0; d < D; d++) {
        double c = as_dtype(centre[d], dtype);
        products += x[d] * c;
        size += fabs(x[d] * c);
        squares += c * c;
    }
    *bound = 2 * U_F32 * (2 * (D + 2) * size + 2 * squares);
    return squares - 2 * products;
}

/* How much farther the centre taken is than the nearest one. */
static void judge_row(test_worst *worst, const double *x, const float *centre, int P, int D, mcsa_dtype dtype,
                      int label)
{
    double nearest = INFINITY, taken = NAN, most = 0;
    for (int c = 0; c < P; c++) {
        double bound, away = distance(x, centre + (int64_t)c * D, D, dtype, &bound);
        nearest = fmin(nearest, away);
        most = fmax(most, bound);
        if (c == label) taken = away;
    }
    test_judge(worst, taken, nearest, most, label, 0, 0);
}

static void run_shape(const verbs_shape *s, int P, mcsa_dtype dtype, mcsa_isa isa)
{
    test_tensor x = test_tensor_make(s->H, s->N, s->D, dtype, TEST_SPREAD);
    test_fill_normal(&x.view, 3, 1);
    size_t count = (size_t)s->H * (size_t)s->N;
    float *centre = verbs_normal((size_t)(s->H * P) * (size_t)s->D, 4, 1);
    double *rows = test_doubles(&x.view);
    const labels l = { &x.view, centre, P };
    int32_t *label = (int32_t *)(void *)verbs_run(step, &l, count, isa);
    test_worst worst = { 0 };
    for (size_t i = 0; i < count; i++)
        judge_row(&worst, rows + i * (size_t)s->D, centre + i / (size_t)s->N * (size_t)P * (size_t)s->D, P, s->D, dtype,
                  label[i]);
    test_report(&worst, INFINITY, "N %d D %d, %d centres, %s %s", s->N, s->D, P, test_dtype_name(dtype),
                mcsa_isa_name(isa));
    test_words_free(label, count);
    free(rows);
    free(centre);
    test_tensor_free(&x);
}

static void labels_are_the_nearest_centres(void **state)
{
    (void)state;
    static const int centres[] = { 1, 200, 5, 31, 400 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++)
        for (size_t s = 0; test_levels[l] <= mcsa_cpu_isa() && s < TEST_COUNT(verbs_shapes); s++)
            for (size_t d = 0; d < TEST_COUNT(test_dtypes); d++)
                run_shape(&verbs_shapes[s], centres[s], test_dtypes[d], test_levels[l]);
}

/* Small integers, where every level computes exactly: the rule about ties decides alone. */
static void of_equal_distances_the_lower_label_stays(void **state)
{
    (void)state;
    enum { N = 300, D = 16, P = 250 };
    test_tensor x = test_tensor_make(1, N, D, MCSA_BF16, TEST_HND);
    float *centre = test_alloc(sizeof *centre * P * D);
    uint64_t seed = 8;
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++) test_set(&x.view, 0, n, d, test_below(&seed, 3) - 1);
    for (int i = 0; i < P * D; i++) centre[i] = (float)(test_below(&seed, 3) - 1);
    const labels l = { &x.view, centre, P };
    int32_t expected[N], ties = 0;
    double *rows = test_doubles(&x.view);
    for (int n = 0; n < N; n++) {
        double nearest = INFINITY, bound;
        for (int c = 0; c < P; c++) {
            double away = distance(rows + n * D, centre + c * D, D, MCSA_F32, &bound);
            ties += away == nearest;
            if (away < nearest) {
                nearest = away;
                expected[n] = c;
            }
        }
    }
    assert_true(ties > N);
    for (size_t i = 0; i < TEST_COUNT(test_levels); i++) {
        if (test_levels[i] > mcsa_cpu_isa()) continue;
        float *label = verbs_run(step, &l, N, test_levels[i]);
        assert_memory_equal(label, expected, sizeof expected);
        test_words_free(label, N);
    }
    free(rows);
    free(centre);
    test_tensor_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_the_nearest_centres),
        cmocka_unit_test(of_equal_distances_the_lower_label_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
