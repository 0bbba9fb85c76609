/* test_grouping.c - what Fast PDDP must do whatever its sign and ties: groups partition the queries, all
 * but the last are full, and similar queries meet. */
#include "test.h"

/* Groups made by an anchor over q; k and v do not matter to them. */
static mcsa_run *grouped(const test_call *c, int C, mcsa_isa isa)
{
    mcsa_config config = { .steps = 2, .layers = 1, .schedule = "list:0", .group = C, .isa = isa };
    mcsa_run *run = test_run(&config);
    assert_attends(run, 0, 0, 0, c);
    return run;
}

static void judge_partition(const mcsa_selection *s, int N, int C)
{
    assert_int_equal(s->N, N);
    assert_int_equal(s->C, C);
    assert_int_equal(s->G, (N + C - 1) / C);
    unsigned char *seen = test_alloc((size_t)N);
    for (int h = 0; h < s->H; h++) {
        memset(seen, 0, (size_t)N);
        for (int i = 0; i < N; i++) {
            int32_t n = s->order[(int64_t)h * N + i];
            if (n < 0 || n >= N || seen[n]) fail_msg("head %d of %d tokens, C %d: %d at %d", h, N, C, n, i);
            seen[n] = 1;
        }
    }
    int queries = 0;
    for (int g = 0; g < s->G; g++) {
        if (g + 1 < s->G) assert_int_equal(mcsa_group_size(s, g), C);
        queries += mcsa_group_size(s, g);
    }
    assert_int_equal(queries, N);
    free(seen);
}

static void order_is_a_permutation_in_full_groups_but_the_last(void **state)
{
    (void)state;
    static const int groups[] = { 1, 5, 16, 64, 100, 128 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t i = 0; i < TEST_COUNT(groups); i++) {
            int C = groups[i];
            const int tokens[] = { 1, C > 1 ? C - 1 : 1, C, C + 1, 2 * C, 2 * C + 1, 3 * C - 1, 5 * C + 3 };
            for (size_t t = 0; t < TEST_COUNT(tokens); t++) {
                test_call c =
                    test_call_make((const int[]){ 2, tokens[t], tokens[t], 9 }, test_dtypes[t % 3], TEST_HND, t, 1);
                mcsa_run *run = grouped(&c, C, test_levels[l]);
                judge_partition(test_selection(run, 0, 0), tokens[t], C);
                mcsa_run_free(run);
                test_call_free(&c);
            }
        }
    }
}

/* Equal rows have no direction, and NaN has no order: the groups are still a partition. */
static void degenerate_queries_still_make_a_partition(void **state)
{
    (void)state;
    static const double values[] = { 0, 1, -300, 1e-30, 1e30, (double)INFINITY, (double)NAN };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t i = 0; i < TEST_COUNT(values); i++) {
            test_call c = test_call_make((const int[]){ 1, 75, 75, 17 }, MCSA_F32, TEST_HND, i, 1);
            for (int n = 0; n < 75; n++)
                for (int d = 0; d < 17; d++) test_set(&c.q.view, 0, n, d, values[i]);
            mcsa_run *run = grouped(&c, 8, test_levels[l]);
            judge_partition(test_selection(run, 0, 0), 75, 8);
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* Whether the node that owns rows [first, first + count) was cut, level by level, at the median of
 * `value`: its left part is one end of its values, whichever the sign of the direction, and is a whole
 * number of groups. */
static void judge_cuts(const int *value /* [count], of each row in group order */, int count, int C)
{
    int groups = (count + C - 1) / C;
    if (groups < 2) return;
    int left = (groups + 1) / 2 * C, low[2] = { INT32_MAX, INT32_MAX }, high[2] = { INT32_MIN, INT32_MIN };
    for (int i = 0; i < count; i++) {
        int side = i >= left;
        if (value[i] < low[side]) low[side] = value[i];
        if (value[i] > high[side]) high[side] = value[i];
    }
    if (!(high[0] < low[1] || high[1] < low[0]))
        fail_msg("%d rows: left has %d to %d, right %d to %d", count, low[0], high[0], low[1], high[1]);
    judge_cuts(value, left, C);
    judge_cuts(value + left, count - left, C);
}

/* One axis of q holds distinct integers, shuffled; the others a constant (which a direction of uncentred
 * rows would follow) and noise far below the integers' spread.  Every number is exact in bf16, so all
 * dtypes must find the same cuts. */
static void cuts_are_at_the_median_of_the_principal_direction(void **state)
{
    (void)state;
    static const int tokens[] = { 250, 247, 129, 97, 33 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t s = 0; s < TEST_COUNT(tokens); s++) {
                enum { H = 2, D = 19 };
                int N = tokens[s], value[2][250], sorted[250];
                test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_SPREAD, s, 1);
                uint64_t seed = 40 + s;
                for (int h = 0; h < H; h++) {
                    for (int n = 0; n < N; n++) value[h][n] = n - N / 2;
                    for (int n = N - 1; n > 0; n--) {
                        int other = test_below(&seed, n + 1), swap = value[h][n];
                        value[h][n] = value[h][other];
                        value[h][other] = swap;
                    }
                    for (int n = 0; n < N; n++)
                        for (int d = 0; d < D; d++)
                            test_set(&c.q.view, h, n, d, d == 7 ? value[h][n] : 8 + test_below(&seed, 8) / 16.0);
                }
                mcsa_run *run = grouped(&c, 16, test_levels[l]);
                const mcsa_selection *found = test_selection(run, 0, 0);
                for (int h = 0; h < H; h++) {
                    for (int n = 0; n < N; n++) sorted[n] = value[h][found->order[h * N + n]];
                    judge_cuts(sorted, N, 16);
                }
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* Sum of squared distances to the mean of rows order[0 .. count). */
static double scatter(const test_call *c, int h, const int32_t *order, int count)
{
    double sum = 0;
    for (int d = 0; d < c->D; d++) {
        double mean = 0;
        for (int i = 0; i < count; i++) mean += test_get(&c->q.view, h, order[i], d) / count;
        for (int i = 0; i < count; i++) {
            double x = test_get(&c->q.view, h, order[i], d) - mean;
            sum += x * x;
        }
    }
    return sum;
}

static int ascending(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Every cut of a node lowers its scatter, and by more than the same cut in file order. */
static double judge_scatter(const test_call *c, int h, const int32_t *order, int count, int C)
{
    int groups = (count + C - 1) / C, left = (groups + 1) / 2 * C;
    double whole = scatter(c, h, order, count);
    if (groups < 2) return whole;
    int32_t *file = test_alloc(sizeof *file * (size_t)count);
    memcpy(file, order, sizeof *file * (size_t)count);
    qsort(file, (size_t)count, sizeof *file, ascending);
    double cut = scatter(c, h, order, left) + scatter(c, h, order + left, count - left);
    double plain = scatter(c, h, file, left) + scatter(c, h, file + left, count - left);
    if (!(cut < whole && cut < plain))
        fail_msg("%d rows with scatter %.9g: %.9g after the cut, %.9g in file order", count, whole, cut, plain);
    free(file);
    return judge_scatter(c, h, order, left, C) + judge_scatter(c, h, order + left, count - left, C);
}

static void grouping_lowers_variance_at_every_cut(void **state)
{
    (void)state;
    enum { H = 2, N = 500, C = 32, D = 24, CLUSTERS = 16 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (int clustered = 0; clustered < 2; clustered++) {
            test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_BF16, TEST_HND, 3, 1);
            test_tensor centre = test_tensor_make(H, CLUSTERS, D, MCSA_F32, TEST_HND);
            test_fill_normal(&centre.view, 5, 3);
            for (int h = 0; h < H && clustered; h++)
                for (int n = 0; n < N; n++)
                    for (int d = 0; d < D; d++)
                        test_set(&c.q.view, h, n, d,
                                 test_get(&c.q.view, h, n, d) + test_get(&centre.view, h, n % CLUSTERS, d));
            mcsa_run *run = grouped(&c, C, test_levels[l]);
            const mcsa_selection *s = test_selection(run, 0, 0);
            for (int h = 0; h < H; h++) {
                double grouped_sum = judge_scatter(&c, h, s->order + h * N, N, C), file_sum = 0;
                int32_t file[N];
                for (int n = 0; n < N; n++) file[n] = n;
                for (int g = 0; g < s->G; g++) file_sum += scatter(&c, h, file + g * C, mcsa_group_size(s, g));
                print_message("  %s, %s: %.3f of the variance in file order\n", mcsa_isa_name(test_levels[l]),
                              clustered ? "16 clusters" : "no structure", grouped_sum / file_sum);
                assert_true(grouped_sum < file_sum);
            }
            test_tensor_free(&centre);
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_is_a_permutation_in_full_groups_but_the_last),
        cmocka_unit_test(degenerate_queries_still_make_a_partition),
        cmocka_unit_test(cuts_are_at_the_median_of_the_principal_direction),
        cmocka_unit_test(grouping_lowers_variance_at_every_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
