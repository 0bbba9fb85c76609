/* test_random.c - models of random weights: made from a configuration and a seed alone, the same for the same seed, and
 * refused for configurations that no file may have either. */
#include "golden/golden.h"

#include "dit/generate.h"

#include <string.h>

static const dit_wan_config config = { .patch = { 1, 2, 2 },
                                       .heads = 2,
                                       .head_dim = 64,
                                       .in_channels = 4,
                                       .out_channels = 3,
                                       .text_dim = 48,
                                       .freq_dim = 32,
                                       .ffn_dim = 256,
                                       .layers = 2,
                                       .rope_max_seq_len = 64,
                                       .cross_attn_norm = 1,
                                       .eps = 1e-6f };
enum { FRAMES = 2, SIDE = 6, ROWS = 5, NUMBERS = FRAMES * SIDE * SIDE };

static void forward(uint64_t seed, mcsa_dtype precision, float velocity[3 * NUMBERS])
{
    static float latent[4 * NUMBERS], context[ROWS * 48];
    const dit_wan_options options = { .threads = 1, .precision = precision };
    const mcsa_action actions[2] = { MCSA_DENSE, MCSA_DENSE };
    const mcsa_config dense = { .steps = 1, .layers = 2, .actions = actions, .threads = 1 };
    mcsa_error error = { "" };
    dit_wan *model = NULL;
    mcsa_run *run = NULL;
    dit_noise(1, latent, 4 * NUMBERS);
    dit_noise(2, context, ROWS * 48);
    must(dit_wan_open_random(&model, &config, seed, &options, &error), &error);
    must(mcsa_run_create(&run, &dense, error.text, sizeof error.text), &error);
    assert_int_equal(dit_wan_device(model), MCSA_DEVICE_CPU);
    const dit_wan_call call = { .frames = FRAMES,
                                .height = SIDE,
                                .width = SIDE,
                                .latent = latent,
                                .timestep = 300,
                                .context = context,
                                .context_rows = ROWS,
                                .velocity = velocity,
                                .run = run };
    must(dit_wan_forward(model, &call, &error), &error);
    /* A layer has q, k, v and out of two attentions, 8 x 128 x 128, and 2 x 128 x 256 weights of at least 2 bytes. */
    assert_true(dit_wan_bytes(model) > 2 * (8 * 128 * 128 + 2 * 128 * 256) * 2);
    mcsa_run_free(run);
    dit_wan_free(model);
}

static void test_seeds(void **state)
{
    (void)state;
    float one[3 * NUMBERS], again[3 * NUMBERS], other[3 * NUMBERS];
    forward(1, MCSA_F32, one);
    forward(1, MCSA_F32, again);
    forward(2, MCSA_F32, other);
    assert_memory_equal(one, again, sizeof one);
    /* Independent velocities are sqrt(2) apart; numbers that do not spread would be far from both. */
    const double apart = relative_l2(one, other, 3 * NUMBERS);
    assert_true(apart > 0.7 && apart < 2.8);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        int value;
        const char *phrase;
    } cases[] = {
        { offsetof(dit_wan_config, heads), 0, "num_attention_heads is 0" },
        { offsetof(dit_wan_config, layers), 1 << 20, "num_layers is 1048576" },
        { offsetof(dit_wan_config, head_dim), 63, "must be even" },
        { offsetof(dit_wan_config, patch), 65, "patch[0] is 65" },
        { offsetof(dit_wan_config, in_channels), 1 << 19, "in_channels is 524288" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mcsa_error error = { "" };
        dit_wan *model;
        dit_wan_config wrong = config;
        memcpy((char *)&wrong + cases[i].offset, &cases[i].value, sizeof(int));
        assert_int_equal(dit_wan_open_random(&model, &wrong, 0, NULL, &error), MCSA_EINVAL);
        assert_null(model);
        if (!strstr(error.text, cases[i].phrase)) fail_msg("\"%s\" does not say \"%s\"", error.text, cases[i].phrase);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_seeds), cmocka_unit_test(test_refusals) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
