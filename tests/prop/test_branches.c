/* test_branches.c - guidance branches: shared ones use the leader's groups and keys and a residual of
 * their own; apart or interleaved, they do not mix.  R13, T8. */
#include "test.h"

enum { H = 2, N = 100, D = 16, STEPS = 6 };

static test_call call_of(int step, int layer, int branch)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_HND, 1, 1);
    test_call_refill(&c, (uint64_t)(1000 * branch + 100 * layer + 10 * step + 1), 1);
    return c;
}

static mcsa_run *open_run(int branches, mcsa_sharing sharing)
{
    mcsa_config config = {
        .steps = STEPS, .layers = 2, .branches = branches, .schedule = "list:1,4", .sharing = sharing
    };
    config.group = 16;
    config.density = 0.2f;
    return test_run(&config);
}

static void one_call(mcsa_run *run, int step, int layer, int branch, int as_branch, test_tensor *out)
{
    test_call c = call_of(step, layer, branch);
    assert_attends(run, step, layer, as_branch, &c);
    *out = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
    test_copy(&out->view, &c.out.view);
    test_call_free(&c);
}

/* T8: two branches apart in one run give what two runs with one branch each give. */
static void t8_interleaved_branches_do_not_mix(void **state)
{
    (void)state;
    mcsa_run *both = open_run(2, MCSA_BRANCHES_APART), *alone[2] = { open_run(1, 0), open_run(1, 0) };
    for (int step = 0; step < STEPS; step++)
        for (int layer = 0; layer < 2; layer++)
            for (int branch = 0; branch < 2; branch++) {
                test_tensor together, apart;
                one_call(both, step, layer, branch, branch, &together);
                one_call(alone[branch], step, layer, branch, 0, &apart);
                assert_same_bits(&together.view, &apart.view);
                test_tensor_free(&together);
                test_tensor_free(&apart);
            }
    assert_ptr_not_equal(test_selection(both, 0, 0), test_selection(both, 0, 1));
    mcsa_run_free(both);
    for (int i = 0; i < 2; i++) mcsa_run_free(alone[i]);
}

/* The leader does not notice its followers. */
static void a_leader_computes_as_if_alone(void **state)
{
    (void)state;
    mcsa_run *shared = open_run(3, MCSA_BRANCHES_SHARED), *alone = open_run(1, 0);
    for (int step = 0; step < STEPS; step++)
        for (int branch = 0; branch < 3; branch++) {
            test_tensor together, apart;
            one_call(shared, step, 0, branch, branch, &together);
            if (branch == 0) {
                one_call(alone, step, 0, 0, 0, &apart);
                assert_same_bits(&together.view, &apart.view);
                test_tensor_free(&apart);
            }
            test_tensor_free(&together);
        }
    mcsa_run_free(shared);
    mcsa_run_free(alone);
}

/* A follower's reuse: its own q, k and v over the leader's keys, plus its own residual.  With bf16
 * residuals the two parts can be told apart by a run without residuals. */
static void a_follower_uses_the_leaders_keys_and_its_own_residual(void **state)
{
    (void)state;
    mcsa_config config = {
        .steps = STEPS, .layers = 1, .branches = 2, .schedule = "list:1", .group = 16, .density = 0.2f
    };
    config.tail = MCSA_TAIL_OFF;
    mcsa_run *on = test_run(&config);
    config.residual = MCSA_RESIDUAL_OFF;
    mcsa_run *off = test_run(&config);
    test_tensor dense[2], sparse[2], out[2], plain[2];
    for (int branch = 0; branch < 2; branch++) { /* the anchor, and the same q, k, v once more */
        test_tensor unused;
        one_call(off, 1, 0, branch, branch, &dense[branch]);
        one_call(on, 1, 0, branch, branch, &unused);
        test_tensor_free(&unused);
    }
    test_call again = call_of(1, 0, 1);
    assert_attends(off, 2, 0, 1, &again);
    sparse[1] = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
    test_copy(&sparse[1].view, &again.out.view);
    one_call(off, 3, 0, 1, 1, &plain[1]);
    one_call(on, 3, 0, 1, 1, &out[1]);

    assert_ptr_equal(test_selection(on, 0, 1), test_selection(on, 0, 0));
    const uint64_t **kept = test_kept_by_query(test_selection(off, 0, 0));
    test_rounding rounding = test_rounding_of(MCSA_ISA_AUTO, MCSA_F32);
    test_call c = call_of(3, 0, 1);
    test_reference r = test_reference_make(&c, (double)(1 / sqrtf(D)), kept, &rounding);
    test_worst keys = { 0 }, residual = { 0 };
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++)
            for (int d = 0; d < D; d++) {
                double y = test_get(&plain[1].view, h, n, d);
                double missed = test_get(&dense[1].view, h, n, d) - test_get(&sparse[1].view, h, n, d);
                test_judge(&keys, y, r.out[(h * N + n) * D + d], r.out_bound[h * N + n], h, n, d);
                test_judge(&residual, test_get(&out[1].view, h, n, d), y + missed,
                           U_BF16 * fabs(missed) + 4 * U_F32 * (fabs(y) + fabs(missed)), h, n, d);
            }
    test_report(&keys, 1e-6, "a follower attends to the leader's keys");
    test_report(&residual, 5e-3, "a follower adds its own residual");
    test_reference_free(&r);
    test_call_free(&c);
    test_call_free(&again);
    free(kept);
    for (int branch = 0; branch < 2; branch++) test_tensor_free(&dense[branch]);
    test_tensor_free(&sparse[1]);
    test_tensor_free(&plain[1]);
    test_tensor_free(&out[1]);
    mcsa_run_free(on);
    mcsa_run_free(off);
}

/* Sharing is the default for two branches only, and what a follower holds is its residual alone. */
static void sharing_by_default_and_what_it_saves(void **state)
{
    (void)state;
    int64_t held[4] = { 0 };
    for (int branches = 1; branches <= 3; branches++) {
        mcsa_run *run = open_run(branches, MCSA_BRANCHES_DEFAULT);
        mcsa_stats stats = { 0 };
        for (int branch = 0; branch < branches; branch++) {
            test_call c = call_of(1, 0, branch);
            assert_attends(run, 1, 0, branch, &c);
            test_call_free(&c);
        }
        assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
        held[branches] = stats.selection_bytes;
        assert_int_equal(stats.residual_bytes, branches * H * N * D * 2);
        if (branches > 1) assert_int_equal(test_selection(run, 0, 1) == test_selection(run, 0, 0), branches == 2);
        mcsa_run_free(run);
    }
    assert_int_equal(held[2], held[1]);
    assert_int_equal(held[3], 3 * held[1]);
}

/* The order of branch 1 and 2 within a step does not matter, as long as the leader comes first. */
static void followers_come_in_any_order(void **state)
{
    (void)state;
    mcsa_run *first = open_run(3, MCSA_BRANCHES_SHARED), *second = open_run(3, MCSA_BRANCHES_SHARED);
    static const int orders[2][3] = { { 0, 1, 2 }, { 0, 2, 1 } };
    for (int step = 0; step < STEPS; step++) {
        test_tensor out[2][3];
        for (int i = 0; i < 3; i++) one_call(first, step, 1, orders[0][i], orders[0][i], &out[0][orders[0][i]]);
        for (int i = 0; i < 3; i++) one_call(second, step, 1, orders[1][i], orders[1][i], &out[1][orders[1][i]]);
        for (int i = 0; i < 3; i++) {
            assert_same_bits(&out[0][i].view, &out[1][i].view);
            test_tensor_free(&out[0][i]);
            test_tensor_free(&out[1][i]);
        }
    }
    mcsa_run_free(first);
    mcsa_run_free(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(t8_interleaved_branches_do_not_mix),
        cmocka_unit_test(a_leader_computes_as_if_alone),
        cmocka_unit_test(a_follower_uses_the_leaders_keys_and_its_own_residual),
        cmocka_unit_test(sharing_by_default_and_what_it_saves),
        cmocka_unit_test(followers_come_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
