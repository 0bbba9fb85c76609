/* test_sol.c - Sol-Attn: which blocks are exact at the threshold found, and that the others come in by their sums. */
#include "tails.h"

extern const rival_method rival_sol;

static test_call call_of(int H, int N, int D, uint64_t seed)
{
    return test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, seed, 1);
}

static const rival_choice *attended(clustered_run *run, const mcsa_qkv *x)
{
    const rival_choice *choice = clustered_choose(run, (mcsa_site){ 0, 0, 0 }, x);
    clustered_attend(run, choice, x);
    return choice;
}

static int is_near(int a, int b)
{
    return abs(a - b) <= 1;
}

static void keys_constant_per_block_give_dense_at_any_density(void **state)
{
    (void)state;
    static const double densities[] = { 0.02, 0.3, 0.7, 1 };
    static const int lengths[] = { 1, 63, 130, 517 };
    for (size_t n = 0; n < TEST_COUNT(lengths); n++)
        for (size_t s = 0; s < TEST_COUNT(densities); s++) {
            clustered_run run = clustered_open(&rival_sol, densities[s], 1);
            test_call c = call_of(2, lengths[n], 24, 3 * n + s);
            tail_flatten_keys(&c.k.view);
            mcsa_qkv x = clustered_x(&c);
            test_worst worst = { 0 };
            tail_judge_dense(&worst, &c, &x, attended(&run, &x));
            test_report(&worst, TAIL_CEILING, "N %d, density %.2f", lengths[n], densities[s]);
            clustered_close(&run);
            test_call_free(&c);
        }
}

static void the_output_is_that_of_the_formula(void **state)
{
    (void)state;
    clustered_run run = clustered_open(&rival_sol, 0.4, 1);
    test_call c = call_of(2, 700, 32, 40);
    tail_turn_queries(&c.q.view, &c.k.view, 50);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = attended(&run, &x);
    test_worst worst = { 0 };
    int led = tail_judge(&worst, &c, &x, choice);
    assert_null(choice->tail.slope);
    test_report(&worst, TAIL_CEILING, "%d of %d rows led by the tail", led, 2 * 700);
    assert_true(led > 70);
    clustered_close(&run);
    test_call_free(&c);
}

/* The two ends of tau: all blocks, and only those beside the diagonal. */
static void the_ends_of_the_knob_are_dense_and_a_band(void **state)
{
    (void)state;
    for (int dense = 0; dense < 2; dense++) {
        clustered_run run = clustered_open(&rival_sol, dense ? 1 : 1e-6, 1);
        test_call c = call_of(2, 1000, 16, 70);
        mcsa_qkv x = clustered_x(&c);
        const rival_map *map = &clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x)->map;
        assert_int_equal(map->Q, 16);
        for (int h = 0; h < 2; h++)
            for (int q = 0; q < 16; q++)
                for (int k = 0; k < 16; k++) assert_int_equal(rival_map_has(map, h, q, k), dense || is_near(q, k));
        clustered_close(&run);
        test_call_free(&c);
    }
}

/* All blocks hold the same 64 keys: no score stands out, and none may by rounding.  Executing the band is nearer to the
 * density than executing everything. */
static void equal_means_never_stand_out(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        clustered_run run = clustered_open(&rival_sol, 0.4, 1);
        test_call c = call_of(2, 1024, 24, 100 + seed);
        test_fill_normal(&c.q.view, seed, 30);
        for (int h = 0; h < 2; h++)
            for (int n = 64; n < 1024; n++)
                for (int d = 0; d < 24; d++) test_set(&c.k.view, h, n, d, test_get(&c.k.view, h, n % 64, d));
        mcsa_qkv x = clustered_x(&c);
        const rival_map *map = &clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x)->map;
        for (int h = 0; h < 2; h++)
            for (int q = 0; q < 16; q++)
                for (int k = 0; k < 16; k++) assert_int_equal(rival_map_has(map, h, q, k), is_near(q, k));
        clustered_close(&run);
        test_call_free(&c);
    }
}

/* Means [B, D] of blocks of 64 rows of one head, and of their absolute values. */
static void block_means(const double *x, int N, int D, double *mean, double *size)
{
    for (int b = 0; b * 64 < N; b++) {
        int rows = N - b * 64 < 64 ? N - b * 64 : 64;
        for (int i = 0; i < rows; i++)
            for (int d = 0; d < D; d++) {
                mean[b * D + d] += x[(int64_t)(b * 64 + i) * D + d] / rows;
                size[b * D + d] += fabs(x[(int64_t)(b * 64 + i) * D + d]) / rows;
            }
    }
}

/* Standard deviations from the mean of row q in double, and a bound: with most the largest scale sum of |q||k|, a score
 * and the mean of all are each off by (D + 134) u most (66 u for each mean of 64 rows, D u for their product, and the
 * scale), the deviation relatively by 134 u and the roundings of scale and z by 8 u. */
static void standardised(const double *q, const double *sizes[2], const double *k, const int shape[2] /* B, D */,
                         double scale, double *z, double *bound)
{
    int B = shape[0], D = shape[1];
    double mean = 0, variance = 0, most = 0;
    for (int b = 0; b < B; b++) {
        double size = 0;
        z[b] = 0;
        for (int d = 0; d < D; d++) {
            z[b] += scale * q[d] * k[b * D + d];
            size += scale * sizes[0][d] * sizes[1][b * D + d];
        }
        mean += z[b] / B;
        most = fmax(most, size);
    }
    for (int d = 0; d < D; d++) {
        double centre = 0, square = 0;
        for (int b = 0; b < B; b++) centre += k[b * D + d] / B;
        for (int b = 0; b < B; b++) square += (k[b * D + d] - centre) * (k[b * D + d] - centre) / B;
        variance += scale * scale * q[d] * q[d] * square;
    }
    double deviation = sqrt(variance + 1e-6);
    for (int b = 0; b < B; b++) {
        z[b] = (z[b] - mean) / deviation;
        bound[b] = 2 * (D + 134) * U_F32 * most / deviation + fabs(z[b]) * 142 * U_F32;
    }
}

/* One tau divides kept from dropped in all rows and heads.  Queries get smaller from block to block, down to scores
 * whose deviation is below the floor of 1e-3. */
static void one_threshold_serves_the_call(void **state)
{
    (void)state;
    enum { H = 2, N = 1400, D = 24, B = 22 };
    static const double densities[] = { 0.2, 0.35, 0.6 };
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        clustered_run run = clustered_open(&rival_sol, densities[s], 1);
        test_call c = call_of(H, N, D, 90 + s);
        clustered_fill(&c.k.view, 5, 1, 0.2, 91 + s);
        for (int h = 0; h < H; h++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < D; d++)
                    test_set(&c.q.view, h, n, d, test_get(&c.q.view, h, n, d) * pow(0.1, n / 64 % 4));
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
        double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view), z[B], bound[B];
        double above = INFINITY, below = -INFINITY; /* the least kept, the most dropped; each at its bound */
        for (int h = 0; h < H; h++) {
            double *mean = test_alloc(sizeof *mean * 4 * B * D), *size = mean + B * D, *key = size + B * D;
            block_means(q + h * N * D, N, D, mean, size);
            block_means(k + h * N * D, N, D, key, key + B * D);
            for (int i = 0; i < B; i++) {
                const double *sizes[2] = { size + i * D, key + B * D };
                standardised(mean + i * D, sizes, key, (const int[]){ B, D }, (double)x.scale / log(2), z, bound);
                for (int j = 0; j < B; j++) {
                    if (is_near(i, j))
                        assert_true(rival_map_has(&choice->map, h, i, j));
                    else if (rival_map_has(&choice->map, h, i, j))
                        above = fmin(above, z[j] + bound[j]);
                    else
                        below = fmax(below, z[j] - bound[j]);
                }
            }
            free(mean);
        }
        print_message("  density %.2f: executed %.4f, tau between %.5f and %.5f\n", densities[s],
                      clustered_density(choice), below, above);
        assert_true(below < above);
        /* one block more or less of the 2 x 22 x 22 is 0.1 % */
        assert_true(fabs(clustered_density(choice) - densities[s]) < 0.0015);
        free(q);
        free(k);
        clustered_close(&run);
        test_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_constant_per_block_give_dense_at_any_density),
        cmocka_unit_test(the_output_is_that_of_the_formula),
        cmocka_unit_test(the_ends_of_the_knob_are_dense_and_a_band),
        cmocka_unit_test(equal_means_never_stand_out),
        cmocka_unit_test(one_threshold_serves_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
