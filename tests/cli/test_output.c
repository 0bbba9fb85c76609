/* test_output.c - endings, names, and latents that come back bit for bit. */
#include "dit/safetensors.h"
#include "output.h"
#include "scratch.h"

#include <stdlib.h>
#include <string.h>

static mcsa_status check(const char *path, int channels, mcsa_error *error)
{
    option_texts paths = { 1, { path } };
    return output_check(&paths, channels, error);
}

static void endings_choose_the_format(void **state)
{
    (void)state;
    mcsa_error error;
    const char *const right[] = { "a.mp4", "a.png", "a.y4m", "a.safetensors", "A.MP4", "./x.y/a.b.png" };
    for (size_t i = 0; i + 1 < sizeof right / sizeof *right; i++)
        assert_int_equal(check(right[i], 3, &error), MCSA_OK);
    /* A known ending in a directory that is not there. */
    assert_int_equal(check(right[5], 3, &error), MCSA_EIO);
    const char *const wrong[] = { "a.gif", "a", "mp4", ".mp4", "x.mp4/a", "a.mp4.part", "a." };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(check(wrong[i], 3, &error), MCSA_EINVAL);
        assert_non_null(strstr(error.text, "must be .mp4, .png, .y4m or .safetensors"));
    }
}

static void only_pixels_become_pictures(void **state)
{
    (void)state;
    mcsa_error error;
    assert_int_equal(check("a.mp4", 16, &error), MCSA_EINVAL);
    assert_non_null(strstr(error.text, "latents of 16 channels"));
    assert_int_equal(check("a.safetensors", 16, &error), MCSA_OK);
}

static void the_dense_clip_is_named_before_the_ending(void **state)
{
    (void)state;
    const char *const names[][2] = { { "clip.mp4", "clip-dense.mp4" },
                                     { "a.b/clip", "a.b/clip-dense" },
                                     { "a.b/c.d.png", "a.b/c.d-dense.png" } };
    char name[64];
    mcsa_error error;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(output_dense_name(names[i][0], name, sizeof name, &error), MCSA_OK);
        assert_string_equal(name, names[i][1]);
    }
    assert_int_equal(output_dense_name(names[0][0], name, 14, &error), MCSA_EINVAL);
}

static void latents_come_back_bit_for_bit(void **state)
{
    (void)state;
    float data[2 * 3 * 4 * 5];
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) data[i] = 1.0f / (float)(i + 1) - 0.3f;
    planes latent = { 2, 3, 4, 5, data };
    const int64_t shape[] = { 2, 3, 4, 5 };
    mcsa_error error;
    assert_int_equal(output_write("a.safetensors", &latent, &error), MCSA_OK);
    dit_tensors *file;
    assert_int_equal(dit_tensors_open(&file, "a.safetensors", &error), MCSA_OK);
    assert_int_equal(dit_tensors_count(file), 1);
    const dit_tensor *tensor = dit_tensors_find(file, "latent");
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, MCSA_F32);
    assert_int_equal(tensor->rank, 4);
    assert_memory_equal(tensor->shape, shape, sizeof shape);
    assert_memory_equal(tensor->data, data, sizeof data);
    dit_tensors_free(file);
}

static void every_ending_writes_one_file(void **state)
{
    (void)state;
    float data[3 * 2 * 8 * 8];
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) data[i] = (float)(i % 64) / 32.0f - 1.0f;
    planes latent = { 3, 2, 8, 8, data };
    const char *const names[] = { "b.mp4", "b.png", "b.y4m", "b.safetensors" };
    mcsa_error error;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int before = scratch_files();
        if (output_write(names[i], &latent, &error) != MCSA_OK) fail_msg("%s", error.text);
        assert_int_equal(scratch_files(), before + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endings_choose_the_format),
        cmocka_unit_test(only_pixels_become_pictures),
        cmocka_unit_test(the_dense_clip_is_named_before_the_ending),
        cmocka_unit_test(latents_come_back_bit_for_bit),
        cmocka_unit_test(every_ending_writes_one_file),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
