/* test_kth.c - the threshold of a top-K against a sort: which keys it takes, how it breaks ties, and the
 * order of floats. */
#include "cpu/kth.h"
#include "test.h"

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

/* Threshold and ties say which K are taken; a sort says which they must be. */
static void judge(const uint32_t *keys, int n, int K)
{
    uint32_t *sorted = test_alloc(sizeof *sorted * (size_t)n);
    memcpy(sorted, keys, sizeof *sorted * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, descending);
    int above = 0;
    while (above < n && sorted[above] > sorted[K - 1]) above++;
    mcsa_kth kth = mcsa_kth_largest(keys, n, K);
    assert_int_equal(kth.threshold, sorted[K - 1]);
    assert_int_equal(kth.ties, K - above);
    free(sorted);
}

static void random_keys_of_every_spread(void **state)
{
    (void)state;
    uint64_t seed = 1;
    uint32_t keys[600];
    for (int bits = 1; bits <= 32; bits++) /* from nearly all tied to nearly none */
        for (int trial = 0; trial < 20; trial++) {
            int n = 1 + test_below(&seed, 600);
            int shift = test_below(&seed, 33 - bits);
            for (int i = 0; i < n; i++) keys[i] = (uint32_t)(test_word(&seed) >> (64 - bits)) << shift;
            judge(keys, n, 1);
            judge(keys, n, n);
            judge(keys, n, 1 + test_below(&seed, n));
        }
}

static void equal_keys_are_all_ties(void **state)
{
    (void)state;
    const uint32_t values[] = { 0, 1, 0x3f800000u, 0x7fffffffu, 0x80000000u, 0xffffffffu };
    uint32_t keys[257];
    for (size_t v = 0; v < TEST_COUNT(values); v++) {
        for (int i = 0; i < 257; i++) keys[i] = values[v];
        for (int K = 1; K <= 257; K += 64) {
            mcsa_kth kth = mcsa_kth_largest(keys, 257, K);
            assert_int_equal(kth.threshold, values[v]);
            assert_int_equal(kth.ties, K);
        }
    }
}

/* Keys that differ in one digit of the radix only, at the edges between the digits. */
static void digits_of_the_radix_do_not_leak(void **state)
{
    (void)state;
    uint32_t keys[33];
    for (int bit = 0; bit < 32; bit++) {
        for (int i = 0; i < 33; i++) keys[i] = i % 3 ? 1u << bit : (1u << bit) - 1;
        for (int K = 1; K <= 33; K++) judge(keys, 33, K);
    }
}

static void floats_keep_their_order_and_nan_sits_at_the_ends(void **state)
{
    (void)state;
    const float ascending[] = { -NAN,      -INFINITY, -FLT_MAX, -1,        -FLT_MIN, -0x1p-149f, -0.0f, 0,
                                0x1p-149f, FLT_MIN,   1,        1.000001f, FLT_MAX,  INFINITY,   NAN };
    for (size_t i = 1; i < TEST_COUNT(ascending); i++)
        if (mcsa_ordered(ascending[i - 1]) >= mcsa_ordered(ascending[i]))
            fail_msg("%g does not come before %g", (double)ascending[i - 1], (double)ascending[i]);
    uint64_t seed = 2;
    for (int i = 0; i < 100000; i++) {
        float a = (float)ldexp(test_normal(&seed), test_below(&seed, 200) - 100);
        float b = i % 2 ? nextafterf(a, INFINITY) : (float)ldexp(test_normal(&seed), test_below(&seed, 200) - 100);
        assert_int_equal(a < b, mcsa_ordered(a) < mcsa_ordered(b));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_keys_of_every_spread),
        cmocka_unit_test(equal_keys_are_all_ties),
        cmocka_unit_test(digits_of_the_radix_do_not_leak),
        cmocka_unit_test(floats_keep_their_order_and_nan_sits_at_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
