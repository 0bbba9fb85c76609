/* test_tail.c - reuse with the means of what is not kept, through the public calls: which clusters a group keeps, what
 * it then attends to, and where that has to be dense attention. */
#include "tail.h"

/* Steps 0 and 3 are anchors; 1, 2 and 4 reuse. */
static mcsa_config config_of(mcsa_isa isa, float density, int C, mcsa_residual residual)
{
    mcsa_config config = { .steps = 5, .layers = 1, .schedule = "list:0,3", .density = density, .group = C };
    config.isa = isa;
    config.residual = residual;
    config.tail = MCSA_TAIL_MEANS;
    return config;
}

/* Keys around centres that 20 neighbours share, queries around 12 places, so that groups want different clusters. */
static void fill_structured(test_call *c, uint64_t seed)
{
    test_call_refill(c, seed, 0.5);
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) {
                uint64_t key = 1000 * (uint64_t)(h + 1) + (uint64_t)(n / 20), query = key % 12 + 77;
                key = key * 1000 + (uint64_t)d;
                query = query * 1000 + (uint64_t)d;
                test_set(&c->k.view, h, n, d, test_get(&c->k.view, h, n, d) + test_normal(&key));
                test_set(&c->q.view, h, n, d, test_get(&c->q.view, h, n, d) + 1.5 * test_normal(&query));
            }
}

static double scale_of(const test_call *c)
{
    return (double)(1 / sqrtf((float)c->D));
}

/* The worth of every cluster to a group. */
typedef struct worths {
    double *worth, *off; /* [P] mass per key, and how far FP32 may be from it; NaN for an empty cluster */
} worths;

/* A mass is off as test_selection.c derives it, once more by n u for the sum over a cluster and by u for the division.
 */
static void weigh(const test_call *c, const mcsa_selection *s, int h, int g, double rounded, worths *w)
{
    double *mass = test_alloc(2 * sizeof *mass * (size_t)c->N), *off = mass + c->N;
    double *score = test_alloc(sizeof *score * (size_t)c->N);
    int count = mcsa_group_size(s, g), size;
    test_rounding rounding = { 0 };
    for (int i = 0; i < count; i++) {
        int n = s->order[(int64_t)h * c->N + g * s->C + i];
        double max = -INFINITY, most = 0, sum = 0, out_bound, lse_bound;
        for (int j = 0; j < c->N; j++) {
            double dot = 0, absolute = 0;
            for (int d = 0; d < c->D; d++) {
                double x = test_get(&c->q.view, h, n, d) * test_get(&c->k.view, h, j, d);
                dot += x;
                absolute += fabs(x);
            }
            score[j] = scale_of(c) * dot;
            max = fmax(max, score[j]);
            most = fmax(most, scale_of(c) * absolute);
        }
        for (int j = 0; j < c->N; j++) sum += exp(score[j] - max);
        double lse = max + log(sum);
        test_row_bounds(most, c->N, c->D, 1, &rounding, &out_bound, &lse_bound);
        double moved = expm1(2 * lse_bound + 2 * U_EXP2 + 8 * U_F32 * (most + fabs(lse)) + count * U_F32 + rounded);
        for (int j = 0; j < c->N; j++) {
            mass[j] += exp(score[j] - lse);
            off[j] += exp(score[j] - lse) * moved;
        }
    }
    for (int p = 0; p < s->P; p++) {
        const int32_t *members = tail_members(s, h, p, &size);
        w->worth[p] = w->off[p] = 0;
        for (int i = 0; i < size; i++) {
            w->worth[p] += mass[members[i]] / size;
            w->off[p] += off[members[i]] / size;
        }
        w->off[p] += (size + 1) * U_F32 * (w->worth[p] + w->off[p]);
        if (!size) w->worth[p] = (double)NAN;
    }
    free(mass);
    free(score);
}

/* Rows of a group: keys of kept clusters, and one for every other cluster that has keys. */
static int rows_of(const mcsa_selection *s, int h, int g, int *keys)
{
    int means = 0, size;
    *keys = 0;
    for (int p = 0; p < s->P; p++) {
        (void)tail_members(s, h, p, &size);
        if (test_is_kept(s, h, g, p)) {
            assert_true(size > 0);
            *keys += size;
        } else
            means += size > 0;
    }
    for (int64_t b = s->P; b < s->words * 64; b++) assert_int_equal(test_is_kept(s, h, g, (int)b), 0);
    return *keys + means;
}

/* What going through clusters by worth keeps is what fits into K rows such that every other cluster, when it is its
 * turn, does not fit beside those kept before it.  Before it: of more worth, and as many more as may be of more worth
 * within the bounds.  Returns whether those were needed. */
static int judge_group(const mcsa_selection *s, int h, int g, const worths *w, const char *what)
{
    int keys, rows = rows_of(s, h, g, &keys), full = 0, near = 0, size, other;
    if (rows > s->K) fail_msg("%s head %d group %d attends to %d rows; K is %d", what, h, g, rows, s->K);
    for (int p = 0; p < s->P; p++) {
        (void)tail_members(s, h, p, &size);
        full += size > 0;
    }
    for (int p = 0; p < s->P; p++) {
        (void)tail_members(s, h, p, &size);
        if (!size || test_is_kept(s, h, g, p)) continue;
        int strictly = full, at_most = full;
        for (int o = 0; o < s->P; o++) {
            if (!test_is_kept(s, h, g, o)) continue;
            (void)tail_members(s, h, o, &other);
            if (w->worth[o] > w->worth[p] || (w->worth[o] == w->worth[p] && o < p)) strictly += other - 1;
            if (w->worth[o] + w->off[o] >= w->worth[p] - w->off[p]) at_most += other - 1;
        }
        near |= strictly + size - 1 <= s->K;
        if (at_most + size - 1 <= s->K)
            fail_msg("%s head %d group %d drops cluster %d of %d keys worth %.9g, which fits: %d of %d rows before it",
                     what, h, g, p, size, w->worth[p], at_most, s->K);
    }
    return near;
}

static void judge_selection(const test_call *c, const mcsa_selection *s, double rounded, const char *what)
{
    worths w = { test_alloc(sizeof(double) * (size_t)s->P), test_alloc(sizeof(double) * (size_t)s->P) };
    int near = 0, keys, kept = 0;
    for (int h = 0; h < c->H; h++)
        for (int g = 0; g < s->G; g++) {
            weigh(c, s, h, g, rounded, &w);
            near += judge_group(s, h, g, &w, what);
            (void)rows_of(s, h, g, &keys);
            kept += keys;
        }
    print_message("  %-40s K %d, P %d, %d keys kept, %d of %d groups with near-ties\n", what, s->K, s->P, kept, near,
                  c->H * s->G);
    free(w.worth);
    free(w.off);
}

static const struct {
    int shape[4], C;
    float density;
} cases[] = {
    { { 2, 400, 400, 32 }, 100, 0.2f }, { { 1, 257, 257, 17 }, 48, 0.15f }, { { 1, 900, 900, 64 }, 128, 0.1f },
    { { 3, 27, 27, 8 }, 5, 0.3f },      { { 1, 40, 40, 256 }, 16, 0.5f },   { { 1, 1, 1, 8 }, 128, 0.1f },
    { { 2, 30, 30, 1 }, 7, 0.01f },
};

static void kept_clusters_are_worth_most_and_fit(void **state)
{
    (void)state;
    char what[96];
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t i = 0; i < TEST_COUNT(cases); i++) {
                test_call c = test_call_make(cases[i].shape, test_dtypes[t], TEST_NHD, i, 1);
                mcsa_config config = config_of(test_levels[l], cases[i].density, cases[i].C, MCSA_RESIDUAL_OFF);
                mcsa_run *run = test_run(&config);
                fill_structured(&c, 20 + i);
                assert_attends(run, 0, 0, 0, &c);
                snprintf(what, sizeof what, "%s %s N %d D %d C %d", mcsa_isa_name(test_levels[l]),
                         test_dtype_name(test_dtypes[t]), c.N, c.D, cases[i].C);
                judge_selection(&c, test_selection(run, 0, 0),
                                test_rounding_of(test_levels[l], test_dtypes[t]).probability, what);
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* Ten clusters of 28 keys of equal mass; four fit, 10 + 4 * 27 = 118 of 140 rows, a fifth does not. */
static void of_equal_worth_the_lower_cluster_wins(void **state)
{
    (void)state;
    enum { N = 280, D = 16 };
    test_call c = test_call_make((const int[]){ 1, N, N, D }, MCSA_F32, TEST_HND, 3, 1);
    for (int n = 0; n < N; n++)
        for (int d = 0; d < D; d++) {
            test_set(&c.q.view, 0, n, d, 0);
            test_set(&c.k.view, 0, n, d, n / 28 == d);
        }
    mcsa_config config = config_of(MCSA_ISA_AUTO, 0.5f, 64, MCSA_RESIDUAL_OFF);
    mcsa_run *run = test_run(&config);
    assert_attends(run, 0, 0, 0, &c);
    const mcsa_selection *s = test_selection(run, 0, 0);
    for (int g = 0; g < s->G; g++) {
        int filled = 0, size;
        for (int p = 0; p < s->P; p++) {
            (void)tail_members(s, 0, p, &size);
            assert_true(size == 0 || size == 28);
            assert_int_equal(test_is_kept(s, 0, g, p), size && filled < 4);
            filled += size > 0;
        }
        assert_int_equal(filled, 10);
    }
    mcsa_run_free(run);
    test_call_free(&c);
}

/* New q, k and v at a reuse, all levels and dtypes, against double. */
static void a_reuse_attends_to_kept_keys_and_means_of_today(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t i = 0; i < TEST_COUNT(cases); i++) {
                test_call c = test_call_make(cases[i].shape, test_dtypes[t], i % 2 ? TEST_SPREAD : TEST_HND, i, 1);
                mcsa_config config = config_of(test_levels[l], cases[i].density, cases[i].C, MCSA_RESIDUAL_OFF);
                mcsa_run *run = test_run(&config);
                fill_structured(&c, 30 + i);
                assert_attends(run, 0, 0, 0, &c);
                test_call_refill(&c, 60 + i, 1);
                assert_attends(run, 1, 0, 0, &c);
                const mcsa_selection *s = test_selection(run, 0, 0);
                test_rounding rounding = test_rounding_of(test_levels[l], test_dtypes[t]);
                test_reference r = tail_reference(&c, s, scale_of(&c), &rounding, 1);
                test_worst out = { 0 };
                test_judge_out(&out, &c, &r, &rounding);
                test_report(&out, test_ceiling(test_dtypes[t]), "%s %s N %d D %d C %d K %d P %d",
                            mcsa_isa_name(test_levels[l]), test_dtype_name(test_dtypes[t]), c.N, c.D, s->C, s->K, s->P);
                assert_int_equal(test_damage(&c.out), 0);
                test_reference_free(&r);
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* More means than a block of keys holds, judged by 64 sampled queries. */
static void long_sequences_have_several_blocks_of_means(void **state)
{
    (void)state;
    enum { N = 8191, D = 16 };
    for (size_t t = 0; t < 2; t++) {
        test_call c = test_call_make((const int[]){ 1, N, N, D }, test_dtypes[t], TEST_HND, 1, 1);
        mcsa_config config = config_of(MCSA_ISA_AUTO, 0.1f, 128, MCSA_RESIDUAL_OFF);
        mcsa_run *run = test_run(&config);
        int keys;
        fill_structured(&c, 5);
        assert_attends(run, 0, 0, 0, &c);
        test_call_refill(&c, 50, 1);
        assert_attends(run, 1, 0, 0, &c);
        const mcsa_selection *s = test_selection(run, 0, 0);
        assert_true(rows_of(s, 0, 0, &keys) - keys > MCSA_KEY_BLOCK);
        test_rounding rounding = test_rounding_of(mcsa_cpu_isa(), test_dtypes[t]);
        test_reference r = tail_reference(&c, s, scale_of(&c), &rounding, N / 64);
        test_worst out = { 0 };
        for (int i = 0; i < N; i += N / 64) {
            int n = s->order[i];
            for (int d = 0; d < D; d++) {
                double expected = r.out[n * D + d], bound = r.out_bound[n];
                bound += rounding.out * (fabs(expected) + bound);
                test_judge(&out, test_get(&c.out.view, 0, n, d), expected, bound, i, n, d);
            }
        }
        test_report(&out, test_ceiling(test_dtypes[t]), "%s over 8191 tokens, %d keys and %d means for the first group",
                    test_dtype_name(test_dtypes[t]), keys, rows_of(s, 0, 0, &keys) - keys);
        test_reference_free(&r);
        mcsa_run_free(run);
        test_call_free(&c);
    }
}

/* A reuse against dense attention of the same call by the same run, within twice the bound of a row and `more`. */
static void judge_dense(mcsa_run *run, test_call *c, double more, const char *what)
{
    test_rounding rounding = test_rounding_of(run->config.isa, c->dtype);
    test_reference r = test_reference_make(c, scale_of(c), NULL, &rounding);
    test_worst out = { 0 };
    for (int i = 0; i < c->H * c->N; i++) r.out_bound[i] = 2 * r.out_bound[i] + more;
    test_judge_out(&out, c, &r, &rounding);
    test_report(&out, test_ceiling(c->dtype), "%s", what);
    test_reference_free(&r);
}

static void with_all_keys_kept_a_reuse_is_dense(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ 2, 201, 201, 40 }, test_dtypes[t], TEST_HND, 1, 1);
            mcsa_config config = config_of(test_levels[l], 1, 64, MCSA_RESIDUAL_OFF);
            mcsa_run *run = test_run(&config);
            char what[96];
            int keys;
            assert_attends(run, 0, 0, 0, &c);
            test_call_refill(&c, 50, 1);
            assert_attends(run, 1, 0, 0, &c);
            assert_int_equal(rows_of(test_selection(run, 0, 0), 1, 3, &keys), 201);
            assert_int_equal(keys, 201);
            snprintf(what, sizeof what, "%s %s keep all", mcsa_isa_name(test_levels[l]),
                     test_dtype_name(test_dtypes[t]));
            judge_dense(run, &c, 0, what);
            mcsa_run_free(run);
            test_call_free(&c);
        }
    }
}

/* Tokens of five kinds, a fifth of all each: keys of a kind are one row of 8 significant bits, whose mean is exact, and
 * with `copies` values too. */
static void fill_kinds(test_call *c, uint64_t seed, int copies)
{
    test_call_refill(c, seed, 1);
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++) {
            uint64_t kind = seed + 100 * (uint64_t)(h + 1) + (uint64_t)(n * 5 / c->N);
            for (int d = 0; d < c->D; d++) {
                double key = tail_stored((float)test_normal(&kind), MCSA_BF16);
                double value = tail_stored((float)test_normal(&kind), MCSA_BF16);
                test_set(&c->k.view, h, n, d, key);
                if (copies) test_set(&c->v.view, h, n, d, value);
            }
        }
}

/* One mean stands for equal keys exactly, whatever their values are.  A mean value is off by n u of its FP32 sum and
 * one rounding to the dtype. */
static void of_equal_keys_means_are_dense_attention(void **state)
{
    (void)state;
    static const float densities[] = { 0.02f, 0.1f, 0.4f };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t i = 0; i < 2 * TEST_COUNT(densities); i++) {
                int copies = i % 2, most = 0, left = 0, size;
                test_call c = test_call_make((const int[]){ 2, 1000, 1000, 24 }, test_dtypes[t], TEST_NHD, i, 1);
                mcsa_config config = config_of(test_levels[l], densities[i / 2], 128, MCSA_RESIDUAL_OFF);
                mcsa_run *run = test_run(&config);
                char what[96];
                fill_kinds(&c, 40, copies);
                assert_attends(run, 0, 0, 0, &c);
                fill_kinds(&c, 50, copies); /* other rows, of the same kinds */
                assert_attends(run, 1, 0, 0, &c);
                const mcsa_selection *s = test_selection(run, 0, 0);
                for (int p = 0; p < s->P; p++) {
                    const int32_t *members = tail_members(s, 0, p, &size);
                    for (int m = 1; m < size; m++) assert_int_equal(members[m] * 5 / c.N, members[0] * 5 / c.N);
                    most = size > most ? size : most;
                    left += size && !test_is_kept(s, 0, 0, p);
                }
                assert_true(left > 0);
                snprintf(what, sizeof what, "%s %s density %.2f, %d means%s", mcsa_isa_name(test_levels[l]),
                         test_dtype_name(test_dtypes[t]), (double)densities[i / 2], left,
                         copies ? ", equal values" : "");
                double off = most * U_F32 + test_rounding_of(test_levels[l], test_dtypes[t]).out;
                judge_dense(run, &c, copies ? 0 : off * test_largest(&c.v.view), what);
                mcsa_run_free(run);
                test_call_free(&c);
            }
    }
}

/* The same q, k and v again: tail + (dense - tail) is dense, up to the rounding of a bf16 residual. */
static void reusing_the_same_inputs_gives_dense_back(void **state)
{
    (void)state;
    enum { H = 2, N = 403, D = 33 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 2, 1);
            test_tensor out[2]; /* dense, and without the residual */
            double u = test_rounding_of(test_levels[l], test_dtypes[t]).out, missed = 0;
            mcsa_config config = config_of(test_levels[l], 0.1f, 64, MCSA_RESIDUAL_OFF);
            mcsa_run *off = test_run(&config);
            config.residual = MCSA_RESIDUAL_BF16;
            mcsa_run *on = test_run(&config);
            test_worst worst = { 0 };
            for (int step = 0; step < 2; step++) {
                out[step] = test_tensor_make(H, N, D, test_dtypes[t], TEST_HND);
                assert_attends(off, step, 0, 0, &c);
                test_copy(&out[step].view, &c.out.view);
            }
            assert_attends(on, 0, 0, 0, &c);
            assert_same_bits(&c.out.view, &out[0].view);
            assert_attends(on, 2, 0, 0, &c);
            for (int h = 0; h < H; h++)
                for (int n = 0; n < N; n++)
                    for (int d = 0; d < D; d++) {
                        double y = test_get(&out[1].view, h, n, d), want = test_get(&out[0].view, h, n, d);
                        double x = fabs(want - y) + u * fabs(y), stored = U_BF16 * x;
                        double bound = stored + 4 * U_F32 * (fabs(y) + x) + u * (fabs(want) + stored) + 0x1p-25;
                        missed = fmax(missed, fabs(want - y));
                        test_judge(&worst, test_get(&c.out.view, h, n, d), want, bound, h, n, d);
                    }
            assert_true(missed > 0.01);
            test_report(&worst, 5e-3, "%s %s, residual in bf16 (without: %.2f)", mcsa_isa_name(test_levels[l]),
                        test_dtype_name(test_dtypes[t]), missed);
            mcsa_run_free(off);
            mcsa_run_free(on);
            for (int i = 0; i < 2; i++) test_tensor_free(&out[i]);
            test_call_free(&c);
        }
    }
}

/* A follower has keys and values of its own: the leader's clusters of them, and kept bits, at every reuse. */
static void followers_use_the_clusters_of_the_leader(void **state)
{
    (void)state;
    test_call calls[2];
    mcsa_config config = config_of(MCSA_ISA_AUTO, 0.15f, 32, MCSA_RESIDUAL_OFF);
    config.branches = 2;
    mcsa_run *run = test_run(&config);
    for (int branch = 0; branch < 2; branch++) {
        calls[branch] = test_call_make((const int[]){ 2, 300, 300, 24 }, MCSA_F32, TEST_HND, 1, 1);
        fill_structured(&calls[branch], (uint64_t)(60 + branch));
        assert_attends(run, 0, 0, branch, &calls[branch]);
    }
    assert_null(mcsa_cache_plan(run, 0, 1)->own.memory.data);
    for (int branch = 1; branch >= 0; branch--) {
        test_rounding rounding = test_rounding_of(run->config.isa, MCSA_F32);
        test_worst out = { 0 };
        fill_structured(&calls[branch], (uint64_t)(70 + branch));
        assert_attends(run, 1, 0, branch, &calls[branch]);
        test_reference r = tail_reference(&calls[branch], test_selection(run, 0, 0), scale_of(&calls[0]), &rounding, 1);
        test_judge_out(&out, &calls[branch], &r, &rounding);
        test_report(&out, test_ceiling(MCSA_F32), "branch %d", branch);
        test_reference_free(&r);
        test_call_free(&calls[branch]);
    }
    mcsa_run_free(run);
}

/* Any density and any N: at most K rows, and what the statistics say is what the clusters and kept bits make. */
static void executed_density_is_that_of_k_rows_and_padding(void **state)
{
    (void)state;
    static const int lengths[] = { 1, 2, 3, 27, 28, 29, 63, 65, 130, 300 };
    static const float densities[] = { 0.001f, 0.02f, 0.1f, 0.5f, 0.999f, 1 };
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
        for (size_t i = 0; i < TEST_COUNT(lengths) * TEST_COUNT(densities); i++) {
            int N = lengths[i % TEST_COUNT(lengths)], keys;
            float density = densities[i / TEST_COUNT(lengths)];
            test_call c = test_call_make((const int[]){ 2, N, N, 12 }, test_dtypes[t], TEST_NHD, i, 1);
            mcsa_config config = config_of(MCSA_ISA_AUTO, density, 48, MCSA_RESIDUAL_INT8);
            mcsa_run *run = test_run(&config);
            assert_attends(run, 0, 0, 0, &c);
            test_call_refill(&c, i + 100, 1);
            assert_attends(run, 1, 0, 0, &c);
            const mcsa_selection *s = test_selection(run, 0, 0);
            int pair = test_dtypes[t] == MCSA_BF16 && run->config.isa == MCSA_ISA_AVX512BF16 ? 2 : 1;
            double pairs = 0, most = 0;
            for (int h = 0; h < 2; h++)
                for (int g = 0; g < s->G; g++) {
                    int rows = rows_of(s, h, g, &keys), lanes = (mcsa_group_size(s, g) + 15) / 16 * 16;
                    assert_true(rows >= 1 && rows <= s->K);
                    pairs += (double)lanes * ((keys + pair - 1) / pair + (rows - keys + pair - 1) / pair) * pair;
                    most += (double)lanes * (s->K + 2 * (pair - 1));
                }
            mcsa_stats stats = { 0 };
            assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
            assert_int_equal(stats.reuse, 1);
            assert_true(fabs(stats.density_executed * 2 * N * N - pairs) < 1e-6 * pairs);
            assert_true(pairs <= most);
            mcsa_run_free(run);
            test_call_free(&c);
        }
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    static const int threads[] = { 1, 2, 5 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            test_tensor first[4] = { { .bytes = 0 } };
            for (size_t i = 0; i < TEST_COUNT(threads); i++) {
                test_call c = test_call_make((const int[]){ 2, 190, 190, 20 }, test_dtypes[t], TEST_NHD, 7, 1);
                mcsa_config config = config_of(test_levels[l], 0.2f, 24, MCSA_RESIDUAL_BF16);
                config.threads = threads[i];
                mcsa_run *run = test_run(&config);
                for (int step = 0; step < 4; step++) {
                    fill_structured(&c, (uint64_t)step);
                    assert_attends(run, step, 0, 0, &c);
                    if (i) {
                        assert_same_bits(&c.out.view, &first[step].view);
                        continue;
                    }
                    first[step] = test_tensor_make(2, 190, 20, test_dtypes[t], TEST_HND);
                    test_copy(&first[step].view, &c.out.view);
                }
                mcsa_run_free(run);
                test_call_free(&c);
            }
            for (int step = 0; step < 4; step++) test_tensor_free(&first[step]);
        }
    }
}

/* Scratch grows at anchors alone: after dense steps of the same shapes that need no clusters, for more clusters in all,
 * for more of one head, for wider tokens in fewer clusters.  Reuses of all four allocate nothing. */
static void a_reuse_allocates_nothing(void **state)
{
    (void)state;
    enum { LAYERS = 4 };
    test_heap heap = { 0 };
    mcsa_config config = config_of(MCSA_ISA_AUTO, 0.2f, 32, MCSA_RESIDUAL_OFF);
    config.schedule = "list:1";
    config.layers = LAYERS;
    config.allocator = test_heap_allocator(&heap);
    mcsa_run *run = test_run(&config);
    static const int shapes[LAYERS][4] = {
        { 1, 500, 500, 16 }, { 90, 12, 12, 16 }, { 1, 600, 600, 16 }, { 2, 90, 90, 17 }
    };
    test_call calls[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        calls[layer] = test_call_make(shapes[layer], layer == 3 ? MCSA_BF16 : MCSA_F32, TEST_HND, 1, 1);
        if (layer < 3) assert_attends(run, 0, layer, 0, &calls[layer]);
    }
    for (int layer = 0; layer < LAYERS; layer++) assert_attends(run, 1, layer, 0, &calls[layer]);
    heap.fail_from = heap.calls + 1;
    for (int step = 2; step < 4; step++)
        for (int layer = 0; layer < LAYERS; layer++) {
            test_call *c = &calls[layer];
            test_rounding rounding = test_rounding_of(run->config.isa, c->dtype);
            test_worst out = { 0 };
            test_call_refill(c, (uint64_t)(10 * step + layer), 1);
            assert_attends(run, step, layer, 0, c);
            test_reference r = tail_reference(c, test_selection(run, layer, 0), scale_of(c), &rounding, 1);
            test_judge_out(&out, c, &r, &rounding);
            test_report(&out, test_ceiling(c->dtype), "step %d, %d heads, N %d D %d", step, c->H, c->N, c->D);
            test_reference_free(&r);
        }
    assert_int_equal(heap.calls, heap.fail_from - 1);
    mcsa_run_free(run);
    for (int layer = 0; layer < LAYERS; layer++) test_call_free(&calls[layer]);
    test_heap_settled(&heap);
}

/* Whatever an anchor made of NaN, its clusters hold every key once, its groups stay within K rows, and a reuse of
 * finite numbers attends to that. */
static void an_anchor_of_nan_leaves_clusters_that_hold_all_keys(void **state)
{
    (void)state;
    enum { N = 150, D = 16 };
    for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
        for (int all = 0; all < 2; all++) {
            test_call c = test_call_make((const int[]){ 1, N, N, D }, test_dtypes[t], TEST_HND, 9, 1);
            mcsa_config config = config_of(MCSA_ISA_AUTO, 0.3f, 40, MCSA_RESIDUAL_OFF);
            mcsa_run *run = test_run(&config);
            int seen[N] = { 0 }, keys;
            for (int n = all ? 0 : 77; n < (all ? N : 78); n++) test_set(&c.k.view, 0, n, 5, (double)NAN);
            assert_attends(run, 0, 0, 0, &c);
            assert_true(isnan(test_get(&c.out.view, 0, 3, 3)));
            const mcsa_selection *s = test_selection(run, 0, 0);
            for (int j = 0; j < N; j++) seen[s->members[j]]++;
            for (int j = 0; j < N; j++) assert_int_equal(seen[j], 1);
            for (int g = 0; g < s->G; g++) assert_true(rows_of(s, 0, g, &keys) <= s->K);
            test_call_refill(&c, 90, 1);
            assert_attends(run, 1, 0, 0, &c);
            test_rounding rounding = test_rounding_of(run->config.isa, test_dtypes[t]);
            test_reference r = tail_reference(&c, s, scale_of(&c), &rounding, 1);
            test_worst out = { 0 };
            test_judge_out(&out, &c, &r, &rounding);
            test_report(&out, test_ceiling(test_dtypes[t]), "%s after NaN in %s", test_dtype_name(test_dtypes[t]),
                        all ? "all keys" : "one key");
            test_reference_free(&r);
            mcsa_run_free(run);
            test_call_free(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_clusters_are_worth_most_and_fit),
        cmocka_unit_test(of_equal_worth_the_lower_cluster_wins),
        cmocka_unit_test(a_reuse_attends_to_kept_keys_and_means_of_today),
        cmocka_unit_test(long_sequences_have_several_blocks_of_means),
        cmocka_unit_test(with_all_keys_kept_a_reuse_is_dense),
        cmocka_unit_test(of_equal_keys_means_are_dense_attention),
        cmocka_unit_test(reusing_the_same_inputs_gives_dense_back),
        cmocka_unit_test(followers_use_the_clusters_of_the_leader),
        cmocka_unit_test(executed_density_is_that_of_k_rows_and_padding),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(a_reuse_allocates_nothing),
        cmocka_unit_test(an_anchor_of_nan_leaves_clusters_that_hold_all_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
