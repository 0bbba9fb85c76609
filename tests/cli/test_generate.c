/* test_generate.c - the command as a function: a context from a file is the caption it was made from.
 *
 * Needs the model in the repository and says so when it is not there.  tests/cli/e2e.sh covers the rest of
 * the command from outside. */
#include "command.h"
#include "dit/safetensors.h"
#include "dit/text.h"
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const TEXT_ENCODER = MCSA_MODEL_DIR "/text_encoder";
static const char *const TRANSFORMER = MCSA_MODEL_DIR "/transformer";

/* Writes the context of `caption` as a file that --context takes. */
static void write_context(const char *path, const char *caption)
{
    dit_text *text;
    mcsa_error error = { "" };
    if (dit_text_open(&text, TEXT_ENCODER, &error) != MCSA_OK) fail_msg("%s", error.text);
    int rows = dit_text_rows(text), width = dit_text_width(text);
    float *data = malloc((size_t)rows * (size_t)width * sizeof *data);
    assert_non_null(data);
    if (dit_text_encode(text, caption, data, &error) != MCSA_OK) fail_msg("%s", error.text);
    dit_tensor tensor = {
        .name = "context", .dtype = MCSA_F32, .rank = 2, .shape = { rows, width }, .data = data
    };
    if (dit_tensors_write(path, &tensor, 1, &error) != MCSA_OK) fail_msg("%s", error.text);
    free(data);
    dit_text_free(text);
}

/* The bytes of a small file, to be freed. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    char *data = malloc(1 << 16);
    assert_non_null(data);
    *bytes = fread(data, 1, 1 << 16, stream);
    fclose(stream);
    return data;
}

#define GENERATE(...)                                                              \
    cmd_generate((int)(sizeof((char *[]){ SMALL, __VA_ARGS__ }) / sizeof(char *)), \
                 (char *[]){ SMALL, __VA_ARGS__ })
#define SMALL "--quiet", "--frames", "2", "--height", "16", "--width", "16", "--steps", "2"

static void a_context_from_a_file_is_its_caption(void **state)
{
    (void)state;
    if (access(TEXT_ENCODER, R_OK) != 0) {
        print_message("skip: %s is not there\n", TEXT_ENCODER);
        skip();
    }
    size_t bytes, from_file_bytes;
    write_context("c.safetensors", "a red star");
    write_context("n.safetensors", "<null>");
    assert_int_equal(GENERATE("--model", MCSA_MODEL_DIR, "--prompt", "a red star", "--out", "a.safetensors"),
                     EXIT_DONE);
    assert_int_equal(GENERATE("--model", (char *)TRANSFORMER, "--context", "c.safetensors",
                              "--negative-context", "n.safetensors", "--out", "b.safetensors"),
                     EXIT_DONE);
    char *from_caption = read_file("a.safetensors", &bytes);
    char *from_file = read_file("b.safetensors", &from_file_bytes);
    assert_true(bytes > 2 * 16 * 16 * 3 * sizeof(float));
    assert_int_equal(bytes, from_file_bytes);
    assert_memory_equal(from_caption, from_file, bytes);
    free(from_file);

    assert_int_equal(GENERATE("--model", MCSA_MODEL_DIR, "--prompt", "a blue ring", "--out", "a.safetensors"),
                     EXIT_DONE);
    char *other = read_file("a.safetensors", &bytes);
    assert_memory_not_equal(from_caption, other, bytes);
    free(other);
    free(from_caption);
}

static void guidance_without_a_negative_context_is_wrong_usage(void **state)
{
    (void)state;
    if (access(TEXT_ENCODER, R_OK) != 0) skip();
    write_context("c.safetensors", "a red star");
    int before = scratch_files();
    assert_int_equal(GENERATE("--model", (char *)TRANSFORMER, "--context", "c.safetensors", "--out",
                              "d.safetensors"),
                     EXIT_USAGE);
    assert_int_equal(scratch_files(), before);
    assert_int_equal(GENERATE("--model", (char *)TRANSFORMER, "--context", "c.safetensors", "--guidance", "1",
                              "--out", "d.safetensors"),
                     EXIT_DONE);
}

static void contradictions_are_wrong_usage(void **state)
{
    (void)state;
    assert_int_equal(GENERATE("--model", "m"), EXIT_USAGE);
    assert_int_equal(GENERATE("--prompt", "a"), EXIT_USAGE);
    assert_int_equal(GENERATE("--model", "m", "--prompt", "a", "--context", "b"), EXIT_USAGE);
    assert_int_equal(GENERATE("--model", "m", "--prompt", "a", "--compare", "--method", "dense"), EXIT_USAGE);
    assert_int_equal(GENERATE("--model", "m", "--prompt", "a", "--schedule", "list:2"), EXIT_USAGE);
    /* Nothing is wrong with this but the directory. */
    assert_int_equal(GENERATE("--model", "m", "--prompt", "a"), EXIT_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_from_a_file_is_its_caption),
        cmocka_unit_test(guidance_without_a_negative_context_is_wrong_usage),
        cmocka_unit_test(contradictions_are_wrong_usage),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
