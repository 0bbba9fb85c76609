/* test_failures.c - a backend that fails, as a GPU may: the caller gets status and sentence, nothing is counted, an
 * anchor that failed is not reused, and the run goes on. */
#include "test.h"

static int failing; /* outcomes that fail before they succeed again */

static mcsa_status broken_outcome(void *state, mcsa_error *error)
{
    (void)state;
    if (failing == 0) return MCSA_OK;
    failing--;
    return mcsa_fail(error, MCSA_EDEVICE, "selection failed on GPU 0: unspecified launch failure");
}

typedef struct desk {
    mcsa_run *run;
    mcsa_backend backend;
    test_call c;
} desk;

static void open_desk(desk *d)
{
    mcsa_config config = {
        .steps = 8, .layers = 1, .branches = 2, .schedule = "list:1,5", .density = 0.5f, .group = 16
    };
    d->run = test_run(&config);
    d->backend = *d->run->backend;
    d->backend.outcome = broken_outcome;
    d->run->backend = &d->backend;
    d->c = test_call_make((const int[]){ 2, 40, 40, 8 }, MCSA_F32, TEST_HND, 3, 1);
    failing = 0;
}

static void close_desk(desk *d)
{
    mcsa_run_free(d->run);
    test_call_free(&d->c);
}

static mcsa_stats stats_of(const desk *d)
{
    mcsa_stats s = { .size = sizeof s };
    assert_int_equal(mcsa_run_stats(d->run, &s), MCSA_OK);
    return s;
}

static void expect_failure(desk *d, int step, int branch)
{
    mcsa_stats before = stats_of(d);
    failing = 1;
    assert_int_equal(test_attend(d->run, step, 0, branch, &d->c), MCSA_EDEVICE);
    assert_string_equal(mcsa_run_error(d->run), "selection failed on GPU 0: unspecified launch failure");
    assert_int_equal(failing, 0);
    mcsa_stats after = stats_of(d);
    assert_int_equal(before.dense, after.dense);
    assert_int_equal(before.anchor, after.anchor);
    assert_int_equal(before.reuse, after.reuse);
    assert_int_equal(before.fallback, after.fallback);
    assert_true(before.density_run == after.density_run && before.density_executed == after.density_executed);
}

static void a_failed_step_is_not_counted_and_may_be_repeated(void **state)
{
    (void)state;
    desk d;
    open_desk(&d);
    expect_failure(&d, 0, 0);
    assert_attends(d.run, 0, 0, 0, &d.c);
    assert_attends(d.run, 1, 0, 0, &d.c);
    expect_failure(&d, 2, 0);
    assert_attends(d.run, 2, 0, 0, &d.c);
    mcsa_stats s = stats_of(&d);
    assert_int_equal(s.dense, 1);
    assert_int_equal(s.anchor, 1);
    assert_int_equal(s.reuse, 1);
    failing = 1;
    assert_int_equal(mcsa_attend_dense(d.run, &d.c.q.view, &d.c.k.view, &d.c.v.view, &d.c.out.view, NULL),
                     MCSA_EDEVICE);
    close_desk(&d);
}

/* What a failed anchor left is of no use: the next reuse makes an anchor of its own, and so does a follower. */
static void a_failed_anchor_is_not_reused(void **state)
{
    (void)state;
    desk d;
    open_desk(&d);
    expect_failure(&d, 1, 0);
    assert_attends(d.run, 2, 0, 0, &d.c);
    assert_int_equal(stats_of(&d).fallback_no_anchor, 1);
    assert_attends(d.run, 3, 0, 0, &d.c);
    assert_int_equal(stats_of(&d).reuse, 1);
    expect_failure(&d, 5, 0); /* replaces the one of step 2 */
    assert_attends(d.run, 5, 0, 1, &d.c);
    assert_int_equal(mcsa_cache_plan(d.run, 0, 1)->follows, 0);
    assert_attends(d.run, 6, 0, 0, &d.c);
    assert_int_equal(stats_of(&d).fallback_no_anchor, 2);
    close_desk(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_step_is_not_counted_and_may_be_repeated),
        cmocka_unit_test(a_failed_anchor_is_not_reused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
