/* test_grouped.c - the grid of table 4: groups by k-means and by Fast PDDP with blocks and with tokens, the padding
 * that is part of their density, and reuse until the next anchor. */
#include "clustered.h"

#include "rivals/draw.h"
#include "rivals/kmeans.h"

extern const rival_method rival_kmeans_token, rival_kmeans_block, rival_pddp_block;

static const rival_method *const methods[] = { &rival_kmeans_token, &rival_kmeans_block, &rival_pddp_block };

enum { H = 2, N = 1900, D = 32 };

static mcsa_run *dense_run(double density)
{
    mcsa_config config = { .steps = 6, .layers = 2, .branches = 2, .density = (float)density, .schedule = "list:1,4" };
    config.sharing = MCSA_BRANCHES_APART;
    return test_run(&config);
}

static test_call make_call(uint64_t seed)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, seed, 1);
    clustered_fill(&c.q.view, 25, 1, 0.5, seed);
    return c;
}

/* Dense attention of the call, and what the method learns from it. */
static void anchor_at(clustered_run *run, mcsa_site at, const test_call *c)
{
    mcsa_qkv x = clustered_x(c);
    run->lse = realloc(run->lse, sizeof *run->lse * H * N);
    assert_non_null(run->lse);
    assert_int_equal(mcsa_attend_dense(run->setup.dense, &c->q.view, &c->k.view, &c->v.view, &c->out.view, run->lse),
                     MCSA_OK);
    clustered_observe(run, at, &x, 1);
}

static void the_density_includes_padding(void **state)
{
    (void)state;
    static const double densities[] = { 0.10, 0.15, 0.25 };
    for (size_t m = 0; m < TEST_COUNT(methods); m++)
        for (size_t s = 0; s < TEST_COUNT(densities); s++) {
            mcsa_run *dense = dense_run(densities[s]);
            clustered_run run = clustered_open_beside(dense, methods[m], densities[s], 1);
            test_call c = make_call(7);
            mcsa_qkv x = clustered_x(&c);
            anchor_at(&run, (mcsa_site){ 1, 0, 0 }, &c);
            const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 2, 0, 0 }, &x);
            rival_pairs pairs = rival_map_pairs(&choice->map, &choice->queries, &choice->keys);
            double executed = clustered_density(choice);
            print_message("  %-13s density %.2f: executed %.4f, alignment %.3f\n", methods[m]->name, densities[s],
                          executed, pairs.executed / pairs.nominal);
            assert_true(fabs(executed - densities[s]) < 0.005);
            clustered_close(&run);
            mcsa_run_free(dense);
            test_call_free(&c);
        }
}

/* The groups are those of k-means by hand, one for 128 queries on average, and every group keeps as many tokens. */
static void groups_are_those_of_kmeans(void **state)
{
    (void)state;
    mcsa_run *dense = dense_run(0.15);
    clustered_run run = clustered_open_beside(dense, &rival_kmeans_token, 0.15, 1);
    test_call c = make_call(8);
    mcsa_qkv x = clustered_x(&c);
    anchor_at(&run, (mcsa_site){ 1, 1, 1 }, &c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 3, 1, 1 }, &x);
    const rival_points points = { &rival_kernels_cpu, run.setup.backend, x.q };
    rival_kmeans k = { 0 };
    assert_done(rival_kmeans_start(&k, &points, 15, rival_draw(run.setup.seed, 3), &done_error)); /* site 1 x 2 + 1 */
    assert_done(rival_kmeans_iterate(&k, &points, 50, NULL, &done_error));
    assert_int_equal(choice->queries.P, 15);
    assert_memory_equal(choice->queries.order, k.parts.order, sizeof(int32_t) * H * N);
    assert_memory_equal(choice->queries.first, k.parts.first, sizeof(int32_t) * H * 16);
    int kept = 0;
    for (int row = 0; row < H * 15; row++) {
        int here = 0;
        for (int j = 0; j < N; j++) here += rival_map_has(&choice->map, row / 15, row % 15, j);
        if (row == 0) kept = here;
        assert_int_equal(here, kept);
    }
    assert_in_range(kept, 1, (int)(0.15 * N) - 1); /* fewer than tiles of equal size would keep */
    rival_kmeans_free(&k);
    clustered_close(&run);
    mcsa_run_free(dense);
    test_call_free(&c);
}

/* Attention of a row to a key, from the run's own row sums, in double. */
static double attention(const test_call *c, const float *lse, int h, int i, int j)
{
    double dot = 0;
    for (int d = 0; d < D; d++) dot += test_get(&c->q.view, h, i, d) * test_get(&c->k.view, h, j, d);
    return exp(dot / sqrt(D) - (double)lse[h * N + i]);
}

/* No kept part of the keys has less exact mass than one left out, up to the rounding of FP32 sums over a group: a
 * factor of 2 (ds + n u), ds = 16 D u for scores of at most 16. */
static void kept_parts_have_the_largest_mass(void **state)
{
    (void)state;
    for (size_t m = 0; m < TEST_COUNT(methods); m++) {
        mcsa_run *dense = dense_run(0.15);
        clustered_run run = clustered_open_beside(dense, methods[m], 0.15, 1);
        test_call c = make_call(9);
        mcsa_qkv x = clustered_x(&c);
        anchor_at(&run, (mcsa_site){ 1, 0, 0 }, &c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 2, 0, 0 }, &x);
        for (int q = 0; q < choice->queries.P; q += 5) {
            int count, h = q / 5 % H;
            const int32_t *rows = rival_part(&choice->queries, h, q, &count);
            double lightest = INFINITY, heaviest = 0;
            for (int k = 0; k < choice->keys.P; k++) {
                int keys;
                const int32_t *key = rival_part(&choice->keys, h, k, &keys);
                double mass = 0;
                for (int i = 0; i < count; i++)
                    for (int j = 0; j < keys; j++) mass += attention(&c, run.lse, h, rows[i], key[j]);
                if (rival_map_has(&choice->map, h, q, k))
                    lightest = fmin(lightest, mass);
                else
                    heaviest = fmax(heaviest, mass);
            }
            assert_true(count == 0 || lightest >= heaviest * (1 - 2 * (16 * D + 64.0 * count) * U_F32));
            assert_true(count == 0 || heaviest > 0);
        }
        clustered_close(&run);
        mcsa_run_free(dense);
        test_call_free(&c);
    }
}

/* Later calls of the site, with whatever q and k, get the choice of the last anchor; other sites have their own. */
static void choices_last_until_the_next_anchor(void **state)
{
    (void)state;
    for (size_t m = 0; m < TEST_COUNT(methods); m++) {
        mcsa_run *dense = dense_run(0.15);
        clustered_run run = clustered_open_beside(dense, methods[m], 0.15, 1);
        clustered_run other = clustered_open_beside(dense, methods[m], 0.15, 1);
        test_call first = make_call(11), second = make_call(12);
        mcsa_qkv x = clustered_x(&second);
        anchor_at(&run, (mcsa_site){ 1, 0, 0 }, &first);
        anchor_at(&run, (mcsa_site){ 1, 0, 1 }, &second);
        anchor_at(&other, (mcsa_site){ 1, 0, 0 }, &first);
        assert_true(clustered_same(clustered_choose(&run, (mcsa_site){ 3, 0, 0 }, &x),
                                   clustered_choose(&other, (mcsa_site){ 2, 0, 0 }, &x)));
        assert_false(clustered_same(clustered_choose(&run, (mcsa_site){ 3, 0, 1 }, &x),
                                    clustered_choose(&other, (mcsa_site){ 2, 0, 0 }, &x)));
        const rival_choice *none;
        mcsa_error error;
        const rival_call past = { .at = { 5, 0, 0 }, .x = &x }; /* the anchor at step 4 was not run */
        assert_int_equal(run.method->choose(run.state, &past, &none, &error), MCSA_EINVAL);
        anchor_at(&run, (mcsa_site){ 4, 0, 0 }, &second);
        assert_false(clustered_same(clustered_choose(&run, (mcsa_site){ 5, 0, 0 }, &x),
                                    clustered_choose(&other, (mcsa_site){ 2, 0, 0 }, &x)));
        clustered_close(&run);
        clustered_close(&other);
        mcsa_run_free(dense);
        test_call_free(&first);
        test_call_free(&second);
    }
}

static void a_density_of_one_is_dense(void **state)
{
    (void)state;
    for (size_t m = 0; m < TEST_COUNT(methods); m++) {
        mcsa_run *dense = dense_run(1);
        clustered_run run = clustered_open_beside(dense, methods[m], 1, 1);
        test_call c = make_call(13);
        mcsa_qkv x = clustered_x(&c);
        anchor_at(&run, (mcsa_site){ 1, 0, 0 }, &c);
        test_fill_normal(&c.out.view, 1, 1);
        clustered_attend(&run, clustered_choose(&run, (mcsa_site){ 2, 0, 0 }, &x), &x);
        test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
        test_reference r = test_reference_make(&c, 1 / sqrt(D), NULL, &rounding);
        test_worst worst = { 0 };
        test_judge_out(&worst, &c, &r, &rounding);
        test_report(&worst, test_ceiling(MCSA_F32), "%s keeping all", methods[m]->name);
        test_reference_free(&r);
        clustered_close(&run);
        mcsa_run_free(dense);
        test_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_density_includes_padding),     cmocka_unit_test(groups_are_those_of_kmeans),
        cmocka_unit_test(kept_parts_have_the_largest_mass), cmocka_unit_test(choices_last_until_the_next_anchor),
        cmocka_unit_test(a_density_of_one_is_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
