/* test_dense.c - whole calls of dense attention against double, for every dtype, level and edge of a
 * shape: output and row log-sum-exp, self- and cross-attention, with canaries around the output.  R1, R2,
 * R3, R4, R10, T5. */
#include "test.h"

static void judge_shape(mcsa_isa isa, mcsa_dtype dtype, const int shape[4], test_layout layout)
{
    mcsa_config config = { .steps = 1, .layers = 1, .isa = isa };
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make(shape, dtype, layout, 7, 1);
    test_rounding rounding = test_rounding_of(isa, dtype);
    test_reference r = test_reference_make(&c, (double)(1 / sqrtf((float)c.D)), NULL, &rounding);
    size_t rows = (size_t)c.H * (size_t)c.N;
    float *lse = test_alloc(sizeof *lse * (rows + 2));
    lse[0] = lse[rows + 1] = 12345;
    test_worst out = { 0 }, sums = { 0 };
    if (mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &c.out.view, lse + 1) != MCSA_OK)
        fail_msg("%s", mcsa_run_error(run));
    test_judge_out(&out, &c, &r, &rounding);
    for (size_t i = 0; i < rows; i++) test_judge(&sums, (double)lse[i + 1], r.lse[i], r.lse_bound[i], (int64_t)i, 0, 0);
    test_report(&out, test_ceiling(dtype), "%s %s H %d N %d M %d D %d layout %d", mcsa_isa_name(isa),
                test_dtype_name(dtype), c.H, c.N, c.M, c.D, (int)layout);
    test_report(&sums, 1e-6, "  its log-sum-exp");
    assert_int_equal(test_damage(&c.out), 0);
    assert_true(lse[0] == 12345 && lse[rows + 1] == 12345);
    free(lse);
    test_reference_free(&r);
    test_call_free(&c);
    mcsa_run_free(run);
}

static void over_levels_and_dtypes(const int shapes[][4], size_t count, test_layout layout)
{
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++)
            for (size_t s = 0; s < count; s++) judge_shape(test_levels[l], test_dtypes[t], shapes[s], layout);
    }
}

/* R3: odd, even, below, at and above the widths of registers and pairs. */
static void every_kind_of_head_dimension(void **state)
{
    (void)state;
    static const int shapes[][4] = { { 1, 33, 33, 1 },   { 1, 33, 33, 2 },  { 1, 33, 33, 3 },   { 1, 33, 33, 12 },
                                     { 1, 33, 33, 16 },  { 1, 33, 33, 17 }, { 1, 33, 33, 31 },  { 1, 33, 33, 40 },
                                     { 1, 33, 33, 64 },  { 1, 33, 33, 80 }, { 1, 33, 33, 127 }, { 1, 33, 33, 128 },
                                     { 1, 33, 33, 255 }, { 1, 33, 33, 256 } };
    over_levels_and_dtypes(shapes, TEST_COUNT(shapes), TEST_HND);
}

/* R1, T5: tokens around the strip (16, 64), the tile (128) and the key block (384), and primes. */
static void every_edge_of_the_token_count(void **state)
{
    (void)state;
    static const int shapes[][4] = {
        { 2, 1, 1, 16 },     { 1, 2, 2, 16 },     { 1, 15, 15, 16 },   { 1, 16, 16, 16 },
        { 1, 17, 17, 16 },   { 1, 63, 63, 16 },   { 1, 64, 64, 16 },   { 1, 65, 65, 16 },
        { 1, 127, 127, 16 }, { 2, 128, 128, 16 }, { 3, 129, 129, 16 }, { 1, 191, 191, 16 },
        { 1, 192, 192, 16 }, { 1, 193, 193, 16 }, { 1, 197, 197, 17 }, { 1, 389, 389, 16 }
    };
    over_levels_and_dtypes(shapes, TEST_COUNT(shapes), TEST_HND);
}

/* R2 */
static void more_or_fewer_keys_than_queries(void **state)
{
    (void)state;
    static const int shapes[][4] = { { 2, 1, 300, 24 },   { 2, 70, 1, 24 }, { 2, 5, 77, 24 },
                                     { 2, 130, 191, 24 }, { 1, 67, 2, 33 }, { 1, 3, 1153, 16 } };
    over_levels_and_dtypes(shapes, TEST_COUNT(shapes), TEST_HND);
}

/* R4 */
static void any_strides(void **state)
{
    (void)state;
    static const int shapes[][4] = { { 3, 67, 67, 32 }, { 2, 65, 130, 17 }, { 3, 1, 1, 1 } };
    over_levels_and_dtypes(shapes, TEST_COUNT(shapes), TEST_NHD);
    over_levels_and_dtypes(shapes, TEST_COUNT(shapes), TEST_SPREAD);
}

/* T5 at lengths of the real thing, where a double reference of every row would take minutes: 24 rows of it. */
static void t5_long_sequences(void **state)
{
    (void)state;
    static const int keys[] = { 8191, 12345, 38247 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t i = 0; i < TEST_COUNT(keys); i++) {
            mcsa_config config = { .steps = 1, .layers = 1, .isa = test_levels[l] };
            mcsa_run *run = test_run(&config);
            test_call c = test_call_make((const int[]){ 1, 24, keys[i], 16 }, MCSA_BF16, TEST_HND, 11, 1);
            test_rounding rounding = test_rounding_of(test_levels[l], MCSA_BF16);
            test_reference r = test_reference_make(&c, 0.25, NULL, &rounding);
            test_worst out = { 0 };
            assert_int_equal(mcsa_attend_dense(run, &c.q.view, &c.k.view, &c.v.view, &c.out.view, NULL), MCSA_OK);
            test_judge_out(&out, &c, &r, &rounding);
            test_report(&out, test_ceiling(MCSA_BF16), "%s bf16, %d keys", mcsa_isa_name(test_levels[l]), keys[i]);
            test_reference_free(&r);
            test_call_free(&c);
            mcsa_run_free(run);
        }
    }
}

/* R10: attention over two halves of the keys, merged by their log-sum-exps, is attention over all of them. */
static void lse_merges_partial_attention(void **state)
{
    (void)state;
    enum { H = 2, N = 40, M = 300, CUT = 111, D = 24 };
    mcsa_config config = { .steps = 1, .layers = 1 };
    mcsa_run *run = test_run(&config);
    test_call c = test_call_make((const int[]){ H, N, M, D }, MCSA_F32, TEST_HND, 13, 1);
    test_rounding rounding = test_rounding_of(MCSA_ISA_AUTO, MCSA_F32);
    test_reference r = test_reference_make(&c, (double)(1 / sqrtf(D)), NULL, &rounding);
    test_tensor part[2];
    float lse[2][H * N];
    for (int i = 0; i < 2; i++) {
        mcsa_tensor k = c.k.view, v = c.v.view;
        part[i] = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
        k.data = test_at(&c.k.view, 0, i * CUT, 0);
        v.data = test_at(&c.v.view, 0, i * CUT, 0);
        k.shape[1] = v.shape[1] = i ? M - CUT : CUT;
        assert_int_equal(mcsa_attend_dense(run, &c.q.view, &k, &v, &part[i].view, lse[i]), MCSA_OK);
    }
    test_worst out = { 0 };
    double most_v = test_largest(&c.v.view);
    for (int h = 0; h < H; h++)
        for (int n = 0; n < N; n++) {
            int row = h * N + n;
            double share = 1 / (1 + exp((double)lse[1][row] - (double)lse[0][row])); /* of the first half */
            for (int d = 0; d < D; d++) {
                double merged =
                    share * test_get(&part[0].view, h, n, d) + (1 - share) * test_get(&part[1].view, h, n, d);
                /* two outputs with a bound each, and a share that two log-sum-exps move by half their
                 * error each */
                double bound = 2 * r.out_bound[row] + 2 * r.lse_bound[row] * most_v;
                test_judge(&out, merged, r.out[row * D + d], bound, h, n, d);
            }
        }
    test_report(&out, 1e-6, "two halves merged by their log-sum-exps");
    for (int i = 0; i < 2; i++) test_tensor_free(&part[i]);
    test_reference_free(&r);
    test_call_free(&c);
    mcsa_run_free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_head_dimension),
        cmocka_unit_test(every_edge_of_the_token_count),
        cmocka_unit_test(more_or_fewer_keys_than_queries),
        cmocka_unit_test(any_strides),
        cmocka_unit_test(t5_long_sequences),
        cmocka_unit_test(lse_merges_partial_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
