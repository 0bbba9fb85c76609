/* test_fidelity.c - sums over many numbers against plain loops, the same for any number of threads. */
#include "analysis/fidelity.h"
#include "test.h"

enum { COUNT = 64 * 32768 + 32768 + 12345 }; /* more than one batch of pieces, and a ragged end */

static void errors_are_those_of_a_plain_loop(void **state)
{
    (void)state;
    uint64_t seed = 5;
    float *dense = test_alloc(COUNT * sizeof *dense), *out = test_alloc(COUNT * sizeof *out);
    uint16_t *added = test_alloc(COUNT * sizeof *added);
    for (int i = 0; i < COUNT; i++) {
        dense[i] = (float)(test_uniform(&seed) - 0.3);
        out[i] = (float)(test_uniform(&seed) - 0.3);
        added[i] = mcsa_to_bf16((float)(test_uniform(&seed) * 0.1));
    }
    dense[COUNT - 1] = 9;
    dense[40000] = -7;
    for (int with = 0; with < 2; with++) {
        double error = 0, power = 0;
        for (int i = 0; i < COUNT; i++) {
            double miss = (double)(with ? out[i] + mcsa_from_bf16(added[i]) : out[i]) - (double)dense[i];
            error += miss * miss;
            power += (double)dense[i] * (double)dense[i];
        }
        analysis_sums sums[2] = { analysis_sums_start(), analysis_sums_start() };
        for (int t = 0; t < 2; t++) analysis_sums_add(&sums[t], dense, out, with ? added : NULL, COUNT, t ? 3 : 1);
        assert_memory_equal(&sums[0], &sums[1], sizeof sums[0]);
        /* COUNT additions of positive doubles, in any order */
        assert_true(fabs(sums[0].error - error) <= COUNT * DBL_EPSILON * error);
        assert_true(fabs(sums[0].power - power) <= COUNT * DBL_EPSILON * power);
        assert_int_equal(sums[0].numbers, COUNT);
        assert_true(sums[0].low == -7 && sums[0].high == 9);
        assert_true(fabs(analysis_rel_l2(&sums[0]) - sqrt(error / power)) < 1e-9);
        assert_true(fabs(analysis_psnr(&sums[0]) - 10 * log10(16.0 * 16 * COUNT / error)) < 1e-8);
    }
    free(dense);
    free(out);
    free(added);
}

static void nothing_missed_is_nothing_missed(void **state)
{
    (void)state;
    const float zero[3] = { 0 }, lse[2] = { 1, -INFINITY };
    analysis_sums sums = analysis_sums_start();
    analysis_sums_add(&sums, zero, zero, NULL, 3, 1);
    analysis_sums_recall(&sums, (const float[]){ 2, 2 }, lse, 2); /* a row that keeps nothing */
    assert_true(fabs(sums.kept - exp(-1)) < 1e-12);
    assert_true(analysis_rel_l2(&sums) == 0);
    assert_true(analysis_psnr(&sums) == 100);
    sums.error = NAN;
    assert_true(isnan(analysis_rel_l2(&sums)));
    assert_true(isnan(analysis_psnr(&sums)));
}

static void tallies_are_means(void **state)
{
    (void)state;
    analysis_tally all = { 0 }, parts[2] = { { 0 }, { 0 } };
    double recall = 0, error = 0;
    for (int i = 0; i < 7; i++) {
        analysis_sums sums = {
            .error = i + 1, .power = 4, .kept = 0.1 * i, .numbers = 10, .rows = 1, .low = -1, .high = 1
        };
        analysis_tally_add(&all, &sums);
        analysis_tally_add(&parts[i > 4], &sums);
        recall += 0.1 * i / 7;
        error += sqrt((i + 1) / 4.0) / 7;
    }
    analysis_tally_merge(&parts[0], &parts[1]);
    analysis_tally_merge(&parts[0], &(analysis_tally){ 0 });
    for (int k = 0; k < 2; k++) {
        const analysis_tally *t = k ? &parts[0] : &all;
        assert_int_equal(t->calls, 7);
        assert_true(fabs(t->recall - recall) < 1e-12);
        assert_true(fabs(t->rel_l2 - error) < 1e-12);
    }
    assert_true(fabs(parts[0].psnr_db - all.psnr_db) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_those_of_a_plain_loop),
        cmocka_unit_test(nothing_missed_is_nothing_missed),
        cmocka_unit_test(tallies_are_means),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
