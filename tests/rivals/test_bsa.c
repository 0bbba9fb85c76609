/* test_bsa.c - the choices of bsa and wa-rs, once more in the plainest way. */
#include "choices.h"

enum { H = 2, D = 16 };

/* score [K]: mean query of block q times mean key of each block, in double, and how far FP32 may be off. */
static void score_blocks(const test_call *c, int h, int q, double *score, double *bound)
{
    double query[D] = { 0 }, size = 0;
    int rows = c->N - q * 128 < 128 ? c->N - q * 128 : 128;
    for (int i = 0; i < rows; i++)
        for (int d = 0; d < D; d++) query[d] += test_get(&c->q.view, h, q * 128 + i, d) / rows;
    *bound = 0;
    for (int k = 0; k * 64 < c->N; k++) {
        int keys = c->N - k * 64 < 64 ? c->N - k * 64 : 64;
        score[k] = size = 0;
        for (int j = 0; j < keys; j++)
            for (int d = 0; d < D; d++) {
                double key = test_get(&c->k.view, h, k * 64 + j, d) / keys;
                score[k] += query[d] * key / sqrt(D);
                size += fabs(query[d] * key) / sqrt(D);
            }
        /* means of up to 128 rows, each off by 130 u of its magnitudes, which size takes for keys; those of queries
         * are at most 4 here, and D terms of a product */
        *bound = fmax(*bound, (2 * 130 + D + 4) * U_F32 * (size + 4 * D));
    }
}

static void bsa_keeps_the_blocks_of_highest_mean_score(void **state)
{
    (void)state;
    static const int sizes[] = { 65, 512, 1000 };
    for (size_t i = 0; i < TEST_COUNT(sizes); i++) {
        int N = sizes[i], K = (N + 63) / 64, total = 0;
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_BF16, TEST_HND, 5, 1);
        double *score = test_alloc(sizeof *score * (size_t)K), bound;
        rival_config config = fixture_config("bsa", N, 0.25);
        chooser by = chooser_open(&config);
        const rival_choice *choice = chooser_choose(&by, &c, 2); /* no dense call needed before */
        assert_int_equal(choice->map.Q, (N + 127) / 128);
        assert_int_equal(choice->map.K, K);
        for (int h = 0; h < H; h++)
            for (int q = 0; q < choice->map.Q; q++) {
                double least = INFINITY, most = -INFINITY;
                score_blocks(&c, h, q, score, &bound);
                for (int k = 0; k < K; k++) {
                    int kept = rival_map_has(&choice->map, h, q, k);
                    total += kept;
                    least = kept ? fmin(least, score[k]) : least;
                    most = kept ? most : fmax(most, score[k]);
                }
                if (!(most <= least + 2 * bound))
                    fail_msg("N = %d: row %d of head %d leaves out %g and keeps %g", N, q, h, most, least);
            }
        assert_true(fabs(total - 0.25 * H * choice->map.Q * K) <= H); /* what rounding and padding leave */
        chooser_close(&by);
        test_call_free(&c);
        free(score);
    }
}

/* Each row keeps neighbours, its own block among them, as many as every other row or one more. */
static void wa_rs_keeps_a_window(void **state)
{
    (void)state;
    static const int sizes[] = { 64, 129, 1000, 2048 };
    for (size_t i = 0; i < TEST_COUNT(sizes); i++) {
        int N = sizes[i];
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_HND, 5, 1);
        rival_config config = fixture_config("wa-rs", N, 0.2);
        chooser by = chooser_open(&config);
        const rival_choice *choice = chooser_choose(&by, &c, 2);
        int fewest = INT32_MAX, most = 0;
        for (int h = 0; h < H; h++)
            for (int q = 0; q < choice->map.Q; q++) {
                int first = -1, last = -1, kept = 0, middle = 2 * q + (2 * q + 1 < choice->map.K);
                for (int k = 0; k < choice->map.K; k++) {
                    if (!rival_map_has(&choice->map, h, q, k)) continue;
                    first = first < 0 ? k : first;
                    last = k;
                    kept++;
                }
                assert_int_equal(last - first + 1, kept);
                assert_true(first <= middle && 2 * q <= last);
                fewest = kept < fewest ? kept : fewest;
                most = kept > most ? kept : most;
                /* as far to one side as to the other, unless the sequence ends there */
                int left = 2 * q - first, right = last - middle;
                assert_true(abs(left - right) <= 1 || first == 0 || last == choice->map.K - 1);
            }
        assert_true(most - fewest <= 1);
        chooser_close(&by);
        test_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bsa_keeps_the_blocks_of_highest_mean_score),
        cmocka_unit_test(wa_rs_keeps_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
