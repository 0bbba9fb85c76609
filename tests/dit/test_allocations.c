/* test_allocations.c - the n-th allocation fails, for every n: each reader, the model and a generation then say so,
 * give nothing back but the error, and hold nothing.
 *
 * The linker's --wrap puts the functions of wrapped_heap.h in front of every malloc, calloc, realloc, aligned_alloc and
 * free of the library and the transformer; cJSON gets them by its hooks.  Memory that oneDNN, OpenMP and libc take for
 * themselves is not counted. */
#include "golden/golden.h"
#include "wrapped_heap.h"

#include "dit/generate.h"
#include "dit/text.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One operation from nothing to nothing; leaves *result NULL when it fails. */
typedef mcsa_status operation(void **result, mcsa_error *error);

/* cJSON does not tell a failed allocation from a syntax error, so a reader may call its file malformed. */
static void fail_each(operation *run, int least)
{
    for (int64_t n = 1;; n++) {
        mcsa_error error = { "" };
        void *result = &error;
        heap.calls = heap.held = 0;
        heap.fail_at = n;
        mcsa_status status = run(&result, &error);
        int64_t calls = heap.calls;
        heap.fail_at = 0;
        if (heap.held)
            fail_msg("allocation %lld of %lld failed and %lld blocks stay", (long long)n, (long long)calls,
                     (long long)heap.held);
        if (calls < n) {
            if (status != MCSA_OK) fail_msg("%s", error.text);
            print_message("  %lld allocations, each failed once\n", (long long)calls);
            assert_true(calls >= least);
            return;
        }
        if (status != MCSA_ENOMEM && status != MCSA_EFORMAT)
            fail_msg("allocation %lld failed: %s, \"%s\"", (long long)n, mcsa_status_name(status), error.text);
        assert_null(result);
        assert_true(error.text[0]);
    }
}

static mcsa_status open_shards(void **result, mcsa_error *error)
{
    dit_tensors *tensors = NULL;
    mcsa_status status = dit_tensors_open(&tensors, GOLDEN("wan-bf16"), error);
    *result = tensors;
    dit_tensors_free(tensors);
    return status;
}

static const float numbers[6 * 2 * 3];

/* The tables of the encoder below; what fails leaves no file of another name behind. */
static mcsa_status write_tables(void **result, mcsa_error *error)
{
    static const dit_tensor tables[] = {
        { .name = "position.weight", .dtype = MCSA_F32, .rank = 2, .shape = { 3, 2 }, .data = numbers },
        { .name = "window.weight", .dtype = MCSA_F32, .rank = 3, .shape = { 3, 2, 2 }, .data = numbers }
    };
    *result = NULL;
    return dit_tensors_write("allocations/model.safetensors", tables, 2, error);
}

static mcsa_status open_text(void **result, mcsa_error *error)
{
    dit_text *text = NULL;
    mcsa_status status = dit_text_open(&text, "allocations", error);
    *result = text;
    dit_text_free(text);
    return status;
}

static mcsa_status open_model(void **result, mcsa_error *error)
{
    dit_wan *model = NULL;
    mcsa_status status = dit_wan_open(&model, GOLDEN("wan-f16"), NULL, error);
    *result = model;
    dit_wan_free(model);
    return status;
}

static mcsa_status make_model(void **result, mcsa_error *error)
{
    static const dit_wan_config config = { .patch = { 1, 2, 2 },
                                           .heads = 1,
                                           .head_dim = 16,
                                           .in_channels = 2,
                                           .out_channels = 2,
                                           .text_dim = 8,
                                           .freq_dim = 8,
                                           .ffn_dim = 32,
                                           .layers = 2,
                                           .rope_max_seq_len = 8 };
    dit_wan *model = NULL;
    mcsa_status status = dit_wan_open_random(&model, &config, 1, NULL, error);
    *result = model;
    dit_wan_free(model);
    return status;
}

/* The model is opened undisturbed: a forward leaves what it reserved with the model, so each needs a fresh one. */
static mcsa_status generate(void **result, mcsa_error *error)
{
    enum { FRAMES = 2, SIDE = 4, COUNT = 2 * FRAMES * SIDE * SIDE, ROWS = 2, WIDTH = 1024 };
    static float noise[COUNT], context[ROWS * WIDTH], latent[COUNT];
    const int64_t fail_at = heap.fail_at;
    dit_wan *model = NULL;
    mcsa_run *run = NULL;
    const mcsa_config config = { .steps = 3, .layers = 2, .schedule = "list:0", .threads = 1 };
    const dit_generate_options options = { .steps = 3,
                                           .guidance = 1,
                                           .shift = 3,
                                           .sampler = DIT_UNIPC,
                                           .frames = FRAMES,
                                           .height = SIDE,
                                           .width = SIDE,
                                           .noise = noise,
                                           .context = context,
                                           .context_rows = ROWS };
    *result = NULL;
    heap.fail_at = 0;
    must(dit_wan_open(&model, GOLDEN("wan-f16"), &(dit_wan_options){ .threads = 1 }, error), error);
    assert_true(dit_wan_describe(model)->text_dim <= WIDTH && dit_wan_describe(model)->in_channels == 2);
    heap.calls = 0;
    heap.fail_at = fail_at;
    mcsa_status status = mcsa_run_create(&run, &config, error->text, sizeof error->text);
    if (status == MCSA_OK) status = dit_generate(model, run, &options, latent, NULL, error);
    mcsa_run_free(run);
    dit_wan_free(model);
    return status;
}

static void test_safetensors(void **state)
{
    (void)state;
    fail_each(open_shards, 100); /* a header of dozens of entries */
    fail_each(write_tables, 10);
    assert_int_equal(access("allocations/model.safetensors", F_OK), 0);
}

static void test_text(void **state)
{
    (void)state;
    fail_each(open_text, 10);
}

static void test_model(void **state)
{
    (void)state;
    fail_each(open_model, 100);
    fail_each(make_model, 30);
}

static void test_generate(void **state)
{
    (void)state;
    fail_each(generate, 8);
}

static int set_up(void **state)
{
    (void)state;
    static const char config[] = "{\"max_words\": 3, \"window\": 1, \"width\": 2, \"vocabulary\": [\"<pad>\", \"a\"]}";
    cJSON_InitHooks(&(cJSON_Hooks){ __wrap_malloc, __wrap_free });
    mkdir("allocations", 0777);
    FILE *file = fopen("allocations/config.json", "w");
    if (!file || fputs(config, file) < 0 || fclose(file) != 0) return -1;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink("allocations/config.json");
    unlink("allocations/model.safetensors");
    return rmdir("allocations"); /* fails when something else was left there */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_safetensors), cmocka_unit_test(test_text),
                                        cmocka_unit_test(test_model), cmocka_unit_test(test_generate) };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
