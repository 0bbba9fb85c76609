/* test_xattn.c - XAttention: sums of antidiagonals once more in double, and how much of each row is kept. */
#include "tails.h"

extern const rival_method rival_xattn;

enum { BLOCK = 128, STRIDE = 8, PER_BLOCK = BLOCK / STRIDE };

/* Logit of strided query u and strided key v, and scale / stride sum |q k|.  Rows past the end count nothing. */
static double antidiagonal(const double *q, const double *k, const mcsa_dims *dims, int u, int v, double *size)
{
    double sum = 0;
    *size = 0;
    for (int r = 0; r < STRIDE; r++) {
        int i = u * STRIDE + STRIDE - 1 - r, j = v * STRIDE + r;
        for (int d = 0; d < dims->D && i < dims->N && j < dims->N; d++) {
            double product = q[(int64_t)i * dims->D + d] * k[(int64_t)j * dims->D + d] / sqrt(dims->D) / STRIDE;
            sum += product;
            *size += fabs(product);
        }
    }
    return sum;
}

/* Shares [B] of the sum of row `block`, and how far the method's may be from them, relatively: a logit by (stride D +
 * 8) roundings of its size, twice for weight and sum, exp2 for either, and the sums of a row. */
static double block_shares(const double *q, const double *k, const mcsa_dims *dims, int block, double *share)
{
    int strided = (dims->N + STRIDE - 1) / STRIDE, B = (dims->N + BLOCK - 1) / BLOCK;
    double *logit = test_alloc(sizeof *logit * (size_t)strided), most = 0, total = 0;
    for (int b = 0; b < B; b++) share[b] = 0;
    for (int u = block * PER_BLOCK; u < (block + 1) * PER_BLOCK && u < strided; u++) {
        double max = -INFINITY, sum = 0;
        for (int v = 0; v < strided; v++) {
            double size;
            logit[v] = antidiagonal(q, k, dims, u, v, &size);
            max = fmax(max, logit[v]);
            most = fmax(most, size);
        }
        for (int v = 0; v < strided; v++) sum += exp(logit[v] - max);
        for (int v = 0; v < strided; v++) share[v / PER_BLOCK] += exp(logit[v] - max) / sum;
        total += 1;
    }
    for (int b = 0; b < B; b++) share[b] /= total;
    free(logit);
    double ds = most * (STRIDE * dims->D + 8) * U_F32 + (B + 2) * (U_EXP2 + 2 * U_F32);
    return expm1(2 * ds) + 2 * (strided + 4) * U_F32;
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void one_tau_ends_every_row(void **state)
{
    (void)state;
    enum { H = 2, N = 2700, D = 16, B = 22 }; /* 2700 = 21 blocks, 1 strided row of 8 and 4 rows */
    static const double densities[] = { 0.15, 0.3, 0.6 };
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        clustered_run run = clustered_open(&rival_xattn, densities[s], 1);
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, 5 + s, 1);
        clustered_fill(&c.k.view, 6, 2, 0.3, 6 + s);
        mcsa_qkv x = clustered_x(&c);
        const rival_choice *choice = clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x);
        double *q = test_doubles(&c.q.view), *k = test_doubles(&c.k.view), share[B], bound[B], sorted[B];
        double above = -INFINITY, below = INFINITY; /* tau is above what came before each last kept one, and not above
                                                       what came before each first dropped one */
        assert_int_equal(choice->map.K, B);
        for (int h = 0; h < H; h++)
            for (int b = 0; b < B; b++) {
                double off = block_shares(q + h * N * D, k + h * N * D, &x.dims, b, share), before = 0;
                int kept = 0;
                for (int j = 0; j < B; j++) {
                    bound[j] = share[j] * off;
                    kept += rival_map_has(&choice->map, h, b, j);
                }
                assert_keeps_best(&choice->map, h, b, share, bound);
                memcpy(sorted, share, sizeof sorted);
                qsort(sorted, B, sizeof *sorted, descending);
                for (int r = 0; r < kept; r++) {
                    if (r == kept - 1 && r > 0) above = fmax(above, before - off);
                    before += sorted[r];
                }
                if (kept < B) below = fmin(below, before + off);
            }
        print_message("  density %.2f: executed %.4f, tau between %.5f and %.5f\n", densities[s],
                      clustered_density(choice), above, below);
        assert_true(above < below);
        assert_true(fabs(clustered_density(choice) - densities[s]) < 0.005);
        free(q);
        free(k);
        clustered_close(&run);
        test_call_free(&c);
    }
}

/* The public code keeps block 0 of the keys wherever it drops another. */
static void block_0_is_kept_only_on_merit(void **state)
{
    (void)state;
    enum { H = 1, N = 1280, D = 16 };
    clustered_run run = clustered_open(&rival_xattn, 0.5, 1);
    test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, 15, 1);
    for (int n = 0; n < N; n++) {
        test_set(&c.q.view, 0, n, 0, 8);
        if (n < BLOCK) test_set(&c.k.view, 0, n, 0, -8);
    }
    mcsa_qkv x = clustered_x(&c);
    const rival_map *map = &clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x)->map;
    for (int q = 0; q < map->Q; q++) assert_false(rival_map_has(map, 0, q, 0));
    clustered_close(&run);
    test_call_free(&c);
}

/* Weights so far apart that most underflow to nothing: density 1 keeps those blocks too, and every row keeps one. */
static void the_ends_of_the_knob_are_dense_and_the_best(void **state)
{
    (void)state;
    enum { H = 2, N = 700, D = 16, B = 6 };
    for (int dense = 0; dense < 2; dense++) {
        clustered_run run = clustered_open(&rival_xattn, dense ? 1 : 1e-6, 1);
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, TEST_NHD, 16, 60);
        mcsa_qkv x = clustered_x(&c);
        const rival_map *map = &clustered_choose(&run, (mcsa_site){ 0, 0, 0 }, &x)->map;
        assert_int_equal(map->Q, B);
        for (int h = 0; h < H; h++)
            for (int q = 0; q < B; q++) {
                int kept = 0;
                for (int k = 0; k < B; k++) kept += rival_map_has(map, h, q, k);
                assert_int_equal(kept, dense ? B : 1);
            }
        clustered_close(&run);
        test_call_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tau_ends_every_row),
        cmocka_unit_test(block_0_is_kept_only_on_merit),
        cmocka_unit_test(the_ends_of_the_knob_are_dense_and_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
