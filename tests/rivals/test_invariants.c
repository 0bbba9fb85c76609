/* test_invariants.c - what must hold for every method: T1 to T8 of the research notes.
 *
 * T1 all pairs kept: dense attention.  T2 (test_ladder.c) keys in another order.  T3 a constant added to all keys.
 * T4 equal values.  T5 sizes (test_choices.c).  T6 extreme inputs.  T7 the same bits again, with any number of threads.
 * T8 branches that come in turn share nothing. */
#include "fixture.h"

/* out against dense attention, each of `outputs` roundings of which may be as far off as the bound. */
static void judge_dense(test_worst *w, const test_call *c, const test_reference *r, const test_rounding *rounding,
                        int outputs)
{
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) {
                int64_t row = (int64_t)h * c->N + n;
                double expected = r->out[row * c->D + d], bound = r->out_bound[row];
                bound = outputs * (bound + rounding->out * (fabs(expected) + bound) + 0x1p-25);
                test_judge(w, test_get(&c->out.view, h, n, d), expected, bound, h, n, d);
            }
}

/* Roundings of an output that meet in a method's: with the residual those of a dense and of two sparse outputs, and the
 * residual, which is the difference of two, is rounded once more. */
static int outputs_of(const rival_method *method)
{
    return method->residual ? 4 : 1;
}

/* Sums in the order of dense attention: the same keys one after the other, with no residual behind. */
static int keeps_the_order(const rival_method *method)
{
    static const char *const permute[] = { "svg", "svg2", "svg-ear" };
    for (size_t i = 0; i < TEST_COUNT(permute); i++)
        if (strcmp(method->name, permute[i]) == 0) return 0;
    return !method->residual;
}

/* The inputs are the same at all steps, so that the residual of the anchor is that of the step. */
static void t1_all_pairs_are_dense_attention(void **state)
{
    (void)state;
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ 2, 210, 210, 16 }, test_dtypes[t], TEST_HND, 3, 1);
            test_rounding rounding = test_rounding_of(mcsa_cpu_isa(), test_dtypes[t]);
            test_reference r = test_reference_make(&c, 0.25, NULL, &rounding);
            rival_config config = fixture_config((*m)->name, c.N, 1);
            rival_run *run = fixture_open(&config);
            test_tensor dense = test_tensor_make(c.H, c.N, c.D, c.dtype, TEST_HND);
            test_worst worst = { 0 };
            for (int step = 0; step < FIXTURE_STEPS; step++) {
                fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, (*m)->name);
                judge_dense(&worst, &c, &r, &rounding, outputs_of(*m));
                if (step == 0) test_copy(&dense.view, &c.out.view);
                if (keeps_the_order(*m)) assert_same_bits(&c.out.view, &dense.view);
            }
            test_report(&worst, INFINITY, "%s, %s", (*m)->name, test_dtype_name(test_dtypes[t]));
            rival_run_free(run);
            test_tensor_free(&dense);
            test_reference_free(&r);
            test_call_free(&c);
        }
}

/* In steps of 1/8, so that the sums of a constant and a key, and all scores, are exact. */
static void fill_eighths(const mcsa_tensor *t, uint64_t seed, double amplitude)
{
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t d = 0; d < t->shape[2]; d++)
                test_set(t, h, n, d, floor(8 * amplitude * test_normal(&seed)) / 8);
}

static void shift_keys(const test_call *c)
{
    for (int h = 0; h < c->H; h++)
        for (int d = 0; d < c->D; d++) {
            double shift = (d * 5 + h * 3) % 9 / 8.0 - 0.5;
            for (int n = 0; n < c->N; n++) test_set(&c->k.view, h, n, d, test_get(&c->k.view, h, n, d) + shift);
        }
}

/* after - before, which may differ by the rounding of both.  A difference of a bit may round the residual, no larger
 * than twice the largest value, the other way. */
static void judge_change(test_worst *w, const test_call *after, const mcsa_tensor *before, const test_reference *r,
                         const rival_method *method)
{
    double residual = method->residual ? 2 * U_BF16 * 2 * test_largest(&after->v.view) : 0;
    for (int h = 0; h < after->H; h++)
        for (int n = 0; n < after->N; n++)
            for (int d = 0; d < after->D; d++)
                test_judge(w, test_get(&after->out.view, h, n, d), test_get(before, h, n, d),
                           2 * outputs_of(method) * r->out_bound[h * after->N + n] + residual, h, n, d);
}

/* Softmax does not see a constant in all scores of a row, and no rule of choice looks at it.  The bound is that of
 * dense attention over the shifted keys, whose scores are the larger ones. */
static void t3_a_constant_in_all_keys_changes_nothing(void **state)
{
    (void)state;
    test_rounding rounding = test_rounding_of(mcsa_cpu_isa(), MCSA_F32);
    test_call plain = test_call_make((const int[]){ 2, 256, 256, 16 }, MCSA_F32, TEST_HND, 3, 1);
    fill_eighths(&plain.q.view, 1, 1);
    fill_eighths(&plain.k.view, 2, 1);
    test_call shifted = test_call_make((const int[]){ 2, 256, 256, 16 }, MCSA_F32, TEST_HND, 3, 1);
    test_copy(&shifted.q.view, &plain.q.view);
    test_copy(&shifted.k.view, &plain.k.view);
    shift_keys(&shifted);
    test_reference r = test_reference_make(&shifted, 0.25, NULL, &rounding);
    for (const rival_method *const *m = rival_methods; *m; m++) {
        rival_config config = fixture_config((*m)->name, plain.N, 0.3);
        rival_run *one = fixture_open(&config), *other = fixture_open(&config);
        test_worst worst = { 0 };
        for (int step = 0; step < FIXTURE_STEPS; step++) {
            fixture_attends(one, (mcsa_site){ step, 0, 0 }, &plain, (*m)->name);
            fixture_attends(other, (mcsa_site){ step, 0, 0 }, &shifted, (*m)->name);
            judge_change(&worst, &shifted, &plain.out.view, &r, *m);
        }
        test_report(&worst, INFINITY, "%s", (*m)->name);
        rival_run_free(one);
        rival_run_free(other);
    }
    test_reference_free(&r);
    test_call_free(&plain);
    test_call_free(&shifted);
}

static void t4_equal_values_come_out_again(void **state)
{
    (void)state;
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ 2, 300, 300, 16 }, test_dtypes[t], TEST_HND, 9, 1);
            for (int h = 0; h < c.H; h++)
                for (int n = 0; n < c.N; n++)
                    for (int d = 0; d < c.D; d++) test_set(&c.v.view, h, n, d, d - 7.25);
            test_rounding rounding = test_rounding_of(mcsa_cpu_isa(), test_dtypes[t]);
            test_reference r = test_reference_make(&c, 0.25, NULL, &rounding);
            rival_config config = fixture_config((*m)->name, c.N, 0.2);
            rival_run *run = fixture_open(&config);
            test_worst worst = { 0 };
            for (int step = 0; step < FIXTURE_STEPS; step++) {
                fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, (*m)->name);
                judge_dense(&worst, &c, &r, &rounding, outputs_of(*m));
            }
            test_report(&worst, INFINITY, "%s, %s", (*m)->name, test_dtype_name(test_dtypes[t]));
            rival_run_free(run);
            test_reference_free(&r);
            test_call_free(&c);
        }
}

typedef void (*fill_inputs)(const test_call *c);

static void fill_large(const test_call *c) /* |q|, |k| up to 300, as outliers behind RMS norms are */
{
    uint64_t seed = 4;
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) {
                test_set(&c->q.view, h, n, d, 600 * test_uniform(&seed) - 300);
                test_set(&c->k.view, h, n, d, 600 * test_uniform(&seed) - 300);
            }
}

static void fill_identical(const test_call *c)
{
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) {
                test_set(&c->q.view, h, n, d, d - 3.0);
                test_set(&c->k.view, h, n, d, 2.0 - d);
            }
}

static void fill_zero_rows(const test_call *c)
{
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n += 1 + n / 7)
            for (int d = 0; d < c->D; d++) {
                test_set(&c->q.view, h, n, d, 0);
                test_set(&c->k.view, h, c->N - 1 - n, d, 0);
            }
}

static void fill_zero(const test_call *c)
{
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) {
                test_set(&c->q.view, h, n, d, 0);
                test_set(&c->k.view, h, n, d, 0);
            }
}

static int64_t nonfinite(const mcsa_tensor *t)
{
    int64_t place[3];
    return mcsa_tensor_nonfinite(t, place);
}

static void t6_extreme_inputs_stay_finite(void **state)
{
    (void)state;
    static const fill_inputs fills[] = { fill_large, fill_identical, fill_zero_rows, fill_zero };
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t f = 0; f < TEST_COUNT(fills); f++) {
                test_call c = test_call_make((const int[]){ 1, 280, 280, 16 }, test_dtypes[t], TEST_HND, 9, 1);
                rival_config config = fixture_config((*m)->name, c.N, 0.2);
                rival_run *run = fixture_open(&config);
                fills[f](&c);
                for (int step = 0; step < FIXTURE_STEPS; step++) {
                    fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, (*m)->name);
                    if (nonfinite(&c.out.view))
                        fail_msg("%s, %s, inputs %zu, step %d: %lld elements are not finite", (*m)->name,
                                 test_dtype_name(test_dtypes[t]), f, step, (long long)nonfinite(&c.out.view));
                }
                rival_run_free(run);
                test_call_free(&c);
            }
}

/* All steps of the branches in `branches` (a set of bits), the outputs of branch `watched`. */
static void play(const rival_config *config, const fixture_clip *clip, int branches, int watched, test_tensor *out)
{
    rival_run *run = fixture_open(config);
    for (int step = 0; step < FIXTURE_STEPS; step++)
        for (int branch = 0; branch < 2; branch++) {
            if (!(branches >> branch & 1)) continue;
            test_call c = fixture_call(clip, step, branch);
            fixture_attends(run, (mcsa_site){ step, 0, branch }, &c, config->method);
            if (branch == watched) {
                out[step] = test_tensor_make(c.H, c.N, c.D, c.dtype, TEST_HND);
                test_copy(&out[step].view, &c.out.view);
            }
            test_call_free(&c);
        }
    rival_run_free(run);
}

static void expect_same(test_tensor *a, test_tensor *b, const char *method, const char *what)
{
    for (int step = 0; step < FIXTURE_STEPS; step++) {
        int64_t different = test_different(&a[step].view, &b[step].view);
        if (different) fail_msg("%s, %s: %lld elements of step %d differ", method, what, (long long)different, step);
        test_tensor_free(&b[step]);
    }
}

static void t7_the_same_bits_again_and_with_four_threads(void **state)
{
    (void)state;
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_tensor first[FIXTURE_STEPS], again[FIXTURE_STEPS];
            fixture_clip clip = { { 2, 300, 300, 24 }, test_dtypes[t], 1 };
            rival_config config = fixture_config((*m)->name, 300, 0.2);
            play(&config, &clip, 1, 0, first);
            play(&config, &clip, 1, 0, again);
            expect_same(first, again, (*m)->name, "once more");
            config.attention.threads = 4;
            play(&config, &clip, 1, 0, again);
            expect_same(first, again, (*m)->name, "4 threads");
            for (int step = 0; step < FIXTURE_STEPS; step++) test_tensor_free(&first[step]);
        }
}

static void t8_branches_in_turn_share_nothing(void **state)
{
    (void)state;
    for (const rival_method *const *m = rival_methods; *m; m++)
        for (int residual = 0; residual < 2; residual++)
            for (int watched = 0; watched < 2; watched++) {
                test_tensor together[FIXTURE_STEPS], alone[FIXTURE_STEPS];
                fixture_clip clip = { { 2, 260, 260, 24 }, MCSA_F32, 1 };
                rival_config config = fixture_config((*m)->name, 260, 0.2);
                config.attention.branches = 2;
                config.residual = residual;
                play(&config, &clip, 3, watched, together);
                play(&config, &clip, 1 << watched, watched, alone);
                expect_same(together, alone, (*m)->name, "two branches in turn");
                for (int step = 0; step < FIXTURE_STEPS; step++) test_tensor_free(&together[step]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t1_all_pairs_are_dense_attention),
        cmocka_unit_test(t3_a_constant_in_all_keys_changes_nothing),
        cmocka_unit_test(t4_equal_values_come_out_again),
        cmocka_unit_test(t6_extreme_inputs_stay_finite),
        cmocka_unit_test(t7_the_same_bits_again_and_with_four_threads),
        cmocka_unit_test(t8_branches_in_turn_share_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
