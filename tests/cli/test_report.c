/* test_report.c - the keys of report.json, exactly and in order, and the table. */
#include "report.h"
#include "scratch.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int anchors[] = { 3, 5, 8 };

static const rendition made = {
    .denoise_s = 10.0,
    .linear_s = 3.0,
    .cost = { .dense = 64,
              .anchor = 48,
              .reuse = 528,
              .fallback = 2,
              .density_requested = 0.1f,
              .density_nominal = 0.109375,
              .density_executed = 0.1171875,
              .density_run = 0.43,
              .attention_s = 5.5,
              .dense_s = 3.25,
              .grouping_s = 0.25,
              .selection_s = 0.5,
              .sparse_s = 1.5,
              .selection_bytes = 1572864,
              .residual_bytes = 50331648,
              .held_bytes = 51904512 },
    .anchors = anchors,
    .anchor_count = 3,
};

static const rendition dense = {
    .denoise_s = 20.0,
    .linear_s = 3.0,
    .cost = { .dense = 640, .density_requested = 1.0, .attention_s = 16.5 },
};

static report make_report(int compare)
{
    return (report){ .method = "mc-sparse",
                     .tail = "off",
                     .backend = "cpu",
                     .isa = "avx2",
                     .threads = 2,
                     .steps = 40,
                     .tokens = 4096,
                     .heads = 3,
                     .head_dim = 128,
                     .layers = 8,
                     .made = &made,
                     .dense = compare ? &dense : NULL,
                     .fidelity = { 31.25, 0.97, 0.05 } };
}

/* "a,b,c" of an object's keys */
static void check_keys(const cJSON *object, const char *expected)
{
    char keys[400] = "";
    assert_true(cJSON_IsObject(object));
    for (const cJSON *item = object->child; item; item = item->next) {
        assert_true(strlen(keys) + strlen(item->string) + 2 < sizeof keys);
        strcat(keys, item->string);
        if (item->next) strcat(keys, ",");
    }
    assert_string_equal(keys, expected);
}

static double number(const cJSON *root, const char *object, const char *key)
{
    const cJSON *from = object ? cJSON_GetObjectItemCaseSensitive(root, object) : root;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsNumber(item)) fail_msg("%s is not a number", key);
    return item->valuedouble;
}

static cJSON *parse(const report *r)
{
    char *text = report_json(r);
    assert_non_null(text);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    free(text);
    return root;
}

#define ALWAYS                                                                         \
    "method,tail,backend,isa,threads,steps,tokens,heads,head_dim,layers,density_requested,density_nominal," \
    "density_executed,density_tail,density_run,anchors,calls,time_s,cache_bytes"

static void keys_are_those_that_were_promised(void **state)
{
    (void)state;
    report alone = make_report(0), compared = make_report(1);
    cJSON *root = parse(&alone);
    check_keys(root, ALWAYS);
    cJSON_Delete(root);
    root = parse(&compared);
    check_keys(root, ALWAYS ",fidelity,speedup");
    check_keys(cJSON_GetObjectItem(root, "calls"), "dense,anchor,reuse,fallback");
    check_keys(cJSON_GetObjectItem(root, "time_s"), "denoise,attention,dense,grouping,selection,sparse,linear,other");
    check_keys(cJSON_GetObjectItem(root, "cache_bytes"), "selection,residual,held");
    check_keys(cJSON_GetObjectItem(root, "fidelity"), "psnr_db,ssim,rel_l2");
    check_keys(cJSON_GetObjectItem(root, "speedup"), "denoise,attention");
    cJSON_Delete(root);
}

static void values_are_those_of_the_run(void **state)
{
    (void)state;
    report compared = make_report(1);
    cJSON *root = parse(&compared);
    assert_string_equal(cJSON_GetObjectItem(root, "method")->valuestring, "mc-sparse");
    assert_string_equal(cJSON_GetObjectItem(root, "tail")->valuestring, "off");
    assert_string_equal(cJSON_GetObjectItem(root, "isa")->valuestring, "avx2");
    assert_true(number(root, NULL, "tokens") == 4096);
    assert_true(number(root, NULL, "density_requested") == 0.1); /* not 0.100000001490116 */
    assert_true(number(root, NULL, "density_nominal") == 0.109375);
    assert_true(number(root, NULL, "density_executed") == 0.117188);
    assert_true(number(root, NULL, "density_tail") == 0.0);
    assert_true(number(root, "calls", "reuse") == 528);
    assert_true(number(root, "calls", "fallback") == 2);
    assert_true(number(root, "time_s", "other") == 1.5); /* 10 - 5.5 - 3 */
    assert_true(number(root, "time_s", "selection") == 0.5);
    assert_true(number(root, "time_s", "sparse") == 1.5);
    assert_true(number(root, "cache_bytes", "residual") == 50331648);
    assert_true(number(root, "cache_bytes", "held") == 51904512);
    assert_true(number(root, "speedup", "denoise") == 2.0);
    assert_true(number(root, "speedup", "attention") == 3.0);
    assert_true(number(root, "fidelity", "psnr_db") == 31.25);
    const cJSON *list = cJSON_GetObjectItem(root, "anchors");
    assert_int_equal(cJSON_GetArraySize(list), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(cJSON_GetArrayItem(list, i)->valueint, anchors[i]);
    cJSON_Delete(root);
}

static void infinite_psnr_is_null_and_no_anchors_an_empty_list(void **state)
{
    (void)state;
    report same = make_report(1);
    same.made = &dense;
    same.fidelity = (quality){ INFINITY, 1.0, 0.0 };
    cJSON *root = parse(&same);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "fidelity"), "psnr_db")));
    assert_true(cJSON_IsArray(cJSON_GetObjectItem(root, "anchors")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "anchors")), 0);
    cJSON_Delete(root);
}

static void the_file_is_the_text_and_a_line_end(void **state)
{
    (void)state;
    report r = make_report(1);
    mcsa_error error;
    char bytes[4000], *text = report_json(&r);
    assert_non_null(text);
    assert_int_equal(report_write(&r, "r.json", &error), MCSA_OK);
    FILE *stream = fopen("r.json", "r");
    assert_non_null(stream);
    size_t count = fread(bytes, 1, sizeof bytes, stream);
    fclose(stream);
    assert_int_equal(count, strlen(text) + 1);
    assert_memory_equal(bytes, text, count - 1);
    assert_int_equal(bytes[count - 1], '\n');
    free(text);
    assert_int_equal(report_write(&r, "nowhere/r.json", &error), MCSA_EIO);
}

static void table(const report *r, const char *const *parts)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    report_table(r, stream);
    fclose(stream);
    for (; *parts; parts++)
        if (!strstr(text, *parts)) fail_msg("the table lacks \"%s\":\n%s", *parts, text);
    free(text);
}

static void the_table_says_the_same(void **state)
{
    (void)state;
    report r = make_report(1);
    table(
        &r,
        (const char *const[]){
            "4096 tokens, 8 layers, 3 heads of 128, 40 steps; cpu, avx2, 2 threads\n",
            "denoise                20.00 s      10.00 s       2.00 x\n",
            "  attention            16.50 s       5.50 s       3.00 x\n", "PSNR                   31.25 dB",
            "SSIM                  0.9700\n",
            "density                0.100 asked; sparse calls 0.109 kept, 0.117 executed; 0.430 over the whole run\n",
            "cache               49.5 MiB held between steps: 1.5 MiB selection, 48.0 MiB residual\n",
            "attention is            3.25 s dense, 0.25 s grouping, 0.50 s selection, 1.50 s sparse\n",
            "calls                     64 dense, 48 anchor, 528 sparse, 2 fallback\n",
            "anchors at steps      3, 5, 8\n", NULL });
    r.fidelity.psnr_db = INFINITY;
    table(&r, (const char *const[]){ "PSNR                     inf (identical)\n", NULL });
    r.tail = "means";
    table(&r, (const char *const[]){ "sparse calls 0.109 kept, means included, 0.117 executed", NULL });
    r = make_report(0);
    table(&r, (const char *const[]){ "denoise                10.00 s\n", NULL });
}

/* A method that does not tell selection and residual apart, with a tail and no anchor. */
static void the_table_of_another_method_says_what_it_knows(void **state)
{
    (void)state;
    const rendition pooled = {
        .denoise_s = 10.0,
        .cost = { .dense = 64,
                  .reuse = 576,
                  .density_requested = 0.25,
                  .density_nominal = 0.25,
                  .density_executed = 0.251,
                  .density_tail = 0.012,
                  .density_run = 0.31,
                  .attention_s = 5.5,
                  .held_bytes = 3 << 20 },
    };
    report r = make_report(1);
    r.method = "pisa";
    r.tail = NULL;
    cJSON *root = parse(&r);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(root, "tail")));
    cJSON_Delete(root);
    r.made = &pooled;
    table(&r, (const char *const[]){ "density                0.250 asked; sparse calls 0.250 kept, 0.251 executed "
                                     "and 0.012 of a pooled tail; 0.310 over the whole run\n",
                                     "cache                3.0 MiB held between steps\n",
                                     "anchors at steps      none\n", NULL });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_those_that_were_promised),
        cmocka_unit_test(values_are_those_of_the_run),
        cmocka_unit_test(infinite_psnr_is_null_and_no_anchors_an_empty_list),
        cmocka_unit_test(the_file_is_the_text_and_a_line_end),
        cmocka_unit_test(the_table_says_the_same),
        cmocka_unit_test(the_table_of_another_method_says_what_it_knows),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
