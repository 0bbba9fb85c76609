/* test_advice.c - the recommendation on made-up drifts whose best schedule is known. */
#include "analysis/advice.h"
#include "test.h"

enum { STEPS = 24, PAIRS = STEPS * (STEPS - 1) / 2 };

/* Drift that grows by `slope` a step, at one density, for anchors at every step. */
static void fill(analysis *a, const double *slope, int densities)
{
    *a = (analysis){ .densities = densities, .pairs = 0 };
    a->pair = test_alloc(PAIRS * sizeof *a->pair);
    for (int anchor = 0; anchor < STEPS; anchor++)
        for (int step = anchor + 1; step < STEPS; step++) {
            analysis_pair *p = &a->pair[a->pairs++];
            p->anchor = anchor;
            p->step = step;
            for (int s = 0; s < densities; s++)
                p->mc_sparse[s] = (analysis_tally){ .calls = 1, .rel_l2 = slope[s] * (step - anchor) };
        }
    for (int s = 0; s < densities; s++) {
        a->density[s] = 0.1 * (s + 1);
        a->selector[ANALYSIS_PDDP_64][s].psnr_db = 33;
        a->selector[ANALYSIS_PDDP_TOKENS][s].psnr_db = 32;
        a->selector[ANALYSIS_PDDP_256][s].psnr_db = 30;
    }
}

static analysis_advice advise(const analysis *a, double tolerance, double selection_cost, int group_fixed)
{
    const analysis_wish wish = { STEPS, tolerance, selection_cost, group_fixed };
    analysis_advice advice;
    mcsa_error error = { "" };
    if (analysis_advise(&advice, a, &wish, &error) != MCSA_OK) fail_msg("%s", error.text);
    return advice;
}

static void anchors_follow_where_the_drift_passes_the_tolerance(void **state)
{
    (void)state;
    analysis a;
    fill(&a, (double[]){ 0.03 }, 1);
    analysis_advice advice = advise(&a, 0.1, 0, 0);
    for (int t = 0; t < STEPS; t++) /* three steps of 0.03 are within 0.1, the fourth is not */
        assert_int_equal(advice.actions[t], t % 4 ? MCSA_REUSE : MCSA_ANCHOR);
    const analysis_outlook *o = &advice.outlook[0];
    assert_int_equal(o->anchors, 6);
    assert_int_equal(o->reuse, 18);
    assert_true(fabs(o->mean - 0.06) < 1e-12);
    assert_true(fabs(o->worst - 0.09) < 1e-12);
    assert_true(fabs(o->cost - (6 * 1.1 + 18 * 0.1) / 24) < 1e-12);
    assert_true(advice.worthwhile);
    assert_true(fabs(advise(&a, 0.1, 0.5, 0).outlook[0].cost - (6 * 1.6 + 18 * 0.1) / 24) < 1e-12);
    free(a.pair);
}

/* A larger tolerance never costs more. */
static void tolerance_buys_cost(void **state)
{
    (void)state;
    analysis a;
    double before = INFINITY;
    fill(&a, (double[]){ 0.03 }, 1);
    for (double tolerance = 0.02; tolerance < 1; tolerance *= 1.5) {
        double cost = advise(&a, tolerance, 0, 0).outlook[0].cost;
        assert_true(cost <= before + 1e-12);
        before = cost;
    }
    assert_true(before < 0.2);
    free(a.pair);
}

static void the_cheapest_density_is_taken(void **state)
{
    (void)state;
    analysis a;
    fill(&a, (double[]){ 0.09, 0.02, 0.019 }, 3);
    /* 0.1: every second step an anchor; 0.2: every sixth; 0.3: no more seldom than that */
    analysis_advice advice = advise(&a, 0.101, 0, 0);
    assert_int_equal(advice.density, 1);
    assert_int_equal(advice.outlook[0].anchors, 12);
    assert_int_equal(advice.outlook[1].anchors, 4);
    assert_int_equal(advice.outlook[2].anchors, 4);
    for (int t = 0; t < STEPS; t++) assert_int_equal(advice.actions[t], t % 6 ? MCSA_REUSE : MCSA_ANCHOR);
    free(a.pair);
}

static void nothing_is_recommended_that_costs_as_much_as_dense(void **state)
{
    (void)state;
    analysis a;
    fill(&a, (double[]){ 0.2, 0.11 }, 2);
    analysis_advice advice = advise(&a, 0.1, 0, 0);
    assert_false(advice.worthwhile);
    assert_int_equal(advice.outlook[0].reuse, 0);
    /* Anchors in a row serve nothing: all but the last step are plainly dense. */
    for (int t = 0; t + 1 < STEPS; t++) assert_int_equal(advice.actions[t], MCSA_DENSE);
    free(a.pair);
}

/* Early steps that drift fast stay dense, and the first anchor stands where reuse begins to work. */
static void fast_drift_makes_a_dense_start(void **state)
{
    (void)state;
    analysis a;
    fill(&a, (double[]){ 0.03 }, 1);
    for (int p = 0; p < a.pairs; p++)
        if (a.pair[p].anchor < 3) a.pair[p].mc_sparse[0].rel_l2 = 0.5;
    analysis_advice advice = advise(&a, 0.1, 0, 0);
    for (int t = 0; t < 3; t++) assert_int_equal(advice.actions[t], MCSA_DENSE);
    assert_int_equal(advice.actions[3], MCSA_ANCHOR);
    assert_int_equal(advice.actions[4], MCSA_REUSE);
    free(a.pair);
}

static void expectations_are_linear_between_what_was_measured(void **state)
{
    (void)state;
    analysis_pair pairs[4] = {
        { .anchor = 2, .step = 4 }, { .anchor = 2, .step = 8 }, { .anchor = 2, .step = 10 }, { .anchor = 8, .step = 10 }
    };
    const double drift[] = { 0.1, 0.3, 0.2, 0.05 };
    for (int p = 0; p < 4; p++) pairs[p].mc_sparse[0].rel_l2 = drift[p];
    analysis a = { .densities = 1, .pairs = 4, .pair = pairs };
    const struct {
        int anchor, step;
        double error;
    } expected[] = {
        { 2, 3, 0.05 }, { 2, 4, 0.1 },    { 2, 6, 0.2 },   { 2, 8, 0.3 },
        { 2, 9, 0.25 }, { 2, 10, 0.2 },   { 2, 12, 0.2 },  /* the last slope falls: held */
        { 0, 2, 0.1 },  { 5, 7, 0.1 },                     /* as near to 2 as to 8: the earlier */
        { 6, 8, 0.05 }, { 20, 22, 0.05 }, { 8, 14, 0.15 }, /* on along the last slope */
    };
    for (size_t i = 0; i < TEST_COUNT(expected); i++) {
        double error = analysis_expected_error(&a, 0, expected[i].anchor, expected[i].step);
        if (!(fabs(error - expected[i].error) < 1e-12))
            fail_msg("anchor %d, step %d: %g, expected %g", expected[i].anchor, expected[i].step, error,
                     expected[i].error);
    }
}

static void the_largest_group_that_is_nearly_as_good(void **state)
{
    (void)state;
    analysis a;
    fill(&a, (double[]){ 0.03 }, 1);
    assert_int_equal(advise(&a, 0.1, 0, 0).group, 128);
    a.selector[ANALYSIS_PDDP_256][0].psnr_db = 31.1;
    assert_int_equal(advise(&a, 0.1, 0, 0).group, 256);
    assert_int_equal(advise(&a, 0.1, 0, 128).group, 128);
    a.selector[ANALYSIS_PDDP_TOKENS][0].psnr_db = a.selector[ANALYSIS_PDDP_256][0].psnr_db = 30;
    assert_int_equal(advise(&a, 0.1, 0, 0).group, 64);
    free(a.pair);
}

static void without_a_pair_there_is_no_advice(void **state)
{
    (void)state;
    const analysis a = { .densities = 1 };
    const analysis_wish wish = { STEPS, 0.1, 0, 0 };
    analysis_advice advice;
    mcsa_error error = { "" };
    assert_int_equal(analysis_advise(&advice, &a, &wish, &error), MCSA_EINVAL);
    assert_true(isnan(analysis_expected_error(&a, 0, 0, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anchors_follow_where_the_drift_passes_the_tolerance),
        cmocka_unit_test(tolerance_buys_cost),
        cmocka_unit_test(the_cheapest_density_is_taken),
        cmocka_unit_test(nothing_is_recommended_that_costs_as_much_as_dense),
        cmocka_unit_test(fast_drift_makes_a_dense_start),
        cmocka_unit_test(expectations_are_linear_between_what_was_measured),
        cmocka_unit_test(the_largest_group_that_is_nearly_as_good),
        cmocka_unit_test(without_a_pair_there_is_no_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
