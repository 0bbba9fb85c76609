/* test_selection.c - exact top-K selection: which keys a group keeps, judged by attention masses in
 * double.  Selections are discontinuous, so they are compared as sets: a key that only one side kept must
 * have a mass within the error of the K-th largest. */
#include "test.h"

typedef struct group_mass {
    double *mass;  /* [N] sum over the group's queries of exp(s_ij - lse_i) */
    double *delta; /* [N] how far the kernel's may be from it */
} group_mass;

/* A_ij = exp(s_ij - lse_i) is off by a factor of at most e^x, x the bounds of a score and of the row's
 * log-sum-exp and the rounding of their difference; a sum over `count` queries adds count u.  Within dense attention it
 * is the product of two powers, the first off by `rounded` more where it is rounded for the product with v. */
static void weigh(const test_call *c, const mcsa_selection *s, int h, int g, double rounded, group_mass *m)
{
    double scale = (double)(1 / sqrtf((float)c->D)), *score = test_alloc(sizeof *score * (size_t)c->N);
    int count = mcsa_group_size(s, g);
    test_rounding rounding = { 0 };
    memset(m->mass, 0, sizeof *m->mass * (size_t)c->N);
    memset(m->delta, 0, sizeof *m->delta * (size_t)c->N);
    for (int i = 0; i < count; i++) {
        int n = s->order[(int64_t)h * c->N + g * s->C + i];
        double max = -INFINITY, most = 0, sum = 0, out_bound, lse_bound;
        for (int j = 0; j < c->N; j++) {
            double dot = 0, size = 0;
            for (int d = 0; d < c->D; d++) {
                double x = test_get(&c->q.view, h, n, d) * test_get(&c->k.view, h, j, d);
                dot += x;
                size += fabs(x);
            }
            score[j] = scale * dot;
            max = fmax(max, score[j]);
            most = fmax(most, scale * size);
        }
        for (int j = 0; j < c->N; j++) sum += exp(score[j] - max);
        double lse = max + log(sum);
        test_row_bounds(most, c->N, c->D, 1, &rounding, &out_bound, &lse_bound);
        double off = expm1(2 * lse_bound + 2 * U_EXP2 + 8 * U_F32 * (most + fabs(lse)) + count * U_F32 + rounded);
        for (int j = 0; j < c->N; j++) {
            m->mass[j] += exp(score[j] - lse);
            m->delta[j] += exp(score[j] - lse) * off;
        }
    }
    free(score);
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static double kth_largest(const double *mass, int N, int K)
{
    double *sorted = test_alloc(sizeof *sorted * (size_t)N);
    memcpy(sorted, mass, sizeof *sorted * (size_t)N);
    qsort(sorted, (size_t)N, sizeof *sorted, descending);
    double kth = sorted[K - 1];
    free(sorted);
    return kth;
}

static group_mass mass_make(int N)
{
    return (group_mass){ test_alloc(sizeof(double) * (size_t)N), test_alloc(sizeof(double) * (size_t)N) };
}

static void mass_free(group_mass *m)
{
    free(m->mass);
    free(m->delta);
}

static mcsa_run *selected(const test_call *c, mcsa_config config)
{
    config.steps = 2;
    config.layers = 1;
    config.schedule = "list:0";
    config.tail = MCSA_TAIL_OFF;
    mcsa_run *run = test_run(&config);
    assert_attends(run, 0, 0, 0, c);
    return run;
}

/* Kept keys are above the K-th mass and dropped ones below it, up to near-ties; prints how near the
 * closest was. */
static void judge_groups(const test_call *c, const mcsa_selection *s, double rounded, const char *what)
{
    group_mass m = mass_make(c->N);
    int ties = 0;
    for (int h = 0; h < c->H; h++)
        for (int g = 0; g < s->G; g++) {
            int kept = 0;
            weigh(c, s, h, g, rounded, &m);
            double kth = kth_largest(m.mass, c->N, s->K), kth_delta = 0, total = 0;
            for (int j = 0; j < c->N; j++)
                if (m.mass[j] == kth) kth_delta = m.delta[j];
            for (int j = 0; j < c->N; j++) {
                int is_kept = test_is_kept(s, h, g, j), wrong = is_kept ? m.mass[j] < kth : m.mass[j] > kth;
                kept += is_kept;
                total += m.mass[j];
                ties += wrong;
                if (wrong && fabs(m.mass[j] - kth) > m.delta[j] + kth_delta)
                    fail_msg("%s head %d group %d: key %d with mass %.9g is %s; the K-th has %.9g", what, h, g, j,
                             m.mass[j], is_kept ? "kept" : "dropped", kth);
            }
            assert_int_equal(kept, s->K);
            /* Each query's weights sum to 1; a check of the reference itself, so in double. */
            assert_true(fabs(total - mcsa_group_size(s, g)) < 1e-9 * c->N);
            for (int64_t b = c->N; b < s->words * 64; b++) assert_int_equal(test_is_kept(s, h, g, (int)b), 0);
        }
    print_message("  %-50s K %d, %d near-ties\n", what, s->K, ties);
    mass_free(&m);
}

static void kept_keys_have_the_largest_exact_masses(void **state)
{
    (void)state;
    static const int shapes[][4] = { { 2, 300, 300, 32 }, { 1, 257, 257, 17 }, { 1, 64, 64, 128 }, { 1, 1, 1, 8 } };
    static const double amplitudes[] = { 0.05, 1, 3 };
    char what[96];
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t i = 0; i < TEST_COUNT(shapes); i++) {
                double amplitude = amplitudes[(t + i) % TEST_COUNT(amplitudes)];
                test_call c = test_call_make(shapes[i], test_dtypes[t], TEST_NHD, 20 + i, amplitude);
                mcsa_run *run = selected(&c, (mcsa_config){ .group = 48, .density = 0.2f, .isa = test_levels[l] });
                snprintf(what, sizeof what, "%s %s N %d D %d, |q| ~ %g", mcsa_isa_name(test_levels[l]),
                         test_dtype_name(test_dtypes[t]), c.N, c.D, amplitude);
                judge_groups(&c, test_selection(run, 0, 0),
                             test_rounding_of(test_levels[l], test_dtypes[t]).probability, what);
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* The other way to the masses, where the probabilities of a tile outgrow their scratch. */
static void a_group_of_all_queries_keeps_the_largest_masses(void **state)
{
    (void)state;
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
        test_call c = test_call_make((const int[]){ 1, 2100, 2100, 8 }, test_dtypes[t], TEST_NHD, 25, 1);
        mcsa_run *run = selected(&c, (mcsa_config){ .group = 4096, .density = 0.2f });
        judge_groups(&c, test_selection(run, 0, 0), 0, test_dtype_name(test_dtypes[t])); /* from the scores */
        mcsa_run_free(run);
        test_call_free(&c);
    }
}

/* K is the density times N, rounded, and at least one key. */
static void every_group_keeps_exactly_k(void **state)
{
    (void)state;
    static const struct {
        int N;
        float density;
        int K;
    } cases[] = { { 1, 0.01f, 1 }, { 7, 0.01f, 1 },      { 63, 0.5f, 32 },  { 64, 1, 64 },
                  { 65, 0.1f, 7 }, { 129, 0.999f, 129 }, { 200, 0.25f, 50 } };
    for (size_t i = 0; i < TEST_COUNT(cases); i++) {
        int N = cases[i].N;
        test_call c = test_call_make((const int[]){ 1, N, N, 8 }, MCSA_F32, TEST_HND, i, 1);
        mcsa_run *run = selected(&c, (mcsa_config){ .group = 16, .density = cases[i].density });
        const mcsa_selection *s = test_selection(run, 0, 0);
        assert_int_equal(s->K, cases[i].K);
        for (int g = 0; g < s->G; g++) {
            int kept = 0;
            for (int64_t w = 0; w < s->words; w++) kept += __builtin_popcountll(test_kept(s, 0, g)[w]);
            assert_int_equal(kept, cases[i].K);
        }
        mcsa_run_free(run);
        test_call_free(&c);
    }
}

/* Identical keys have identical masses, so the first K are kept. */
static void on_equal_mass_the_lower_index_wins(void **state)
{
    (void)state;
    enum { N = 130, K = 39 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ 1, N, N, 24 }, test_dtypes[t], TEST_HND, 4, 1);
            for (int j = 1; j < N; j++)
                for (int d = 0; d < 24; d++) test_set(&c.k.view, 0, j, d, test_get(&c.k.view, 0, 0, d));
            mcsa_run *run = selected(&c, (mcsa_config){ .group = 32, .density = 0.3f, .isa = test_levels[l] });
            const mcsa_selection *s = test_selection(run, 0, 0);
            assert_int_equal(s->K, K);
            for (int g = 0; g < s->G; g++)
                for (int j = 0; j < N; j++) assert_int_equal(test_is_kept(s, 0, g, j), j < K);
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* The masses do not depend on K, so a larger K keeps the same keys and more, and never less mass. */
static void retained_mass_grows_with_k(void **state)
{
    (void)state;
    enum { N = 200 };
    static const float densities[] = { 0.01f, 0.1f, 0.3f, 0.7f, 1 };
    test_call c = test_call_make((const int[]){ 1, N, N, 16 }, MCSA_F32, TEST_HND, 8, 1.5);
    mcsa_run *runs[TEST_COUNT(densities)];
    group_mass m = mass_make(N);
    for (size_t i = 0; i < TEST_COUNT(densities); i++)
        runs[i] = selected(&c, (mcsa_config){ .group = 64, .density = densities[i] });
    for (int g = 0; g < test_selection(runs[0], 0, 0)->G; g++) {
        double before = 0;
        weigh(&c, test_selection(runs[0], 0, 0), 0, g, 0, &m);
        for (size_t i = 0; i < TEST_COUNT(densities); i++) {
            const mcsa_selection *s = test_selection(runs[i], 0, 0);
            double retained = 0;
            for (int j = 0; j < N; j++) {
                retained += test_is_kept(s, 0, g, j) ? m.mass[j] : 0;
                if (i && test_is_kept(test_selection(runs[i - 1], 0, 0), 0, g, j))
                    assert_int_equal(test_is_kept(s, 0, g, j), 1);
            }
            assert_true(retained > before);
            before = retained;
        }
        assert_true(fabs(before - mcsa_group_size(test_selection(runs[0], 0, 0), g)) < 1e-9);
    }
    for (size_t i = 0; i < TEST_COUNT(densities); i++) mcsa_run_free(runs[i]);
    mass_free(&m);
    test_call_free(&c);
}

/* T2: keys and values in another order: the same groups, and the same keys under their new names up to
 * near-ties (the sums behind the log-sum-exp run in another order). */
static void t2_permuting_keys_permutes_the_kept(void **state)
{
    (void)state;
    enum { N = 300, D = 32 };
    test_call a = test_call_make((const int[]){ 2, N, N, D }, MCSA_BF16, TEST_HND, 6, 1);
    test_call b = test_call_make((const int[]){ 2, N, N, D }, MCSA_BF16, TEST_HND, 6, 1);
    int to[N];
    uint64_t seed = 77;
    for (int j = 0; j < N; j++) to[j] = j;
    for (int j = N - 1; j > 0; j--) {
        int other = test_below(&seed, j + 1), swap = to[j];
        to[j] = to[other];
        to[other] = swap;
    }
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < N; j++)
            for (int d = 0; d < D; d++) {
                test_set(&b.k.view, h, to[j], d, test_get(&a.k.view, h, j, d));
                test_set(&b.v.view, h, to[j], d, test_get(&a.v.view, h, j, d));
            }
    mcsa_config config = { .group = 64, .density = 0.15f };
    mcsa_run *first = selected(&a, config), *second = selected(&b, config);
    const mcsa_selection *s = test_selection(first, 0, 0), *p = test_selection(second, 0, 0);
    group_mass m = mass_make(N);
    assert_memory_equal(s->order, p->order, sizeof *s->order * 2 * N);
    for (int h = 0; h < 2; h++)
        for (int g = 0; g < s->G; g++) {
            weigh(&a, s, h, g, test_rounding_of(first->config.isa, MCSA_BF16).probability, &m);
            double kth = kth_largest(m.mass, N, s->K);
            for (int j = 0; j < N; j++)
                if (test_is_kept(s, h, g, j) != test_is_kept(p, h, g, to[j]) && fabs(m.mass[j] - kth) > 2 * m.delta[j])
                    fail_msg("head %d group %d: key %d became %d and changed sides", h, g, j, to[j]);
        }
    mass_free(&m);
    mcsa_run_free(first);
    mcsa_run_free(second);
    test_call_free(&a);
    test_call_free(&b);
}

/* Heads share nothing: in another order all they hold is the same, bit for bit. */
static void permuting_heads_permutes_everything(void **state)
{
    (void)state;
    enum { H = 5, N = 150, D = 20 };
    static const int to[H] = { 3, 0, 4, 2, 1 };
    test_call a = test_call_make((const int[]){ H, N, N, D }, MCSA_F16, TEST_HND, 6, 1);
    test_call b = test_call_make((const int[]){ H, N, N, D }, MCSA_F16, TEST_NHD, 9, 1);
    const test_tensor *from[] = { &a.q, &a.k, &a.v }, *into[] = { &b.q, &b.k, &b.v };
    for (int i = 0; i < 3; i++)
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++) test_set(&into[i]->view, to[h], n, d, test_get(&from[i]->view, h, n, d));
    mcsa_config config = { .group = 32, .density = 0.2f };
    mcsa_run *first = selected(&a, config), *second = selected(&b, config);
    const mcsa_selection *s = test_selection(first, 0, 0), *p = test_selection(second, 0, 0);
    for (int h = 0; h < H; h++) {
        assert_memory_equal(s->order + h * N, p->order + to[h] * N, sizeof *s->order * N);
        assert_memory_equal(test_kept(s, h, 0), test_kept(p, to[h], 0), sizeof *s->kept * (size_t)(s->G * s->words));
    }
    for (int step = 0; step < 2; step++) { /* the anchor's output, then that of a reuse */
        assert_attends(first, step, 0, 0, &a);
        assert_attends(second, step, 0, 0, &b);
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++)
                    assert_true(test_get(&a.out.view, h, n, d) == test_get(&b.out.view, to[h], n, d));
    }
    mcsa_run_free(first);
    mcsa_run_free(second);
    test_call_free(&a);
    test_call_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_keys_have_the_largest_exact_masses),
        cmocka_unit_test(a_group_of_all_queries_keeps_the_largest_masses),
        cmocka_unit_test(every_group_keeps_exactly_k),
        cmocka_unit_test(on_equal_mass_the_lower_index_wins),
        cmocka_unit_test(retained_mass_grows_with_k),
        cmocka_unit_test(t2_permuting_keys_permutes_the_kept),
        cmocka_unit_test(permuting_heads_permutes_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
