/* test_reuse.c - anchor and reuse: the anchor's output, keep-all, the residual in each of its forms, and
 * sparse attention over the kept keys against double. */
#include "test.h"

static const mcsa_residual forms[] = { MCSA_RESIDUAL_BF16, MCSA_RESIDUAL_INT8, MCSA_RESIDUAL_INT4, MCSA_RESIDUAL_OFF };
static const char *const form_names[] = { "bf16", "int8", "int4", "off" };
static const double form_ceilings[] = { 5e-3, 3e-2, 0.5, 2 }; /* of relative L2, recorded below */

/* Steps 0 and 3 are anchors; 1, 2 and 4 reuse. */
static mcsa_run *open_run(mcsa_isa isa, float density, int C, mcsa_residual residual)
{
    mcsa_config config = { .steps = 5, .layers = 1, .schedule = "list:0,3", .density = density, .group = C };
    config.isa = isa;
    config.residual = residual;
    config.tail = MCSA_TAIL_OFF;
    return test_run(&config);
}

static void at_an_anchor_the_output_is_the_dense_output(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t f = 0; f < TEST_COUNT(forms); f++) {
                test_call c = test_call_make((const int[]){ 2, 150, 150, 33 }, test_dtypes[t], TEST_NHD, f, 1);
                test_tensor dense = test_tensor_make(2, 150, 33, test_dtypes[t], TEST_HND);
                mcsa_run *run = open_run(test_levels[l], 0.1f, 32, forms[f]);
                assert_int_equal(mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &dense.view, NULL), MCSA_OK);
                assert_attends(run, 0, 0, 0, &c);
                assert_same_bits(&c.out.view, &dense.view);
                assert_int_equal(test_damage(&c.out), 0);
                mcsa_run_free(run);
                test_tensor_free(&dense);
                test_call_free(&c);
            }
    }
}

/* T1, R9: with all keys kept, a reuse of new q, k and v is dense attention of them. */
static void t1_r9_keep_all_equals_dense(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ 2, 201, 201, 40 }, test_dtypes[t], TEST_HND, 1, 1);
            mcsa_run *run = open_run(test_levels[l], 1, 64, MCSA_RESIDUAL_OFF);
            test_rounding rounding = test_rounding_of(test_levels[l], test_dtypes[t]);
            test_worst out = { 0 };
            assert_attends(run, 0, 0, 0, &c);
            test_call_refill(&c, 50, 1);
            assert_attends(run, 1, 0, 0, &c);
            test_reference r = test_reference_make(&c, (double)(1 / sqrtf(40)), NULL, &rounding);
            test_judge_out(&out, &c, &r, &rounding);
            test_report(&out, test_ceiling(test_dtypes[t]), "%s %s keep all, against double",
                        mcsa_isa_name(test_levels[l]), test_dtype_name(test_dtypes[t]));
            test_tensor kept = test_tensor_make(2, 201, 40, test_dtypes[t], TEST_HND);
            test_copy(&kept.view, &c.out.view);
            test_worst own = { 0 };
            assert_int_equal(mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &c.out.view, NULL), MCSA_OK);
            for (int h = 0; h < 2; h++)
                for (int n = 0; n < 201; n++)
                    for (int d = 0; d < 40; d++) {
                        double y = test_get(&c.out.view, h, n, d), bound = 2 * r.out_bound[h * 201 + n];
                        bound += 2 * rounding.out * (fabs(y) + bound);
                        test_judge(&own, test_get(&kept.view, h, n, d), y, bound, h, n, d);
                    }
            test_report(&own, test_dtypes[t] == MCSA_F32 ? 1e-6 : 2e-3, "%s %s keep all, against dense",
                        mcsa_isa_name(test_levels[l]), test_dtype_name(test_dtypes[t]));
            test_tensor_free(&kept);
            test_reference_free(&r);
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* What is left to compensate when nothing was dropped: rounding. */
static void with_all_keys_kept_the_residual_is_rounding(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        test_call c = test_call_make((const int[]){ 1, 130, 130, 32 }, MCSA_F32, TEST_HND, 1, 1);
        mcsa_run *run = open_run(test_levels[l], 1, 64, MCSA_RESIDUAL_BF16);
        assert_attends(run, 0, 0, 0, &c);
        test_rounding rounding = test_rounding_of(test_levels[l], MCSA_F32);
        test_reference r = test_reference_make(&c, (double)(1 / sqrtf(32)), NULL, &rounding);
        const mcsa_plan *plan = mcsa_cache_plan(run, 0, 0);
        const uint16_t *residual = plan->residual.data;
        test_worst worst = { 0 };
        for (int i = 0; i < 130; i++)
            for (int d = 0; d < 32; d++)
                test_judge(&worst, (double)mcsa_from_bf16(residual[i * 32 + d]), 0, 2 * r.out_bound[plan->own.order[i]],
                           0, i, d);
        test_report(&worst, 1e-3, "%s residual of nothing dropped", mcsa_isa_name(test_levels[l]));
        test_reference_free(&r);
        mcsa_run_free(run);
        test_call_free(&c);
    }
}

static void sparse_output_is_attention_over_the_kept_keys(void **state)
{
    (void)state;
    static const int shapes[][4] = {
        { 2, 260, 260, 64 }, { 1, 131, 131, 17 }, { 1, 70, 70, 256 }, { 1, 450, 450, 16 }
    };
    static const int groups[] = { 128, 100, 16, 7 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t i = 0; i < TEST_COUNT(shapes); i++) {
                test_call c = test_call_make(shapes[i], test_dtypes[t], i % 2 ? TEST_SPREAD : TEST_HND, 30 + i, 1);
                mcsa_run *run = open_run(test_levels[l], i == 3 ? 0.9f : 0.15f, groups[i], MCSA_RESIDUAL_OFF);
                assert_attends(run, 0, 0, 0, &c);
                test_call_refill(&c, 60 + i, 1);
                assert_attends(run, 1, 0, 0, &c);
                const mcsa_selection *s = test_selection(run, 0, 0);
                const uint64_t **kept = test_kept_by_query(s);
                test_rounding rounding = test_rounding_of(test_levels[l], test_dtypes[t]);
                test_reference r = test_reference_make(&c, (double)(1 / sqrtf((float)c.D)), kept, &rounding);
                test_worst out = { 0 };
                test_judge_out(&out, &c, &r, &rounding);
                test_report(&out, test_ceiling(test_dtypes[t]), "%s %s N %d D %d C %d K %d",
                            mcsa_isa_name(test_levels[l]), test_dtype_name(test_dtypes[t]), c.N, c.D, s->C, s->K);
                assert_int_equal(test_damage(&c.out), 0);
                test_reference_free(&r);
                free(kept);
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* T5: an anchor and a reuse over thousands of tokens, at the best level, judged by 64 sampled queries. */
static void t5_long_sequences_reuse(void **state)
{
    (void)state;
    enum { N = 8191, D = 16 };
    test_call c = test_call_make((const int[]){ 1, N, N, D }, MCSA_BF16, TEST_HND, 1, 1);
    mcsa_run *run = open_run(MCSA_ISA_AUTO, 0.05f, 128, MCSA_RESIDUAL_OFF);
    test_rounding rounding = test_rounding_of(mcsa_cpu_isa(), MCSA_BF16);
    for (int step = 0; step < 2; step++) {
        double out[D], lse, out_bound, lse_bound;
        const test_reference r = { out, &lse, &out_bound, &lse_bound };
        test_worst worst = { 0 };
        assert_attends(run, step, 0, 0, &c);
        double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view), *v = test_doubles(&c.v.view);
        const uint64_t **kept = test_kept_by_query(test_selection(run, 0, 0));
        test_row row = { .k = k, .v = v, .M = N, .D = D, .scale = 0.25, .score = test_alloc(sizeof(double) * N) };
        for (int n = 0; n < N; n += N / 63) {
            row.q = q + n * D;
            row.kept = step ? kept[n] : NULL;
            test_reference_row(&row, &rounding, &r, 0);
            for (int d = 0; d < D; d++) {
                double bound = out_bound + rounding.out * (fabs(out[d]) + out_bound);
                test_judge(&worst, test_get(&c.out.view, 0, n, d), out[d], bound, step, n, d);
            }
        }
        test_report(&worst, test_ceiling(MCSA_BF16), "%s over 8191 tokens", step ? "reuse" : "anchor");
        free(q);
        free(k);
        free(v);
        free(kept);
        free(row.score);
    }
    mcsa_run_free(run);
    test_call_free(&c);
}

/* Error of a stored residual whose row has the largest element `most`, for element x: bf16 rounds each
 * number, the integers round to steps of most / 127 and most / 7 and lose 2^-22 of the range to the float
 * division and multiplication. */
static double form_error(mcsa_residual form, double most, double x)
{
    switch (form) {
    case MCSA_RESIDUAL_BF16: return U_BF16 * fabs(x);
    case MCSA_RESIDUAL_INT8: return most * (0.5 / 127 + 0x1p-22);
    case MCSA_RESIDUAL_INT4: return most * (0.5 / 7 + 0x1p-22);
    default: return fabs(x);
    }
}

/* The same q, k and v again: sparse + (dense - sparse) is dense, up to how the residual is stored. */
static void reusing_the_same_inputs_gives_dense_back(void **state)
{
    (void)state;
    enum { H = 2, N = 203, D = 33 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 2, 1);
            test_tensor dense = test_tensor_make(H, N, D, test_dtypes[t], TEST_HND);
            test_tensor sparse = test_tensor_make(H, N, D, test_dtypes[t], TEST_HND);
            double u = test_rounding_of(test_levels[l], test_dtypes[t]).out;
            mcsa_run *off = open_run(test_levels[l], 0.1f, 64, MCSA_RESIDUAL_OFF);
            assert_attends(off, 0, 0, 0, &c);
            test_copy(&dense.view, &c.out.view);
            assert_attends(off, 1, 0, 0, &c);
            test_copy(&sparse.view, &c.out.view);
            for (int f = 0; f < 3; f++) {
                mcsa_run *run = open_run(test_levels[l], 0.1f, 64, forms[f]);
                test_worst worst = { 0 };
                double missed = 0; /* without the residual, the same comparison */
                assert_attends(run, 0, 0, 0, &c);
                assert_attends(run, 2, 0, 0, &c);
                for (int h = 0; h < H; h++)
                    for (int n = 0; n < N; n++) {
                        double most = 0;
                        for (int d = 0; d < D; d++) {
                            double y = test_get(&sparse.view, h, n, d), x = test_get(&dense.view, h, n, d) - y;
                            most = fmax(most, fabs(x) + u * fabs(y)); /* sparse is known to the rounding of out only */
                        }
                        for (int d = 0; d < D; d++) {
                            double y = test_get(&sparse.view, h, n, d), want = test_get(&dense.view, h, n, d);
                            double x = fabs(want - y) + u * fabs(y), stored = form_error(forms[f], most, x);
                            double bound = stored + 4 * U_F32 * (fabs(y) + x) + u * (fabs(want) + stored) + 0x1p-25;
                            missed = fmax(missed, fabs(want - y));
                            test_judge(&worst, test_get(&c.out.view, h, n, d), want, bound, h, n, d);
                        }
                    }
                test_report(&worst, form_ceilings[f], "%s %s, residual in %s (without: %.2f)",
                            mcsa_isa_name(test_levels[l]), test_dtype_name(test_dtypes[t]), form_names[f], missed);
                mcsa_run_free(run);
            }
            mcsa_run_free(off);
            test_tensor_free(&dense);
            test_tensor_free(&sparse);
            test_call_free(&c);
        }
    }
}

/* With new q, k and v, what a reuse adds to sparse attention is dense - sparse of the anchor, per query,
 * whatever group it sits in. */
static void a_reuse_adds_the_residual_of_its_anchor(void **state)
{
    (void)state;
    enum { H = 2, N = 150, D = 24 };
    for (int step = 1; step <= 4; step += 3) { /* after the anchor at 0, and after the one at 3 */
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, 5, 1);
        test_tensor dense = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
        test_tensor missed = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
        mcsa_run *on = open_run(MCSA_ISA_AUTO, 0.2f, 32, MCSA_RESIDUAL_BF16);
        mcsa_run *off = open_run(MCSA_ISA_AUTO, 0.2f, 32, MCSA_RESIDUAL_OFF);
        for (int t = 0; t < step; t++) { /* the last is the anchor; q, k and v move from step to step */
            if (t % 3) continue;
            test_call_refill(&c, (uint64_t)(70 + t), 1);
            assert_attends(on, t, 0, 0, &c);
            assert_attends(off, t, 0, 0, &c);
        }
        test_copy(&dense.view, &c.out.view);
        assert_attends(off, step, 0, 0, &c);
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++)
                    test_set(&missed.view, h, n, d, test_get(&dense.view, h, n, d) - test_get(&c.out.view, h, n, d));
        test_call_refill(&c, 90, 1);
        assert_attends(off, step, 0, 0, &c);
        test_copy(&dense.view, &c.out.view); /* now: sparse attention of the new q, k, v */
        assert_attends(on, step, 0, 0, &c);
        test_worst worst = { 0 };
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) {
                    double x = test_get(&missed.view, h, n, d), y = test_get(&dense.view, h, n, d);
                    test_judge(&worst, test_get(&c.out.view, h, n, d), x + y,
                               U_BF16 * fabs(x) + 4 * U_F32 * (fabs(x) + fabs(y)), h, n, d);
                }
        test_report(&worst, 5e-3, "residual added at step %d", step);
        mcsa_run_free(on);
        mcsa_run_free(off);
        test_tensor_free(&dense);
        test_tensor_free(&missed);
        test_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_an_anchor_the_output_is_the_dense_output),
        cmocka_unit_test(t1_r9_keep_all_equals_dense),
        cmocka_unit_test(with_all_keys_kept_the_residual_is_rounding),
        cmocka_unit_test(sparse_output_is_attention_over_the_kept_keys),
        cmocka_unit_test(t5_long_sequences_reuse),
        cmocka_unit_test(reusing_the_same_inputs_gives_dense_back),
        cmocka_unit_test(a_reuse_adds_the_residual_of_its_anchor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
