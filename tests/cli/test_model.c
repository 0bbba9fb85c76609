/* test_model.c - model directories that are not, and sizes that do not fit. */
#include "model.h"
#include "scratch.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const dit_wan_config wan = { .patch = { 1, 4, 4 }, .rope_max_seq_len = 1024 };

static void refuse_size(int frames, int height, int width, const char *sentence)
{
    mcsa_error error = { "" };
    assert_int_equal(model_check_size(&wan, frames, height, width, &error), MCSA_EINVAL);
    assert_string_equal(error.text, sentence);
}

static void sizes_that_the_patch_does_not_divide(void **state)
{
    (void)state;
    mcsa_error error;
    assert_int_equal(model_check_size(&wan, 1, 4, 4, &error), MCSA_OK);
    assert_int_equal(model_check_size(&wan, 1024, 4096, 4096, &error), MCSA_OK);
    refuse_size(16, 62, 64,
                "--height 62 is not divisible by the model's patch of 4; the nearest sizes are 60 and 64");
    refuse_size(
        16, 64, 1001,
        "--width 1001 is not divisible by the model's patch of 4; the nearest sizes are 1000 and 1004");
    refuse_size(16, 3, 64, "--height 3: this model works in patches of 4; the least is 4");
    refuse_size(1025, 64, 64, "--frames 1025: positions of this model end at 1024");
}

static void write_text(const char *path, const char *text)
{
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    fputs(text, stream);
    fclose(stream);
}

static void directories_that_are_no_models(void **state)
{
    (void)state;
    video_model model;
    mcsa_error error;
    const dit_wan_options options = { 0 };
    assert_int_equal(model_open(&model, "absent", &options, &error), MCSA_EIO);
    assert_string_equal(error.text, "cannot open the model directory absent: No such file or directory");
    assert_int_equal(model_open(&model, ".", &options, &error), MCSA_EFORMAT);
    assert_string_equal(error.text, ". holds neither transformer/config.json nor config.json");
    assert_null(model.transformer);
    assert_int_equal(mkdir("transformer_2", 0777), 0);
    write_text("transformer_2/config.json", "{}");
    assert_int_equal(model_open(&model, ".", &options, &error), MCSA_EUNSUPPORTED);
    unlink("transformer_2/config.json");
    rmdir("transformer_2");
}

/* The scheduler is read before the weights, so a bare config.json is enough to get there. */
static void shifts_that_are_no_shifts(void **state)
{
    (void)state;
    video_model model;
    mcsa_error error;
    const dit_wan_options options = { 0 };
    const char *const wrong[] = { "{\"shift\": 0}", "{\"shift\": \"3\"}",
                                  "{\"flow_shift\": -1, \"shift\": 3}", "{\"shift\": 1e9}" };
    write_text("config.json", "{}");
    assert_int_equal(mkdir("scheduler", 0777), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("scheduler/scheduler_config.json", wrong[i]);
        assert_int_equal(model_open(&model, ".", &options, &error), MCSA_EFORMAT);
        assert_string_equal(error.text,
                            "./scheduler/scheduler_config.json: the shift must be a number above 0 and at "
                            "most 100");
    }
    unlink("scheduler/scheduler_config.json");
    rmdir("scheduler");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_the_patch_does_not_divide),
        cmocka_unit_test(directories_that_are_no_models),
        cmocka_unit_test(shifts_that_are_no_shifts),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
