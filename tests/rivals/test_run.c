/* test_run.c - rival_run: which calls are dense, what the residual adds, what is counted, and what is refused. */
#include "choices.h"

static rival_stats stats_of(const rival_run *run)
{
    rival_stats stats;
    rival_run_stats(run, &stats);
    return stats;
}

static void expect_actions(const char *method, int residual, const char *expected)
{
    rival_config config = fixture_config(method, 64, 0.2);
    config.residual = residual;
    config.attention.layers = 2;
    config.attention.dense_layers = 1;
    config.attention.steps = 8;
    config.attention.schedule = "list:2,3,6";
    rival_run *run = fixture_open(&config);
    for (int step = 0; step < 8; step++) {
        static const char names[] = "DAR";
        assert_int_equal(rival_run_action(run, (mcsa_site){ step, 0, 0 }), MCSA_DENSE);
        int action = rival_run_action(run, (mcsa_site){ step, 1, 0 });
        if (names[action] != expected[step])
            fail_msg("%s: step %d is %c, %c is due", method, step, names[action], expected[step]);
    }
    assert_int_equal(rival_run_action(run, (mcsa_site){ 8, 1, 0 }), -1);
    assert_int_equal(rival_run_action(run, (mcsa_site){ 0, 2, 0 }), -1);
    assert_int_equal(rival_run_action(run, (mcsa_site){ 0, 0, 1 }), -1);
    assert_int_equal(rival_run_action(run, (mcsa_site){ -1, 0, 0 }), -1);
    rival_run_free(run);
}

/* Anchors before the first reuse are the dense warm-up of all methods; a later one only of those that use it. */
static void anchors_serve_those_that_learn_from_them(void **state)
{
    (void)state;
    expect_actions("bsa", 0, "DDAARRRR");
    expect_actions("bsa", 1, "DDAARRAR");
    expect_actions("bsa+reuse", 0, "DDAARRAR");
    expect_actions("wa-rs", 0, "DDAARRAR");
}

static void expect_dense(rival_run *run, const test_call *c, int due)
{
    test_tensor dense = test_tensor_make(c->H, c->N, c->D, c->dtype, TEST_HND);
    assert_int_equal(mcsa_attend_dense(rival_run_dense(run), &c->q.view, &c->k.view, &c->v.view, &dense.view, NULL),
                     MCSA_OK);
    assert_int_equal(test_different(&c->out.view, &dense.view) == 0, due);
    test_tensor_free(&dense);
}

static void dense_calls_are_those_of_mcsa(void **state)
{
    (void)state;
    static const char *const methods[] = { "bsa", "bsa+token", "wa-rs" };
    for (size_t m = 0; m < TEST_COUNT(methods); m++) {
        rival_config config = fixture_config(methods[m], 300, 0.2);
        rival_run *run = fixture_open(&config);
        fixture_clip clip = { { 2, 300, 300, 16 }, MCSA_BF16, 1 };
        for (int step = 0; step < FIXTURE_STEPS; step++) {
            test_call c = fixture_call(&clip, step, 0);
            fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, methods[m]);
            expect_dense(run, &c, rival_run_action(run, (mcsa_site){ step, 0, 0 }) != MCSA_REUSE);
            test_call_free(&c);
        }
        rival_run_free(run);
    }
}

/* out += BF16 of (dense - sparse) of the anchor.  bsa chooses by its inputs alone, so a run without the residual has
 * the sparse output of the anchor, too, when it is given the anchor's inputs at a sparse step. */
static void the_residual_is_what_the_anchor_missed(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        fixture_clip clip = { { 2, 300, 300, 16 }, test_dtypes[t], 1 };
        rival_config config = fixture_config("bsa", 300, 0.2);
        rival_run *plain = fixture_open(&config);
        config.residual = 1;
        rival_run *run = fixture_open(&config);
        test_call anchor = fixture_call(&clip, 1, 0), now = fixture_call(&clip, 2, 0);
        test_tensor dense = test_tensor_make(2, 300, 16, test_dtypes[t], TEST_HND);
        test_tensor out = test_tensor_make(2, 300, 16, test_dtypes[t], TEST_HND);
        test_tensor expected = test_tensor_make(2, 300, 16, test_dtypes[t], TEST_HND);
        fixture_attends(run, (mcsa_site){ 1, 0, 0 }, &anchor, "bsa");
        test_copy(&dense.view, &anchor.out.view);
        fixture_attends(run, (mcsa_site){ 2, 0, 0 }, &now, "bsa");
        test_copy(&out.view, &now.out.view);
        fixture_attends(plain, (mcsa_site){ 2, 0, 0 }, &anchor, "bsa");
        fixture_attends(plain, (mcsa_site){ 2, 0, 0 }, &now, "bsa");
        for (int h = 0; h < 2; h++)
            for (int n = 0; n < 300; n++)
                for (int d = 0; d < 16; d++) {
                    float had = (float)test_get(&anchor.out.view, h, n, d);
                    uint16_t residual = mcsa_to_bf16((float)test_get(&dense.view, h, n, d) - had);
                    float sum = (float)test_get(&now.out.view, h, n, d) + mcsa_from_bf16(residual);
                    test_set(&expected.view, h, n, d, (double)sum);
                }
        assert_same_bits(&out.view, &expected.view);
        assert_int_equal(stats_of(run).held_bytes, 2 * 2 * 300 * 16);
        assert_int_equal(stats_of(plain).held_bytes, 0);
        rival_run_free(run);
        rival_run_free(plain);
        test_tensor_free(&dense);
        test_tensor_free(&expected);
        test_tensor_free(&out);
        test_call_free(&anchor);
        test_call_free(&now);
    }
}

/* Two sparse calls of different size, a residual, and what all calls would have taken. */
static void densities_are_those_of_the_choices(void **state)
{
    (void)state;
    double nominal = 0, executed = 0, full = 0, computed = 0, all = 0;
    rival_config config = fixture_config("bsa", 1, 0.2);
    memset(config.grid, 0, sizeof config.grid);
    config.residual = 1;
    config.attention.branches = 2;
    rival_run *run = fixture_open(&config);
    for (int branch = 0; branch < 2; branch++)
        for (int step = 0; step < 3; step++) {
            int N = branch ? 333 : 210;
            fixture_clip clip = { { 2, N, N, 16 }, MCSA_F32, 1 };
            test_call c = fixture_call(&clip, step, branch);
            fixture_attends(run, (mcsa_site){ step, 0, branch }, &c, "bsa");
            chooser by = chooser_open(&config);
            const rival_choice *choice = chooser_choose(&by, &c, step);
            rival_pairs pairs = rival_map_pairs(&choice->map, &choice->queries, &choice->keys);
            double dense = 2.0 * N * N;
            all += dense;
            computed += step < 2 ? dense : 0;
            computed += step > 0 ? pairs.executed : 0;
            nominal += step == 2 ? pairs.nominal : 0;
            executed += step == 2 ? pairs.executed : 0;
            full += step == 2 ? dense : 0;
            chooser_close(&by);
            test_call_free(&c);
        }
    rival_stats stats = stats_of(run);
    assert_int_equal(stats.dense, 2);
    assert_int_equal(stats.anchor, 2);
    assert_int_equal(stats.sparse, 2);
    assert_true(fabs(stats.density_nominal - nominal / full) < 1e-12);
    assert_true(fabs(stats.density_executed - executed / full) < 1e-12);
    assert_true(fabs(stats.density_run - computed / all) < 1e-12);
    assert_true(stats.density_tail == 0);
    assert_true(stats.dense_s > 0 && stats.choose_s > 0 && stats.attend_s > 0);
    assert_true(fabs(stats.attention_s - stats.dense_s - stats.choose_s - stats.attend_s) < 1e-9);
    rival_run_free(run);
}

/* Virtual keys of parts that are left out count in the tail. */
static void tails_are_counted_apart(void **state)
{
    (void)state;
    rival_config config = fixture_config("pisa", 512, 0.25);
    rival_run *run = fixture_open(&config);
    fixture_clip clip = { { 2, 512, 512, 16 }, MCSA_F32, 1 };
    for (int step = 0; step < 3; step++) {
        test_call c = fixture_call(&clip, step, 0);
        fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, "pisa");
        test_call_free(&c);
    }
    rival_stats stats = stats_of(run);
    assert_true(fabs(stats.density_executed - 0.25) < 1e-12); /* 2 of 8 blocks of 64 */
    assert_true(fabs(stats.density_tail - 6.0 / 512) < 1e-12);
    assert_true(fabs(stats.density_run - (2 + 0.25 + 6.0 / 512) / 3) < 1e-12);
    rival_run_free(run);
}

/* What the ladder keeps is counted as MC-Sparse counts its selection and residual, branches apart. */
static void held_bytes_are_those_of_mc_sparse(void **state)
{
    (void)state;
    fixture_clip clip = { { 2, 1000, 1000, 16 }, MCSA_F32, 1 };
    rival_config config = fixture_config("bsa+group", 1000, 0.1);
    config.residual = 1;
    config.attention.branches = 2;
    config.attention.sharing = MCSA_BRANCHES_APART;
    config.attention.tail = MCSA_TAIL_OFF;
    rival_run *run = fixture_open(&config);
    mcsa_run *mc = test_run(&config.attention);
    for (int branch = 0; branch < 2; branch++) {
        test_call c = fixture_call(&clip, 1, branch);
        fixture_attends(run, (mcsa_site){ 1, 0, branch }, &c, "bsa+group");
        assert_attends(mc, 1, 0, branch, &c);
        test_call_free(&c);
    }
    mcsa_stats stats = { .size = sizeof stats };
    assert_int_equal(mcsa_run_stats(mc, &stats), MCSA_OK);
    int64_t due = stats.selection_bytes + stats.residual_bytes;
    assert_in_range(stats_of(run).held_bytes, due - 4 * 64, due); /* its blocks are rounded up to cache lines */
    rival_run_free(run);
    mcsa_run_free(mc);
}

static void expect_refusal(rival_run *run, mcsa_site at, const test_call *c, const char *words)
{
    assert_int_equal(fixture_attend(run, at, c), MCSA_EINVAL);
    if (!strstr(rival_run_error(run), words)) fail_msg("\"%s\" lacks \"%s\"", rival_run_error(run), words);
}

static void a_choice_or_residual_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    static const struct {
        const char *method;
        int residual;
    } cases[] = { { "bsa+reuse", 0 }, { "bsa+group", 1 }, { "adaspa", 0 }, { "wa-rs", 0 }, { "bsa", 1 } };
    for (size_t i = 0; i < TEST_COUNT(cases); i++) {
        test_call c = test_call_make((const int[]){ 2, 90, 90, 8 }, MCSA_F32, TEST_HND, 1, 1);
        test_call longer = test_call_make((const int[]){ 2, 91, 91, 8 }, MCSA_F32, TEST_HND, 1, 1);
        rival_config config = fixture_config(cases[i].method, 90, 0.2);
        memset(config.grid, 0, sizeof config.grid);
        config.residual = cases[i].residual;
        rival_run *run = fixture_open(&config);
        expect_refusal(run, (mcsa_site){ 2, 0, 0 }, &c, "step 1, which was not run");
        fixture_attends(run, (mcsa_site){ 1, 0, 0 }, &c, cases[i].method);
        expect_refusal(run, (mcsa_site){ 2, 0, 0 }, &longer, "its anchor had 2 of 90");
        fixture_attends(run, (mcsa_site){ 2, 0, 0 }, &c, cases[i].method);
        expect_refusal(run, (mcsa_site){ 4, 0, 0 }, &c, "step 3, which was not run");
        fixture_attends(run, (mcsa_site){ 3, 0, 0 }, &c, cases[i].method);
        fixture_attends(run, (mcsa_site){ 4, 0, 0 }, &c, cases[i].method);
        expect_refusal(run, (mcsa_site){ 2, 0, 0 }, &c, "step 1, which was not run"); /* a run that begins again */
        rival_run_free(run);
        test_call_free(&c);
        test_call_free(&longer);
    }
}

static void wrong_calls_are_refused_in_words(void **state)
{
    (void)state;
    test_call c = test_call_make((const int[]){ 2, 90, 90, 8 }, MCSA_F32, TEST_HND, 1, 1);
    rival_config config = fixture_config("svg", 90, 0.2);
    config.grid[0]++;
    rival_run *run = fixture_open(&config);
    expect_refusal(run, (mcsa_site){ 5, 0, 0 }, &c, "step 5, layer 0, branch 0");
    expect_refusal(run, (mcsa_site){ 0, 0, 0 }, &c, "90 tokens are not a grid");
    mcsa_tensor fewer = c.k.view;
    fewer.shape[1]--;
    assert_int_equal(rival_attend(run, (mcsa_site){ 0, 0, 0 }, &c.q.view, &fewer, &c.v.view, &c.out.view), MCSA_EINVAL);
    assert_non_null(strstr(rival_run_error(run), "89"));
    assert_int_equal(rival_attend(run, (mcsa_site){ 0, 0, 0 }, &c.q.view, &c.k.view, &c.v.view, &c.q.view),
                     MCSA_EINVAL);
    assert_non_null(strstr(rival_run_error(run), "shares memory"));
    rival_run_free(run);
    test_call_free(&c);
}

static void expect_no_run(const rival_config *config, mcsa_status status, const char *words)
{
    mcsa_error error = { "" };
    rival_run *run = (rival_run *)&error;
    assert_int_equal(rival_run_create(&run, config, &error), status);
    assert_null(run);
    if (!strstr(error.text, words)) fail_msg("\"%s\" lacks \"%s\"", error.text, words);
    assert_int_equal(rival_run_create(&run, config, NULL), status);
}

static void wrong_configurations_are_refused_in_words(void **state)
{
    (void)state;
    rival_config config = fixture_config("no such method", 90, 0.2);
    expect_no_run(&config, MCSA_EINVAL, "no such method");
    config.method = NULL;
    expect_no_run(&config, MCSA_EINVAL, "not known");
    config = fixture_config("svg", 90, 0.2);
    config.grid[1] = 0;
    expect_no_run(&config, MCSA_EINVAL, "svg needs the grid");
    config.grid[1] = -3;
    expect_no_run(&config, MCSA_EINVAL, "-3");
    config = fixture_config("bsa", 90, 1.5);
    expect_no_run(&config, MCSA_EINVAL, "1.5");
    config = fixture_config("bsa", 90, 0.2);
    config.attention.schedule = "every";
    expect_no_run(&config, MCSA_EINVAL, "every");
    rival_run_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anchors_serve_those_that_learn_from_them),
        cmocka_unit_test(dense_calls_are_those_of_mcsa),
        cmocka_unit_test(the_residual_is_what_the_anchor_missed),
        cmocka_unit_test(densities_are_those_of_the_choices),
        cmocka_unit_test(tails_are_counted_apart),
        cmocka_unit_test(held_bytes_are_those_of_mc_sparse),
        cmocka_unit_test(a_choice_or_residual_that_is_not_there_is_an_error),
        cmocka_unit_test(wrong_calls_are_refused_in_words),
        cmocka_unit_test(wrong_configurations_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
