/* test_bench.c - the statistics of the benchmarks, and every row of their tables right at a small size. */
#include "bench.h"
#include "scratch.h"
#include "suites.h"

#include "dit/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void median_and_quartiles_are_interpolated(void **state)
{
    (void)state;
    bench_case one = { .label = "" };
    double odd[] = { 5, 1, 4, 2, 3 }, even[] = { 8, 2, 4, 6 }, single[] = { 7 };
    bench_summarise(&one, odd, 5); /* quartiles 2 and 4 */
    assert_true(one.median_s == 3 && one.spread == 2.0 / 3);
    bench_summarise(&one, even, 4); /* quartiles 3.5 and 6.5 */
    assert_true(one.median_s == 5 && one.spread == 3.0 / 5);
    bench_summarise(&one, single, 1);
    assert_true(one.median_s == 7 && one.spread == 0);
}

/* Rounds of a case that also measures a stage of itself. */
typedef struct counted {
    int runs;
    double stage;
} counted;

static void run_counted(void *context)
{
    counted *c = context;
    c->runs++;
    c->stage = c->runs;
}

static void a_stage_is_read_after_each_round_but_the_warm_up(void **state)
{
    (void)state;
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    counted c = { 0, 0 };
    assert_non_null(table);
    bench_case *one = bench_add(table, "whole");
    one->run = run_counted;
    one->context = &c;
    bench_add(table, "stage")->stage = &c.stage;
    assert_int_equal(bench_run(table, 5, &error), MCSA_OK);
    assert_int_equal(c.runs, 6);
    assert_true(table->cases[1].median_s == 4); /* of 2, 3, 4, 5, 6 */
    assert_true(table->cases[0].median_s > 0 && table->cases[0].median_s < 1);
    free(table);
}

static void a_case_can_measure_itself(void **state)
{
    (void)state;
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    counted c = { 0, 0 };
    assert_non_null(table);
    bench_case *one = bench_add(table, "self");
    one->run = run_counted;
    one->context = &c;
    one->stage = &c.stage;
    assert_int_equal(bench_run(table, 3, &error), MCSA_OK);
    assert_int_equal(c.runs, 4);
    assert_true(table->cases[0].median_s == 3); /* of 2, 3, 4 */
    free(table);
}

/* Two stages that a run leaves; round 0 is the warm-up. */
typedef struct staged_run {
    int round;
    double whole, part;
} staged_run;

static void run_stages(void *context)
{
    static const double whole[] = { 100, 10, 20, 25, 40, 30 }, part[] = { 0, 1, 18, 24, 39, 21 };
    staged_run *s = context;
    s->whole = whole[s->round];
    s->part = part[s->round++];
}

/* Of 9, 2, 1, 1, 9 the median is 2; the medians of the two stages are 25 and 21. */
static void a_difference_is_taken_round_by_round(void **state)
{
    (void)state;
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    staged_run s = { 0, 0, 0 };
    assert_non_null(table);
    bench_case *one = bench_add(table, "run");
    one->run = run_stages;
    one->context = &s;
    bench_add(table, "whole")->stage = &s.whole;
    bench_add(table, "part")->stage = &s.part;
    one = bench_add(table, "difference");
    one->whole = 1;
    one->part = 2;
    assert_int_equal(bench_run(table, 5, &error), MCSA_OK);
    assert_true(table->cases[1].median_s == 25 && table->cases[2].median_s == 21);
    assert_true(one->median_s == 2 && one->spread == 4); /* quartiles 1 and 9 */
    free(table);
}

static void a_wrong_case_is_never_run_nor_compared_with(void **state)
{
    (void)state;
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    counted wrong = { 0, 0 }, good = { 0, 0 };
    assert_non_null(table);
    table->title = "t";
    bench_case *one = bench_add(table, "wrong");
    one->run = run_counted;
    one->context = &wrong;
    one->wrong = 1;
    one = bench_add(table, "right");
    one->run = run_counted;
    one->context = &good;
    assert_int_equal(bench_run(table, 3, &error), MCSA_OK);
    assert_int_equal(wrong.runs, 0);
    assert_int_equal(good.runs, 4);
    assert_true(bench_speedup(table, &table->cases[1]) == 0);
    cJSON *root = bench_json(table);
    assert_non_null(root);
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "rows"), 0);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(row, "correct")));
    assert_null(cJSON_GetObjectItem(row, "median_ms"));
    cJSON_Delete(root);
    free(table);
}

static void a_missing_case_is_named_and_not_run(void **state)
{
    (void)state;
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    counted missing = { 0, 0 };
    assert_non_null(table);
    table->title = "t";
    bench_case *one = bench_add(table, "elsewhere");
    one->run = run_counted;
    one->context = &missing;
    snprintf(one->missing, sizeof one->missing, "not found");
    assert_int_equal(bench_run(table, 2, &error), MCSA_OK);
    assert_int_equal(missing.runs, 0);
    assert_true(bench_speedup(table, &table->cases[0]) == 0);
    cJSON *root = bench_json(table);
    assert_non_null(root);
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "rows"), 0);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(row, "missing")), "not found");
    assert_null(cJSON_GetObjectItem(row, "correct"));
    assert_null(cJSON_GetObjectItem(row, "median_ms"));
    cJSON_Delete(root);
    free(table);
}

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("%s is not a number", key);
    return item->valuedouble;
}

static void json_rows_are_compared_with_their_own_base(void **state)
{
    (void)state;
    bench_table *table = calloc(1, sizeof *table);
    assert_non_null(table);
    table->title = "t";
    table->peak = 4e9;
    for (int i = 0; i < 3; i++) {
        bench_case *one = bench_add(table, i ? "fast" : "slow");
        one->median_s = i == 1 ? 0.5 : 2;
        one->operations = 1e9;
        one->base = i == 2 ? 1 : 0;
    }
    bench_figure_add(table, 0.25, "figure of N = %d", 3);
    cJSON *root = bench_json(table);
    assert_non_null(root);
    const cJSON *rows = cJSON_GetObjectItem(root, "rows");
    assert_true(number(cJSON_GetArrayItem(rows, 1), "speedup") == 4);
    assert_true(number(cJSON_GetArrayItem(rows, 2), "speedup") == 0.25);
    assert_true(number(cJSON_GetArrayItem(rows, 2), "share") == 4);
    assert_true(number(cJSON_GetArrayItem(rows, 1), "gflops") == 2);
    assert_true(number(cJSON_GetArrayItem(rows, 1), "of_peak") == 0.5);
    assert_true(number(cJSON_GetObjectItem(root, "figures"), "figure of N = 3") == 0.25);
    cJSON_Delete(root);
    free(table);
}

typedef mcsa_status suite(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* A table at a small size; each of its rows must be right. */
static void check_suite(suite *run, const bench_plan *plan, int rows)
{
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    assert_non_null(table);
    table->title = "small";
    if (run(plan, table, &error) != MCSA_OK) fail_msg("%s", error.text);
    assert_int_equal(table->count, rows);
    for (int c = 0; c < table->count; c++)
        if (table->cases[c].wrong) fail_msg("%s is wrong", table->cases[c].label);
    cJSON *root = bench_json(table);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "rows")), rows);
    cJSON_Delete(root);
    free(table);
}

static const mcsa_dtype dtypes[] = { MCSA_F32, MCSA_BF16, MCSA_F16 };

static void every_attention_table_is_right(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        bench_plan plan = { .shape = { 2, 210, 40, 32, 1, dtypes[i], MCSA_ISA_AUTO },
                            .densities = { 0.2f, 1 },
                            .density_count = 2,
                            .repeats = 1 };
        check_suite(bench_attend, &plan, 7);
        check_suite(bench_select, &plan, 12);
        check_suite(bench_group, &plan, 15);
        check_suite(bench_reuse, &plan, 10);
        check_suite(bench_scaling, &plan, 6);
        plan.tail = MCSA_TAIL_MEANS;
        check_suite(bench_scaling, &plan, 6);
    }
}

static void every_linear_layer_is_right(void **state)
{
    (void)state;
    bench_plan plan = { .shape = { 3, 70, 40, 32, 1, MCSA_F32, MCSA_ISA_AUTO }, .ffn = 200, .repeats = 1 };
    check_suite(bench_gemm, &plan, dit_linear_has_bf16() ? 8 : 4);
}

static void every_step_of_a_model_is_right(void **state)
{
    static const char *const models[] = { MCSA_GOLDEN_DIR "/wan-f32", MCSA_GOLDEN_DIR "/wan-bf16" };
    (void)state;
    for (int i = 0; i < 4; i++) {
        bench_plan plan = { .shape = { .group = 16, .threads = 1 },
                            .densities = { 0.2f },
                            .density_count = 1,
                            .repeats = 1,
                            .model = models[i % 2],
                            .tail = i < 2 ? MCSA_TAIL_OFF : MCSA_TAIL_MEANS,
                            .frames = 4,
                            .height = 16,
                            .width = 16 };
        check_suite(bench_model, &plan, 15);
        check_suite(bench_scaling, &plan, 12);
    }
}

static void a_model_is_asked_for(void **state)
{
    (void)state;
    bench_plan plan = { .repeats = 1 };
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    assert_non_null(table);
    assert_int_equal(bench_model(&plan, table, &error), MCSA_EINVAL);
    assert_string_equal(error.text, "this table needs --model DIR");
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_and_quartiles_are_interpolated),
        cmocka_unit_test(a_stage_is_read_after_each_round_but_the_warm_up),
        cmocka_unit_test(a_case_can_measure_itself),
        cmocka_unit_test(a_difference_is_taken_round_by_round),
        cmocka_unit_test(a_wrong_case_is_never_run_nor_compared_with),
        cmocka_unit_test(a_missing_case_is_named_and_not_run),
        cmocka_unit_test(json_rows_are_compared_with_their_own_base),
        cmocka_unit_test(every_attention_table_is_right),
        cmocka_unit_test(every_linear_layer_is_right),
        cmocka_unit_test(every_step_of_a_model_is_right),
        cmocka_unit_test(a_model_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
