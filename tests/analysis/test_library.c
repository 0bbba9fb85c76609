/* test_library.c - what a reuse step of MC-Sparse misses, as the analysis says it, against one plain run of the library
 * over all heads. */
#include "analysis/advice.h"
#include "test.h"

enum { H = 2, N = 300, D = 16, CALLS = 4 };

static const int steps[CALLS] = { 1, 2, 5, 9 };
static const double densities[] = { 0.1, 0.3, 1 };

typedef struct source_data {
    test_tensor tensor[CALLS][3]; /* q, k, v */
    float scale[CALLS];
} source_data;

static mcsa_status load(void *user, int i, analysis_call *call, mcsa_error *error)
{
    const source_data *data = user;
    (void)error;
    *call = (analysis_call){
        { steps[i], 0, 0 }, data->tensor[i][0].view, data->tensor[i][1].view, data->tensor[i][2].view, data->scale[i]
    };
    return MCSA_OK;
}

/* Each call is 0.9 of the one before and 0.44 of its own. */
static void fill(source_data *data)
{
    for (int i = 0; i < CALLS; i++) data->scale[i] = 0.4f;
    for (int i = 0; i < CALLS; i++)
        for (int t = 0; t < 3; t++) {
            data->tensor[i][t] = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
            float *x = data->tensor[i][t].view.data;
            const float *before = i ? data->tensor[i - 1][t].view.data : NULL;
            test_fill_normal(&data->tensor[i][t].view, (uint64_t)(3 * i + t + 1), 1);
            for (int n = 0; before && n < H * N * D; n++) x[n] = 0.9f * before[n] + 0.44f * x[n];
        }
}

/* |reuse - dense| / |dense| at call `step` of an anchor at call `anchor`. */
static double missed(source_data *data, double density, int anchor, int step)
{
    mcsa_config config = {
        .steps = 2, .layers = 1, .schedule = "list:0", .density = (float)density, .scale = 0.4f, .threads = 1
    };
    mcsa_run *run = test_run(&config);
    test_tensor out = test_tensor_make(H, N, D, MCSA_F32, TEST_HND),
                dense = test_tensor_make(H, N, D, MCSA_F32, TEST_HND);
    double error = 0, power = 0;
    for (int t = 0; t < 2; t++) {
        test_tensor *x = data->tensor[t ? step : anchor];
        assert_int_equal(mcsa_attend(run, (mcsa_site){ t, 0, 0 }, &x[0].view, &x[1].view, &x[2].view, &out.view),
                         MCSA_OK);
        assert_int_equal(mcsa_attend_dense(run, &x[0].view, &x[1].view, &x[2].view, &dense.view, NULL), MCSA_OK);
    }
    const float *made = out.view.data, *whole = dense.view.data;
    for (int n = 0; n < H * N * D; n++) {
        error += ((double)made[n] - (double)whole[n]) * ((double)made[n] - (double)whole[n]);
        power += (double)whole[n] * (double)whole[n];
    }
    test_tensor_free(&out);
    test_tensor_free(&dense);
    mcsa_run_free(run);
    return sqrt(error / power);
}

/* Both say the same, but for the order of sums: 1e-5 of the output each. */
static void pairs_are_what_a_run_misses(void **state)
{
    (void)state;
    source_data data;
    fill(&data);
    mcsa_site sites[CALLS];
    for (int i = 0; i < CALLS; i++) sites[i] = (mcsa_site){ steps[i], 0, 0 };
    const analysis_source source = { .count = CALLS, .at = sites, .user = &data, .load = load };
    analysis_options options = { .attention = { .threads = 2 }, .densities = TEST_COUNT(densities), .sample = 8 };
    memcpy(options.density, densities, sizeof densities);
    analysis found;
    mcsa_error error = { "" };
    if (analysis_measure(&found, &options, &source, &error) != MCSA_OK) fail_msg("%s", error.text);
    assert_int_equal(found.pairs, CALLS * (CALLS - 1) / 2);
    double mean[TEST_COUNT(densities)] = { 0 };
    for (int p = 0, anchor = 0, step = 1; p < found.pairs; p++) {
        const analysis_pair *pair = &found.pair[p];
        assert_true(pair->anchor == steps[anchor] && pair->step == steps[step]);
        for (size_t s = 0; s < TEST_COUNT(densities); s++) {
            double expected = missed(&data, densities[s], anchor, step), said = pair->mc_sparse[s].rel_l2;
            assert_int_equal(pair->mc_sparse[s].calls, 1);
            if (!(fabs(said - expected) <= 2e-5))
                fail_msg("pair %d, s = %g: %g, a run has %g", p, densities[s], said, expected);
            assert_true(densities[s] == 1 ? said < 1e-4 : said > 0.01);
            mean[s] += said / found.pairs;
        }
        if (++step == CALLS) step = ++anchor + 1;
    }
    for (size_t s = 0; s < TEST_COUNT(densities); s++) {
        assert_int_equal(found.layer[0].mc_sparse[s].calls, found.pairs);
        assert_true(fabs(found.layer[0].mc_sparse[s].rel_l2 - mean[s]) < 1e-12);
        assert_true(fabs(analysis_expected_error(&found, (int)s, 2, 9) - found.pair[4].mc_sparse[s].rel_l2) < 1e-12);
    }
    analysis_free(&found);
    data.scale[2] = 0.5f;
    assert_int_equal(analysis_measure(&found, &options, &source, &error), MCSA_EINVAL);
    assert_non_null(strstr(error.text, "step 5, layer 0, branch 0 scales its scores by 0.5, the first step by 0.4"));
    for (int i = 0; i < CALLS; i++)
        for (int t = 0; t < 3; t++) test_tensor_free(&data.tensor[i][t]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_what_a_run_misses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
