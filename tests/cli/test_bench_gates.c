/* test_bench_gates.c - the gates of the benchmarks let right answers pass and refuse wrong ones. */
#include "clusters.h"
#include "kmeans.h"
#include "scratch.h"

#include "base/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A problem whose output, groups and keys are right, for the gates to accept and then to refuse. */
typedef struct solved {
    bench_problem problem;
    mcsa_selection s;
} solved;

static void solve_with(solved *c, mcsa_dtype dtype, mcsa_tail tail)
{
    mcsa_error error = { "" };
    bench_shape shape = { 2, 200, 40, 32, 1, dtype, MCSA_ISA_SCALAR };
    if (bench_problem_open(&c->problem, &shape, 0, &error) != MCSA_OK) fail_msg("%s", error.text);
    if (bench_problem_select(&c->problem, &c->s, &shape, (bench_budget){ 0.2f, tail }, &error) != MCSA_OK)
        fail_msg("%s", error.text);
    mcsa_backend_cpu.attend_dense(c->problem.state, &c->problem.x, c->problem.lse);
    mcsa_backend_cpu.group(c->problem.state, &c->problem.x, &c->s);
    if (!bench_clusters_make(&c->problem, &c->s)) fail_msg("no partition");
    mcsa_backend_cpu.select(c->problem.state, &c->problem.x, c->problem.lse, &c->s);
}

static void solve(solved *c, mcsa_dtype dtype)
{
    solve_with(c, dtype, MCSA_TAIL_OFF);
}

static void release(solved *c)
{
    mcsa_block_release(&c->problem.memory, &c->s.memory);
    bench_problem_close(&c->problem);
}

static void the_dense_gate_refuses_a_wrong_row(void **state)
{
    (void)state;
    solved c = { 0 };
    solve(&c, MCSA_F32);
    assert_true(bench_check_rows(&c.problem, NULL) <= 1);
    float *last = mcsa_tensor_row(&c.problem.out, 1, 199); /* the last of the sampled rows */
    float kept = last[39];
    last[39] = kept + 1e-2f;
    assert_true(bench_check_rows(&c.problem, NULL) > 1);
    last[39] = NAN;
    assert_false(bench_check_rows(&c.problem, NULL) <= 1);
    last[39] = kept;
    last[3] = NAN; /* and right ones after it */
    assert_false(bench_check_rows(&c.problem, NULL) <= 1);
    release(&c);
}

/* Each element is within its bound of zero, as thousands of random values cancel; the row is not. */
static void the_dense_gate_refuses_rows_of_zeros(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    bench_problem p;
    bench_shape shape = { 1, 16384, 8, 128, 1, MCSA_BF16, MCSA_ISA_SCALAR };
    if (bench_problem_open(&p, &shape, 0, &error) != MCSA_OK) fail_msg("%s", error.text);
    memset(p.out.data, 0, sizeof(uint16_t) * 16384 * 8);
    assert_true(bench_check_rows(&p, NULL) > 1);
    bench_problem_close(&p);
}

static void the_sparse_gate_refuses_the_dense_answer(void **state)
{
    (void)state;
    solved c = { 0 };
    mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    solve(&c, MCSA_BF16);
    assert_true(bench_check_rows(&c.problem, &c.s) > 1);
    mcsa_backend_cpu.attend_tokens(c.problem.state, &c.problem.x, &c.s, &none);
    assert_true(bench_check_rows(&c.problem, &c.s) <= 1);
    release(&c);
}

static void turn(mcsa_selection *s, int p)
{
    s->kept[p / 64] ^= UINT64_C(1) << (p % 64);
}

/* The first cluster with keys that group 0 of head 0 keeps, or does not. */
static int find_cluster(const mcsa_selection *s, int kept)
{
    for (int p = 0, count; p < s->P; p++) {
        (void)bench_cluster(s, 0, p, &count);
        if (count > 1 && bench_kept(s, 0, p) == kept) return p;
    }
    fail_msg("there is none");
    return -1;
}

/* The dense answer, one more cluster kept, and a key taken for one of the next cluster. */
static void the_sparse_gate_refuses_other_means(void **state)
{
    (void)state;
    static const mcsa_dtype dtypes[] = { MCSA_F32, MCSA_BF16, MCSA_F16 };
    const mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        solved c = { 0 };
        solve_with(&c, dtypes[t], MCSA_TAIL_MEANS);
        assert_true(c.s.P > 1);
        assert_true(bench_check_rows(&c.problem, &c.s) > 1); /* the dense answer */
        mcsa_backend_cpu.attend_tokens(c.problem.state, &c.problem.x, &c.s, &none);
        assert_true(bench_check_rows(&c.problem, &c.s) <= 1);
        const int dropped = find_cluster(&c.s, 0); /* the first of the sampled rows is in group 0 of head 0 */
        turn(&c.s, dropped);
        assert_true(bench_check_rows(&c.problem, &c.s) > 1);
        turn(&c.s, dropped);
        c.s.first[dropped + 1]--; /* and the next one is larger by that key */
        assert_true(bench_check_rows(&c.problem, &c.s) > 1);
        release(&c);
    }
}

static void the_cluster_gates_refuse_what_is_no_partition(void **state)
{
    (void)state;
    solved c = { 0 };
    solve_with(&c, MCSA_F32, MCSA_TAIL_MEANS);
    int32_t *member = c.s.members + c.s.N, *first = c.s.first + c.s.P + 1; /* of head 1 */
    const int32_t kept[2] = { member[0], member[1] };
    assert_true(bench_is_partition(&c.s));
    member[0] = member[c.s.N - 1]; /* twice */
    assert_false(bench_is_partition(&c.s));
    member[0] = -1;
    assert_false(bench_is_partition(&c.s));
    member[0] = c.s.N;
    assert_false(bench_is_partition(&c.s));
    member[0] = kept[0];
    first[1] = 2; /* of a cluster of its first two members, which then descend */
    first[2] = first[2] < 2 ? 2 : first[2];
    member[0] = kept[1] > kept[0] ? kept[1] : kept[0];
    member[1] = kept[1] > kept[0] ? kept[0] : kept[1];
    assert_false(bench_is_partition(&c.s));
    member[0] = kept[0];
    member[1] = kept[1];
    first[c.s.P]--; /* a key of no cluster */
    assert_false(bench_is_partition(&c.s));
    release(&c);
}

/* Clusters of the same sizes whose keys have nothing to do with each other. */
static void the_cluster_gate_refuses_keys_that_do_not_belong_together(void **state)
{
    (void)state;
    solved c = { 0 };
    solve_with(&c, MCSA_BF16, MCSA_TAIL_MEANS);
    assert_true(bench_clusters_are_tight(&c.problem, &c.s));
    for (int h = 0; h < c.s.H; h++)
        for (int i = 0; i < c.s.N; i++) c.s.members[h * c.s.N + i] = i * 7 % c.s.N; /* 7 and 200 have no divisor */
    assert_false(bench_clusters_are_tight(&c.problem, &c.s));
    mcsa_backend_cpu.cluster(c.problem.state, &c.problem.x, &c.s);
    assert_true(bench_clusters_are_tight(&c.problem, &c.s));
    bench_store(&c.problem.k, 5, NAN);
    assert_false(bench_clusters_are_tight(&c.problem, &c.s));
    release(&c);
}

static void the_selection_gate_refuses_other_clusters(void **state)
{
    (void)state;
    solved c = { 0 };
    solve_with(&c, MCSA_F32, MCSA_TAIL_MEANS);
    assert_true(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    const int kept = find_cluster(&c.s, 1), dropped = find_cluster(&c.s, 0);
    turn(&c.s, kept); /* what fits is left out */
    assert_false(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    turn(&c.s, dropped); /* and another one kept instead */
    assert_false(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    turn(&c.s, kept); /* more than fits */
    assert_false(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    turn(&c.s, dropped);
    assert_true(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    turn(&c.s, c.s.P); /* a cluster that there is not */
    assert_false(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    release(&c);
}

/* Worths 5, 4, 3 of 4, 6 and 2 keys, K = 7: the first takes the rows to 6, the second does not fit, the third does. */
static void a_walk_goes_on_behind_what_does_not_fit(void **state)
{
    (void)state;
    int32_t members[12] = { 0 }, first[4] = { 0, 4, 10, 12 };
    uint64_t kept = 5;
    mcsa_selection s = { .H = 1, .N = 12, .C = 1, .G = 1, .K = 7, .P = 3, .words = 1 };
    s.members = members;
    s.first = first;
    s.kept = &kept;
    double worth[3] = { 5, 4, 3 };
    assert_true(bench_keeps_what_fits(&s, 0, 0, worth, 0));
    kept = 1;
    assert_false(bench_keeps_what_fits(&s, 0, 0, worth, 0));
    kept = 2; /* 8 rows */
    assert_false(bench_keeps_what_fits(&s, 0, 0, worth, 0));
    s.K = 8;
    assert_false(bench_keeps_what_fits(&s, 0, 0, worth, 0));
    assert_true(bench_keeps_what_fits(&s, 0, 0, worth, 0.21)); /* 4 is within a fifth of 5 */
    worth[1] = NAN;
    assert_false(bench_keeps_what_fits(&s, 0, 0, worth, 0));
}

static void shuffled_clusters_fill_the_rows(void **state)
{
    (void)state;
    solved c = { 0 };
    solve_with(&c, MCSA_F32, MCSA_TAIL_MEANS);
    bench_selection_shuffle(&c.s, 0);
    assert_true(bench_is_permutation(&c.s));
    for (int row = 0; row < c.s.H * c.s.G; row++) {
        int rows = 0, smallest = c.s.N, count;
        for (int p = 0; p < c.s.P; p++) {
            (void)bench_cluster(&c.s, row / c.s.G, p, &count);
            rows += bench_kept(&c.s, row, p) ? count : count > 0;
            if (count > 1 && !bench_kept(&c.s, row, p) && count < smallest) smallest = count;
        }
        assert_true(rows <= c.s.K && rows + smallest - 1 > c.s.K);
    }
    release(&c);
}

/* Labels that swap two rows of different clusters, and one of no cluster at all. */
static void the_kmeans_gate_refuses_a_wrong_label(void **state)
{
    (void)state;
    solved c = { 0 };
    bench_shape shape = { 2, 200, 40, 32, 1, MCSA_BF16, MCSA_ISA_SCALAR };
    mcsa_error error = { "" };
    bench_table *table = calloc(1, sizeof *table);
    bench_kmeans k = { 0 };
    assert_non_null(table);
    solve(&c, MCSA_BF16);
    if (bench_kmeans_add(&k, &c.problem, &shape, table, &error) != MCSA_OK) fail_msg("%s", error.text);
    assert_int_equal(table->count, 2);
    assert_false(table->cases[0].wrong || table->cases[1].wrong);
    int32_t *label = k.next.label, right = label[0], other = 0;
    assert_true(bench_labels_are_nearest(&k.next, &c.problem.q, k.settled));
    while (other == right) other++;
    label[0] = other;
    assert_false(bench_labels_are_nearest(&k.next, &c.problem.q, k.settled));
    label[0] = k.next.P;
    assert_false(bench_labels_are_nearest(&k.next, &c.problem.q, k.settled));
    label[0] = right;
    k.settled[(int64_t)right * 40] = NAN;
    assert_false(bench_labels_are_nearest(&k.next, &c.problem.q, k.settled));
    bench_kmeans_close(&k);
    free(table);
    release(&c);
}

static void the_grouping_gate_refuses_a_query_that_stands_twice(void **state)
{
    (void)state;
    solved c = { 0 };
    solve(&c, MCSA_F32);
    assert_true(bench_is_permutation(&c.s));
    c.s.order[200 + 7] = c.s.order[200 + 8];
    assert_false(bench_is_permutation(&c.s));
    c.s.order[200 + 7] = 200;
    assert_false(bench_is_permutation(&c.s));
    release(&c);
}

static void the_selection_gate_refuses_a_light_key(void **state)
{
    (void)state;
    solved c = { 0 };
    solve(&c, MCSA_F32);
    assert_true(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    int kept = 0, dropped = 0; /* of group 0 of head 0: swap its first kept and first dropped key */
    while (!(c.s.kept[kept / 64] >> (kept % 64) & 1)) kept++;
    while (c.s.kept[dropped / 64] >> (dropped % 64) & 1) dropped++;
    c.s.kept[kept / 64] ^= UINT64_C(1) << (kept % 64);
    assert_false(bench_keeps_the_heaviest(&c.problem, &c.s, 0)); /* K - 1 keys */
    c.s.kept[dropped / 64] ^= UINT64_C(1) << (dropped % 64);
    assert_false(bench_keeps_the_heaviest(&c.problem, &c.s, 0));
    release(&c);
}

static void shuffled_selections_keep_k_keys_in_runs(void **state)
{
    (void)state;
    solved c = { 0 };
    solve(&c, MCSA_F32);
    bench_selection_shuffle(&c.s, 8);
    assert_true(bench_is_permutation(&c.s));
    for (int64_t g = 0; g < (int64_t)c.s.H * c.s.G; g++) {
        int count = 0, starts = 0, before = 0;
        for (int j = 0; j < c.s.N; j++) {
            int in = (int)(c.s.kept[g * c.s.words + j / 64] >> (j % 64) & 1);
            count += in;
            starts += in && !before;
            before = in;
        }
        assert_int_equal(count, c.s.K);
        assert_true(starts <= (c.s.K + 7) / 8); /* 40 keys: at most 5 runs, fewer where runs touch */
    }
    release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dense_gate_refuses_a_wrong_row),
        cmocka_unit_test(the_dense_gate_refuses_rows_of_zeros),
        cmocka_unit_test(the_sparse_gate_refuses_the_dense_answer),
        cmocka_unit_test(the_sparse_gate_refuses_other_means),
        cmocka_unit_test(the_cluster_gates_refuse_what_is_no_partition),
        cmocka_unit_test(the_cluster_gate_refuses_keys_that_do_not_belong_together),
        cmocka_unit_test(the_selection_gate_refuses_other_clusters),
        cmocka_unit_test(a_walk_goes_on_behind_what_does_not_fit),
        cmocka_unit_test(shuffled_clusters_fill_the_rows),
        cmocka_unit_test(the_kmeans_gate_refuses_a_wrong_label),
        cmocka_unit_test(the_grouping_gate_refuses_a_query_that_stands_twice),
        cmocka_unit_test(the_selection_gate_refuses_a_light_key),
        cmocka_unit_test(shuffled_selections_keep_k_keys_in_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
