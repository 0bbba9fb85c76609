/* test_refusals.c - limits that no sane file or call comes near, and a file system that takes no more: each is a
 * sentence, and nothing half-written stays. */
#include "golden/golden.h"

#include "dit/generate.h"
#include "dit/json.h"
#include "dit/wan.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "refusals-XXXXXX"; /* in the build tree; the tests run inside it */

static void refused(mcsa_status got, mcsa_status expected, const mcsa_error *error, const char *phrase)
{
    if (got != expected) fail_msg("%s: %s", mcsa_status_name(got), error->text);
    if (!strstr(error->text, phrase)) fail_msg("\"%s\" does not say \"%s\"", error->text, phrase);
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    FILE *file = fopen(name, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void test_json_too_large(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    dit_json json;
    write_file("large.json", "{}", 2);
    assert_int_equal(truncate("large.json", (64 << 20) + 1), 0); /* sparse: takes no room */
    refused(dit_json_open(&json, "large.json", &error), MCSA_EFORMAT, &error, "67108865 bytes");
    assert_null(json.root);
    unlink("large.json");
}

static void test_path_too_long(void **state)
{
    (void)state;
    static char path[8192];
    mcsa_error error = { "" };
    dit_json json;
    dit_tensors *tensors;
    memset(path, 'p', sizeof path - 1);
    refused(dit_json_open(&json, path, &error), MCSA_EINVAL, &error, "too long");
    refused(dit_json_open_in(&json, path, "config.json", &error), MCSA_EINVAL, &error, "too long");
    refused(dit_tensors_open(&tensors, path, &error), MCSA_EIO, &error, "cannot open");
    assert_null(json.root);
    assert_null(tensors);
}

/* An index of more shards than any model has; the limit is 4096. */
static void test_too_many_shards(void **state)
{
    (void)state;
    enum { SHARDS = 4097 };
    mcsa_error error = { "" };
    dit_tensors *tensors;
    write_file("0", "\2\0\0\0\0\0\0\0{}", 10);
    FILE *index = fopen("model.safetensors.index.json", "w");
    assert_non_null(index);
    fprintf(index, "{\"weight_map\": {\"t\": \"0\"");
    for (int i = 1; i < SHARDS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(link("0", name), 0);
        fprintf(index, ", \"t%d\": \"%d\"", i, i);
    }
    fprintf(index, "}}");
    assert_int_equal(fclose(index), 0);
    refused(dit_tensors_open(&tensors, ".", &error), MCSA_EUNSUPPORTED, &error, "more than 4096 shards");
    assert_null(tensors);
    for (int i = 0; i < SHARDS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        unlink(name);
    }
    unlink("model.safetensors.index.json");
}

static const float numbers[1 << 14];
static const dit_tensor tensor = { .name = "t", .dtype = MCSA_F32, .rank = 1, .shape = { 1 << 14 }, .data = numbers };

static void test_write_unknown_dtype(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    dit_tensor odd = tensor;
    odd.dtype = (mcsa_dtype)9;
    refused(dit_tensors_write("odd.safetensors", &odd, 1, &error), MCSA_EINVAL, &error, "unknown dtype 9");
    assert_int_equal(access("odd.safetensors", F_OK), -1);
}

/* A limit on the size of files stands for a full disk: both show as a short write. */
static void test_write_to_full_disk(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    struct rlimit before, little;
    write_file("clip.safetensors", "before", 6);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = (struct rlimit){ 4096, before.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    mcsa_status status = dit_tensors_write("clip.safetensors", &tensor, 1, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    refused(status, MCSA_EIO, &error, "cannot write clip.safetensors");
    struct stat info;
    assert_int_equal(stat("clip.safetensors", &info), 0);
    assert_int_equal(info.st_size, 6); /* what stood there before stands there still */
    unlink("clip.safetensors");
}

static void test_write_over_directory(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    assert_int_equal(mkdir("taken", 0777), 0);
    refused(dit_tensors_write("taken", &tensor, 1, &error), MCSA_EIO, &error, "cannot write taken");
    assert_int_equal(rmdir("taken"), 0);
}

static void test_sampler_without_numbers(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    dit_sampler *sampler;
    refused(dit_sampler_create(&sampler, DIT_EULER, 4, 3, 0, &error), MCSA_EINVAL, &error, "a latent of 0 numbers");
    refused(dit_sampler_create(&sampler, DIT_EULER, 4, 3, INT64_MAX, &error), MCSA_EINVAL, &error, "a latent of");
    assert_null(sampler);
}

static void test_model(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    dit_wan *model;
    refused(dit_wan_open(&model, GOLDEN("wan-f32"), &(dit_wan_options){ .precision = MCSA_F16 }, &error), MCSA_EINVAL,
            &error, "precision 3");
    assert_null(model);
    must(dit_wan_open(&model, GOLDEN("wan-f32"), NULL, &error), &error);
    refused(dit_wan_forward(model, &(dit_wan_call){ .frames = 1, .height = 2, .width = 2 }, &error), MCSA_EINVAL,
            &error, "must not be NULL");
    /* it takes 5 channels and gives 3 */
    refused(dit_generate(model, NULL, &(dit_generate_options){ .steps = 1 }, NULL, NULL, &error), MCSA_EUNSUPPORTED,
            &error, "maps 5 channels to 3");
    dit_wan_free(model);
}

static int enter(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    (void)state;
    return chdir("..") == 0 && rmdir(folder) == 0 ? 0 : -1; /* fails when a test left a file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_too_large),          cmocka_unit_test(test_path_too_long),
        cmocka_unit_test(test_too_many_shards),         cmocka_unit_test(test_write_unknown_dtype),
        cmocka_unit_test(test_write_to_full_disk),      cmocka_unit_test(test_write_over_directory),
        cmocka_unit_test(test_sampler_without_numbers), cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
