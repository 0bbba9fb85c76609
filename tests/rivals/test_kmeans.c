/* test_kmeans.c - k-means: nearest centres and true means against double, the corner cases of its data, when it stops,
 * and equal bits. */
#include "clustered.h"

#include "rivals/draw.h"
#include "rivals/kmeans.h"

static const float *centre_of(const rival_kmeans *k, const float *centres, int h, int c)
{
    return centres + ((int64_t)h * k->P + c) * k->D;
}

/* The centre as the rows meet it. */
static double rounded(float x, mcsa_dtype dtype)
{
    if (dtype == MCSA_F32) return (double)x;
    return (double)(dtype == MCSA_BF16 ? mcsa_from_bf16(mcsa_to_bf16(x)) : mcsa_from_f16(mcsa_to_f16(x)));
}

/* x . c - |c|^2 / 2, which is largest for the nearest centre, and how far FP32 sums may be from it: D + 2 roundings of
 * at most the sum of absolute values. */
static double closeness(const mcsa_tensor *x, int h, int n, const float *centre, double *bound)
{
    int D = (int)x->shape[2];
    double sum = 0, size = 0;
    for (int d = 0; d < D; d++) {
        double c = rounded(centre[d], x->dtype), product = test_get(x, h, n, d) * c;
        sum += product - c * c / 2;
        size += fabs(product) + c * c / 2;
    }
    *bound = (D + 2) * U_F32 * size;
    return sum;
}

/* Every label is that of a nearest centre of `before`, up to rounding. */
static void judge_labels(const rival_kmeans *k, const mcsa_tensor *x, const float *before)
{
    for (int h = 0; h < k->H; h++)
        for (int n = 0; n < k->N; n++) {
            double best = -INFINITY, own_bound, best_bound = 0;
            double own = closeness(x, h, n, centre_of(k, before, h, k->label[h * k->N + n]), &own_bound);
            for (int c = 0; c < k->P; c++) {
                double bound, at = closeness(x, h, n, centre_of(k, before, h, c), &bound);
                if (at > best) {
                    best = at;
                    best_bound = bound;
                }
            }
            if (!(own >= best - own_bound - best_bound))
                fail_msg("row %d of head %d: its centre is at %.9g, the nearest at %.9g", n, h, own, best);
        }
}

/* Every centre is the mean of the rows with its label: n FP32 additions and a division; without rows it is `before`. */
static void judge_centres(const rival_kmeans *k, const mcsa_tensor *x, const float *before, test_worst *worst)
{
    for (int h = 0; h < k->H; h++)
        for (int c = 0; c < k->P; c++)
            for (int d = 0; d < k->D; d++) {
                double sum = 0, size = 0;
                int count = 0;
                for (int n = 0; n < k->N; n++) {
                    if (k->label[h * k->N + n] != c) continue;
                    sum += test_get(x, h, n, d);
                    size += fabs(test_get(x, h, n, d));
                    count++;
                }
                double expected = count ? sum / count : (double)centre_of(k, before, h, c)[d];
                test_judge(worst, (double)centre_of(k, k->centre, h, c)[d], expected,
                           count ? (count + 1) * U_F32 * size / count : 0, h, c, d);
            }
}

/* parts hold the rows of each label, ascending. */
static void judge_parts(const rival_kmeans *k)
{
    assert_int_equal(k->parts.P, k->P);
    for (int h = 0; h < k->H; h++) {
        int rows = 0;
        for (int c = 0; c < k->P; c++) {
            int count;
            const int32_t *part = rival_part(&k->parts, h, c, &count);
            for (int i = 0; i < count; i++) {
                assert_int_equal(k->label[h * k->N + part[i]], c);
                if (i > 0) assert_true(part[i] > part[i - 1]);
            }
            rows += count;
        }
        assert_int_equal(rows, k->N);
    }
}

static float *copy_of_centres(const rival_kmeans *k)
{
    size_t bytes = sizeof(float) * (size_t)k->H * (size_t)k->P * (size_t)k->D;
    return memcpy(test_alloc(bytes), k->centre, bytes);
}

static void each_iteration_takes_the_nearest_and_moves_to_the_mean(void **state)
{
    static const int shapes[][4] = { { 2, 500, 16, 12 }, { 3, 129, 64, 7 }, { 1, 301, 33, 250 }, { 1, 64, 1, 5 } };
    (void)state;
    void *kernels = clustered_kernels(1);
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
        for (size_t s = 0; s < TEST_COUNT(shapes); s++) {
            const int *shape = shapes[s];
            test_tensor x = test_tensor_make(shape[0], shape[1], shape[2], test_dtypes[t], TEST_NHD);
            clustered_fill(&x.view, 9, 1, 0.5, s + 1);
            const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
            rival_kmeans k = { 0 };
            test_worst means = { 0 };
            assert_done(rival_kmeans_start(&k, &points, shape[3], 5, &done_error));
            for (int i = 0; i < 4; i++) {
                float *before = copy_of_centres(&k);
                assert_done(rival_kmeans_iterate(&k, &points, 1, NULL, &done_error));
                judge_parts(&k);
                judge_labels(&k, &x.view, before);
                judge_centres(&k, &x.view, before, &means);
                free(before);
            }
            test_report(&means, INFINITY, "%s, %d clusters of %d rows: means", test_dtype_name(test_dtypes[t]), k.P,
                        k.N);
            rival_kmeans_free(&k);
            test_tensor_free(&x);
        }
    rival_kernels_cpu.close(kernels);
}

/* Sum of squared distances to the centres. */
static double inertia(const rival_kmeans *k, const mcsa_tensor *x)
{
    double sum = 0;
    for (int h = 0; h < k->H; h++)
        for (int n = 0; n < k->N; n++)
            for (int d = 0; d < k->D; d++) {
                const float *centre = centre_of(k, k->centre, h, k->label[h * k->N + n]);
                double apart = test_get(x, h, n, d) - (double)centre[d];
                sum += apart * apart;
            }
    return sum;
}

static void many_iterations_are_single_ones_and_never_scatter_more(void **state)
{
    (void)state;
    void *kernels = clustered_kernels(1);
    test_tensor x = test_tensor_make(2, 600, 24, MCSA_F32, TEST_HND);
    clustered_fill(&x.view, 30, 1, 0.7, 3);
    const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
    rival_kmeans once = { 0 }, all = { 0 };
    assert_done(rival_kmeans_start(&once, &points, 20, 8, &done_error));
    assert_done(rival_kmeans_start(&all, &points, 20, 8, &done_error));
    double last = INFINITY;
    for (int i = 0; i < 6; i++) {
        assert_done(rival_kmeans_iterate(&once, &points, 1, NULL, &done_error));
        double now = inertia(&once, &x.view);
        assert_true(now <= last * (1 + 1e-6)); /* FP32 means are within 1e-6 of the best place */
        last = now;
    }
    int done = 0;
    assert_done(rival_kmeans_iterate(&all, &points, 6, &done, &done_error));
    assert_int_equal(done, 6);
    assert_memory_equal(all.centre, once.centre, sizeof(float) * 2 * 20 * 24);
    assert_memory_equal(all.label, once.label, sizeof(int32_t) * 2 * 600);
    rival_kmeans_free(&once);
    rival_kmeans_free(&all);
    test_tensor_free(&x);
    rival_kernels_cpu.close(kernels);
}

static void it_stops_where_nothing_moves(void **state)
{
    (void)state;
    void *kernels = clustered_kernels(1);
    test_tensor x = test_tensor_make(2, 200, 8, MCSA_F32, TEST_HND);
    clustered_fill(&x.view, 4, 1, 0, 4); /* exact copies of 4 rows: settled as soon as the start has found them */
    const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
    rival_kmeans k = { 0 };
    int done = 0;
    assert_done(rival_kmeans_start(&k, &points, 24, 6, &done_error));
    assert_done(rival_kmeans_iterate(&k, &points, 50, &done, &done_error));
    assert_in_range(done, 1, 3);
    assert_true(inertia(&k, &x.view) <= 2 * 200 * 8 * pow(200 * U_F32 * 4, 2));
    rival_kmeans_free(&k);
    test_tensor_free(&x);
    rival_kernels_cpu.close(kernels);
}

static void the_start_is_rows_drawn_with_replacement(void **state)
{
    (void)state;
    void *kernels = clustered_kernels(1);
    test_tensor x = test_tensor_make(2, 400, 4, MCSA_BF16, TEST_SPREAD);
    test_fill_normal(&x.view, 9, 1);
    const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
    rival_kmeans k = { 0 };
    int32_t times[400] = { 0 };
    assert_done(rival_kmeans_start(&k, &points, 400, 7, &done_error));
    for (int c = 0; c < 400; c++) {
        int row = rival_draw_below(7, (uint64_t)c, 400);
        assert_in_range(row, 0, 399);
        times[row]++;
        for (int h = 0; h < 2; h++)
            for (int d = 0; d < 4; d++)
                assert_true((double)centre_of(&k, k.centre, h, c)[d] == test_get(&x.view, h, row, d));
    }
    int missed = 0;
    for (int n = 0; n < 400; n++) missed += times[n] == 0;
    assert_in_range(missed, 147 - 50, 147 + 50); /* 400 / e, whose standard deviation is 6 */
    rival_kmeans_free(&k);
    test_tensor_free(&x);
    rival_kernels_cpu.close(kernels);
}

static void fewer_rows_than_clusters(void **state)
{
    (void)state;
    void *kernels = clustered_kernels(1);
    for (int N = 1; N <= 3; N++) {
        test_tensor x = test_tensor_make(2, N, 16, MCSA_F32, TEST_HND);
        test_fill_normal(&x.view, 10, 1);
        const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
        rival_kmeans k = { 0 };
        test_worst means = { 0 };
        assert_done(rival_kmeans_start(&k, &points, 100, 1, &done_error));
        assert_int_equal(k.P, N);
        float *before = copy_of_centres(&k);
        assert_done(rival_kmeans_iterate(&k, &points, 1, NULL, &done_error));
        judge_parts(&k);
        judge_centres(&k, &x.view, before, &means);
        test_report(&means, INFINITY, "%d rows in 100 clusters", N);
        free(before);
        rival_kmeans_free(&k);
        test_tensor_free(&x);
    }
    rival_kernels_cpu.close(kernels);
}

/* All rows equal: one cluster has them all, the lowest, and nothing is divided by zero. */
static void equal_rows_make_one_cluster(void **state)
{
    (void)state;
    void *kernels = clustered_kernels(1);
    test_tensor x = test_tensor_make(1, 150, 8, MCSA_BF16, TEST_HND);
    for (int n = 0; n < 150; n++)
        for (int d = 0; d < 8; d++) test_set(&x.view, 0, n, d, 1.5 - d);
    const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
    rival_kmeans k = { 0 };
    assert_done(rival_kmeans_start(&k, &points, 6, 2, &done_error));
    assert_done(rival_kmeans_iterate(&k, &points, 50, NULL, &done_error));
    assert_int_equal(rival_part_size(&k.parts, 0, 0), 150);
    for (int c = 0; c < 6; c++)
        for (int d = 0; d < 8; d++) assert_true((double)centre_of(&k, k.centre, 0, c)[d] == 1.5 - d);
    rival_kmeans_free(&k);
    test_tensor_free(&x);
    rival_kernels_cpu.close(kernels);
}

static void a_centre_without_rows_stays_and_large_rows_are_finite(void **state)
{
    (void)state;
    void *kernels = clustered_kernels(1);
    test_tensor x = test_tensor_make(1, 90, 32, MCSA_F16, TEST_HND);
    test_fill_normal(&x.view, 12, 300);
    const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
    rival_kmeans k = { 0 };
    assert_done(rival_kmeans_reserve(&k, &x.view, 3, &done_error));
    for (int d = 0; d < 32; d++) {
        k.centre[d] = -1;
        k.centre[32 + d] = 30000;
        k.centre[64 + d] = 1;
    }
    assert_done(rival_kmeans_iterate(&k, &points, 5, NULL, &done_error));
    assert_int_equal(rival_part_size(&k.parts, 0, 1), 0);
    for (int d = 0; d < 32; d++) {
        assert_true(isfinite(k.centre[d]) && isfinite(k.centre[64 + d]));
        assert_true(k.centre[32 + d] == 30000);
    }
    rival_kmeans_free(&k);
    test_tensor_free(&x);
    rival_kernels_cpu.close(kernels);
}

static void equal_bits_for_any_threads_and_each_time(void **state)
{
    (void)state;
    test_tensor x = test_tensor_make(3, 700, 64, MCSA_BF16, TEST_NHD);
    clustered_fill(&x.view, 25, 1, 1, 13);
    float *first = NULL;
    for (int run = 0; run < 3; run++) {
        void *kernels = clustered_kernels(run == 1 ? 4 : 1);
        const rival_points points = { &rival_kernels_cpu, kernels, &x.view };
        rival_kmeans k = { 0 };
        assert_done(rival_kmeans_start(&k, &points, 31, 3, &done_error));
        assert_done(rival_kmeans_iterate(&k, &points, 10, NULL, &done_error));
        if (run == 0)
            first = copy_of_centres(&k);
        else
            assert_memory_equal(k.centre, first, sizeof(float) * 3 * 31 * 64);
        rival_kmeans_free(&k);
        rival_kernels_cpu.close(kernels);
    }
    free(first);
    test_tensor_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_iteration_takes_the_nearest_and_moves_to_the_mean),
        cmocka_unit_test(many_iterations_are_single_ones_and_never_scatter_more),
        cmocka_unit_test(it_stops_where_nothing_moves),
        cmocka_unit_test(the_start_is_rows_drawn_with_replacement),
        cmocka_unit_test(fewer_rows_than_clusters),
        cmocka_unit_test(equal_rows_make_one_cluster),
        cmocka_unit_test(a_centre_without_rows_stays_and_large_rows_are_finite),
        cmocka_unit_test(equal_bits_for_any_threads_and_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
