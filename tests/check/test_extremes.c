/* test_extremes.c - attention at the ends of its range: queries and keys up to 300 (outliers behind an
 * RMSNorm), scores that are tiny, huge, equal or one-hot, identical keys, zero vectors; dense and at
 * reuse.  T3, T4, T6, R6. */
#include "test.h"

enum { H = 1, N = 130, D = 128, C = 32 };

/* Scores of small integers are exact in float: 128 products of at most 300 * 300 stay below 2^24. */
typedef enum data { UP_TO_300, TINY, ZERO_QUERIES, IDENTICAL_KEYS, TWO_CLUSTERS, DATA } data;

static const char *const names[] = { "|q|, |k| up to 300", "tiny", "zero queries", "identical keys", "two clusters" };

static double pick(data kind, int is_key, int n, int d, uint64_t *seed)
{
    double sign = (d + n) % 3 ? 1 : -1, x = 4 * test_below(seed, 38); /* at most 148: 8 bits, so exact in bf16 */
    switch (kind) {
    case UP_TO_300: return n % 16 ? sign * x : 300 * ((test_below(seed, 3)) - 1);
    case TINY: return 0x1p-14 * test_below(seed, 3);
    case ZERO_QUERIES: return is_key ? sign * x : 0;
    case IDENTICAL_KEYS: return is_key ? d % 7 - 3 : sign * test_below(seed, 9);
    default: return n % 2 ? 16 * (d % 2) : -16 * (d % 2);
    }
}

static test_call make(data kind, mcsa_dtype dtype)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, dtype, TEST_HND, 1, 1);
    uint64_t seed = 5;
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++) {
            test_set(&c.q.view, 0, n, d, pick(kind, 0, n, d, &seed));
            test_set(&c.k.view, 0, n, d, pick(kind, 1, n, d, &seed));
        }
    return c;
}

static mcsa_run *open_run(mcsa_isa isa, float scale)
{
    mcsa_config config = {
        .steps = 2, .layers = 1, .schedule = "list:0", .group = C, .density = 0.25f, .scale = scale
    };
    config.residual = MCSA_RESIDUAL_OFF;
    config.tail = MCSA_TAIL_OFF;
    config.isa = isa;
    return test_run(&config);
}

/* T6: no NaN, no infinity, and the right numbers: dense, then sparse over the kept keys. */
static void t6_extreme_scores_give_finite_and_right_outputs(void **state)
{
    (void)state;
    const float scale = 0x1p-3f;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (int kind = 0; kind < DATA; kind++) {
                test_call c = make((data)kind, test_dtypes[t]);
                mcsa_run *run = open_run(test_levels[l], scale);
                test_rounding rounding = test_rounding_of(test_levels[l], test_dtypes[t]);
                rounding.exact_scores = 1;
                for (int step = 0; step < 2; step++) {
                    assert_attends(run, step, 0, 0, &c);
                    const uint64_t **kept = step ? test_kept_by_query(test_selection(run, 0, 0)) : NULL;
                    test_reference r = test_reference_make(&c, (double)scale, kept, &rounding);
                    test_worst out = { 0 };
                    test_judge_out(&out, &c, &r, &rounding);
                    test_report(&out, test_ceiling(test_dtypes[t]), "%s %s, %s, %s", mcsa_isa_name(test_levels[l]),
                                test_dtype_name(test_dtypes[t]), names[kind], step ? "sparse" : "dense");
                    test_reference_free(&r);
                    free(kept);
                }
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* One key per query is ahead of all others by more than 2^150: the output is that key's value, bit for
 * bit, whichever block of keys it stands in. */
static void a_dominant_key_gives_its_value_exactly(void **state)
{
    (void)state;
    enum { KEYS = 2 * MCSA_KEY_BLOCK + 5, QUERIES = 40, DIMS = 64 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ 1, QUERIES, KEYS, DIMS }, test_dtypes[t], TEST_HND, 3, 0.1);
            int winner[QUERIES];
            for (int n = 0; n < QUERIES; n++) { /* query n is 50 along axis n, and so is its key */
                winner[n] = (n * 97 + 11) % KEYS;
                for (int d = 0; d < DIMS; d++) test_set(&c.q.view, 0, n, d, d == n ? 50 : 0);
                for (int d = 0; d < DIMS; d++) test_set(&c.k.view, 0, winner[n], d, d == n ? 50 : 0);
            }
            mcsa_run *run = open_run(test_levels[l], 0.125f);
            if (mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &c.out.view, NULL) != MCSA_OK)
                fail_msg("%s", mcsa_run_error(run));
            for (int n = 0; n < QUERIES; n++)
                for (int d = 0; d < DIMS; d++)
                    if (test_get(&c.out.view, 0, n, d) != test_get(&c.v.view, 0, winner[n], d))
                        fail_msg("%s %s: query %d, element %d is %g, its key has %g", mcsa_isa_name(test_levels[l]),
                                 test_dtype_name(test_dtypes[t]), n, d, test_get(&c.out.view, 0, n, d),
                                 test_get(&c.v.view, 0, winner[n], d));
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* R6: masses of nearly all keys are exactly 0.  The winner of every query is kept, and no output is NaN
 * when, at reuse, new queries look only at keys that were not kept. */
static void r6_rows_without_mass_are_never_nan(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 3, 0.01);
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) {
                    test_set(&c.q.view, 0, n, d, d == n % 8 ? 300 : 0);
                    test_set(&c.k.view, 0, n, d, n < 8 && d == n ? 300 : 0);
                }
            mcsa_run *run = open_run(test_levels[l], 1);
            assert_attends(run, 0, 0, 0, &c);
            const mcsa_selection *s = test_selection(run, 0, 0);
            for (int n = 0; n < N; n++) assert_int_equal(test_is_kept(s, 0, n / C, s->order[n] % 8), 1);
            for (int n = 0; n < N; n++) /* away from what was kept, by scores that exp2 cannot hold */
                for (int d = 0; d < D; d++) {
                    test_set(&c.q.view, 0, n, d, -300);
                    test_set(&c.k.view, 0, n, d, n < N - 8 ? 300 : -300);
                }
            assert_attends(run, 1, 0, 0, &c);
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) assert_true(isfinite(test_get(&c.out.view, 0, n, d)));
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* T4: when all values are one value, so is every output, up to how its sum is rounded. */
static void t4_equal_values_come_out_as_they_are(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 6, 1);
            test_rounding rounding = test_rounding_of(test_levels[l], test_dtypes[t]);
            test_worst worst = { 0 };
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) test_set(&c.v.view, 0, n, d, test_get(&c.v.view, 0, 0, d));
            mcsa_run *run = open_run(test_levels[l], 0);
            for (int step = 0; step < 2; step++) {
                assert_attends(run, step, 0, 0, &c);
                for (int n = 0; n < N; n++)
                    for (int d = 0; d < D; d++) {
                        /* numerator and denominator have the same weights: N u each for the sums, once the
                         * rounding of the weights where they are rounded, and that of out */
                        double v = test_get(&c.v.view, 0, 0, d);
                        double bound = (2 * (N + 2) * U_F32 + rounding.probability) * fabs(v);
                        bound += rounding.out * (fabs(v) + bound) + 0x1p-25;
                        test_judge(&worst, test_get(&c.out.view, 0, n, d), v, bound, step, n, d);
                    }
            }
            test_report(&worst, test_ceiling(test_dtypes[t]), "%s %s, equal values", mcsa_isa_name(test_levels[l]),
                        test_dtype_name(test_dtypes[t]));
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* T3: a constant vector added to all keys moves all scores of a query alike, so the output stays, and so
 * do the masses and the kept keys.  Integers keep the scores exact, and 3 * 128 * 8 moves them by no more
 * than float's last bits. */
static void t3_a_constant_added_to_all_keys_changes_nothing(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call a = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 8, 1);
            test_call b = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 8, 1);
            test_rounding rounding = test_rounding_of(test_levels[l], test_dtypes[t]);
            uint64_t seed = 3;
            rounding.exact_scores = 1;
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) {
                    double q = test_below(&seed, 7) - 3, k = test_below(&seed, 7) - 3;
                    test_set(&a.q.view, 0, n, d, q);
                    test_set(&b.q.view, 0, n, d, q);
                    test_set(&a.k.view, 0, n, d, k);
                    test_set(&b.k.view, 0, n, d, k + d % 8);
                }
            mcsa_run *first = open_run(test_levels[l], 0.125f), *second = open_run(test_levels[l], 0.125f);
            test_worst worst = { 0 };
            for (int step = 0; step < 2; step++) {
                assert_attends(first, step, 0, 0, &a);
                assert_attends(second, step, 0, 0, &b);
                const uint64_t **kept = step ? test_kept_by_query(test_selection(first, 0, 0)) : NULL;
                test_reference r = test_reference_make(&a, 0.125, kept, &rounding);
                test_reference s = test_reference_make(&b, 0.125, kept, &rounding);
                for (int n = 0; n < N; n++)
                    for (int d = 0; d < D; d++) {
                        double x = test_get(&a.out.view, 0, n, d), bound = r.out_bound[n] + s.out_bound[n];
                        bound += 2 * rounding.out * (fabs(x) + bound) + 0x1p-24;
                        test_judge(&worst, test_get(&b.out.view, 0, n, d), x, bound, step, n, d);
                    }
                test_reference_free(&r);
                test_reference_free(&s);
                free(kept);
            }
            test_report(&worst, test_ceiling(test_dtypes[t]), "%s %s, a constant added to all keys",
                        mcsa_isa_name(test_levels[l]), test_dtype_name(test_dtypes[t]));
            mcsa_run_free(first);
            mcsa_run_free(second);
            test_call_free(&a);
            test_call_free(&b);
        }
    }
}

/* Unchecked, a NaN in q spoils its row, one in k or v what looks at it: IEEE arithmetic, and no crash. */
static void unchecked_nan_spreads_as_ieee_says(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (int which = 0; which < 3; which++) {
                test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 9, 1);
                const mcsa_tensor *spoiled = which == 0 ? &c.q.view : which == 1 ? &c.k.view : &c.v.view;
                test_set(spoiled, 0, 77, 5, (double)NAN);
                mcsa_run *run = open_run(test_levels[l], 0);
                for (int step = 0; step < 2; step++) assert_attends(run, step, 0, 0, &c);
                assert_int_equal(mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &c.out.view, NULL), MCSA_OK);
                for (int n = 0; n < N; n++)
                    for (int d = 0; d < D; d++) {
                        int expected = which == 0 ? n == 77 : which == 1 ? 1 : d == 5;
                        assert_int_equal(isnan(test_get(&c.out.view, 0, n, d)) != 0, expected);
                    }
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t6_extreme_scores_give_finite_and_right_outputs),
        cmocka_unit_test(a_dominant_key_gives_its_value_exactly),
        cmocka_unit_test(r6_rows_without_mass_are_never_nan),
        cmocka_unit_test(t4_equal_values_come_out_as_they_are),
        cmocka_unit_test(t3_a_constant_added_to_all_keys_changes_nothing),
        cmocka_unit_test(unchecked_nan_spreads_as_ieee_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
