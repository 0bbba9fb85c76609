/* test_recall.c - the attention that sparse calls keep: against the definition once more in double, of every method and
 * of MC-Sparse with means and without; 1 where everything is kept; and what is counted.
 *
 * Where q and k are halves of small whole numbers and D is 16, scores are exact in FP32 and so is their scale.  A
 * weight is then rounded once, by u, and the ratio of two sums of weights is off by at most 2 u; sums are in double. */
#include "choices.h"

#include "rivals/recall.h"

/* Whether query i of head h attends to key j one by one. */
typedef int sees(const void *user, int h, int i, int j);

enum { D16 = 16 };

/* A call whose scores need no rounding. */
static test_call exact_call(const fixture_clip *clip, int step, int branch)
{
    test_call c = fixture_call(clip, step, branch);
    const mcsa_tensor *views[] = { &c.q.view, &c.k.view };
    assert_int_equal(c.D, D16);
    for (int t = 0; t < 2; t++)
        for (int h = 0; h < c.H; h++)
            for (int n = 0; n < c.N; n++)
                for (int d = 0; d < D16; d++) test_set(views[t], h, n, d, round(2 * test_get(views[t], h, n, d)) / 2);
    return c;
}

/* By the definition, from q and k. */
static double recall_of(const test_call *c, sees *kept, const void *user)
{
    const int count = c->N < RIVAL_RECALL_QUERIES ? c->N : RIVAL_RECALL_QUERIES, N = c->N, D = c->D;
    const double scale = 1 / sqrt((double)D);
    double *q = test_doubles(&c->q.view), *k = test_doubles(&c->k.view), *score = test_alloc(sizeof *score * (size_t)N);
    double sum = 0;
    for (int h = 0; h < c->H; h++)
        for (int r = 0; r < count; r++) {
            const int i = (2 * r + 1) * N / (2 * count);
            double most = -INFINITY, all = 0, part = 0;
            for (int j = 0; j < N; j++) {
                double dot = 0;
                for (int d = 0; d < D; d++) dot += q[((int64_t)h * N + i) * D + d] * k[((int64_t)h * N + j) * D + d];
                score[j] = scale * dot;
                most = fmax(most, score[j]);
            }
            for (int j = 0; j < N; j++) {
                double weight = exp(score[j] - most);
                all += weight;
                part += kept(user, h, i, j) ? weight : 0;
            }
            sum += part / all;
        }
    free(q);
    free(k);
    free(score);
    return sum / (c->H * count);
}

static int part_with(const rival_partition *p, int h, int row)
{
    for (int part = 0; part < p->P; part++) {
        int count;
        const int32_t *rows = rival_part(p, h, part, &count);
        for (int i = 0; i < count; i++)
            if (rows[i] == row) return part;
    }
    return -1;
}

static int choice_sees(const void *user, int h, int i, int j)
{
    const rival_choice *choice = user;
    const int q = part_with(&choice->queries, h, i), k = part_with(&choice->keys, h, j);
    return q >= 0 && k >= 0 && rival_map_has(&choice->map, h, q, k);
}

static int cluster_of(const mcsa_selection *s, int h, int key)
{
    const int32_t *members = s->members + (int64_t)h * s->N, *first = s->first + (int64_t)h * (s->P + 1);
    for (int p = 0; p < s->P; p++)
        for (int m = first[p]; m < first[p + 1]; m++)
            if (members[m] == key) return p;
    fail_msg("key %d of head %d is in no cluster", key, h);
    return -1;
}

static int selection_sees(const void *user, int h, int i, int j)
{
    const mcsa_selection *s = user;
    int at = 0;
    while (s->order[(int64_t)h * s->N + at] != i) at++;
    return test_is_kept(s, h, at / s->C, s->P ? cluster_of(s, h, j) : j);
}

static mcsa_qkv tensors(const test_call *c)
{
    return (mcsa_qkv){ .q = &c->q.view, .k = &c->k.view, .v = &c->v.view, .out = &c->out.view };
}

static rival_recall *open_recall(mcsa_run *run)
{
    mcsa_error error = { "" };
    rival_recall *recall = NULL;
    if (rival_recall_open(&recall, run, &error) != MCSA_OK) fail_msg("%s", error.text);
    return recall;
}

static rival_recalled close_recall(rival_recall *recall)
{
    rival_recalled recalled = rival_recall_read(recall);
    rival_recall_close(recall);
    return recalled;
}

static void expect(const char *what, rival_recalled recalled, double due, int N)
{
    const double error = fabs(recalled.mean - due), bound = 2.01 * U_F32 + N * 0x1p-51;
    assert_int_equal(recalled.queries, 2 * (N < RIVAL_RECALL_QUERIES ? N : RIVAL_RECALL_QUERIES));
    if (!(error <= bound)) fail_msg("%s: recall is %.9f, %.9f is due within %.1e", what, recalled.mean, due, bound);
    print_message("  %-34s %.6f, %4.2f %% of the bound\n", what, recalled.mean, 100 * error / bound);
}

/* The sparse call at step 2 of a run, with q and k that are not those of the anchor. */
static rival_recalled method_recall(const rival_config *config, const fixture_clip *clip, const rival_choice **choice,
                                    rival_run **run, test_call *now)
{
    mcsa_error error = { "" };
    *run = fixture_open(config);
    rival_recall *recall = open_recall(rival_run_dense(*run));
    for (int step = 0; step < 3; step++) {
        test_call c = exact_call(clip, step, 0);
        fixture_attends(*run, (mcsa_site){ step, 0, 0 }, &c, config->method);
        if (step < 2) test_call_free(&c);
        *now = c;
    }
    mcsa_qkv x = tensors(now);
    *choice = rival_run_choice(*run);
    if (rival_recall_add(recall, &x, *choice, &error) != MCSA_OK) fail_msg("%s: %s", config->method, error.text);
    return close_recall(recall);
}

static void of_every_method_it_is_that_of_its_choice(void **state)
{
    (void)state;
    int i = 0;
    for (const rival_method *const *m = rival_methods; *m; m++, i++) {
        const int N = i % 2 ? 300 : 256;
        const fixture_clip clip = { { 2, N, N, 16 }, test_dtypes[i % TEST_COUNT(test_dtypes)], 1.5 };
        rival_config config = fixture_config((*m)->name, N, 0.25);
        const rival_choice *choice;
        rival_run *run;
        test_call now;
        rival_recalled recalled = method_recall(&config, &clip, &choice, &run, &now);
        double due = recall_of(&now, choice_sees, choice);
        assert_true(due > 0.02 && due < 0.98); /* or too much would pass */
        expect((*m)->name, recalled, due, N);
        rival_run_free(run);
        test_call_free(&now);
    }
}

/* Two branches over two calls each: the follower has the leader's groups, and q and k of its own. */
static void expect_of_mc_sparse(mcsa_tail tail, mcsa_sharing sharing, int N, double density, mcsa_dtype dtype)
{
    mcsa_config config = { .steps = 5,
                           .layers = 1,
                           .branches = 2,
                           .density = (float)density,
                           .group = 32,
                           .schedule = "list:1",
                           .tail = tail,
                           .sharing = sharing };
    mcsa_run *run = test_run(&config);
    fixture_clip clip = { { 2, N, N, 16 }, dtype, 1.5 };
    mcsa_error error = { "" };
    for (int step = 1; step < 4; step++)
        for (int branch = 0; branch < 2; branch++) {
            char what[64];
            test_call c = exact_call(&clip, step, branch);
            mcsa_qkv x = tensors(&c);
            rival_recall *recall = open_recall(run);
            assert_attends(run, step, 0, branch, &c);
            if (step > 1) {
                assert_int_equal(rival_recall_add_reuse(recall, (mcsa_site){ step, 0, branch }, &x, &error), MCSA_OK);
                snprintf(what, sizeof what, "N %d tail %d %s branch %d", N, (int)tail,
                         sharing == MCSA_BRANCHES_APART ? "apart" : "shared", branch);
                expect(what, rival_recall_read(recall), recall_of(&c, selection_sees, test_selection(run, 0, branch)),
                       N);
            }
            rival_recall_close(recall);
            test_call_free(&c);
        }
    mcsa_run_free(run);
}

static void of_mc_sparse_it_is_that_of_groups_and_kept_keys(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 31, 33, 64, 257, 300 };
    for (size_t s = 0; s < TEST_COUNT(sizes); s++)
        for (int tail = MCSA_TAIL_MEANS; tail <= MCSA_TAIL_OFF; tail++) {
            expect_of_mc_sparse((mcsa_tail)tail, MCSA_BRANCHES_SHARED, sizes[s], 0.2, test_dtypes[s % 3]);
            expect_of_mc_sparse((mcsa_tail)tail, MCSA_BRANCHES_APART, sizes[s], 0.35, test_dtypes[(s + 1) % 3]);
        }
}

/* Kept weights are those of all, added in another order. */
static void expect_one(const char *what, double mean, int N)
{
    if (!(fabs(mean - 1) <= 2 * N * 0x1p-53)) fail_msg("%s keeps everything, yet recall is 1 %+.2e", what, mean - 1);
}

static void keeping_everything_is_one(void **state)
{
    (void)state;
    const fixture_clip clip = { { 2, 300, 300, 16 }, MCSA_F32, 1.5 };
    mcsa_error error = { "" };
    for (const rival_method *const *m = rival_methods; *m; m++) {
        rival_config config = fixture_config((*m)->name, 300, 1);
        const rival_choice *choice;
        rival_run *run;
        test_call now;
        rival_recalled recalled = method_recall(&config, &clip, &choice, &run, &now);
        expect_one((*m)->name, recalled.mean, 300);
        rival_run_free(run);
        test_call_free(&now);
    }
    for (int tail = MCSA_TAIL_MEANS; tail <= MCSA_TAIL_OFF; tail++) {
        mcsa_config config = { .steps = 3, .layers = 1, .density = 1, .schedule = "list:1", .tail = (mcsa_tail)tail };
        mcsa_run *run = test_run(&config);
        rival_recall *recall = open_recall(run);
        test_call c = fixture_call(&clip, 1, 0);
        mcsa_qkv x = tensors(&c);
        assert_attends(run, 1, 0, 0, &c);
        assert_attends(run, 2, 0, 0, &c);
        assert_int_equal(rival_recall_add_reuse(recall, (mcsa_site){ 2, 0, 0 }, &x, &error), MCSA_OK);
        expect_one("mc-sparse", close_recall(recall).mean, 300);
        test_call_free(&c);
        mcsa_run_free(run);
    }
}

/* A REUSE that became an anchor kept everything, and is no sparse call. */
static void only_sparse_calls_count(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 5, .layers = 1, .group = 32, .schedule = "list:1" };
    mcsa_run *run = test_run(&config);
    rival_recall *recall = open_recall(run);
    const fixture_clip clip = { { 2, 100, 100, 16 }, MCSA_BF16, 1 };
    mcsa_error error = { "" };
    assert_true(isnan(rival_recall_read(recall).mean));
    for (int step = 2; step < 4; step++) {
        test_call c = fixture_call(&clip, step, 0);
        mcsa_qkv x = tensors(&c);
        assert_attends(run, step, 0, 0, &c);
        assert_int_equal(rival_recall_add_reuse(recall, (mcsa_site){ step, 0, 0 }, &x, &error), MCSA_OK);
        assert_int_equal(rival_recall_read(recall).queries, step == 2 ? 0 : 2 * RIVAL_RECALL_QUERIES);
        test_call_free(&c);
        if (step == 3) assert_true(isfinite(rival_recall_read(recall).mean));
    }
    assert_int_equal(close_recall(recall).queries, 2 * RIVAL_RECALL_QUERIES);
    mcsa_run_free(run);
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    const fixture_clip clip = { { 3, 1000, 1000, 16 }, MCSA_BF16, 1.5 };
    double mean[3];
    for (int i = 0; i < 3; i++) {
        rival_config config = fixture_config("pisa", 1000, 0.25);
        config.attention.threads = (const int[]){ 1, 3, 8 }[i];
        const rival_choice *choice;
        rival_run *run;
        test_call now;
        mean[i] = method_recall(&config, &clip, &choice, &run, &now).mean;
        rival_run_free(run);
        test_call_free(&now);
    }
    assert_memory_equal(&mean[0], &mean[1], sizeof mean[0]);
    assert_memory_equal(&mean[0], &mean[2], sizeof mean[0]);
}

static void what_is_no_number_shows(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 3, .layers = 1, .group = 32, .schedule = "list:1" };
    mcsa_run *run = test_run(&config);
    rival_recall *recall = open_recall(run);
    const fixture_clip clip = { { 1, 100, 100, 16 }, MCSA_F32, 1 };
    mcsa_error error = { "" };
    test_call c = fixture_call(&clip, 1, 0);
    mcsa_qkv x = tensors(&c);
    assert_attends(run, 1, 0, 0, &c);
    test_set(&c.k.view, 0, 57, 3, (double)NAN);
    assert_attends(run, 2, 0, 0, &c);
    assert_int_equal(rival_recall_add_reuse(recall, (mcsa_site){ 2, 0, 0 }, &x, &error), MCSA_OK);
    assert_true(isnan(close_recall(recall).mean));
    test_call_free(&c);
    mcsa_run_free(run);
}

static void samples_are_few_and_evenly_spread(void **state)
{
    (void)state;
    for (int n = 0; n < 200; n++) {
        int last = -1, found = 0, narrowest = n, widest = 0;
        for (int i = 0; i < n; i++) {
            if (!rival_recall_samples(i, n)) continue;
            if (found++) {
                narrowest = i - last < narrowest ? i - last : narrowest;
                widest = i - last > widest ? i - last : widest;
            }
            last = i;
        }
        assert_int_equal(found, n < RIVAL_RECALL_STEPS ? n : RIVAL_RECALL_STEPS);
        if (found > 1) assert_true(widest - narrowest <= 1);
        if (n > 0) assert_true(n - 1 - last <= n / RIVAL_RECALL_STEPS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_every_method_it_is_that_of_its_choice),
        cmocka_unit_test(of_mc_sparse_it_is_that_of_groups_and_kept_keys),
        cmocka_unit_test(keeping_everything_is_one),
        cmocka_unit_test(only_sparse_calls_count),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(what_is_no_number_shows),
        cmocka_unit_test(samples_are_few_and_evenly_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
