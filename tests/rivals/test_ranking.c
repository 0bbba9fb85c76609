/* test_ranking.c - ranks, prefixes, budgets and the knob, against what their definitions say in the plainest way. */
#include "test.h"

#include "rivals/ranking.h"

/* Whether a is due before b: the definition. */
static int due_before(const float *score, int a, int b)
{
    if (isnan(score[a]) || isnan(score[b])) {
        if (!isnan(score[a])) return 1;
        if (!isnan(score[b])) return 0;
        return a < b;
    }
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* Scores with ties, infinities, both zeros and NaN. */
static void fill_scores(float *score, int K, uint64_t *seed)
{
    static const float special[] = { NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, 1.0f };
    int ties = test_below(seed, 2);
    for (int k = 0; k < K; k++) {
        score[k] = ties ? (float)test_below(seed, 4) : (float)test_normal(seed);
        if (test_below(seed, 5) == 0) score[k] = special[test_below(seed, (int)TEST_COUNT(special))];
    }
}

static void ranks_descend_with_ties_by_index_and_nan_last(void **state)
{
    (void)state;
    uint64_t seed = 1;
    float score[200];
    int32_t rank[200];
    for (int round = 0; round < 2000; round++) {
        int K = 1 + test_below(&seed, 200), seen[200] = { 0 };
        fill_scores(score, K, &seed);
        rival_rank(score, K, rank);
        for (int r = 0; r < K; r++) seen[rank[r]]++;
        for (int k = 0; k < K; k++) assert_int_equal(seen[k], 1);
        for (int r = 1; r < K; r++) assert_true(due_before(score, rank[r - 1], rank[r]));
    }
}

static void the_top_are_the_first_in_rank(void **state)
{
    (void)state;
    uint64_t seed = 2;
    float score[200];
    int32_t rank[200];
    uint32_t key[200];
    for (int round = 0; round < 2000; round++) {
        int K = 1 + test_below(&seed, 200), count = 1 + test_below(&seed, K);
        uint64_t row[4] = { 0 }, expected[4] = { 0 };
        fill_scores(score, K, &seed);
        rival_rank(score, K, rank);
        for (int r = 0; r < count; r++) expected[rank[r] / 64] |= (uint64_t)1 << (rank[r] % 64);
        rival_keep_top(score, K, count, key, row);
        assert_memory_equal(row, expected, sizeof row);
    }
}

/* The table of the research notes at shares whose sums are exact. */
static void boundaries_differ_where_the_notes_say(void **state)
{
    (void)state;
    const float share[] = { 0.5f, 0.25f, 0.125f, 0.125f };
    static const struct {
        rival_boundary boundary;
        double x;
        int least, kept;
    } due[] = {
        { RIVAL_BOUNDARY_EXCLUSIVE, 0.0, 0, 1 }, /* e_0 = 0 <= 0: the best is always kept */
        { RIVAL_BOUNDARY_EXCLUSIVE, 0.49, 0, 1 }, { RIVAL_BOUNDARY_EXCLUSIVE, 0.5, 0, 2 }, /* equal: kept */
        { RIVAL_BOUNDARY_EXCLUSIVE, 0.6, 0, 2 },  { RIVAL_BOUNDARY_EXCLUSIVE, 0.875, 0, 4 },
        { RIVAL_BOUNDARY_STRICT, 0.0, 0, 0 },     { RIVAL_BOUNDARY_STRICT, 0.0, 1, 1 },
        { RIVAL_BOUNDARY_STRICT, 0.5, 0, 1 }, /* equal: not kept */
        { RIVAL_BOUNDARY_STRICT, 0.51, 0, 2 },    { RIVAL_BOUNDARY_STRICT, 1.0, 0, 4 },
        { RIVAL_BOUNDARY_INCLUSIVE, 0.49, 0, 0 }, { RIVAL_BOUNDARY_INCLUSIVE, 0.49, 1, 1 },
        { RIVAL_BOUNDARY_INCLUSIVE, 0.5, 0, 1 },  { RIVAL_BOUNDARY_INCLUSIVE, 0.74, 0, 1 }, /* crossing: not kept */
        { RIVAL_BOUNDARY_INCLUSIVE, 0.75, 0, 2 }, { RIVAL_BOUNDARY_INCLUSIVE, 1.0, 0, 4 },
        { RIVAL_BOUNDARY_INCLUSIVE, 0.75, 3, 3 }, { RIVAL_BOUNDARY_INCLUSIVE, 0.75, 9, 4 },
    };
    for (size_t i = 0; i < TEST_COUNT(due); i++) {
        int kept = rival_prefix(share, 4, due[i].boundary, due[i].x, due[i].least);
        if (kept != due[i].kept) fail_msg("case %zu: %d kept, %d due", i, kept, due[i].kept);
    }
}

static void strict_at_one_keeps_all_that_is_not_zero(void **state)
{
    (void)state;
    const float share[] = { 0.75f, 0.25f, 0.0f, 0.0f };
    assert_int_equal(rival_prefix(share, 4, RIVAL_BOUNDARY_STRICT, 1, 0), 2);
}

/* The sum over rows is the rounded sum, wherever one stops. */
static void budgets_add_up(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 300; round++) {
        int K = 1 + test_below(&seed, 300), rows = 1 + test_below(&seed, 200);
        double density = (1 + test_uniform(&seed) * (K - 1)) / K; /* at least one part a row */
        int64_t sum = 0;
        for (int r = 0; r < rows; r++) {
            int budget = rival_row_budget(r, K, density);
            assert_in_range(budget, 1, K);
            assert_true(fabs(budget - density * K) <= 1);
            sum += budget;
            assert_true(fabs((double)sum - (r + 1) * density * K) <= 0.5 + 1e-9);
        }
    }
    for (int r = 0; r < 50; r++) {
        assert_int_equal(rival_row_budget(r, 40, 1e-9), 1);
        assert_int_equal(rival_row_budget(r, 40, 1), 40);
        assert_int_equal(rival_row_budget(r, 40, 3), 40);
    }
}

typedef struct steps {
    double at[50]; /* pairs grow by one (or fall by one) at each */
    int count, falling, calls;
} steps;

static double count_steps(void *user, double x)
{
    steps *s = user;
    int passed = 0;
    for (int i = 0; i < s->count; i++) passed += s->at[i] <= x;
    s->calls++;
    return s->falling ? s->count - passed : passed;
}

/* Whatever can be reached between low and high is reached; what cannot, as nearly as possible. */
static void the_knob_finds_the_nearest_step(void **state)
{
    (void)state;
    uint64_t seed = 4;
    for (int round = 0; round < 1000; round++) {
        steps s = { .count = 1 + test_below(&seed, 50), .falling = round & 1 };
        int together = 1 + test_below(&seed, 4); /* steps of one height or more */
        for (int i = 0; i < s.count; i++)
            s.at[i] = i % together ? s.at[i - 1] : (double)(float)(2 * test_uniform(&seed) - 0.5);
        double target = 1.5 * s.count * test_uniform(&seed) - 0.1, nearest = INFINITY;
        double x = rival_knob(count_steps, &s, 0, 1, target);
        int calls = s.calls;
        assert_true(x >= 0 && x <= 1);
        assert_true(calls <= 42);
        nearest = fmin(fabs(count_steps(&s, 0) - target), fabs(count_steps(&s, 1) - target));
        for (int i = 0; i < s.count; i++)
            if (s.at[i] > 0 && s.at[i] <= 1) nearest = fmin(nearest, fabs(count_steps(&s, s.at[i]) - target));
        for (int i = 0; i < s.count; i++)
            if (s.at[i] > 0 && s.at[i] <= 1)
                nearest = fmin(nearest, fabs(count_steps(&s, nextafter(s.at[i], 0)) - target));
        double got = fabs(count_steps(&s, x) - target);
        if (!(got <= nearest)) fail_msg("round %d: off by %g, %g is possible", round, got, nearest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_descend_with_ties_by_index_and_nan_last),
        cmocka_unit_test(the_top_are_the_first_in_rank),
        cmocka_unit_test(boundaries_differ_where_the_notes_say),
        cmocka_unit_test(strict_at_one_keeps_all_that_is_not_zero),
        cmocka_unit_test(budgets_add_up),
        cmocka_unit_test(the_knob_finds_the_nearest_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
