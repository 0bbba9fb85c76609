/* test_svg_ear.c - SVG-EAR: its routing against a plain restatement, and that centroids stand in exactly for clusters
 * of identical tokens. */
#include "clustered.h"

#include "rivals/clusters.h"

extern const rival_method rival_svg_ear;

/* The routing of baselines of SVG-EAR in words: sure ranks, then costly clusters while the area taken so far is below
 * what is left of the budget. */
static int64_t restated(int K, const int32_t *rank, const int *size, const int32_t *costly, int budget, int sure,
                        int *taken)
{
    int64_t left = 0, total = 0, routed = 0;
    memset(taken, 0, sizeof *taken * (size_t)K);
    for (int r = 0; r < budget; r++) left += size[rank[r]];
    for (int r = 0; r < sure; r++) {
        taken[rank[r]] = 1;
        left -= size[rank[r]];
        total += size[rank[r]];
    }
    for (int c = 0; c < K; c++) {
        if (taken[costly[c]]) continue;
        if (routed >= left) break;
        routed += size[costly[c]];
        taken[costly[c]] = 1;
    }
    return total + routed;
}

static void shuffle(int32_t *order, int K, uint64_t *seed)
{
    for (int k = 0; k < K; k++) order[k] = k;
    for (int k = K - 1; k > 0; k--) {
        int other = test_below(seed, k + 1);
        int32_t moved = order[k];
        order[k] = order[other];
        order[other] = moved;
    }
}

static void a_row_is_routed_as_restated(void **state)
{
    (void)state;
    enum { MOST = 200 };
    uint64_t seed = 5;
    int32_t rank[MOST], costly[MOST], place[MOST], reach[MOST + 1];
    int size[MOST], taken[MOST];
    for (int trial = 0; trial < 500; trial++) {
        int K = 1 + test_below(&seed, MOST), sure = 1 + test_below(&seed, K), budget = 1 + test_below(&seed, K);
        uint64_t kept[(MOST + 63) / 64] = { 0 };
        shuffle(rank, K, &seed);
        shuffle(costly, K, &seed);
        for (int k = 0; k < K; k++) size[k] = test_below(&seed, 4) ? test_below(&seed, 50) : 0;
        reach[0] = 0;
        for (int r = 0; r < K; r++) {
            place[rank[r]] = r;
            reach[r + 1] = reach[r] + size[rank[r]];
        }
        const rival_route route = { K, reach, rank, place, costly };
        int64_t expected = restated(K, rank, size, costly, budget, sure, taken);
        assert_int_equal(rival_route_keys(&route, budget, sure, NULL), expected);
        assert_int_equal(rival_route_keys(&route, budget, sure, kept), expected);
        for (int k = 0; k < K; k++) assert_int_equal(kept[k / 64] >> (k % 64) & 1, taken[k]);
    }
}

/* Keys and values that are copies of `kinds` tokens: k-means with more clusters than that finds clusters of identical
 * ones. */
static test_call copies(int H, int N, int D, int kinds, mcsa_dtype dtype, double amplitude)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, dtype, TEST_NHD, 60, 1);
    clustered_fill(&c.q.view, 15, amplitude, amplitude / 3, 61);
    uint64_t seed = 62;
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++) {
            uint64_t kind = 100 * (uint64_t)(h + 1) + (uint64_t)test_below(&seed, kinds);
            for (int d = 0; d < D; d++) {
                test_set(&c.k.view, h, n, d, amplitude * test_normal(&kind));
                test_set(&c.v.view, h, n, d, test_normal(&kind));
            }
        }
    return c;
}

/* The most members of a cluster of keys; fails unless all members of each are identical. */
static int purely_copies(const rival_choice *choice, const test_call *c)
{
    int most = 0;
    for (int h = 0; h < c->H; h++)
        for (int k = 0; k < choice->keys.P; k++) {
            int count;
            const int32_t *rows = rival_part(&choice->keys, h, k, &count);
            most = count > most ? count : most;
            for (int i = 1; i < count; i++)
                for (int d = 0; d < c->D; d++)
                    assert_true(test_get(&c->k.view, h, rows[i], d) == test_get(&c->k.view, h, rows[0], d));
        }
    return most;
}

/* Clusters of non-empty keys that a head's first row leaves to the tail. */
static int left_to_the_tail(const rival_choice *choice)
{
    int left = 0;
    for (int k = 0; k < choice->map.K; k++) left += !rival_map_has(&choice->map, 0, 0, k) && choice->tail.weight[k] > 0;
    return left;
}

/* The strong test of a tail: with identical tokens in each cluster the centroids stand in exactly, whatever is kept.
 * Means of n equal numbers are off by n units, which moves scores as D + n roundings of a product do; the tail's mean
 * values move the output by n units too. */
static void identical_tokens_in_a_cluster_give_dense_attention(void **state)
{
    (void)state;
    static const double densities[] = { 0.02, 0.1, 0.3 };
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        clustered_run run = clustered_open(&rival_svg_ear, densities[s], 1);
        test_call c = copies(2, 1200, 32, 6, MCSA_F32, 1);
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
        int most = purely_copies(choice, &c), left = left_to_the_tail(choice);
        assert_true(left > 0);
        clustered_attend(&run, choice, &x);
        test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
        test_reference r = test_reference_make(&c, (double)x.scale, NULL, &rounding);
        double most_v = test_largest(&c.v.view);
        for (int row = 0; row < c.H * c.N; row++) { /* out_bound holds D u per product; most u more for the means */
            r.out_bound[row] *= (double)(c.D + most) / c.D;
            r.out_bound[row] += most * U_F32 * most_v;
        }
        test_worst worst = { 0 };
        test_judge_out(&worst, &c, &r, &rounding);
        test_report(&worst, 1e-5, "density %.2f, %d clusters in the tail, up to %d copies", densities[s], left, most);
        test_reference_free(&r);
        test_call_free(&c);
        clustered_close(&run);
    }
}

/* The tail holds true means and sizes, and its weights are all the keys. */
static void the_tail_is_means_and_sizes(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_svg_ear, 0.1, 1);
    test_call c = test_call_make((const int[]){ 2, 900, 900, 16 }, MCSA_BF16, TEST_SPREAD, 70, 1);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    test_worst worst = { 0 };
    for (int h = 0; h < 2; h++) {
        double keys = 0;
        for (int k = 0; k < choice->keys.P; k++) {
            int count;
            const int32_t *rows = rival_part(&choice->keys, h, k, &count);
            int64_t at = (int64_t)h * choice->keys.P + k;
            assert_true(choice->tail.weight[at] == (float)count);
            keys += count;
            for (int d = 0; count && d < 16; d++) {
                double sum[2] = { 0 }, size[2] = { 0 };
                const mcsa_tensor *of[2] = { &c.k.view, &c.v.view };
                const float *mean[2] = { choice->tail.key, choice->tail.value };
                for (int t = 0; t < 2; t++) {
                    for (int i = 0; i < count; i++) {
                        sum[t] += test_get(of[t], h, rows[i], d);
                        size[t] += fabs(test_get(of[t], h, rows[i], d));
                    }
                    test_judge(&worst, (double)mean[t][at * 16 + d], sum[t] / count,
                               (count + 1) * U_F32 * size[t] / count, h, k, d);
                }
            }
        }
        assert_true(keys == 900);
    }
    assert_null(choice->tail.slope);
    test_report(&worst, INFINITY, "mean keys and values");
    test_call_free(&c);
    clustered_close(&run);
}

/* A call once more: its shares, and its clusters by the error of each pair that leaving them out would save. */
typedef struct routes {
    const rival_expected *e;
    const rival_choice *choice;
    int32_t *costly; /* [H, Q, K] */
    int *size;       /* [H, K] */
} routes;

/* Keys of a row, and which clusters they are of: 10 % of the ranks are sure, the budget is 20 % or what at most p
 * stands before; below x = 0 p is 0 and both shares shrink. */
static int64_t route_at(const routes *r, int row, double x, int *taken)
{
    int K = r->e->K, whole = K / 10, twice = K / 5, budget = 0;
    int sure = x < 0 ? rival_row_budget(row, K, (1 + x) * whole / K) : whole;
    int least = x < 0 ? rival_row_budget(row, K, (1 + x) * twice / K) : twice;
    double before = 0;
    while (budget < K && (before <= fmax(x, 0) || budget < least)) before += (double)r->e->share[row * K + budget++];
    return restated(K, r->e->rank + row * K, r->size + row / r->e->Q * K, r->costly + row * K, budget, sure, taken);
}

static double routed_pairs(const void *user, double x)
{
    const routes *r = user;
    double pairs = 0;
    int *taken = test_alloc(sizeof *taken * (size_t)r->e->K);
    for (int row = 0; row < r->e->H * r->e->Q; row++) {
        int size = rival_part_size(&r->choice->queries, row / r->e->Q, row % r->e->Q);
        pairs += (double)((size + 63) / 64 * 64) * (double)route_at(r, row, x, taken);
    }
    free(taken);
    return pairs;
}

/* Ranks by cost per pair (gamma = 1).  Returns the rows in which the errors alone would have ranked otherwise. */
static int rank_costs(routes *r, const float *error)
{
    int K = r->e->K, otherwise = 0;
    float *cost = test_alloc(sizeof *cost * (size_t)K);
    int32_t *by_error = test_alloc(sizeof *by_error * (size_t)K);
    for (int row = 0; row < r->e->H * r->e->Q; row++) {
        for (int k = 0; k < K; k++) {
            int size = r->size[row / r->e->Q * K + k];
            cost[k] = size ? error[row * K + k] - logf((float)size) : -INFINITY;
        }
        rival_rank(cost, K, r->costly + row * K);
        rival_rank(error + row * K, K, by_error);
        otherwise += memcmp(by_error, r->costly + row * K, sizeof *by_error * (size_t)K / 4) != 0;
    }
    free(cost);
    free(by_error);
    return otherwise;
}

/* All decisions of a call restated from its own shares and errors, so without tolerance. */
static void judge_routes(double density)
{
    clustered_run run = clustered_open(&rival_svg_ear, density, 1);
    test_call c = test_call_make((const int[]){ 2, 2600, 2600, 32 }, MCSA_BF16, TEST_NHD, 80, 1);
    clustered_fill(&c.q.view, 20, 1.5, 0.5, 81);
    clustered_fill(&c.k.view, 40, 1.5, 0.7, 82);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    rival_clusters clusters;
    rival_expected e = { 0 };
    const rival_cluster_pair *pair = NULL;
    assert_done(rival_clusters_open(&clusters, &run.setup, &done_error));
    assert_done(rival_clusters_follow(&clusters, &(rival_call){ .x = &x }, &pair, &done_error));
    assert_done(rival_expected_rank(&e, pair, x.scale, 1, &done_error));
    size_t pairs = (size_t)e.H * (size_t)e.Q * (size_t)e.K;
    float *error = test_alloc(sizeof *error * pairs);
    routes r = { &e, choice, test_alloc(sizeof(int32_t) * pairs), test_alloc(sizeof(int) * (size_t)(e.H * e.K)) };
    for (int i = 0; i < e.H * e.K; i++) r.size[i] = rival_part_size(&choice->keys, i / e.K, i % e.K);
    assert_done(rival_kernels_cpu.error(run.setup.backend, &x, e.Q, pair->queries.centre, &pair->keys.parts,
                                        choice->tail.key, choice->tail.value, error, &done_error));
    assert_true(rank_costs(&r, error) > 0);
    double low, high, target = density * 2 * 2600 * 2600;
    clustered_bracket(routed_pairs, &r, target, &low, &high);
    double knob = target - routed_pairs(&r, low) <= routed_pairs(&r, high) - target ? low : high;
    int *taken = test_alloc(sizeof *taken * (size_t)e.K);
    for (int row = 0; row < e.H * e.Q; row++) {
        route_at(&r, row, knob, taken);
        for (int k = 0; k < e.K; k++) assert_int_equal(rival_map_has(&choice->map, row / e.Q, row % e.Q, k), taken[k]);
    }
    double executed = clustered_density(choice);
    print_message("  density %.2f: executed %.4f at x = %.4f\n", density, executed, knob);
    assert_true(fabs(executed - density) < 0.005);
    free(taken);
    free(error);
    free(r.costly);
    free(r.size);
    rival_expected_free(&e);
    rival_clusters_close(&clusters);
    test_call_free(&c);
    clustered_close(&run);
}

static void kept_clusters_are_the_costliest_of_one_budget(void **state)
{
    (void)state;
    judge_routes(0.05);
    judge_routes(0.10);
    judge_routes(0.25);
    judge_routes(0.5);
}

static void large_scores_stay_finite(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_svg_ear, 0.1, 1);
    test_call c = copies(2, 700, 64, 50, MCSA_BF16, 8);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    clustered_attend(&run, choice, &x);
    double largest = 0;
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < 700; n++) {
            double dot = 0;
            for (int d = 0; d < 64; d++) dot += test_get(&c.q.view, h, n, d) * test_get(&c.k.view, h, n, d);
            largest = fmax(largest, fabs(dot) / 8);
            assert_true(isfinite(run.lse[h * 700 + n]));
            for (int d = 0; d < 64; d++) assert_true(fabs(test_get(&c.out.view, h, n, d)) < 10);
        }
    assert_true(largest > 200);
    print_message("  scores of %.0f\n", largest);
    test_call_free(&c);
    clustered_close(&run);
}

static void a_density_of_one_leaves_no_tail(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_svg_ear, 1, 1);
    test_call c = copies(1, 400, 16, 30, MCSA_F32, 1);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    for (int q = 0; q < choice->map.Q; q++)
        for (int k = 0; k < choice->map.K; k++)
            assert_true(rival_map_has(&choice->map, 0, q, k) || choice->tail.weight[k] == 0);
    test_call_free(&c);
    clustered_close(&run);
}

static void equal_choices_for_any_threads(void **state)
{
    (void)state;
    test_call c = copies(3, 800, 32, 60, MCSA_BF16, 1);
    mcsa_qkv x = clustered_x(&c);
    clustered_run one = clustered_open(&rival_svg_ear, 0.15, 1), four = clustered_open(&rival_svg_ear, 0.15, 4);
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
        cmocka_unit_test(a_row_is_routed_as_restated),
        cmocka_unit_test(identical_tokens_in_a_cluster_give_dense_attention),
        cmocka_unit_test(the_tail_is_means_and_sizes),
        cmocka_unit_test(kept_clusters_are_the_costliest_of_one_budget),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(a_density_of_one_leaves_no_tail),
        cmocka_unit_test(equal_choices_for_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
