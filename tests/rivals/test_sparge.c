/* test_sparge.c - SpargeAttn: blocks whose rows are not alike are forced, the others ranked by the score of means. */
#include "tails.h"

extern const rival_method rival_sparge;

enum { QUERIES = 128, KEYS = 64 };

/* Rows of a block around a place of their own; `spread` apart from it. */
static void fill_alike(const mcsa_tensor *t, int block, double spread, uint64_t seed)
{
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++) {
            uint64_t place = seed + 1000 * (uint64_t)(h + 1) + (uint64_t)(n / block);
            uint64_t noise = 77 * seed + (uint64_t)(h * t->shape[1] + n);
            for (int64_t d = 0; d < t->shape[2]; d++)
                test_set(t, h, n, d, test_normal(&place) + spread * test_normal(&noise));
        }
}

/* Rows of one block of head h drawn one by one: their cosines average 1 / rows. */
static void scatter(const mcsa_tensor *t, int h, int block, int size, uint64_t seed)
{
    for (int64_t n = (int64_t)block * size; n < ((int64_t)block + 1) * size && n < t->shape[1]; n++)
        for (int64_t d = 0; d < t->shape[2]; d++) test_set(t, h, n, d, test_normal(&seed));
}

static test_call alike_call(int H, int N, int D, uint64_t seed)
{
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, seed, 1);
    fill_alike(&c.q.view, QUERIES, 0.3, seed);
    fill_alike(&c.k.view, KEYS, 0.3, seed + 1);
    return c;
}

static int kept_in_row(const rival_map *map, int h, int q)
{
    int kept = 0;
    for (int k = 0; k < map->K; k++) kept += rival_map_has(map, h, q, k);
    return kept;
}

/* A block of queries and one of keys that are not alike, each in one head; and a ragged last block in either state. */
static void blocks_that_are_not_alike_are_forced(void **state)
{
    (void)state;
    enum { H = 2, N = 2000, Q = 16, K = 32 /* the last of 16 rows */ };
    for (int last_apart = 0; last_apart < 2; last_apart++) {
        clustered_run run = clustered_open(&rival_sparge, 0.4, 1);
        test_call c = alike_call(H, N, 24, 5);
        scatter(&c.q.view, 0, 3, QUERIES, 6);
        scatter(&c.k.view, 1, 20, KEYS, 7);
        if (last_apart) scatter(&c.k.view, 0, K - 1, KEYS, 8);
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
        const rival_map *map = &choice->map;
        assert_int_equal(map->Q, Q);
        assert_int_equal(map->K, K);
        for (int h = 0; h < H; h++) {
            int kept_last = 0, kept_20 = 0;
            for (int q = 0; q < Q; q++) {
                assert_int_equal(kept_in_row(map, h, q) == K, h == 0 && q == 3);
                kept_last += rival_map_has(map, h, q, K - 1);
                kept_20 += rival_map_has(map, h, q, 20);
            }
            assert_int_equal(kept_last == Q, h == 0 && last_apart);
            assert_int_equal(kept_20 == Q, h == 1);
        }
        assert_true(fabs(clustered_density(choice) - 0.4) < 0.005);
        clustered_close(&run);
        test_call_free(&c);
    }
}

/* Score of the means of block q of the queries and each block of keys in double; the bound is that of test_pisa.c with
 * a mean of 128 rows. */
static void mean_scores(const double *q, const double *k, const mcsa_dims *dims, int block, double *score,
                        double *bound)
{
    int N = dims->N, D = dims->D, first = block * QUERIES, queries = N - first < QUERIES ? N - first : QUERIES;
    for (int b = 0; b * KEYS < N; b++) {
        int keys = N - b * KEYS < KEYS ? N - b * KEYS : KEYS;
        double size = 0;
        score[b] = 0;
        for (int d = 0; d < D; d++) {
            double mean_q = 0, mean_k = 0, most_q = 0, most_k = 0;
            for (int i = 0; i < queries; i++) {
                mean_q += q[(int64_t)(first + i) * D + d] / queries;
                most_q += fabs(q[(int64_t)(first + i) * D + d]) / queries;
            }
            for (int i = 0; i < keys; i++) {
                mean_k += k[(int64_t)(b * KEYS + i) * D + d] / keys;
                most_k += fabs(k[(int64_t)(b * KEYS + i) * D + d]) / keys;
            }
            score[b] += mean_q * mean_k / sqrt(D);
            size += most_q * most_k / sqrt(D);
        }
        bound[b] = size * (D + 200) * U_F32;
    }
}

/* Where all are alike, and where the gate is lowered because hardly any are. */
static void ranked_blocks_have_the_highest_mean_scores(void **state)
{
    (void)state;
    enum { H = 2, N = 2000, K = 32 };
    clustered_run run = clustered_open(&rival_sparge, 0.25, 1);
    test_call c = alike_call(H, N, 24, 15);
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view), score[K], bound[K];
    for (int h = 0; h < H; h++)
        for (int b = 0; b < choice->map.Q; b++) {
            mean_scores(q + h * N * 24, k + h * N * 24, &x.dims, b, score, bound);
            assert_keeps_best(&choice->map, h, b, score, bound);
            assert_true(abs(kept_in_row(&choice->map, h, b) - K / 4) <= 1);
        }
    assert_true(fabs(clustered_density(choice) - 0.25) < 0.005);
    free(q);
    free(k);
    clustered_close(&run);
    test_call_free(&c);
}

/* Mean cosine of all ordered pairs of rows of a block, in double. */
static double mean_cosine(const double *x, int rows, int D, const double *shift)
{
    double sum[64] = { 0 }, square = 0;
    assert_true(D <= 64);
    for (int i = 0; i < rows; i++) {
        double size = 0;
        for (int d = 0; d < D; d++) size += (x[i * D + d] - shift[d]) * (x[i * D + d] - shift[d]);
        for (int d = 0; d < D && size > 0; d++) sum[d] += (x[i * D + d] - shift[d]) / sqrt(size);
    }
    for (int d = 0; d < D; d++) square += sum[d] * sum[d];
    return square / rows / rows;
}

/* Blocks of many degrees of likeness: those forced are the least alike, by one theta for queries and keys of all heads,
 * and take a quarter of the density. */
static void a_lowered_gate_forces_the_least_alike(void **state)
{
    (void)state;
    enum { H = 2, N = 2048, D = 24, Q = 16, K = 32 };
    clustered_run run = clustered_open(&rival_sparge, 0.5, 1);
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, 25, 1);
    uint64_t seed = 26;
    for (int h = 0; h < H; h++)
        for (int b = 0; b < K; b++) {
            double spread = 0.5 + 4 * test_uniform(&seed), place[D];
            for (int d = 0; d < D; d++) place[d] = test_normal(&seed);
            for (int n = b * KEYS; n < (b + 1) * KEYS; n++)
                for (int d = 0; d < D; d++) {
                    test_set(&c.k.view, h, n, d, place[d] + spread * test_normal(&seed));
                    test_set(&c.q.view, h, n, d, place[d] + spread * test_normal(&seed));
                }
        }
    mcsa_qkv x = clustered_x(&c);
    const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
    const rival_map *map = &choice->map;
    double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view), zero[D] = { 0 };
    double forced = -INFINITY, spared = INFINITY; /* the most alike that is forced, the least alike that is not */
    double pairs = 0;
    for (int h = 0; h < H; h++) {
        double mean[D] = { 0 };
        int columns = 0;
        for (int n = 0; n < N; n++)
            for (int d = 0; d < D; d++) mean[d] += k[(h * N + n) * D + d] / N;
        for (int b = 0; b < K; b++) {
            int rows = 0;
            double cosine = mean_cosine(k + (h * N + b * KEYS) * D, KEYS, D, mean);
            for (int i = 0; i < Q; i++) rows += rival_map_has(map, h, i, b);
            if (rows == Q) forced = fmax(forced, cosine);
            if (rows < Q) spared = fmin(spared, cosine);
            columns += rows == Q;
        }
        for (int b = 0; b < Q; b++) {
            double cosine = mean_cosine(q + (h * N + b * QUERIES) * D, QUERIES, D, zero);
            int full = kept_in_row(map, h, b) == K;
            if (full) forced = fmax(forced, cosine);
            if (!full) spared = fmin(spared, cosine);
            pairs += full ? K : columns;
        }
    }
    print_message("  theta between %.4f and %.4f; forced %.3f of all pairs, executed %.3f\n", forced, spared,
                  pairs / (H * Q * K), clustered_density(choice));
    assert_true(forced < spared);
    assert_true(forced < 0.6 && forced > 0);
    /* one block of queries is 1 / 32 of all pairs */
    assert_true(fabs(pairs / (H * Q * K) - 0.125) <= 1 / 32.0);
    assert_true(fabs(clustered_density(choice) - 0.5) < 0.005);
    free(q);
    free(k);
    clustered_close(&run);
    test_call_free(&c);
}

/* Smoothing: a constant added to all keys changes neither likeness nor ranking.  The constant is a whole number and
 * keys are multiples of 1/64, so that adding it is exact; scores move alike, up to their rounding. */
static void a_constant_in_all_keys_changes_nothing(void **state)
{
    (void)state;
    enum { H = 1, N = 1024, D = 16 };
    test_call c = alike_call(H, N, D, 35);
    rival_choice first = { 0 };
    for (int shifted = 0; shifted < 2; shifted++) {
        clustered_run run = clustered_open(&rival_sparge, 0.3, 1);
        for (int n = 0; n < N; n++)
            for (int d = 0; d < D; d++) {
                double k = floor(test_get(&c.k.view, 0, n, d) * 64 + 0.5) / 64;
                test_set(&c.k.view, 0, n, d, k + (shifted ? 3 : 0));
            }
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
        if (!shifted) {
            assert_done(rival_map_reserve(&first.map, H, choice->map.Q, choice->map.K, &done_error));
            memcpy(first.map.kept, choice->map.kept, sizeof(uint64_t) * (size_t)(H * choice->map.Q));
        } else {
            assert_memory_equal(first.map.kept, choice->map.kept, sizeof(uint64_t) * (size_t)(H * choice->map.Q));
        }
        clustered_close(&run);
    }
    rival_choice_free(&first);
    test_call_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_are_not_alike_are_forced),
        cmocka_unit_test(ranked_blocks_have_the_highest_mean_scores),
        cmocka_unit_test(a_lowered_gate_forces_the_least_alike),
        cmocka_unit_test(a_constant_in_all_keys_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
