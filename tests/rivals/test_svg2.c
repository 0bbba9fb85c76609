/* test_svg2.c - SVG2: the attention that centroids expect, the top-p of it, the density asked, and how its clusters
 * follow the run. */
#include "clustered.h"

#include "rivals/clusters.h"

extern const rival_method rival_svg2;

static test_call clustered_call(int H, int N, int D, uint64_t seed)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, seed, 1);
    clustered_fill(&c.q.view, 20, 1, 0.5, seed);
    clustered_fill(&c.k.view, 40, 1, 0.5, seed + 1);
    return c;
}

/* The clusters of a cold call at `seed` of the setup, as the method makes them. */
static const rival_cluster_pair *cold_pair(rival_clusters *clusters, const clustered_run *run, const mcsa_qkv *x)
{
    const rival_cluster_pair *pair = NULL;
    const rival_call call = { .x = x };
    assert_done(rival_clusters_open(clusters, &run->setup, &done_error));
    assert_done(rival_clusters_follow(clusters, &call, &pair, &done_error));
    return pair;
}

/* Score of two centroids in double, and how far FP32 sums may be from it. */
static double score_of(const rival_cluster_pair *pair, int h, int q, int k, double scale, double *bound)
{
    int D = pair->keys.D;
    const float *a = pair->queries.centre + ((int64_t)h * pair->queries.P + q) * D;
    const float *b = pair->keys.centre + ((int64_t)h * pair->keys.P + k) * D;
    double sum = 0, size = 0;
    for (int d = 0; d < D; d++) {
        sum += (double)a[d] * (double)b[d];
        size += fabs((double)a[d] * (double)b[d]);
    }
    *bound = scale * size * (D + 2) * U_F32;
    return scale * sum;
}

/* rank is a permutation by descending share, share is n exp(score) over its sum within the bound that moved scores and
 * two roundings of exp, its product and the quotient leave, and reach adds up true sizes. */
static void expected_attention_is_that_of_centroids(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_svg2, 0.2, 1);
    test_call c = clustered_call(2, 1300, 24, 3);
    mcsa_qkv x = clustered_x(&c);
    rival_clusters clusters;
    rival_expected e = { 0 };
    const rival_cluster_pair *pair = cold_pair(&clusters, &run, &x);
    assert_done(rival_expected_rank(&e, pair, x.scale, 1, &done_error));
    assert_int_equal(e.Q, rival_query_clusters(1300));
    assert_int_equal(e.K, rival_key_clusters(1300));
    double *share = test_alloc(sizeof *share * (size_t)e.K);
    test_worst worst = { 0 };
    for (int h = 0; h < e.H; h++)
        for (int q = 0; q < e.Q; q++) {
            int64_t row = (int64_t)h * e.Q + q;
            const int32_t *rank = e.rank + row * e.K, *reach = e.reach + row * (e.K + 1);
            double sum = 0, moved = 0, score_bound;
            for (int k = 0; k < e.K; k++) {
                share[k] = rival_part_size(&pair->keys.parts, h, k) *
                           exp(score_of(pair, h, q, k, (double)x.scale, &score_bound));
                sum += share[k];
                moved = fmax(moved, score_bound);
            }
            for (int r = 0; r < e.K; r++) {
                double expected = share[rank[r]] / sum;
                test_judge(&worst, (double)e.share[row * e.K + r], expected,
                           expected * (expm1(2 * moved) + 8 * U_F32 + U_EXP2), h, q, r);
                assert_int_equal(reach[r + 1] - reach[r], rival_part_size(&pair->keys.parts, h, rank[r]));
                if (r > 0) assert_true(e.share[row * e.K + r] <= e.share[row * e.K + r - 1]);
            }
            assert_int_equal(reach[e.K], 1300);
        }
    test_report(&worst, INFINITY, "shares of %d x %d clusters", e.Q, e.K);
    free(share);
    rival_expected_free(&e);
    rival_clusters_close(&clusters);
    test_call_free(&c);
    clustered_close(&run);
}

/* The shares of a call once more, and the sizes of its clusters of queries. */
typedef struct restated {
    const rival_expected *e;
    const rival_partition *queries;
} restated;

/* Ranks that a row keeps: those with at most p before them, and at least 10 %; below x = 0 p is 0 and the 10 % shrink.
 */
static int kept_at(const restated *r, int row, double x)
{
    int K = r->e->K, whole = K / 10, kept = 0;
    int least = x < 0 ? rival_row_budget(row, K, (1 + x) * whole / K) : whole;
    double before = 0;
    while (kept < K && (before <= fmax(x, 0) || kept < least)) before += (double)r->e->share[row * K + kept++];
    return kept;
}

static double pairs_at(const void *user, double x)
{
    const restated *r = user;
    double pairs = 0;
    for (int row = 0; row < r->e->H * r->e->Q; row++) {
        int size = rival_part_size(r->queries, row / r->e->Q, row % r->e->Q);
        pairs += (double)((size + 63) / 64 * 64) * r->e->reach[row * (r->e->K + 1) + kept_at(r, row, x)];
    }
    return pairs;
}

/* One knob serves all rows, and it is the one whose executed pairs are nearest to the density.  The shares are the
 * method's own floats, so there is no tolerance. */
static void kept_clusters_are_the_top_p_of_one_p(void **state)
{
    (void)state;
    static const double densities[] = { 0.05, 0.10, 0.15, 0.25, 0.5 };
    int by_floor = 0;
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        clustered_run run = clustered_open(&rival_svg2, densities[s], 1);
        test_call c = clustered_call(3, 3000, 32, 5);
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
        rival_clusters clusters;
        rival_expected e = { 0 };
        const rival_cluster_pair *pair = cold_pair(&clusters, &run, &x);
        assert_done(rival_expected_rank(&e, pair, x.scale, 1, &done_error));
        restated r = { &e, &choice->queries };
        double low, high, target = densities[s] * 3 * 3000 * 3000;
        clustered_bracket(pairs_at, &r, target, &low, &high);
        double knob = target - pairs_at(&r, low) <= pairs_at(&r, high) - target ? low : high;
        for (int row = 0; row < e.H * e.Q; row++) {
            int kept = kept_at(&r, row, knob);
            for (int i = 0; i < e.K; i++)
                assert_int_equal(rival_map_has(&choice->map, row / e.Q, row % e.Q, e.rank[row * e.K + i]), i < kept);
        }
        double executed = clustered_density(choice);
        print_message("  density %.2f: executed %.4f at x = %.4f\n", densities[s], executed, knob);
        assert_true(fabs(executed - densities[s]) < 0.005);
        by_floor += knob < 0;
        rival_expected_free(&e);
        rival_clusters_close(&clusters);
        test_call_free(&c);
        clustered_close(&run);
    }
    assert_in_range(by_floor, 1, TEST_COUNT(densities) - 1); /* both ends of the knob were tried */
}

/* The floor under p = 0 gives way where it would exceed the density. */
static void the_floor_gives_way_to_the_density(void **state)
{
    (void)state;
    for (int row = 0; row < 50; row++) {
        assert_int_equal(rival_least_ranks(row, 128, 0.10, 0.3), 12);
        assert_int_equal(rival_least_ranks(row, 128, 0.10, 0), 12);
        assert_int_equal(rival_least_ranks(row, 128, 0.10, -1), 1);
        assert_in_range(rival_least_ranks(row, 128, 0.10, -0.4), 7, 8);
    }
    int sum = 0;
    for (int row = 0; row < 50; row++) sum += rival_least_ranks(row, 128, 0.10, -0.4);
    assert_int_equal(sum, 360); /* 50 rows of 0.6 x 12 */
}

static void a_density_of_one_keeps_every_cluster(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_svg2, 1, 1);
    test_call c = clustered_call(2, 500, 16, 6);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    for (int h = 0; h < 2; h++)
        for (int q = 0; q < choice->map.Q; q++)
            for (int k = 0; k < choice->map.K; k++) assert_true(rival_map_has(&choice->map, h, q, k));
    test_call_free(&c);
    clustered_close(&run);
}

/* Tiny and degenerate calls: every query attends to something, and the output is finite. */
static void few_and_equal_tokens(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 63, 64, 65, 129 };
    for (size_t s = 0; s < TEST_COUNT(sizes); s++)
        for (int equal = 0; equal < 2; equal++) {
            clustered_run run = clustered_open(&rival_svg2, 0.1, 1);
            test_call c = test_call_make((const int[]){ 2, sizes[s], sizes[s], 16 }, MCSA_BF16, TEST_HND, s, 300);
            for (int64_t i = 0; equal && i < 2 * sizes[s] * 16; i++)
                test_set(&c.q.view, i / 16 / sizes[s], i / 16 % sizes[s], i % 16, 2),
                    test_set(&c.k.view, i / 16 / sizes[s], i / 16 % sizes[s], i % 16, -1);
            mcsa_qkv x = clustered_x(&c);
            const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 1, 1 }, &x);
            clustered_attend(&run, choice, &x);
            for (int h = 0; h < 2; h++)
                for (int n = 0; n < sizes[s]; n++) {
                    assert_true(isfinite(run.lse[h * sizes[s] + n]));
                    for (int d = 0; d < 16; d++) assert_true(isfinite(test_get(&c.out.view, h, n, d)));
                }
            assert_int_equal(test_damage(&c.out), 0);
            test_call_free(&c);
            clustered_close(&run);
        }
}

/* 50 iterations at the end of the warm-up, 2 at each sparse call, apart for each layer and branch, anew when a run
 * starts over. */
static void clusters_follow_their_layer_and_branch(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_svg2, 0.15, 1);
    test_call c[3];
    mcsa_qkv x[3];
    for (int i = 0; i < 3; i++) {
        c[i] = clustered_call(1, 1500, 16, 20 + (uint64_t)i);
        clustered_fill(&c[i].q.view, 300, 1, 1, 20 + (uint64_t)i); /* too many places to be found at once */
        clustered_fill(&c[i].k.view, 300, 1, 1, 40 + (uint64_t)i);
        x[i] = clustered_x(&c[i]);
    }
    rival_kmeans by_hand = { 0 };
    rival_clusters cold = { 0 };
    const rival_cluster_pair *pair = cold_pair(&cold, &run, &x[0]);
    assert_done(rival_kmeans_reserve(&by_hand, x[0].q, pair->queries.P, &done_error));
    memcpy(by_hand.centre, pair->queries.centre, sizeof(float) * (size_t)pair->queries.P * 16);
    const rival_points next = { &rival_kernels_cpu, run.setup.backend, x[1].q };
    assert_done(rival_kmeans_iterate(&by_hand, &next, 2, NULL, &done_error));

    clustered_observe(&run, (mcsa_site){ 2, 0, 0 }, &x[2], 0); /* dense, but not the last dense step */
    clustered_observe(&run, (mcsa_site){ 3, 0, 0 }, &x[0], 1);
    clustered_choose(&run, (mcsa_site){ 4, 0, 1 }, &x[2]); /* of another branch, which has no warm-up */
    clustered_choose(&run, (mcsa_site){ 4, 1, 0 }, &x[2]);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 4, 0, 0 }, &x[1]);
    assert_memory_equal(choice->queries.order, by_hand.parts.order, sizeof(int32_t) * 1500);

    clustered_run fresh = clustered_open(&rival_svg2, 0.15, 1);
    const rival_choice *expected = clustered_choose(&fresh, (mcsa_site){ 1, 0, 0 }, &x[1]);
    choice = clustered_choose(&run, (mcsa_site){ 5, 0, 0 }, &x[1]);
    assert_false(clustered_same(choice, expected));
    choice = clustered_choose(&run, (mcsa_site){ 1, 0, 0 }, &x[1]); /* a step before: another run */
    assert_true(clustered_same(choice, expected));

    clustered_close(&fresh);
    rival_clusters_close(&cold);
    rival_kmeans_free(&by_hand);
    for (int i = 0; i < 3; i++) test_call_free(&c[i]);
    clustered_close(&run);
}

static void equal_choices_for_any_threads(void **state)
{
    (void)state;
    test_call c = clustered_call(3, 1000, 32, 30);
    mcsa_qkv x = clustered_x(&c);
    clustered_run one = clustered_open(&rival_svg2, 0.15, 1), four = clustered_open(&rival_svg2, 0.15, 4);
    for (int step = 0; step < 2; step++)
        assert_true(clustered_same(clustered_choose(&one, (mcsa_site){ step, 0, 0 }, &x),
                                   clustered_choose(&four, (mcsa_site){ step, 0, 0 }, &x)));
    clustered_close(&one);
    clustered_close(&four);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expected_attention_is_that_of_centroids),
        cmocka_unit_test(kept_clusters_are_the_top_p_of_one_p),
        cmocka_unit_test(the_floor_gives_way_to_the_density),
        cmocka_unit_test(a_density_of_one_keeps_every_cluster),
        cmocka_unit_test(few_and_equal_tokens),
        cmocka_unit_test(clusters_follow_their_layer_and_branch),
        cmocka_unit_test(equal_choices_for_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
