/* test_allocations.c - memory runs out: the n-th allocation fails, for every n of a whole small run.  The
 * call that hit it says so in a sentence, the same call made again succeeds, all outputs are those of a
 * run that never failed, and every byte goes back.  R8. */
#include "test.h"

enum { CALLS = 14 };

typedef struct call {
    int cross; /* attend_dense over M keys, outside the schedule */
    int step, layer, branch, N, M, D;
} call;

/* Dense, anchors of two layers and branches, cross-attention that makes scratch grow while anchors are
 * held, reuses before and after it, a shape that grows (fallbacks) and shrinks. */
static const call plan[CALLS] = {
    { 0, 0, 0, 0, 40, 40, 8 },  { 0, 1, 0, 0, 40, 40, 8 },  { 0, 1, 0, 1, 40, 40, 8 },  { 0, 1, 1, 0, 40, 40, 8 },
    { 0, 2, 0, 0, 40, 40, 8 },  { 1, 2, 0, 0, 40, 900, 8 }, { 0, 2, 0, 1, 40, 40, 8 },  { 1, 2, 0, 0, 64, 30, 24 },
    { 0, 2, 1, 0, 40, 40, 8 },  { 0, 3, 0, 0, 70, 70, 16 }, { 0, 3, 0, 1, 70, 70, 16 }, { 0, 4, 0, 1, 70, 70, 16 },
    { 0, 4, 1, 0, 30, 30, 33 }, { 0, 5, 1, 0, 30, 30, 33 },
};

static mcsa_config config_of(test_heap *heap)
{
    mcsa_config config = { .steps = 6, .layers = 2, .branches = 2, .schedule = "list:1", .group = 16, .density = 0.2f };
    config.threads = 1;
    config.allocator = test_heap_allocator(heap);
    return config;
}

static test_call data_of(int i)
{
    return test_call_make((const int[]){ 2, plan[i].N, plan[i].M, plan[i].D }, MCSA_F32, TEST_HND, (uint64_t)i, 1);
}

static mcsa_status make_call(mcsa_run *run, int i, const test_call *c)
{
    if (!plan[i].cross) return test_attend(run, plan[i].step, plan[i].layer, plan[i].branch, c);
    return mcsa_attend_dense(run, &c->q.view, &c->k.view, &c->v.view, &c->out.view, NULL);
}

/* Plays the plan and returns how many calls failed; each failed one is made again.  out: [CALLS], to fill
 * when empty, to compare with otherwise. */
static int play(test_heap *heap, test_call *out)
{
    char error[256] = "";
    mcsa_config config = config_of(heap);
    mcsa_run *run = NULL;
    int failed = 0;
    while (mcsa_run_create(&run, &config, error, sizeof error) != MCSA_OK) {
        if (!strstr(error, "no memory")) fail_msg("allocation %lld: \"%s\"", (long long)heap->fail_at, error);
        assert_null(run);
        assert_int_equal(heap->blocks, 0);
        failed++;
    }
    for (int i = 0; i < CALLS; i++) {
        test_call c = data_of(i);
        mcsa_status status = make_call(run, i, &c);
        if (status != MCSA_OK) {
            assert_int_equal(status, MCSA_ENOMEM);
            if (!strstr(mcsa_run_error(run), "no memory"))
                fail_msg("allocation %lld, call %d: \"%s\"", (long long)heap->fail_at, i, mcsa_run_error(run));
            failed++;
            status = make_call(run, i, &c);
            if (status != MCSA_OK) fail_msg("call %d again: %s", i, mcsa_run_error(run));
        }
        assert_int_equal(test_damage(&c.out), 0);
        if (!out[i].q.storage)
            out[i] = c;
        else {
            if (test_different(&c.out.view, &out[i].out.view))
                fail_msg("allocation %lld failed, and call %d has other bits", (long long)heap->fail_at, i);
            test_call_free(&c);
        }
    }
    mcsa_run_free(run);
    test_heap_settled(heap);
    return failed;
}

static void r8_the_nth_allocation_fails(void **state)
{
    (void)state;
    test_call out[CALLS] = { { .H = 0 } };
    test_heap heap = { 0 };
    assert_int_equal(play(&heap, out), 0);
    int64_t total = heap.calls;
    print_message("  %lld allocations\n", (long long)total);
    assert_true(total >= 10);
    for (int64_t n = 1; n <= total; n++) {
        heap = (test_heap){ .fail_at = n };
        assert_int_equal(play(&heap, out), 1);
    }
    for (int i = 0; i < CALLS; i++) test_call_free(&out[i]);
}

/* From the n-th allocation on none succeeds: calls succeed or say why, and everything goes back. */
static void r8_memory_stays_out(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 40; n++) {
        char error[256] = "";
        test_heap heap = { .fail_from = n };
        mcsa_config config = config_of(&heap);
        mcsa_run *run = NULL;
        if (mcsa_run_create(&run, &config, error, sizeof error) != MCSA_OK) {
            assert_non_null(strstr(error, "no memory"));
            assert_null(run);
        } else
            for (int i = 0; i < CALLS; i++) {
                test_call c = data_of(i);
                mcsa_status status = make_call(run, i, &c);
                if (status != MCSA_OK) {
                    assert_int_equal(status, MCSA_ENOMEM);
                    assert_non_null(strstr(mcsa_run_error(run), "no memory"));
                }
                test_call_free(&c);
            }
        mcsa_run_free(run);
        test_heap_settled(&heap);
    }
}

/* A reuse that finds its anchor allocates nothing, even after a larger call has failed for lack of memory. */
static void r8_a_reuse_allocates_nothing(void **state)
{
    (void)state;
    test_heap heap = { 0 };
    mcsa_config config = config_of(&heap);
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ 2, 40, 40, 8 }, MCSA_BF16, TEST_HND, 1, 1);
    test_call large = test_call_make((const int[]){ 2, 40, 5000, 8 }, MCSA_BF16, TEST_HND, 1, 1);
    for (int layer = 0; layer < 2; layer++)
        for (int branch = 0; branch < 2; branch++) assert_attends(run, 1, layer, branch, &c);
    int64_t calls = heap.calls;
    heap.fail_from = calls + 1;
    for (int step = 2; step < 6; step++) {
        for (int layer = 0; layer < 2; layer++)
            for (int branch = 0; branch < 2; branch++) assert_attends(run, step, layer, branch, &c);
        assert_int_equal(heap.calls, step == 2 ? calls : calls + 1);
        if (step > 2) continue;
        mcsa_status status = mcsa_attend_dense(run, &large.q.view, &large.k.view, &large.v.view, &large.out.view, NULL);
        assert_int_equal(status, MCSA_ENOMEM);
        assert_non_null(strstr(mcsa_run_error(run), "5000"));
    }
    mcsa_stats stats = { 0 };
    assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
    assert_int_equal(stats.reuse, 16);
    assert_int_equal(stats.fallback, 0);
    mcsa_run_free(run);
    test_call_free(&c);
    test_call_free(&large);
    test_heap_settled(&heap);
}

/* An anchor that ran out of memory half-way leaves no anchor behind: the reuse after it falls back. */
static void a_failed_anchor_is_no_anchor(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 5; n++) {
        test_heap heap = { 0 };
        mcsa_config config = config_of(&heap);
        mcsa_run *run = test_run(&config);
        test_call c = test_call_make((const int[]){ 2, 40, 40, 8 }, MCSA_F32, TEST_HND, 1, 1);
        heap.fail_at = heap.calls + n;
        int failed = test_attend(run, 1, 0, 0, &c) != MCSA_OK;
        assert_attends(run, 2, 0, 0, &c);
        mcsa_stats stats = { 0 };
        assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
        assert_int_equal(stats.anchor, !failed);
        assert_int_equal(stats.fallback_no_anchor, failed);
        assert_int_equal(stats.reuse, !failed);
        mcsa_run_free(run);
        test_call_free(&c);
        test_heap_settled(&heap);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r8_the_nth_allocation_fails),
        cmocka_unit_test(r8_memory_stays_out),
        cmocka_unit_test(r8_a_reuse_allocates_nothing),
        cmocka_unit_test(a_failed_anchor_is_no_anchor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
