/* test_allocations.c - the n-th allocation fails, for every n and every method: the call says so in words, the same
 * call then succeeds, and nothing is held in the end.
 *
 * The linker's --wrap puts the functions of wrapped_heap.h in front of every malloc, calloc, realloc, aligned_alloc and
 * free of the library and the methods.  Memory that OpenMP and libc take for themselves is not counted. */
#include "fixture.h"
#include "wrapped_heap.h"

#include "rivals/recall.h"

/* A run from its creation on, in which at most one allocation fails.  Returns whether one did. */
static int play(const rival_config *config, const test_call *c, int64_t fail_at)
{
    mcsa_error error = { "" };
    rival_run *run = NULL;
    int failed = 0;
    int64_t before = heap.held;
    heap.calls = 0;
    heap.fail_at = fail_at;
    mcsa_status status = rival_run_create(&run, config, &error);
    if (status != MCSA_OK) {
        assert_int_equal(status, MCSA_ENOMEM);
        assert_null(run);
        if (!error.text[0]) fail_msg("%s: allocation %lld fails without a word", config->method, (long long)fail_at);
        if (heap.held != before)
            fail_msg("%s holds what it took before allocation %lld", config->method, (long long)fail_at);
        return 1;
    }
    for (int step = 0; step < FIXTURE_STEPS; step++) {
        status = fixture_attend(run, (mcsa_site){ step, 0, 0 }, c);
        if (status == MCSA_OK) continue;
        assert_false(failed);
        failed = 1;
        if (status != MCSA_ENOMEM || !strstr(rival_run_error(run), "no memory"))
            fail_msg("%s: allocation %lld fails with %s: %s", config->method, (long long)fail_at,
                     mcsa_status_name(status), rival_run_error(run));
        step--; /* once more */
    }
    rival_run_free(run);
    if (heap.held != before) fail_msg("%s holds %lld blocks", config->method, (long long)(heap.held - before));
    return failed;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    test_call c = test_call_make((const int[]){ 1, 140, 140, 8 }, MCSA_F32, TEST_HND, 3, 1);
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (int residual = 0; residual < 2; residual++) {
            rival_config config = fixture_config((*m)->name, 140, 0.2);
            config.residual = residual;
            int64_t n = 1;
            while (play(&config, &c, n)) n++;
            assert_true(n > 10);
            print_message("  %-13s residual %d: %lld allocations\n", (*m)->name, residual, (long long)n - 1);
        }
    test_call_free(&c);
}

/* Of recall, of a call that was made before.  Returns whether an allocation failed. */
static int recall_at(mcsa_run *run, const test_call *c, int64_t fail_at)
{
    const mcsa_qkv x = { .q = &c->q.view, .k = &c->k.view, .v = &c->v.view, .out = &c->out.view };
    mcsa_error error = { "" };
    rival_recall *recall = NULL;
    int failed = 0;
    int64_t before = heap.held;
    heap.calls = 0;
    heap.fail_at = fail_at;
    mcsa_status status = rival_recall_open(&recall, run, &error);
    if (status != MCSA_OK) {
        failed = 1;
        assert_null(recall);
    } else {
        status = rival_recall_add_reuse(recall, (mcsa_site){ 2, 0, 0 }, &x, &error);
        failed = status != MCSA_OK;
        if (failed) assert_int_equal(rival_recall_add_reuse(recall, (mcsa_site){ 2, 0, 0 }, &x, &error), MCSA_OK);
        assert_true(rival_recall_read(recall).queries == 32 && rival_recall_read(recall).mean > 0);
    }
    if (failed && (status != MCSA_ENOMEM || !strstr(error.text, "no memory")))
        fail_msg("recall: allocation %lld fails with %s: %s", (long long)fail_at, mcsa_status_name(status), error.text);
    rival_recall_close(recall);
    if (heap.held != before) fail_msg("recall holds %lld blocks", (long long)(heap.held - before));
    return failed;
}

static void every_allocation_of_recall_may_fail(void **state)
{
    (void)state;
    heap.fail_at = 0;
    test_call c = test_call_make((const int[]){ 1, 140, 140, 8 }, MCSA_F32, TEST_HND, 3, 1);
    for (int tail = MCSA_TAIL_MEANS; tail <= MCSA_TAIL_OFF; tail++) {
        mcsa_config config = {
            .steps = 3, .layers = 1, .schedule = "list:1", .density = 0.5f, .group = 32, .tail = (mcsa_tail)tail
        };
        mcsa_run *run = test_run(&config);
        assert_attends(run, 1, 0, 0, &c);
        assert_attends(run, 2, 0, 0, &c);
        int64_t n = 1;
        while (recall_at(run, &c, n)) n++;
        assert_true(n > 8);
        heap.fail_at = 0;
        mcsa_run_free(run);
    }
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_allocation_of_recall_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
