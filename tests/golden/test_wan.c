/* test_wan.c - forward passes against Diffusers' WanTransformer3DModel on the models that make_golden.py
 * wrote, and the tensors of published configurations against its state dictionaries.
 *
 * Limits: 1e-5 in F32, where the two differ by the order of sums over up to a few hundred terms (2^-24 each)
 * through two layers; 5e-3 in BF16, whose rounding unit is 2^-9 = 2e-3 (PyTorch's own BF16 forward is 6e-3
 * off on the same model).
 *
 * With arguments MODEL_DIR GOLDEN_FILE it compares one forward of any model: make_golden.py
 * --check-trained. */
#include "golden.h"

#include "dit/wan.h"
#include "dit/wan_config.h"
#include "dit/wan_weights.h"

#include <string.h>

static const double F32_LIMIT = 1e-5, BF16_LIMIT = 5e-3;

static mcsa_run *dense_run(const dit_wan *model, const dit_wan_options *options)
{
    char text[256] = "";
    int layers = dit_wan_describe(model)->layers;
    mcsa_action *actions = calloc((size_t)layers, sizeof *actions); /* MCSA_DENSE is 0 */
    mcsa_run *run = NULL;
    mcsa_config config = {
        .steps = 1, .layers = layers, .actions = actions, .threads = options->threads, .isa = options->isa
    };
    if (mcsa_run_create(&run, &config, text, sizeof text) != MCSA_OK) fail_msg("%s", text);
    free(actions);
    return run;
}

/* The C forward on the golden inputs; *count is set to the number of velocities. */
static float *forward(const char *dir, const char *golden, const dit_wan_options *options, mcsa_dtype *precision,
                      float **expected, int64_t *count)
{
    mcsa_error error = { "" };
    dit_wan *model = NULL;
    const dit_tensor *latent, *context, *timestep, *velocity;
    dit_tensors *tensors = open_tensors(golden);
    must(dit_wan_open(&model, dir, options, &error), &error);
    float *x = floats_of(tensors, "latent", &latent), *c = floats_of(tensors, "context", &context);
    float *t = floats_of(tensors, "timestep", &timestep);
    *expected = floats_of(tensors, "velocity", &velocity);
    *count = dit_tensor_count(velocity);
    *precision = dit_wan_precision(model);

    float *out = malloc((size_t)*count * sizeof *out);
    mcsa_run *run = dense_run(model, options);
    dit_wan_call call = { .frames = (int)latent->shape[1],
                          .height = (int)latent->shape[2],
                          .width = (int)latent->shape[3],
                          .latent = x,
                          .timestep = t[0],
                          .context = c,
                          .context_rows = (int)context->shape[0],
                          .velocity = out,
                          .run = run };
    must(dit_wan_forward(model, &call, &error), &error);
    mcsa_run_free(run);
    dit_wan_free(model);
    dit_tensors_free(tensors);
    free(x);
    free(c);
    free(t);
    return out;
}

static void compare_on(mcsa_isa isa, const char *dir, const char *golden, mcsa_dtype asked)
{
    mcsa_dtype precision;
    float *expected;
    int64_t count;
    dit_wan_options options = { .precision = asked, .isa = isa };
    float *out = forward(dir, golden, &options, &precision, &expected, &count);
    const char *name = strrchr(dir, '/');
    char what[128];
    snprintf(what, sizeof what, "%s in %s, %s", name ? name + 1 : dir, precision == MCSA_BF16 ? "BF16" : "F32",
             mcsa_isa_name(isa));
    within(what, relative_l2(out, expected, count), precision == MCSA_BF16 ? BF16_LIMIT : F32_LIMIT);
    free(out);
    free(expected);
}

/* On every instruction set of this machine. */
static void compare(const char *dir, const char *golden, mcsa_dtype asked)
{
    mcsa_machine machine = { .size = sizeof machine };
    assert_int_equal(mcsa_machine_read(&machine), MCSA_OK);
    for (mcsa_isa isa = MCSA_ISA_SCALAR; isa <= machine.isa; isa++) compare_on(isa, dir, golden, asked);
}

static void test_f32(void **state)
{
    (void)state;
    compare(GOLDEN("wan-f32"), GOLDEN("wan-f32/golden.safetensors"), 0);
}

/* Sharded with an index; BF16 arithmetic where the machine has it, and F32 everywhere. */
static void test_bf16(void **state)
{
    (void)state;
    compare(GOLDEN("wan-bf16"), GOLDEN("wan-bf16/golden.safetensors"), 0);
    compare(GOLDEN("wan-bf16"), GOLDEN("wan-bf16/golden.safetensors"), MCSA_F32);
}

/* No cross_attn_norm, a head dimension that 6 divides, a patch of two frames, one context row. */
static void test_f16(void **state)
{
    (void)state;
    compare(GOLDEN("wan-f16"), GOLDEN("wan-f16/golden.safetensors"), MCSA_F32);
}

/* The row loops and the library give the same bits for any number of threads; oneDNN's matmul does with AVX-512 and may
 * not with AVX2, where it splits sums among threads: hence the limit of F32 and not equality. */
static void test_threads(void **state)
{
    (void)state;
    mcsa_dtype precision;
    int64_t count;
    float *expected, *one = forward(GOLDEN("wan-f32"), GOLDEN("wan-f32/golden.safetensors"),
                                    &(dit_wan_options){ .threads = 1 }, &precision, &expected, &count);
    free(expected);
    float *three = forward(GOLDEN("wan-f32"), GOLDEN("wan-f32/golden.safetensors"), &(dit_wan_options){ .threads = 3 },
                           &precision, &expected, &count);
    within("1 thread against 3", relative_l2(three, one, count), F32_LIMIT);
    free(expected);
    free(one);
    free(three);
}

static int by_line(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "name d0 d1 ..." of every tensor we expect, sorted, against the same list from the state dictionary. */
static void compare_names(const char *dir, const char *list_path)
{
    mcsa_error error = { "" };
    dit_wan_config config;
    must(dit_wan_config_read(&config, dir, &error), &error);
    int count = dit_wan_expected_count(&config), line_count = 0;
    char **lines = calloc((size_t)count, sizeof *lines), line[256];
    for (int i = 0; i < count; i++) {
        dit_wan_expected expected;
        dit_wan_expect(&config, i, &expected);
        int length = snprintf(line, sizeof line, "%s", expected.name);
        for (int a = 0; a < expected.rank; a++)
            length += snprintf(line + length, sizeof line - (size_t)length, " %lld", (long long)expected.shape[a]);
        lines[i] = strdup(line);
    }
    qsort(lines, (size_t)count, sizeof *lines, by_line);

    FILE *list = fopen(list_path, "r");
    assert_non_null(list);
    while (fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        assert_true(line_count < count);
        assert_string_equal(lines[line_count], line);
        line_count++;
    }
    assert_int_equal(line_count, count);
    fclose(list);
    for (int i = 0; i < count; i++) free(lines[i]);
    free(lines);
}

static void test_published_configurations(void **state)
{
    (void)state;
    compare_names(GOLDEN("wan2.1-t2v-1.3b"), GOLDEN("wan2.1-t2v-1.3b.tensors.txt"));
    compare_names(GOLDEN("wan2.1-t2v-14b"), GOLDEN("wan2.1-t2v-14b.tensors.txt"));
}

int main(int argc, char **argv)
{
    if (argc == 3) {
        compare_on(MCSA_ISA_AUTO, argv[1], argv[2], MCSA_F32);
        compare_on(MCSA_ISA_AUTO, argv[1], argv[2], 0);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_published_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
