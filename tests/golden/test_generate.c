/* test_generate.c - whole generations, both samplers under guidance, against the same loop in Diffusers; and
 * what dit_generate and dit_wan_forward refuse.
 *
 * Limit 1e-5 in F32, as for one forward: guidance multiplies differences by up to 5, but each step moves the
 * latent by only a part of its size. */
#include "golden.h"

#include "dit/generate.h"

#include <string.h>

static const double LIMIT = 1e-5;
enum { STEPS = 4, MODEL_LAYERS = 2, CHANNELS = 3, FRAMES = 2, HEIGHT = 12, WIDTH = 8 };
enum { COUNT = CHANNELS * FRAMES * HEIGHT * WIDTH };

typedef struct fixture {
    dit_wan *model;
    mcsa_run *run;
    dit_tensors *tensors;
    float *noise, *context, *null_context;
    dit_generate_options options;
} fixture;

static void set_up(fixture *f)
{
    static const mcsa_action dense[MODEL_LAYERS * STEPS] = { MCSA_DENSE };
    mcsa_error error = { "" };
    const dit_tensor *shape;
    f->tensors = open_tensors(GOLDEN("generated.safetensors"));
    must(dit_wan_open(&f->model, GOLDEN("wan-bf16"), &(dit_wan_options){ .precision = MCSA_F32 }, &error), &error);
    mcsa_config config = { .steps = STEPS, .layers = MODEL_LAYERS, .branches = 2, .actions = dense };
    must(mcsa_run_create(&f->run, &config, error.text, sizeof error.text), &error);
    f->options = (dit_generate_options){
        .steps = STEPS, .guidance = 3.0f, .shift = 3.0f, .frames = FRAMES, .height = HEIGHT, .width = WIDTH
    };
    f->options.noise = f->noise = floats_of(f->tensors, "noise", &shape);
    f->options.context = f->context = floats_of(f->tensors, "context", &shape);
    f->options.context_rows = (int)shape->shape[0];
    f->options.null_context = f->null_context = floats_of(f->tensors, "null_context", &shape);
    f->options.null_rows = (int)shape->shape[0];
}

static void tear_down(fixture *f)
{
    mcsa_run_free(f->run);
    dit_wan_free(f->model);
    dit_tensors_free(f->tensors);
    free(f->noise);
    free(f->context);
    free(f->null_context);
}

static int count_calls(void *user, const dit_progress *progress)
{
    int *calls = user;
    assert_int_equal(progress->step, *calls);
    assert_int_equal(progress->steps, STEPS);
    ++*calls;
    return 0;
}

static void compare(dit_sampler_kind kind, const char *name)
{
    fixture f;
    float latent[COUNT];
    double seconds = 0;
    int calls = 0;
    mcsa_error error = { "" };
    const dit_tensor *shape;
    set_up(&f);
    f.options.sampler = kind;
    f.options.progress = count_calls;
    f.options.user = &calls;
    must(dit_generate(f.model, f.run, &f.options, latent, &seconds, &error), &error);
    assert_int_equal(calls, STEPS + 1);
    assert_true(seconds > 0);
    float *expected = floats_of(f.tensors, name, &shape);
    assert_int_equal(dit_tensor_count(shape), COUNT);
    within(name, relative_l2(latent, expected, COUNT), LIMIT);
    free(expected);
    tear_down(&f);
}

static void test_euler(void **state)
{
    (void)state;
    compare(DIT_EULER, "euler");
}

static void test_unipc(void **state)
{
    (void)state;
    compare(DIT_UNIPC, "unipc");
}

/* Guidance 1 needs no second branch: the same latent as guiding between two equal contexts. */
static void test_guidance_of_one(void **state)
{
    (void)state;
    fixture f;
    float alone[COUNT], guided[COUNT];
    mcsa_error error = { "" };
    set_up(&f);
    f.options.null_context = f.options.context;
    f.options.null_rows = f.options.context_rows;
    must(dit_generate(f.model, f.run, &f.options, guided, NULL, &error), &error);
    f.options.guidance = 1.0f;
    f.options.null_context = NULL;
    must(dit_generate(f.model, f.run, &f.options, alone, NULL, &error), &error);
    assert_memory_equal(alone, guided, sizeof alone);
    tear_down(&f);
}

static int cancel_at_two(void *user, const dit_progress *progress)
{
    (void)user;
    return progress->step == 2;
}

static void test_cancel(void **state)
{
    (void)state;
    fixture f;
    float latent[COUNT];
    mcsa_error error = { "" };
    set_up(&f);
    f.options.progress = cancel_at_two;
    assert_int_equal(dit_generate(f.model, f.run, &f.options, latent, NULL, &error), MCSA_ECANCELED);
    assert_string_equal(error.text, "canceled after 2 of 4 steps");
    tear_down(&f);
}

static void refused(fixture *f, const dit_generate_options *options, const char *phrase)
{
    float latent[COUNT];
    mcsa_error error = { "" };
    assert_int_equal(dit_generate(f->model, f->run, options, latent, NULL, &error), MCSA_EINVAL);
    if (!strstr(error.text, phrase)) fail_msg("\"%s\" does not say \"%s\"", error.text, phrase);
}

static void test_refusals(void **state)
{
    (void)state;
    fixture f;
    set_up(&f);
    dit_generate_options wrong = f.options;
    wrong.height = 10;
    refused(&f, &wrong, "2 x 10 x 8 is not made of patches of 1 x 4 x 4");
    wrong = f.options;
    wrong.width = INT32_MAX - 3;
    refused(&f, &wrong, "536870911 patches along an axis; rope_max_seq_len of this model is 1024");
    wrong = f.options;
    wrong.context_rows = 0;
    refused(&f, &wrong, "context_rows is 0");
    wrong = f.options;
    wrong.frames = 1025;
    wrong.height = wrong.width = 4;
    float *long_noise = calloc(CHANNELS * 1025 * 16, sizeof *long_noise);
    float *long_latent = calloc(CHANNELS * 1025 * 16, sizeof *long_latent);
    mcsa_error error = { "" };
    wrong.noise = long_noise;
    assert_int_equal(dit_generate(f.model, f.run, &wrong, long_latent, NULL, &error), MCSA_EINVAL);
    assert_non_null(strstr(error.text, "1025 patches along an axis; rope_max_seq_len of this model is 1024"));
    free(long_noise);
    free(long_latent);
    wrong = f.options;
    wrong.null_context = NULL;
    refused(&f, &wrong, "NULL");
    wrong = f.options;
    wrong.guidance = NAN;
    refused(&f, &wrong, "guidance");
    wrong = f.options;
    wrong.steps = 5; /* more than the run was made for */
    refused(&f, &wrong, "step");
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_euler),  cmocka_unit_test(test_unipc),    cmocka_unit_test(test_guidance_of_one),
        cmocka_unit_test(test_cancel), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
