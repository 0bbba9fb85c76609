/* test_stats.c - what a run reports: calls, density asked and executed, bytes held, time by stage.  R11,
 * R12. */
#include "test.h"

static mcsa_stats stats_of(const mcsa_run *run)
{
    mcsa_stats stats = { .size = sizeof stats };
    assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
    return stats;
}

static void near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12))
        fail_msg("%.15g is not %.15g", got, expected); /* sums of integers below 2^53 */
}

/* R11: where groups fill their lanes and K is even, what is executed is what was asked. */
static void r11_density_asked_is_density_executed(void **state)
{
    (void)state;
    enum { H = 3, N = 256, K = 64 };
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        mcsa_config config = { .steps = 8, .layers = 1, .schedule = "list:2", .density = 0.25f, .group = 64 };
        config.tail = MCSA_TAIL_OFF;
        mcsa_run *run = test_run(&config);
        test_call c = test_call_make((const int[]){ H, N, N, 32 }, test_dtypes[t], TEST_HND, 1, 1);
        mcsa_stats s = stats_of(run);
        near(s.density_requested, 0.25);
        near(s.density_executed, 0);
        near(s.density_run, 0);
        double all = 0; /* of H N N, as the header counts */
        for (int step = 0; step < 8; step++) {
            assert_attends(run, step, 0, 0, &c);
            all += step < 2 ? 1 : step == 2 ? 1 + 0.25 : 0.25;
            near(stats_of(run).density_run, all / (step + 1));
        }
        near(stats_of(run).density_executed, (double)K / N);
        mcsa_run_free(run);
        test_call_free(&c);
    }
}

/* Ragged groups are computed in whole lanes, and that work is reported, not hidden. */
static void padding_is_executed_density(void **state)
{
    (void)state;
    enum { N = 203, C = 24, K = 41 }; /* 8 groups of 24 and one of 11 */
    mcsa_config config = { .steps = 3, .layers = 1, .schedule = "list:0", .density = 0.2f, .group = C };
    config.tail = MCSA_TAIL_OFF;
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ 2, N, N, 8 }, MCSA_F32, TEST_HND, 1, 1);
    for (int step = 0; step < 3; step++) assert_attends(run, step, 0, 0, &c);
    near(stats_of(run).density_executed, (8 * 32 + 16) * (double)K / ((double)N * N));
    mcsa_run_free(run);
    test_call_free(&c);
}

/* Where probabilities of a tile outgrow their scratch (here a group of all 1,500 queries in FP32) the scores are
 * computed twice, and that half pass is counted; followers do not select. */
static void scores_computed_twice_are_counted(void **state)
{
    (void)state;
    enum { N = 1500, LANES = 1504, K = 750 };
    mcsa_config config = {
        .steps = 2, .layers = 1, .branches = 2, .schedule = "list:0", .density = 0.5f, .group = 4096
    };
    config.tail = MCSA_TAIL_OFF;
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ 1, N, N, 8 }, MCSA_F32, TEST_HND, 1, 1);
    const double s = (double)LANES * K / ((double)N * N);
    assert_attends(run, 0, 0, 0, &c);
    near(stats_of(run).density_run, 1.5 + s);
    assert_attends(run, 0, 0, 1, &c);
    near(stats_of(run).density_run, (1.5 + s + 1 + s) / 2);
    mcsa_run_free(run);
    test_call_free(&c);
}

/* R12: every self-attention call is counted once, dense calls outside the schedule never. */
static void r12_calls_add_up(void **state)
{
    (void)state;
    enum { STEPS = 12, L = 3, B = 2 };
    mcsa_config config = { .steps = STEPS, .layers = L, .branches = B, .dense_layers = 1, .schedule = "list:2,5" };
    config.group = 16;
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ 1, 48, 48, 8 }, MCSA_F32, TEST_HND, 1, 1);
    int64_t calls = 0;
    for (int step = 0; step < STEPS; step++)
        for (int branch = 0; branch < B; branch++)
            for (int layer = 0; layer < L; layer++) {
                if (step == 5 && layer == 1) continue; /* an anchor skipped: two fallbacks at step 6 */
                assert_attends(run, step, layer, branch, &c);
                calls++;
                assert_int_equal(mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &c.out.view, NULL), MCSA_OK);
            }
    mcsa_stats s = stats_of(run);
    assert_int_equal(s.dense + s.anchor + s.reuse + s.fallback, calls);
    assert_int_equal(s.dense, STEPS * B + 2 * 2 * B);
    assert_int_equal(s.anchor, 2 * B + B);
    assert_int_equal(s.fallback, B);
    assert_int_equal(s.fallback_stale, B);
    mcsa_run_free(run);
    test_call_free(&c);
}

static void bytes_held_are_those_of_the_forms(void **state)
{
    (void)state;
    enum { H = 2, N = 130, D = 33, L = 2 };
    static const struct {
        mcsa_residual form;
        int row; /* bytes */
    } cases[] = { { MCSA_RESIDUAL_BF16, 66 },
                  { MCSA_RESIDUAL_INT8, 4 + 36 },
                  { MCSA_RESIDUAL_INT4, 4 + 20 }, /* 17 bytes of nibbles, rounded up to keep scales aligned */
                  { MCSA_RESIDUAL_OFF, 0 } };
    for (size_t i = 0; i < 2 * TEST_COUNT(cases); i++) {
        const int means = i % 2, bytes = cases[i / 2].row;
        test_heap heap = { 0 };
        mcsa_config config = { .steps = 2, .layers = L, .schedule = "list:0", .group = 32 };
        config.allocator = test_heap_allocator(&heap);
        config.residual = cases[i / 2].form;
        config.tail = means ? MCSA_TAIL_MEANS : MCSA_TAIL_OFF;
        mcsa_run *run = test_run(&config);
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_BF16, TEST_HND, 1, 1);
        mcsa_stats s = stats_of(run);
        assert_int_equal(s.selection_bytes + s.residual_bytes, 0);
        for (int layer = 0; layer < L; layer++) assert_attends(run, 0, layer, 0, &c);
        s = stats_of(run);
        assert_int_equal(s.residual_bytes, (int64_t)L * H * N * bytes);
        /* Each to a multiple of 64 but the last.  Order, and members of clusters: 4 bytes a token; kept: one bit per
         * group and key, or cluster, in words of 64; 13 rows of a group, so 4 clusters, whose firsts take 5 x 4 bytes.
         */
        int64_t tokens = (H * N * 4 + 63) / 64 * 64,
                held = means ? 2 * tokens + 64 + H * 5 * 8 : tokens + H * 5 * 3 * 8;
        assert_int_equal(s.selection_bytes, L * held);
        assert_int_equal(s.allocations, heap.calls);
        assert_true(s.selection_bytes + s.residual_bytes + s.scratch_bytes <= heap.bytes);
        assert_attends(run, 1, 0, 0, &c);
        mcsa_stats after = stats_of(run);
        assert_int_equal(after.scratch_bytes, s.scratch_bytes);
        assert_int_equal(after.allocations, s.allocations);
        mcsa_run_free(run);
        test_call_free(&c);
        test_heap_settled(&heap);
    }
}

static void times_of_the_stages_are_parts_of_the_whole(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 4, .layers = 1, .schedule = "list:1", .group = 32 };
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ 2, 300, 300, 32 }, MCSA_F32, TEST_HND, 1, 1);
    mcsa_stats before = stats_of(run), s;
    assert_true(before.attention_s == 0);
    for (int step = 0; step < 4; step++) {
        assert_attends(run, step, 0, 0, &c);
        s = stats_of(run);
        assert_true(s.attention_s > before.attention_s);
        assert_true(s.dense_s + s.grouping_s + s.selection_s + s.sparse_s <= s.attention_s * (1 + 1e-9));
        assert_int_equal(s.dense_s > before.dense_s, step <= 1);
        assert_int_equal(s.grouping_s > before.grouping_s, step == 1);
        assert_true(s.selection_s == 0); /* made within dense attention */
        assert_int_equal(s.sparse_s > before.sparse_s, step >= 1);
        before = s;
    }
    mcsa_run_free(run);
    test_call_free(&c);
}

/* A reset forgets anchors, not statistics. */
static void a_reset_keeps_the_counts(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 3, .layers = 1, .schedule = "list:1", .group = 32 };
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ 1, 64, 64, 8 }, MCSA_F32, TEST_HND, 1, 1);
    for (int step = 0; step < 3; step++) assert_attends(run, step, 0, 0, &c);
    mcsa_stats before = stats_of(run), after;
    mcsa_run_reset(run);
    after = stats_of(run);
    assert_memory_equal(&before, &after, sizeof before);
    mcsa_run_free(run);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r11_density_asked_is_density_executed),
        cmocka_unit_test(padding_is_executed_density),
        cmocka_unit_test(scores_computed_twice_are_counted),
        cmocka_unit_test(r12_calls_add_up),
        cmocka_unit_test(bytes_held_are_those_of_the_forms),
        cmocka_unit_test(times_of_the_stages_are_parts_of_the_whole),
        cmocka_unit_test(a_reset_keeps_the_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
