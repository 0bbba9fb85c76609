/* test_fallback.c - a reuse whose anchor is missing becomes an anchor, gives the dense output, is counted
 * with its reason, and serves the reuses after it.  R12, R13, R14. */
#include "test.h"

static mcsa_stats stats_of(const mcsa_run *run)
{
    mcsa_stats stats = { .size = sizeof stats };
    assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
    return stats;
}

typedef struct counts {
    int64_t anchor, reuse, no_anchor, stale, shape, leader;
} counts;

static void expect_counts(const mcsa_run *run, counts expected)
{
    mcsa_stats s = stats_of(run);
    assert_int_equal(s.anchor, expected.anchor);
    assert_int_equal(s.reuse, expected.reuse);
    assert_int_equal(s.fallback_no_anchor, expected.no_anchor);
    assert_int_equal(s.fallback_stale, expected.stale);
    assert_int_equal(s.fallback_shape, expected.shape);
    assert_int_equal(s.fallback_leader, expected.leader);
    assert_int_equal(s.fallback, expected.no_anchor + expected.stale + expected.shape + expected.leader);
}

/* Attends and requires the dense output (a fallback) or anything else (a reuse). */
static void attend_and_compare(mcsa_run *run, int step, int branch, test_call *c, int expect_dense)
{
    test_tensor dense = test_tensor_make(c->H, c->N, c->D, c->dtype, TEST_HND);
    test_call_refill(c, (uint64_t)(100 * step + branch), 1);
    assert_int_equal(mcsa_attend_dense(run, &c->q.view, &c->k.view, &c->v.view, &dense.view, NULL), MCSA_OK);
    assert_attends(run, step, 0, branch, c);
    assert_int_equal(test_different(&c->out.view, &dense.view) == 0, expect_dense);
    test_tensor_free(&dense);
}

static test_call call_of(int N, int D)
{
    return test_call_make((const int[]){ 2, N, N, D }, MCSA_F32, TEST_HND, 1, 1);
}

static mcsa_run *open_run(const char *schedule, int branches, mcsa_sharing sharing)
{
    mcsa_config config = { .steps = 20, .layers = 2, .branches = branches, .schedule = schedule, .sharing = sharing };
    config.group = 16;
    return test_run(&config);
}

static void without_an_anchor(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:2", 1, 0);
    test_call c = call_of(50, 8);
    attend_and_compare(run, 5, 0, &c, 1);
    expect_counts(run, (counts){ .no_anchor = 1 });
    attend_and_compare(run, 6, 0, &c, 0);
    expect_counts(run, (counts){ .no_anchor = 1, .reuse = 1 });
    test_call_free(&c);
    mcsa_run_free(run);
}

/* Actions may begin with a reuse; it makes the anchor that the schedule forgot, once. */
static void a_schedule_without_any_anchor(void **state)
{
    (void)state;
    const mcsa_action actions[4] = { MCSA_REUSE, MCSA_REUSE, MCSA_REUSE, MCSA_REUSE };
    mcsa_config config = { .steps = 4, .layers = 1, .actions = actions, .group = 16 };
    mcsa_run *run = test_run(&config);
    test_call c = call_of(50, 8);
    for (int step = 0; step < 4; step++) attend_and_compare(run, step, 0, &c, step == 0);
    expect_counts(run, (counts){ .no_anchor = 1, .reuse = 3 });
    test_call_free(&c);
    mcsa_run_free(run);
}

/* Dense steps between an anchor and its reuse change nothing: the anchor still serves. */
static void dense_steps_behind_an_anchor(void **state)
{
    (void)state;
    const mcsa_action actions[5] = { MCSA_ANCHOR, MCSA_DENSE, MCSA_REUSE, MCSA_DENSE, MCSA_REUSE };
    mcsa_config config = { .steps = 5, .layers = 1, .actions = actions, .group = 16 };
    mcsa_run *run = test_run(&config);
    test_call c = call_of(50, 8);
    for (int step = 0; step < 5; step++) attend_and_compare(run, step, 0, &c, actions[step] != MCSA_REUSE);
    expect_counts(run, (counts){ .anchor = 1, .reuse = 2 });
    test_call_free(&c);
    mcsa_run_free(run);
}

/* R14: skipping reuse steps is fine; skipping an anchor is not. */
static void skipped_steps(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1,4,10", 1, 0);
    test_call c = call_of(50, 8);
    attend_and_compare(run, 1, 0, &c, 1);
    attend_and_compare(run, 3, 0, &c, 0); /* 2 was skipped */
    expect_counts(run, (counts){ .anchor = 1, .reuse = 1 });
    attend_and_compare(run, 6, 0, &c, 1); /* the anchor at 4 was skipped */
    expect_counts(run, (counts){ .anchor = 1, .reuse = 1, .stale = 1 });
    attend_and_compare(run, 9, 0, &c, 0);  /* the fallback at 6 serves */
    attend_and_compare(run, 15, 0, &c, 1); /* not beyond the anchor at 10 */
    expect_counts(run, (counts){ .anchor = 1, .reuse = 2, .stale = 2 });
    test_call_free(&c);
    mcsa_run_free(run);
}

static void a_changed_shape(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1", 1, 0);
    test_call a = call_of(50, 8), longer = call_of(51, 8), wider = call_of(51, 9);
    test_call heads = test_call_make((const int[]){ 3, 51, 51, 9 }, MCSA_F32, TEST_HND, 1, 1);
    attend_and_compare(run, 1, 0, &a, 1);
    attend_and_compare(run, 2, 0, &longer, 1);
    attend_and_compare(run, 3, 0, &longer, 0);
    attend_and_compare(run, 4, 0, &wider, 1);
    attend_and_compare(run, 5, 0, &heads, 1);
    attend_and_compare(run, 6, 0, &heads, 0);
    attend_and_compare(run, 7, 0, &a, 1);
    attend_and_compare(run, 8, 0, &a, 0);
    expect_counts(run, (counts){ .anchor = 1, .reuse = 3, .shape = 4 });
    test_call_free(&a);
    test_call_free(&longer);
    test_call_free(&wider);
    test_call_free(&heads);
    mcsa_run_free(run);
}

/* The shape of an anchor must match too: a reuse never reads a residual of another shape. */
static void a_shape_that_changes_at_an_anchor(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1,3", 1, 0);
    test_call a = call_of(50, 8), b = call_of(90, 16);
    attend_and_compare(run, 1, 0, &a, 1);
    attend_and_compare(run, 3, 0, &b, 1);
    attend_and_compare(run, 4, 0, &b, 0);
    attend_and_compare(run, 5, 0, &a, 1);
    expect_counts(run, (counts){ .anchor = 2, .reuse = 1, .shape = 1 });
    test_call_free(&a);
    test_call_free(&b);
    mcsa_run_free(run);
}

/* Going back to an earlier step is another video: anchors of the future do not serve it. */
static void a_restarted_run(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1,8", 1, 0);
    test_call c = call_of(50, 8);
    attend_and_compare(run, 1, 0, &c, 1);
    attend_and_compare(run, 8, 0, &c, 1);
    attend_and_compare(run, 9, 0, &c, 0);
    attend_and_compare(run, 2, 0, &c, 1);
    expect_counts(run, (counts){ .anchor = 2, .reuse = 1, .stale = 1 });
    test_call_free(&c);
    mcsa_run_free(run);
}

static void a_reset_run(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1", 2, MCSA_BRANCHES_SHARED);
    test_call c = call_of(50, 8);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 1, branch, &c, 1);
    mcsa_run_reset(run);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 5, branch, &c, 1);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 6, branch, &c, 0);
    expect_counts(run, (counts){ .anchor = 2, .no_anchor = 2, .reuse = 2 });
    mcsa_run_reset(NULL);
    test_call_free(&c);
    mcsa_run_free(run);
}

/* A follower's residual belongs to the leader's choice: when the leader has chosen again without it, it
 * must anchor. */
static void a_leader_that_moved_on(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1,4", 2, MCSA_BRANCHES_SHARED);
    test_call c = call_of(50, 8);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 1, branch, &c, 1);
    attend_and_compare(run, 3, 1, &c, 0);
    mcsa_run_reset(run);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 4, branch, &c, 1);
    attend_and_compare(run, 4, 0, &c, 1); /* the leader's anchor once more */
    attend_and_compare(run, 5, 0, &c, 0);
    attend_and_compare(run, 5, 1, &c, 1);
    expect_counts(run, (counts){ .anchor = 5, .reuse = 2, .leader = 1 });
    /* The follower anchored with groups of its own, since the leader's were not made at this step. */
    assert_ptr_not_equal(test_selection(run, 0, 1), test_selection(run, 0, 0));
    attend_and_compare(run, 6, 1, &c, 0);
    attend_and_compare(run, 6, 0, &c, 0);
    expect_counts(run, (counts){ .anchor = 5, .reuse = 4, .leader = 1 });
    test_call_free(&c);
    mcsa_run_free(run);
}

/* A skipped anchor with shared branches: the leader falls back, the follower joins it at the same step. */
static void followers_fall_back_with_their_leader(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1,4", 2, MCSA_BRANCHES_SHARED);
    test_call c = call_of(50, 8);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 1, branch, &c, 1);
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 6, branch, &c, 1);
    assert_ptr_equal(test_selection(run, 0, 1), test_selection(run, 0, 0));
    for (int branch = 0; branch < 2; branch++) attend_and_compare(run, 7, branch, &c, 0);
    expect_counts(run, (counts){ .anchor = 2, .stale = 2, .reuse = 2 });
    test_call_free(&c);
    mcsa_run_free(run);
}

/* R13: what happens in one layer is nothing to another. */
static void layers_do_not_lend_their_anchors(void **state)
{
    (void)state;
    mcsa_run *run = open_run("list:1", 1, 0);
    test_call c = call_of(50, 8);
    assert_attends(run, 1, 0, 0, &c);
    assert_attends(run, 2, 1, 0, &c);
    expect_counts(run, (counts){ .anchor = 1, .no_anchor = 1 });
    assert_attends(run, 2, 0, 0, &c);
    expect_counts(run, (counts){ .anchor = 1, .no_anchor = 1, .reuse = 1 });
    test_call_free(&c);
    mcsa_run_free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_an_anchor),
        cmocka_unit_test(a_schedule_without_any_anchor),
        cmocka_unit_test(dense_steps_behind_an_anchor),
        cmocka_unit_test(skipped_steps),
        cmocka_unit_test(a_changed_shape),
        cmocka_unit_test(a_shape_that_changes_at_an_anchor),
        cmocka_unit_test(a_restarted_run),
        cmocka_unit_test(a_reset_run),
        cmocka_unit_test(a_leader_that_moved_on),
        cmocka_unit_test(followers_fall_back_with_their_leader),
        cmocka_unit_test(layers_do_not_lend_their_anchors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
