/* test_bench_methods.c - the table of methods: every row right at a small size, its runs of 40 steps added up once
 * more, and a gate that refuses what is nearly right. */
#include "contender.h"
#include "scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Dense attention, seven rows of MC-Sparse, and the others. */
static int rows_of_all(void)
{
    int rows = 8;
    for (const rival_method *const *m = rival_methods; *m; m++) rows++;
    return rows;
}

static bench_plan small_plan(mcsa_dtype dtype, const char *methods)
{
    return (bench_plan){ .shape = { 3, 1200, 64, 128, 1, dtype, MCSA_ISA_AUTO },
                         .densities = { 0.25f },
                         .density_count = 1,
                         .repeats = 1,
                         .methods = methods };
}

static bench_table *run_table(const bench_plan *plan)
{
    bench_table *table = calloc(1, sizeof *table);
    mcsa_error error = { "" };
    assert_non_null(table);
    table->title = "small";
    if (bench_methods(plan, table, &error) != MCSA_OK) fail_msg("%s", error.text);
    return table;
}

static void every_row_is_right(void **state)
{
    static const mcsa_dtype dtypes[] = { MCSA_F32, MCSA_BF16, MCSA_F16 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        const bench_plan plan = small_plan(dtypes[i], NULL);
        bench_table *table = run_table(&plan);
        assert_int_equal(table->count, rows_of_all());
        for (int c = 0; c < table->count; c++) {
            if (table->cases[c].wrong) fail_msg("%s is wrong", table->cases[c].label);
            if (table->cases[c].missing[0]) fail_msg("%s: %s", table->cases[c].label, table->cases[c].missing);
            assert_true(table->cases[c].median_s > 0);
        }
        free(table);
    }
}

static double number(const cJSON *row, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(row, key);
    if (!cJSON_IsNumber(item)) fail_msg("%s has no %s", cJSON_GetStringValue(cJSON_GetObjectItem(row, "case")), key);
    return item->valuedouble;
}

/* Steps of a run of 40: dense ones, anchors (dense too) and the rest. */
static void expect_run(const cJSON *row, int dense, int anchors, int watched)
{
    const double one = number(row, "dense_ms"), sparse = number(row, "choose_ms") + number(row, "attend_ms");
    const double total = (dense + anchors) * one + anchors * number(row, "anchor_ms") +
                         watched * number(row, "dense_step_choose_ms") + (40 - dense - anchors) * sparse;
    assert_true(fabs(number(row, "run_40_share") / (total / (40 * one)) - 1) < 1e-9);
    assert_true(fabs(number(row, "times_s") / (one / sparse * number(row, "density_executed")) - 1) < 1e-9);
    assert_true(number(row, "bound_used") <= 1 && number(row, "bound_used") > 0);
}

/* paper: dense to 7, the last of them an anchor, and another at 18.  ramp: dense to 3, anchors at 3, 5, 8, 12, 17, 23
 * and 30.  The bsa makes nothing of anchors; k-means of svg2 starts at the first. */
static void a_run_is_the_sum_of_its_steps(void **state)
{
    (void)state;
    static const struct {
        const char *label;
        int dense, anchors;
    } expected[] = {
        { "0.25 mc-sparse paper", 7, 2 },
        { "0.25 mc-sparse shared paper", 7, 2 },
        { "0.25 mc-sparse shared ramp", 3, 7 },
        { "0.25 mc-sparse+tail shared paper", 7, 2 },
        { "0.25 mc-sparse+tail shared ramp", 3, 7 },
        { "0.25 mc-sparse+tail shared 6,14,25", 6, 3 },
        { "0.25 mc-sparse+tail shared 3,10,20", 3, 3 },
        { "0.25 bsa", 8, 0 },
        { "0.25 svg2", 7, 1 },
        { "0.25 chipmunk", 7, 2 },
    };
    const bench_plan plan = small_plan(MCSA_BF16, "mc-sparse,chipmunk,bsa,svg2");
    bench_table *table = run_table(&plan);
    cJSON *root = bench_json(table);
    const cJSON *rows = cJSON_GetObjectItem(root, "rows"), *row;
    assert_int_equal(cJSON_GetArraySize(rows), 1 + 10);
    cJSON_ArrayForEach(row, rows)
    {
        const char *label = cJSON_GetStringValue(cJSON_GetObjectItem(row, "case"));
        if (row == cJSON_GetArrayItem(rows, 0)) continue; /* dense attention */
        size_t e = 0;
        while (e < sizeof expected / sizeof *expected && strcmp(expected[e].label, label) != 0) e++;
        if (e == sizeof expected / sizeof *expected) fail_msg("\"%s\" was not asked for", label);
        expect_run(row, expected[e].dense, expected[e].anchors, expected[e].dense);
    }
    cJSON_Delete(root);
    free(table);
}

static void a_density_that_is_missed_is_said_and_not_timed(void **state)
{
    (void)state;
    bench_plan plan = small_plan(MCSA_F32, "bsa,bsa+token");
    plan.shape.tokens = 300; /* 5 blocks of keys */
    plan.densities[0] = 0.1f;
    bench_table *table = run_table(&plan);
    assert_non_null(strstr(table->cases[1].missing, "not 10.00 %"));
    assert_true(table->cases[1].median_s == 0 && !table->cases[1].wrong);
    free(table);
}

static void an_unknown_method_is_refused(void **state)
{
    (void)state;
    static const char *const lists[] = { "bsa,bs", "", "bsa,,pisa", "bsa+reuse,bsa " };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const bench_plan plan = small_plan(MCSA_F32, lists[i]);
        bench_table *table = calloc(1, sizeof *table);
        mcsa_error error = { "" };
        assert_non_null(table);
        assert_int_equal(bench_methods(&plan, table, &error), MCSA_EINVAL);
        assert_non_null(strstr(error.text, "no method"));
        free(table);
    }
}

/* A method judged right, its sampled rows, and answers to look at them by. */
typedef struct judged {
    bench_plan plan;
    bench_arena arena;
    bench_contender c;
    float rows[BENCH_CLIP_ROWS * 64];
    bench_answer answers[BENCH_CLIP_ROWS];
} judged;

static judged *judge_with(const char *method, int branches, mcsa_tail tail)
{
    judged *j = calloc(1, sizeof *j);
    mcsa_error error = { "" };
    assert_non_null(j);
    j->plan = small_plan(MCSA_F32, NULL);
    j->c = (bench_contender){ .name = method, .branches = branches, .tail = tail };
    if (bench_arena_open(&j->arena, &j->plan, &error) != MCSA_OK ||
        bench_contender_open(&j->c, &j->arena, 0.25f, &error) != MCSA_OK ||
        bench_contender_judge(&j->c, &j->arena, 0.25f, &error) != MCSA_OK ||
        bench_clip_fetch(&j->arena.clip, j->rows, &error) != MCSA_OK)
        fail_msg("%s: %s", method, error.text);
    if (j->c.missing[0]) fail_msg("%s: %s", method, j->c.missing);
    assert_true(j->c.used <= 1);
    return j;
}

static judged *judge(const char *method, int branches)
{
    return judge_with(method, branches, MCSA_TAIL_OFF);
}

static void release(judged *j)
{
    bench_contender_close(&j->c);
    bench_arena_close(&j->arena);
    free(j);
}

/* Share of the bounds at the step of the gate, had this been the choice, without a residual. */
static double used_by(judged *j, const rival_choice *choice, int branch)
{
    mcsa_error error = { "" };
    if (bench_answers(j->answers, &j->arena.clip, (BENCH_GATE_STEP + branch) % BENCH_CLIP_STEPS, choice, &error) !=
        MCSA_OK)
        fail_msg("%s", error.text);
    return bench_answers_used(j->answers, j->rows, &j->arena.clip);
}

/* The part that the first sampled row, token 0 of head 0, is in. */
static int first_part(const rival_choice *choice)
{
    for (int q = 0; q < choice->queries.P; q++) {
        int count;
        const int32_t *rows = rival_part(&choice->queries, 0, q, &count);
        for (int i = 0; i < count; i++)
            if (rows[i] == 0) return q;
    }
    fail_msg("no part holds token 0");
    return -1;
}

/* Exchanges a kept part of that row and one that is not. */
static void exchange_parts(const rival_choice *choice)
{
    int q = first_part(choice), kept = 0, dropped = 0;
    uint64_t *bits = rival_map_row(&choice->map, 0, q);
    while (!rival_map_has(&choice->map, 0, q, kept)) kept++;
    while (rival_map_has(&choice->map, 0, q, dropped)) dropped++;
    bits[kept / 64] ^= UINT64_C(1) << (kept % 64);
    bits[dropped / 64] ^= UINT64_C(1) << (dropped % 64);
}

static void another_choice_is_refused(void **state)
{
    (void)state;
    static const char *const methods[] = { "bsa", "bsa+token", "svg2", "pisa" };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        judged *j = judge(methods[i], 1);
        const rival_choice *choice = rival_run_choice(j->c.rival);
        assert_true(used_by(j, choice, 0) <= 1);
        assert_true(used_by(j, NULL, 0) > 1); /* dense attention */
        exchange_parts(choice);
        assert_true(used_by(j, choice, 0) > 1);
        memset(rival_map_row(&choice->map, 0, first_part(choice)), 0, sizeof(uint64_t) * (size_t)choice->map.words);
        assert_false(used_by(j, choice, 0) <= 1); /* nothing kept: no answer is right */
        release(j);
    }
}

static void a_tail_of_another_weight_value_or_slope_is_refused(void **state)
{
    (void)state;
    static const char *const methods[] = { "pisa", "sol", "svg-ear" };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        judged *j = judge(methods[i], 1);
        rival_choice choice = *rival_run_choice(j->c.rival);
        assert_true(used_by(j, &choice, 0) <= 1);
        int part = 0; /* one that the first sampled row leaves to the tail */
        while (rival_map_has(&choice.map, 0, first_part(&choice), part)) part++;
        float *numbers[] = { &choice.tail.weight[part], &choice.tail.value[part * 64],
                             choice.tail.slope ? choice.tail.slope : NULL };
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            if (!numbers[n]) continue;
            const float right = *numbers[n];
            *numbers[n] = right + 1 + fabsf(right);
            if (!(used_by(j, &choice, 0) > 1)) fail_msg("%s: another number %zu passes", methods[i], n);
            *numbers[n] = right;
        }
        choice.tail.key = NULL; /* no tail */
        assert_true(used_by(j, &choice, 0) > 1);
        release(j);
    }
}

/* What MC-Sparse chose for a branch at the step of the gate. */
static rival_choice choice_of(judged *j, int branch)
{
    mcsa_error error = { "" };
    rival_choice choice;
    if (bench_choice_of(&choice, j->c.ours, branch, &j->arena.clip, (BENCH_GATE_STEP + branch) % BENCH_CLIP_STEPS,
                        &error) != MCSA_OK)
        fail_msg("%s", error.text);
    return choice;
}

/* Rows of MC-Sparse with means and no residual at the step of the gate. */
static judged *judge_means_alone(void)
{
    judged *j = judge_with(bench_mc_sparse, 1, MCSA_TAIL_MEANS);
    mcsa_error error = { "" };
    const mcsa_config config = { .steps = j->arena.steps,
                                 .layers = 1,
                                 .density = 0.25f,
                                 .actions = j->arena.actions,
                                 .tail = MCSA_TAIL_MEANS,
                                 .residual = MCSA_RESIDUAL_OFF,
                                 .threads = 1 };
    mcsa_run_free(j->c.ours);
    assert_int_equal(mcsa_run_create(&j->c.ours, &config, error.text, sizeof error.text), MCSA_OK);
    for (int step = BENCH_FIRST_ANCHOR; step <= BENCH_GATE_STEP; step++) {
        const bench_moment *x = &j->arena.clip.there[step % BENCH_CLIP_STEPS];
        assert_int_equal(mcsa_attend(j->c.ours, (mcsa_site){ step, 0, 0 }, &x->q, &x->k, &x->v, &j->arena.clip.out),
                         MCSA_OK);
    }
    assert_int_equal(bench_clip_fetch(&j->arena.clip, j->rows, &error), MCSA_OK);
    return j;
}

static void other_means_are_refused(void **state)
{
    (void)state;
    judged *j = judge_means_alone();
    mcsa_error error = { "" };
    rival_choice choice = choice_of(j, 0), before;
    assert_true(choice.keys.P > 1 && used_by(j, &choice, 0) <= 1);
    int part = 0; /* one that the first sampled row does not keep */
    while (rival_map_has(&choice.map, 0, first_part(&choice), part) || !rival_part_size(&choice.keys, 0, part)) part++;
    float *numbers[] = { &choice.tail.weight[part], &choice.tail.value[part * 64], &choice.tail.key[part * 64] };
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
        const float right = *numbers[n];
        *numbers[n] = right + 1 + fabsf(right);
        if (!(used_by(j, &choice, 0) > 1)) fail_msg("another number %zu passes", n);
        *numbers[n] = right;
    }
    exchange_parts(&choice);
    assert_true(used_by(j, &choice, 0) > 1);
    memset(rival_map_row(&choice.map, 0, first_part(&choice)), 0, sizeof(uint64_t) * (size_t)choice.map.words);
    assert_true(used_by(j, &choice, 0) > 1); /* nothing kept: means alone */
    rival_choice_free(&choice);
    assert_int_equal(bench_choice_of(&before, j->c.ours, 0, &j->arena.clip, 0, &error), MCSA_OK);
    assert_true(used_by(j, &before, 0) > 1); /* of another step */
    rival_choice_free(&before);
    release(j);
}

static void rows_without_the_residual_are_refused(void **state)
{
    (void)state;
    static const char *const methods[] = { "wa-rs", "chipmunk" };
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        judged *j = judge(methods[i], 1);
        assert_true(used_by(j, rival_run_choice(j->c.rival), 0) > 1);
        release(j);
    }
    for (int tail = MCSA_TAIL_MEANS; tail <= MCSA_TAIL_OFF; tail++) {
        judged *j = judge_with(bench_mc_sparse, BENCH_BOTH, (mcsa_tail)tail);
        rival_choice choice = choice_of(j, 1);
        assert_true(used_by(j, &choice, 1) > 1);
        rival_choice_free(&choice);
        release(j);
    }
}

static void a_nan_or_a_row_of_zeros_is_refused(void **state)
{
    (void)state;
    judged *j = judge("bsa", 1);
    const rival_choice *choice = rival_run_choice(j->c.rival);
    const float kept = j->rows[5];
    j->rows[5] = NAN;
    assert_false(used_by(j, choice, 0) <= 1);
    j->rows[5] = kept;
    assert_true(used_by(j, choice, 0) <= 1);
    memset(j->rows + 64, 0, 64 * sizeof *j->rows);
    assert_true(used_by(j, choice, 0) > 1);
    release(j);
}

/* Later steps are near the one before, in all heads, and what the kernels read is what the host holds. */
static void steps_of_a_clip_drift(void **state)
{
    (void)state;
    const bench_plan plan = small_plan(MCSA_F32, NULL);
    bench_clip steps;
    mcsa_error error = { "" };
    if (bench_clip_open(&steps, &plan, &error) != MCSA_OK) fail_msg("%s", error.text);
    for (int step = 0; step < BENCH_CLIP_STEPS; step++) {
        double apart = 0, size = 0;
        for (int h = 0; h < 3; h++)
            for (int n = 0; n < 1200; n++)
                for (int d = 0; d < 64; d++) {
                    const double there = bench_element(&steps.there[step].k, h, n, d);
                    assert_true(there == bench_element(&steps.host[step].k, h % BENCH_CLIP_HEADS, n, d));
                    const double before = bench_element(&steps.there[step ? step - 1 : 0].k, h, n, d);
                    apart += (there - before) * (there - before);
                    size += there * there;
                }
        /* (1 - sqrt(0.99))^2 + 0.01 = 0.010025 of the variance, by 2 x 76,800 numbers */
        if (step) assert_true(fabs(apart / size - 0.010025) < 0.0005);
    }
    bench_clip_close(&steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_right),
        cmocka_unit_test(a_run_is_the_sum_of_its_steps),
        cmocka_unit_test(a_density_that_is_missed_is_said_and_not_timed),
        cmocka_unit_test(an_unknown_method_is_refused),
        cmocka_unit_test(another_choice_is_refused),
        cmocka_unit_test(a_tail_of_another_weight_value_or_slope_is_refused),
        cmocka_unit_test(other_means_are_refused),
        cmocka_unit_test(rows_without_the_residual_are_refused),
        cmocka_unit_test(a_nan_or_a_row_of_zeros_is_refused),
        cmocka_unit_test(steps_of_a_clip_drift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
