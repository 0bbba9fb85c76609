/* test_ladder.c - the rungs between block-sparse attention and MC-Sparse: exact masses, the groups of MC-Sparse, and
 * that the top of the ladder is MC-Sparse itself. */
#include "choices.h"

enum { H = 2, N = 330, D = 16 };

/* mass [P] of one part of the queries over the parts of the keys, in double, from exp(s - lse). */
static void mass_of_part(const test_call *c, const rival_choice *choice, const double *lse, int h, int q, double *mass)
{
    int rows, count;
    const int32_t *part = rival_part(&choice->queries, h, q, &rows);
    for (int k = 0; k < choice->keys.P; k++) {
        const int32_t *keys = rival_part(&choice->keys, h, k, &count);
        mass[k] = 0;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < count; j++) {
                double dot = 0;
                for (int d = 0; d < D; d++)
                    dot += test_get(&c->q.view, h, part[i], d) * test_get(&c->k.view, h, keys[j], d);
                mass[k] += exp(dot / sqrt(D) - lse[h * N + part[i]]);
            }
    }
}

/* The kept parts are those of largest mass: whatever was left out weighs no more than what was kept, within the error
 * of both.  Scores up to 32 from sums of D = 16 are off by 32 (D + 8) u = 4.6e-5, and with them their exponentials;
 * those by two exp2; a sum of at most 128 x 64 of them by 8,192 u = 4.9e-4.  That is 5.4e-4 of a mass, of two 1.1e-3.
 */
static void expect_largest(const test_call *c, const rival_choice *choice, const char *method)
{
    test_rounding rounding = { 0 };
    test_reference r = test_reference_make(c, 1 / sqrt(D), NULL, &rounding);
    double *mass = test_alloc(sizeof *mass * (size_t)choice->keys.P);
    for (int h = 0; h < H; h++)
        for (int q = 0; q < choice->queries.P; q++) {
            double least = INFINITY, most = 0;
            mass_of_part(c, choice, r.lse, h, q, mass);
            for (int k = 0; k < choice->keys.P; k++)
                if (rival_map_has(&choice->map, h, q, k))
                    least = fmin(least, mass[k]);
                else
                    most = fmax(most, mass[k]);
            if (!(most <= least * (1 + 1.1e-3)))
                fail_msg("%s: part %d of head %d leaves out a mass of %g and keeps %g", method, q, h, most, least);
        }
    free(mass);
    test_reference_free(&r);
}

/* A call whose queries and keys fall into clusters. */
static test_call clustered_call(mcsa_dtype dtype, uint64_t seed)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, dtype, TEST_HND, seed, 1);
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++) {
            uint64_t place = (uint64_t)test_below(&seed, 6) + 10 * (uint64_t)h;
            for (int d = 0; d < D; d++) {
                double centre = test_normal(&place);
                test_set(&c.q.view, h, n, d, centre + 0.5 * test_normal(&seed));
                test_set(&c.k.view, h, n, d, centre + 0.5 * test_normal(&seed));
            }
        }
    return c;
}

static rival_config config_of(const char *method, double density)
{
    rival_config config = fixture_config(method, N, density);
    config.attention.group = 48;
    return config;
}

static int count_kept(const rival_choice *choice, int h, int q)
{
    int kept = 0;
    for (int k = 0; k < choice->map.K; k++) kept += rival_map_has(&choice->map, h, q, k);
    return kept;
}

static void the_parts_with_most_mass_are_kept(void **state)
{
    (void)state;
    static const char *const methods[] = { "bsa+reuse", "bsa+token", "bsa+group" };
    for (size_t m = 0; m < TEST_COUNT(methods); m++) {
        test_call c = clustered_call(MCSA_F32, 3);
        rival_config config = config_of(methods[m], 0.15);
        chooser by = chooser_open(&config);
        chooser_warm_up(&by, &c);
        const rival_choice *choice = chooser_choose(&by, &c, 2);
        expect_largest(&c, choice, methods[m]);
        for (int h = 0; m > 0 && h < H; h++)
            for (int q = 0; q < choice->queries.P; q++)
                assert_int_equal(count_kept(choice, h, q), (int)((double)0.15f * N + 0.5));
        chooser_close(&by);
        test_call_free(&c);
    }
}

/* Later calls use the choice of the last anchor whatever their inputs are, the next anchor chooses again. */
static void a_choice_lasts_until_the_next_anchor(void **state)
{
    (void)state;
    test_call c = clustered_call(MCSA_F32, 3), other = clustered_call(MCSA_F32, 4);
    rival_config config = config_of("bsa+token", 0.15);
    chooser by = chooser_open(&config);
    mcsa_error error = { "" };
    chooser_warm_up(&by, &c);
    const rival_choice *choice = chooser_choose(&by, &other, 2);
    expect_largest(&c, choice, "at step 2");
    mcsa_qkv x = chooser_x(&other);
    rival_call dense = { .at = { 3, 0, 0 }, .x = &x, .lse = by.lse, .anchor = 0 };
    assert_int_equal(mcsa_attend_dense(by.dense, &other.q.view, &other.k.view, &other.v.view, &other.out.view, by.lse),
                     MCSA_OK);
    assert_int_equal(by.method->observe(by.state, &dense, &error), MCSA_OK); /* dense, but no anchor */
    expect_largest(&c, chooser_choose(&by, &other, 2), "behind a dense step");
    dense.anchor = 1;
    assert_int_equal(by.method->observe(by.state, &dense, &error), MCSA_OK);
    expect_largest(&other, chooser_choose(&by, &c, 4), "at step 4");
    chooser_close(&by);
    test_call_free(&c);
    test_call_free(&other);
}

/* MC-Sparse with the branches apart at the anchor of step 1. */
static mcsa_run *mc_sparse(const rival_config *config)
{
    mcsa_config apart = config->attention;
    apart.sharing = MCSA_BRANCHES_APART;
    apart.tail = MCSA_TAIL_OFF;
    return test_run(&apart);
}

/* Kept sets as MC-Sparse has them.  Its masses come from dense attention's own probabilities, which are rounded once
 * more, so sets may differ by keys that weigh the same within that rounding; groups[h, g] = 1 where they do not. */
static int count_same_groups(const mcsa_selection *s, const rival_choice *choice, int *same)
{
    int count = 0;
    assert_int_equal(choice->queries.P, s->G);
    assert_memory_equal(choice->queries.order, s->order, sizeof *s->order * H * N);
    for (int h = 0; h < H; h++)
        for (int g = 0; g < s->G; g++) {
            size_t bytes = sizeof(uint64_t) * (size_t)s->words;
            assert_int_equal(count_kept(choice, h, g), s->K);
            same[h * s->G + g] = memcmp(rival_map_row(&choice->map, h, g), test_kept(s, h, g), bytes) == 0;
            count += same[h * s->G + g];
        }
    return count;
}

/* Largest change of an element that rounding differently allows: MC-Sparse keeps sparse rows in FP32, here they pass
 * through out's dtype, at the anchor and now; then the residual, at most the sum of two outputs, may round the other
 * way in BF16, and out in its dtype. */
static double rounding_apart(mcsa_dtype dtype, double largest)
{
    if (dtype == MCSA_F32) return 0;
    double out = dtype == MCSA_BF16 ? U_BF16 : U_F16;
    return largest * (2 * out + 2 * U_BF16 * 2 + 3 * out);
}

static void the_top_of_the_ladder_is_mc_sparse(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        mcsa_dtype dtype = test_dtypes[t];
        test_call anchor = clustered_call(dtype, 5), now = clustered_call(dtype, 6);
        test_tensor expected = test_tensor_make(H, N, D, dtype, TEST_HND);
        rival_config config = config_of("bsa+group", 0.15);
        config.residual = 1;
        mcsa_run *mc = mc_sparse(&config);
        rival_run *run = fixture_open(&config);
        chooser by = chooser_open(&config);
        int same[H * N], groups = (N + 47) / 48;
        assert_attends(mc, 1, 0, 0, &anchor);
        fixture_attends(run, (mcsa_site){ 1, 0, 0 }, &anchor, "bsa+group");
        chooser_warm_up(&by, &anchor);
        const mcsa_selection *selection = test_selection(mc, 0, 0);
        int count = count_same_groups(selection, chooser_choose(&by, &now, 2), same);
        print_message("  %s: %d of %d groups keep the same keys\n", test_dtype_name(dtype), count, H * groups);
        assert_true(count >= H * groups * 3 / 4);
        assert_attends(mc, 2, 0, 0, &now);
        test_copy(&expected.view, &now.out.view);
        fixture_attends(run, (mcsa_site){ 2, 0, 0 }, &now, "bsa+group");
        double bound = rounding_apart(dtype, fmax(test_largest(&now.v.view), test_largest(&anchor.v.view)));
        test_worst worst = { 0 };
        for (int h = 0; h < H; h++)
            for (int i = 0; i < N; i++) {
                int n = selection->order[h * N + i];
                for (int d = 0; same[h * groups + i / 48] && d < D; d++)
                    test_judge(&worst, test_get(&now.out.view, h, n, d), test_get(&expected.view, h, n, d), bound, h, n,
                               d);
            }
        test_report(&worst, INFINITY, "%s, bsa+group with the residual", test_dtype_name(dtype));
        chooser_close(&by);
        rival_run_free(run);
        mcsa_run_free(mc);
        test_tensor_free(&expected);
        test_call_free(&anchor);
        test_call_free(&now);
    }
}

/* T2: methods that look at tokens by content choose the same tokens in any order of the keys.  Queries stay. */
static void t2_keys_in_another_order(void **state)
{
    (void)state;
    static const char *const methods[] = { "bsa+token", "bsa+group" };
    for (size_t m = 0; m < TEST_COUNT(methods); m++) {
        test_call c = clustered_call(MCSA_F32, 7), turned = clustered_call(MCSA_F32, 7);
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) {
                    int to = (n * 7 + 5) % N; /* 7 has no factor in common with N */
                    test_set(&turned.k.view, h, to, d, test_get(&c.k.view, h, n, d));
                    test_set(&turned.v.view, h, to, d, test_get(&c.v.view, h, n, d));
                }
        test_rounding rounding = test_rounding_of(mcsa_cpu_isa(), MCSA_F32);
        test_reference r = test_reference_make(&c, 1 / sqrt(D), NULL, &rounding);
        rival_config config = config_of(methods[m], 0.15);
        rival_run *run = fixture_open(&config), *other = fixture_open(&config);
        test_worst worst = { 0 };
        for (int step = 1; step < 3; step++) {
            fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, methods[m]);
            fixture_attends(other, (mcsa_site){ step, 0, 0 }, &turned, methods[m]);
        }
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++)
                    test_judge(&worst, test_get(&turned.out.view, h, n, d), test_get(&c.out.view, h, n, d),
                               2 * r.out_bound[h * N + n], h, n, d);
        test_report(&worst, INFINITY, "%s", methods[m]);
        rival_run_free(run);
        rival_run_free(other);
        test_reference_free(&r);
        test_call_free(&c);
        test_call_free(&turned);
    }
}

/* Head 0 has a few sharp keys, head 1 even attention: 0 gets less, 1 more, their mean stays. */
static void adaspa_takes_from_heads_that_need_less(void **state)
{
    (void)state;
    test_call c = test_call_make((const int[]){ H, 1024, 1024, D }, MCSA_F32, TEST_HND, 3, 1);
    rival_config config = fixture_config("adaspa", 1024, 0.2);
    rival_config even = fixture_config("bsa+reuse", 1024, 0.2);
    for (int n = 0; n < 1024; n++)
        for (int d = 0; d < D; d++) {
            test_set(&c.q.view, 0, n, d, 1);
            test_set(&c.k.view, 0, n, d, n / 64 == 5 ? 2.0 : 0.1 * (n % 3));
            test_set(&c.q.view, 1, n, d, 0.01);
        }
    chooser by = chooser_open(&config), uniform = chooser_open(&even);
    chooser_warm_up(&by, &c);
    chooser_warm_up(&uniform, &c);
    const rival_choice *choice = chooser_choose(&by, &c, 2), *plain = chooser_choose(&uniform, &c, 2);
    int kept[H] = { 0 }, before[H] = { 0 };
    for (int h = 0; h < H; h++)
        for (int q = 0; q < choice->map.Q; q++) {
            kept[h] += count_kept(choice, h, q);
            before[h] += count_kept(plain, h, q);
            assert_true(rival_map_has(&choice->map, 0, q, 5));
        }
    /* 0.2 of 8 x 16 blocks is 25.6 a head, a quarter less is 19.2 and a quarter more 32 */
    assert_int_equal(before[0], 26);
    assert_int_equal(before[1], 26);
    assert_int_equal(kept[0], 19);
    assert_int_equal(kept[1], 32);
    chooser_close(&by);
    chooser_close(&uniform);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_with_most_mass_are_kept),
        cmocka_unit_test(a_choice_lasts_until_the_next_anchor),
        cmocka_unit_test(the_top_of_the_ladder_is_mc_sparse),
        cmocka_unit_test(t2_keys_in_another_order),
        cmocka_unit_test(adaspa_takes_from_heads_that_need_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
