/* test_mc_tail.c - what MC-Sparse with means of dropped clusters keeps, that identical tokens make it exact, and what
 * branches share. */
#include "choices.h"
#include "clustered.h"

/* Normal keys and values, queries around 20 places, so that groups want different clusters. */
static test_call structured(int H, int N, int D, uint64_t seed)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_HND, seed, 1);
    clustered_fill(&c.q.view, 20, 1.5, 0.5, seed + 1);
    return c;
}

/* score [K] of group q: attention mass per key in double; bound: what FP32 scores and sums can be off by. */
static void mass_per_key(const rival_choice *choice, const test_call *c, const test_reference *r, int h, int q,
                         double *score, double *bound)
{
    const double scale = 1 / sqrt(c->D), most = c->D * test_largest(&c->q.view) * test_largest(&c->k.view) * scale;
    const double off = 2 * (c->D + 8) * U_F32 * most + (c->N + 16) * U_F32;
    int rows, keys;
    const int32_t *query = rival_part(&choice->queries, h, q, &rows);
    for (int k = 0; k < choice->keys.P; k++) {
        const int32_t *key = rival_part(&choice->keys, h, k, &keys);
        double mass = 0;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < keys; j++) {
                double dot = 0;
                for (int d = 0; d < c->D; d++)
                    dot += test_get(&c->q.view, h, query[i], d) * test_get(&c->k.view, h, key[j], d);
                mass += exp(scale * dot - r->lse[(int64_t)h * c->N + query[i]]);
            }
        score[k] = keys ? mass / keys : -INFINITY;
        bound[k] = keys ? 2 * off * score[k] : 0;
    }
}

/* The worst kept cluster of each group is no worse than its best dropped one. */
static void a_group_keeps_the_clusters_of_most_mass_per_key(void **state)
{
    (void)state;
    test_call c = structured(2, 700, 16, 40);
    rival_config config = fixture_config("mc-tail", c.N, 0.15);
    test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
    test_reference r = test_reference_make(&c, 1 / sqrt(c.D), NULL, &rounding);
    chooser by = chooser_open(&config);
    chooser_warm_up(&by, &c);
    const rival_choice *choice = chooser_choose(&by, &c, 2);
    double *score = test_alloc(2 * sizeof *score * (size_t)choice->keys.P), *bound = score + choice->keys.P;
    for (int h = 0; h < c.H; h++)
        for (int q = 0; q < choice->map.Q; q++) {
            int worst = -1, best = -1;
            mass_per_key(choice, &c, &r, h, q, score, bound);
            for (int k = 0; k < choice->map.K; k++) {
                int *at = rival_map_has(&choice->map, h, q, k) ? &worst : &best;
                if (*at < 0 || (at == &worst ? score[k] < score[*at] : score[k] > score[*at])) *at = k;
            }
            assert_true(worst >= 0 && best >= 0);
            if (!(score[worst] + bound[worst] >= score[best] - bound[best]))
                fail_msg("head %d group %d keeps cluster %d of %.9g, not %d of %.9g", h, q, worst, score[worst], best,
                         score[best]);
        }
    free(score);
    chooser_close(&by);
    test_reference_free(&r);
    test_call_free(&c);
}

/* Keys and values that are copies of 6 tokens. */
static test_call copies(int H, int N, int D)
{
    test_call c = structured(H, N, D, 50);
    uint64_t seed = 52;
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++) {
            uint64_t kind = 100 * (uint64_t)(h + 1) + (uint64_t)test_below(&seed, 6);
            for (int d = 0; d < D; d++) {
                test_set(&c.k.view, h, n, d, test_normal(&kind));
                test_set(&c.v.view, h, n, d, test_normal(&kind));
            }
        }
    return c;
}

/* Means of identical tokens stand in exactly, whatever is kept, and there is nothing for the residual to add.  Scores
 * of a mean of n equal numbers are off by n units more, mean values move the output by n units; all of it twice, since
 * the anchor recorded as much. */
static void identical_tokens_in_a_cluster_give_dense_attention(void **state)
{
    (void)state;
    static const double densities[] = { 0.02, 0.1, 0.3 };
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        test_call c = copies(2, 1200, 32);
        rival_config config = fixture_config("mc-tail", c.N, densities[s]);
        rival_run *run = fixture_open(&config);
        for (int step = 0; step < 3; step++) fixture_attends(run, (mcsa_site){ step, 0, 0 }, &c, "mc-tail");
        const rival_choice *choice = rival_run_choice(run);
        int most = 0, left = 0;
        for (int k = 0; k < choice->keys.P; k++) {
            int size = rival_part_size(&choice->keys, 0, k);
            most = size > most ? size : most;
            left += size && !rival_map_has(&choice->map, 0, 0, k);
        }
        assert_true(left > 0);
        test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
        test_reference r = test_reference_make(&c, 1 / sqrt(c.D), NULL, &rounding);
        for (int row = 0; row < c.H * c.N; row++) {
            r.out_bound[row] *= (double)(c.D + most) / c.D;
            r.out_bound[row] = 2 * (r.out_bound[row] + most * U_F32 * test_largest(&c.v.view));
        }
        test_worst worst = { 0 };
        test_judge_out(&worst, &c, &r, &rounding);
        test_report(&worst, 1e-5, "density %.2f, %d clusters in the tail, up to %d copies", densities[s], left, most);
        test_reference_free(&r);
        rival_run_free(run);
        test_call_free(&c);
    }
}

/* The second branch computes the first one's pairs, with means of its own keys. */
static void branches_share_the_choice_and_not_the_means(void **state)
{
    (void)state;
    test_call calls[2] = { structured(2, 400, 16, 60), structured(2, 400, 16, 70) };
    rival_config config = fixture_config("mc-tail-shared", 400, 0.2);
    config.attention.branches = 2;
    rival_run *run = fixture_open(&config);
    rival_choice first = { 0 };
    float mean = 0;
    for (int step = 0; step < 3; step++)
        for (int branch = 0; branch < 2; branch++) {
            fixture_attends(run, (mcsa_site){ step, 0, branch }, &calls[branch], "mc-tail-shared");
            if (step < 2) continue;
            const rival_choice *now = rival_run_choice(run);
            if (!branch) {
                first = *now;
                mean = now->tail.key[0];
                continue;
            }
            assert_ptr_equal(now->map.kept, first.map.kept);
            assert_ptr_equal(now->queries.order, first.queries.order);
            assert_ptr_equal(now->keys.order, first.keys.order);
            assert_true(now->tail.key[0] != mean);
        }
    rival_run_free(run);
    for (int branch = 0; branch < 2; branch++) test_call_free(&calls[branch]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_keeps_the_clusters_of_most_mass_per_key),
        cmocka_unit_test(identical_tokens_in_a_cluster_give_dense_attention),
        cmocka_unit_test(branches_share_the_choice_and_not_the_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
