/* test_pisa.c - PISA: which blocks are exact, and that the others come in to first order. */
#include "tails.h"

extern const rival_method rival_pisa;

static test_call call_of(int H, int N, int D, uint64_t seed, double amplitude)
{
    return test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, seed, amplitude);
}

static const rival_choice *attended(clustered_run *run, const mcsa_qkv *x)
{
    const rival_choice *choice = clustered_choose(run, (mcsa_site){ 0, 0, 0 }, x);
    clustered_attend(run, choice, x);
    return choice;
}

static void keys_constant_per_block_give_dense_at_any_density(void **state)
{
    (void)state;
    static const double densities[] = { 0.02, 0.3, 0.7, 1 };
    static const int lengths[] = { 1, 63, 130, 517 };
    for (size_t n = 0; n < TEST_COUNT(lengths); n++)
        for (size_t s = 0; s < TEST_COUNT(densities); s++) {
            clustered_run run = clustered_open(&rival_pisa, densities[s], 1);
            test_call c = call_of(2, lengths[n], 24, 3 * n + s, 1);
            tail_flatten_keys(&c.k.view);
            mcsa_qkv x = clustered_x(&c);
            test_worst worst = { 0 };
            tail_judge_dense(&worst, &c, &x, attended(&run, &x));
            test_report(&worst, TAIL_CEILING, "N %d, density %.2f", lengths[n], densities[s]);
            clustered_close(&run);
            test_call_free(&c);
        }
}

/* Every part of the method at once, where rows have their largest logit in the tail: there the running maximum grows
 * after the exact blocks, and a first-order weight that is not rescaled with the rest is far off. */
static void the_output_is_that_of_the_formula(void **state)
{
    (void)state;
    static const double densities[] = { 0.05, 0.25, 0.5 };
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        clustered_run run = clustered_open(&rival_pisa, densities[s], 1);
        test_call c = call_of(2, 700, 32, 40 + s, 1);
        tail_turn_queries(&c.q.view, &c.k.view, 50 + s);
        mcsa_qkv x = clustered_x(&c);
        test_worst worst = { 0 };
        int led = tail_judge(&worst, &c, &x, attended(&run, &x));
        test_report(&worst, TAIL_CEILING, "density %.2f, %d of %d rows led by the tail", densities[s], led, 2 * 700);
        assert_true(led > 70);
        clustered_close(&run);
        test_call_free(&c);
    }
}

/* Blocks that deviate from their means alike, so that the mean of all first-order terms is each one's. */
static void repeat_deviations(const mcsa_tensor *t, uint64_t seed)
{
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t d = 0; d < t->shape[2]; d++) {
            double sum = 0, deviation[64];
            for (int i = 0; i < 64; i++) sum += deviation[i] = test_normal(&seed);
            for (int64_t n = 0; n < t->shape[1]; n += 64) {
                double mean = test_normal(&seed);
                for (int i = 0; i < 64; i++) test_set(t, h, n + i, d, mean + deviation[i] - sum / 64);
            }
        }
}

/* Relative distance from dense attention with queries of `amplitude`; with the slope or without. */
static double distance(double amplitude, int slope)
{
    clustered_run run = clustered_open(&rival_pisa, 0.05, 1);
    test_call c = call_of(1, 1024, 32, 60, 1);
    test_fill_normal(&c.q.view, 61, amplitude);
    repeat_deviations(&c.k.view, 62);
    repeat_deviations(&c.v.view, 63);
    mcsa_qkv x = clustered_x(&c);
    rival_choice choice = *clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    if (!slope) choice.tail.slope = NULL;
    clustered_attend(&run, &choice, &x);
    test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
    test_reference dense = test_reference_make(&c, (double)x.scale, NULL, &rounding);
    test_worst worst = { 0 };
    for (int n = 0; n < c.N; n++)
        for (int d = 0; d < c.D; d++)
            test_judge(&worst, test_get(&c.out.view, 0, n, d), dense.out[n * c.D + d], 1, 0, n, d);
    test_reference_free(&dense);
    clustered_close(&run);
    test_call_free(&c);
    return test_relative_l2(&worst);
}

/* A quarter of the amplitude is a sixteenth of a second-order error and a quarter of a first-order one; the bounds
 * leave the next order half of its size at amplitude 0.2. */
static void the_error_is_of_second_order(void **state)
{
    (void)state;
    double with = distance(0.2, 1) / distance(0.05, 1), without = distance(0.2, 0) / distance(0.05, 0);
    print_message("  error %.2e and %.2e without first order; a quarter of the scores: 1 / %.1f and 1 / %.1f\n",
                  distance(0.2, 1), distance(0.2, 0), with, without);
    assert_true(with > 12 && with < 20);
    assert_true(without > 3 && without < 5.5);
}

/* Mean scores of row (h, q) in double, and how far FP32 means and sums may be from them: 66 u for a mean of 64 rows of
 * each factor, D u for the product. */
static void mean_scores(const double *const qk[2], const mcsa_qkv *x, const int place[2], double *score, double *bound)
{
    int64_t N = x->dims.N, D = x->dims.D, base = place[0] * N * D;
    for (int64_t b = 0; b * 64 < N; b++) {
        int64_t keys = N - b * 64 < 64 ? N - b * 64 : 64, first = place[1] * 64;
        int64_t queries = N - first < 64 ? N - first : 64;
        double size = 0;
        score[b] = 0;
        for (int64_t d = 0; d < D; d++) {
            double q = 0, k = 0, most_q = 0, most_k = 0;
            for (int64_t i = 0; i < queries; i++) {
                q += qk[0][base + (first + i) * D + d] / (double)queries;
                most_q += fabs(qk[0][base + (first + i) * D + d]) / (double)queries;
            }
            for (int64_t i = 0; i < keys; i++) {
                k += qk[1][base + (b * 64 + i) * D + d] / (double)keys;
                most_k += fabs(qk[1][base + (b * 64 + i) * D + d]) / (double)keys;
            }
            score[b] += (double)x->scale * q * k;
            size += (double)x->scale * most_q * most_k;
        }
        bound[b] = size * ((double)D + 134) * U_F32;
    }
}

static void exact_blocks_have_the_highest_mean_scores(void **state)
{
    (void)state;
    enum { H = 2, N = 1100, BLOCKS = 18 };
    clustered_run run = clustered_open(&rival_pisa, 0.2, 1);
    test_call c = call_of(H, N, 24, 80, 1);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view), score[BLOCKS], bound[BLOCKS];
    int total = 0;
    assert_int_equal(choice->map.Q, BLOCKS);
    for (int h = 0; h < H; h++)
        for (int b = 0; b < BLOCKS; b++) {
            mean_scores((const double *const[]){ q, k }, &x, (const int[]){ h, b }, score, bound);
            assert_keeps_best(&choice->map, h, b, score, bound);
            for (int j = 0; j < BLOCKS; j++) total += rival_map_has(&choice->map, h, b, j);
        }
    /* 0.2 N N pairs of 18 padded rows of 64 by N: 0.2 * 1100 / 1152 of the 18 blocks a row, rounded once per head */
    assert_true(abs(total - (int)(H * BLOCKS * BLOCKS * 0.2 * N / (BLOCKS * 64.0) + 0.5)) <= H);
    assert_true(fabs(clustered_density(choice) - 0.2) < 0.005);
    free(q);
    free(k);
    clustered_close(&run);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_constant_per_block_give_dense_at_any_density),
        cmocka_unit_test(the_output_is_that_of_the_formula),
        cmocka_unit_test(the_error_is_of_second_order),
        cmocka_unit_test(exact_blocks_have_the_highest_mean_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
