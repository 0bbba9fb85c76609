/* test_analyze.c - `mcsa analyze` on a folder that PyTorch wrote, against a restatement in NumPy
 * (tests/golden/make_captured.py); on calls that `mcsa generate` captured; and what it refuses. */
#include "capture_pick.h"
#include "command.h"
#include "dit/safetensors.h"
#include "scratch.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char CAPTURED[] = MCSA_GOLDEN_DIR "/captured";

#define ANALYZE(...) cmd_analyze((int)(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *)), (char *[]){ __VA_ARGS__ })
#define GENERATE(...) cmd_generate((int)(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *)), (char *[]){ __VA_ARGS__ })

static cJSON *read_json(const char *path)
{
    enum { ROOM = 1 << 20 };
    FILE *stream = fopen(path, "rb");
    if (!stream) fail_msg("cannot open %s", path);
    char *text = calloc(1, ROOM);
    assert_non_null(text);
    assert_true(fread(text, 1, ROOM - 1, stream) < ROOM - 1);
    fclose(stream);
    cJSON *root = cJSON_Parse(text);
    free(text);
    if (!root) fail_msg("%s is not JSON", path);
    return root;
}

/* Outputs are sums over at most 150 keys and 16 columns in FP32, so wrong by (150 + 16) 2^-24 = 1e-5 of their length
 * each, and rel L2 compares two.  A BF16 residual may round one unit otherwise where its FP32 value is that wrong:
 * elements within 2e-5 of a tie of 2^-8, 0.5 %, by 2^-8: 2^-8 sqrt(0.005) = 3e-4 of its length, which is up to 0.8
 * of the output's, at right angles to the error.  All numbers are printed to 1e-6. */
static double bound_of(const char *key)
{
    if (strcmp(key, "psnr_db") == 0) return 2 * 4.35 * 2e-5 / 0.018; /* d(20 log10 x) at the least rel L2 here */
    return strcmp(key, "rel_l2_with_residual") == 0 ? 3e-4 : 2e-5 + 1e-6;
}

static double worst; /* percent of a bound */

static void compare_numbers(const cJSON *found, const cJSON *expected, const char *where)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, expected)
    {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(found, item->string);
        if (!other) fail_msg("%s has no %s", where, item->string);
        if (cJSON_IsObject(item)) {
            compare_numbers(other, item, where);
        } else if (cJSON_IsNumber(item)) {
            double percent = 100 * fabs(other->valuedouble - item->valuedouble) / bound_of(item->string);
            if (!cJSON_IsNumber(other) || !(percent <= 100))
                fail_msg("%s: %s is %.6f, expected %.6f", where, item->string, other->valuedouble, item->valuedouble);
            worst = percent > worst ? percent : worst;
        }
    }
}

static int same_key(const cJSON *a, const cJSON *b, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(a, key), *y = cJSON_GetObjectItemCaseSensitive(b, key);
    if (!x && !y) return 1;
    if (cJSON_IsString(x)) return cJSON_IsString(y) && strcmp(x->valuestring, y->valuestring) == 0;
    return cJSON_IsNumber(y) && fabs(x->valuedouble - y->valuedouble) < 1e-9;
}

/* Every point expected is there once and agrees. */
static void compare_points(const cJSON *found, const cJSON *expected, const char *section)
{
    static const char *const keys[] = { "selection", "density", "anchor", "step" };
    const cJSON *points = cJSON_GetObjectItemCaseSensitive(found, section), *want, *have;
    assert_true(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(expected, section)) > 0);
    cJSON_ArrayForEach(want, cJSON_GetObjectItemCaseSensitive(expected, section))
    {
        int matches = 0;
        cJSON_ArrayForEach(have, points)
        {
            int same = 1;
            for (int k = 0; k < 4; k++) same &= same_key(want, have, keys[k]);
            if (!same) continue;
            matches++;
            compare_numbers(have, want, section);
        }
        assert_int_equal(matches, 1);
    }
}

static double number_at(const cJSON *point, const char *object, const char *key)
{
    return cJSON_GetObjectItem(object ? cJSON_GetObjectItem(point, object) : point, key)->valuedouble;
}

/* 3 calls of layer 1 and one of layer 2 make the means of all. */
static void check_layers(const cJSON *found)
{
    const cJSON *layers = cJSON_GetObjectItem(found, "layers"), *point;
    int checked = 0;
    assert_int_equal(cJSON_GetArraySize(layers), 2 * 2);
    cJSON_ArrayForEach(point, cJSON_GetObjectItem(found, "oracles"))
    {
        const char *name = cJSON_GetObjectItem(point, "selection")->valuestring;
        const int s = number_at(point, NULL, "density") > 0.3;
        const cJSON *one = cJSON_GetArrayItem(layers, s), *two = cJSON_GetArrayItem(layers, 2 + s);
        if (!cJSON_HasObjectItem(one, name)) continue;
        for (int k = 0; k < 3; k++) {
            const char *key = (const char *[]){ "recall", "rel_l2", "psnr_db" }[k];
            double mean = (3 * number_at(one, name, key) + number_at(two, name, key)) / 4;
            assert_true(fabs(mean - number_at(point, NULL, key)) <= 1.5e-6); /* printed to 1e-6 */
        }
        checked++;
    }
    assert_int_equal(checked, 3 * 2);
    assert_true(cJSON_HasObjectItem(cJSON_GetArrayItem(layers, 0), "rel_l2_with_residual"));
    assert_false(cJSON_HasObjectItem(cJSON_GetArrayItem(layers, 2), "rel_l2_with_residual"));
}

static void what_pytorch_wrote_is_analysed_as_numpy_does(void **state)
{
    static const char *const sections[] = { "oracles", "split", "waste", "reuse", "output_drift" };
    (void)state;
    worst = 0;
    assert_int_equal(ANALYZE("--tensors", (char *)CAPTURED, "--densities", "0.2,0.5", "--quiet", "--report", "a.json"),
                     EXIT_DONE);
    cJSON *found = read_json("a.json"), *expected = read_json(MCSA_GOLDEN_DIR "/captured/expected.json");
    for (int i = 0; i < 5; i++) compare_points(found, expected, sections[i]);
    print_message("%.0f %% of the bound\n", worst);
    check_layers(found);
    /* 9 selections and the queries' own at 2 densities; steps 0, 3 and 4 make 3 pairs */
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(found, "oracles")), 20);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(found, "output_drift")), 3);
    const cJSON *advice = cJSON_GetObjectItem(found, "recommendation");
    assert_true(cJSON_IsString(cJSON_GetObjectItem(advice, "text")));
    assert_int_equal(cJSON_GetObjectItem(advice, "steps")->valueint, 5);
    cJSON_Delete(found);
    cJSON_Delete(expected);
}

static void the_same_bits_for_any_number_of_threads(void **state)
{
    (void)state;
    char *first = NULL;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ANALYZE("--tensors", (char *)CAPTURED, "--quiet", "--methods", "bsa,svg2,pisa", "--threads",
                                 i ? "3" : "1", "--report", "a.json"),
                         EXIT_DONE);
        cJSON *found = read_json("a.json");
        cJSON_DeleteItemFromObject(found, "title"); /* says how many threads there were */
        char *text = cJSON_PrintUnformatted(found);
        assert_non_null(text);
        if (first) assert_string_equal(first, text);
        if (first) cJSON_free(text);
        if (!first) first = text;
        cJSON_Delete(found);
    }
    cJSON_free(first);
}

/* Heads have equally many rows, so what all keep is the mean of what each keeps. */
static void heads_can_be_looked_at_apart(void **state)
{
    (void)state;
    cJSON *found[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ANALYZE("--tensors", (char *)CAPTURED, "--at-heads", (char *[]){ "all", "0", "1" }[i],
                                 "--quiet", "--report", "a.json"),
                         EXIT_DONE);
        found[i] = read_json("a.json");
        assert_int_equal(cJSON_GetObjectItem(found[i], "heads_analysed")->valueint, i ? 1 : 2);
    }
    const int points = cJSON_GetArraySize(cJSON_GetObjectItem(found[0], "oracles"));
    int apart = 0;
    for (int p = 0; p < points; p++) {
        double kept[3];
        for (int i = 0; i < 3; i++)
            kept[i] = cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(found[i], "oracles"), p), "recall")
                          ->valuedouble;
        assert_true(fabs(kept[0] - (kept[1] + kept[2]) / 2) <= 1.5e-6); /* printed to 1e-6 */
        apart += kept[1] != kept[2];
    }
    assert_true(points > 0 && apart == points);
    for (int i = 0; i < 3; i++) cJSON_Delete(found[i]);
    assert_int_equal(ANALYZE("--tensors", (char *)CAPTURED, "--at-heads", "2", "--quiet"), EXIT_USAGE);
}

/* At density 1 every selection keeps everything, so only the rounding of the output is left. */
static void keeping_all_misses_nothing(void **state)
{
    (void)state;
    assert_int_equal(ANALYZE("--tensors", (char *)CAPTURED, "--densities", "1", "--quiet", "--methods",
                             "bsa,bsa+group,sol", "--report", "a.json"),
                     EXIT_DONE);
    cJSON *found = read_json("a.json");
    const cJSON *point;
    int points = 0;
    cJSON_ArrayForEach(point, cJSON_GetObjectItem(found, "oracles"))
    {
        const char *name = cJSON_GetObjectItem(point, "selection")->valuestring;
        if (strncmp(name, "kmeans", 6) == 0) continue; /* pays for its ragged tiles */
        assert_true(fabs(cJSON_GetObjectItem(point, "recall")->valuedouble - 1) <= 2e-5);
        assert_true(cJSON_GetObjectItem(point, "rel_l2")->valuedouble <= 2e-5);
        points++;
    }
    assert_int_equal(points, 8);
    points = 0;
    cJSON_ArrayForEach(point, cJSON_GetObjectItem(found, "methods"))
    {
        assert_true(fabs(cJSON_GetObjectItem(point, "recall")->valuedouble - 1) <= 2e-5);
        assert_true(cJSON_GetObjectItem(point, "rel_l2")->valuedouble <= 2e-5);
        points++;
    }
    assert_int_equal(points, 3);
    cJSON_Delete(found);
}

/* 3 heads of a batch of one in BF16, as some models have them; `bad` is put into the first query. */
static void write_call(const char *path, uint16_t bad, int keys)
{
    enum { H = 3, N = 70, D = 8 };
    uint16_t *data = calloc(3 * H * N * D, sizeof *data);
    assert_non_null(data);
    for (int i = 0; i < 3 * H * N * D; i++) data[i] = (uint16_t)(0x3f00 + i * 37 % 128); /* 0.5 to 1 */
    data[5] = bad;
    dit_tensor tensors[3];
    for (int i = 0; i < 3; i++)
        tensors[i] = (dit_tensor){ (const char *[]){ "q", "k", "v" }[i],
                                   MCSA_BF16,
                                   4,
                                   { 1, H, i == 1 ? keys : N, D },
                                   data + (size_t)i * H * N * D };
    mcsa_error error = { "" };
    if (dit_tensors_write(path, tensors, 3, &error) != MCSA_OK) fail_msg("%s", error.text);
    free(data);
}

static void wrong_input_is_refused(void **state)
{
    (void)state;
    char *folder = (char *)CAPTURED;
    assert_int_equal(ANALYZE("--quiet"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--model", "m"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", "nowhere"), EXIT_FAILED);
    assert_int_equal(ANALYZE("--tensors", "."), EXIT_USAGE); /* nothing captured there */
    assert_int_equal(ANALYZE("--tensors", folder, "--at-steps", "1"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--at-steps", "spread:0"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--steps", "4"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--densities", "0.2,0.1"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--densities", "0.2,"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--methods", "bsa,magic"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", folder, "--methods", "svg"), EXIT_USAGE); /* without a grid */
    assert_int_equal(ANALYZE("--tensors", folder, "--grid", "3,0,2"), EXIT_USAGE);

    write_call("step-0.layer-0.branch-0.safetensors", 0x3f80, 70);
    assert_int_equal(ANALYZE("--tensors", ".", "--quiet"), EXIT_DONE);
    write_call("step-1.layer-0.branch-0.safetensors", 0x7fc0, 70); /* a NaN */
    assert_int_equal(ANALYZE("--tensors", ".", "--quiet"), EXIT_USAGE);
    write_call("step-1.layer-0.branch-0.safetensors", 0x3f80, 64); /* fewer keys than queries */
    assert_int_equal(ANALYZE("--tensors", ".", "--quiet"), EXIT_FAILED);
    write_call("step-1.layer-0.branch-0.safetensors", 0x3f80, 70);
    assert_int_equal(ANALYZE("--tensors", ".", "--quiet"), EXIT_DONE);
    write_call("step-001.layer-0.branch-0.safetensors", 0x3f80, 70); /* the same call twice */
    assert_int_equal(ANALYZE("--tensors", ".", "--quiet"), EXIT_USAGE);
    for (int i = 0; i < 3; i++)
        unlink((const char *[]){ "step-0.layer-0.branch-0.safetensors", "step-1.layer-0.branch-0.safetensors",
                                 "step-001.layer-0.branch-0.safetensors" }[i]);
}

/* What generate captures is what analyze --model looks at. */
static void a_captured_clip_is_the_models(void **state)
{
    (void)state;
    if (access(MCSA_MODEL_DIR "/transformer", R_OK) != 0) {
        print_message("skip: %s is not there\n", MCSA_MODEL_DIR);
        skip();
    }
#define CLIP "--model", MCSA_MODEL_DIR, "--frames", "4", "--height", "32", "--width", "32", "--steps", "4", "--quiet"
#define PICKS "--at-steps", "0,2-3", "--at-layers", "1,7", "--at-branches", "0"
    char prompt[] = "a red star orbits over a blue checker background";
    assert_int_equal(GENERATE(CLIP, PICKS, "--prompt", prompt, "--method", "dense", "--capture", "c", "--out", "c.png"),
                     EXIT_DONE);
    assert_int_equal(access("c/step-002.layer-007.branch-0.safetensors", R_OK), 0);
    assert_int_equal(access("c/step-001.layer-007.branch-0.safetensors", F_OK), -1);
    assert_int_equal(access("c/step-002.layer-007.branch-1.safetensors", F_OK), -1);
    /* A folder with calls of another run is not added to. */
    assert_int_equal(GENERATE(CLIP, PICKS, "--prompt", prompt, "--capture", "c", "--out", "c.png"), EXIT_USAGE);
    assert_int_equal(ANALYZE("--tensors", "c", "--steps", "4", "--quiet", "--methods", "svg,wa-rs", "--report",
                             "tensors.json"),
                     EXIT_DONE);
    assert_int_equal(ANALYZE(CLIP, PICKS, "--methods", "svg,wa-rs", "--report", "model.json"), EXIT_DONE);
    cJSON *tensors = read_json("tensors.json"), *model = read_json("model.json");
    assert_int_equal(cJSON_GetObjectItem(model, "calls")->valueint, 6);
    assert_true(cJSON_Compare(tensors, model, 1));
    cJSON_Delete(tensors);
    cJSON_Delete(model);
    for (int step = 0; step < 4; step++)
        for (int layer = 0; layer < 8; layer++) {
            char path[80];
            snprintf(path, sizeof path, "c/step-%03d.layer-%03d.branch-0.safetensors", step, layer);
            unlink(path);
        }
    assert_int_equal(rmdir("c"), 0);
}

static void picks_are_what_they_say(void **state)
{
    static const struct {
        const char *text, *kept; /* of 10, 11, ... 19; NULL: refused */
    } picks[] = {
        { "all", "1111111111" },
        { "growing", "1101001000" },
        { "spread:2", "1000000001" },
        { "spread:1", "1000000000" },
        { "spread:4", "1001001001" },
        { "spread:99", "1111111111" },
        { "12", "0010000000" },
        { "10,19", "1000000001" },
        { "11-13,15", "0111010000" },
        { "9", NULL },
        { "18-20", NULL },
        { "12,", NULL },
        { "13-11", NULL },
        { "spread:", NULL },
        { "spread:0", NULL },
        { "some", NULL },
        { "12;13", NULL },
        { "99999999999", NULL },
    };
    (void)state;
    int values[10];
    for (int i = 0; i < 10; i++) values[i] = 10 + i;
    for (size_t p = 0; p < sizeof picks / sizeof *picks; p++) {
        char keep[11] = "";
        mcsa_error error = { "" };
        mcsa_status status = capture_pick(keep, values, 10, "at-steps", picks[p].text, &error);
        if ((status == MCSA_OK) != (picks[p].kept != NULL)) fail_msg("%s: %s", picks[p].text, error.text);
        if (status != MCSA_OK) assert_non_null(strstr(error.text, "--at-steps"));
        for (int i = 0; picks[p].kept && i < 10; i++)
            if (keep[i] != picks[p].kept[i] - '0') fail_msg("%s: %d", picks[p].text, values[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picks_are_what_they_say),
        cmocka_unit_test(what_pytorch_wrote_is_analysed_as_numpy_does),
        cmocka_unit_test(the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(heads_can_be_looked_at_apart),
        cmocka_unit_test(keeping_all_misses_nothing),
        cmocka_unit_test(wrong_input_is_refused),
        cmocka_unit_test(a_captured_clip_is_the_models),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
