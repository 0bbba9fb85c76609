/* test_methods.c - other methods of attention in `mcsa generate` and `mcsa compare`: names, plans of many
 * runs, what is summed up about them, and clips of every one on a small random model. */
#include "command.h"
#include "comparison_table.h"
#include "rivals/method.h"
#include "small_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 40 };

/* A plan with dense attention and this grid. */
static mcsa_status grid_plan(plan *p, const char *methods, const char *densities, mcsa_error *error)
{
    *p = (plan){ .seeds = { 1, { 0 } } };
    must(plan_add_dense(p, error), error);
    return plan_add_grid(p, &(plan_grid){ methods, densities, "paper" }, STEPS, error);
}

static void a_grid_is_every_method_at_every_density(void **state)
{
    (void)state;
    plan p;
    mcsa_error error = { "" };
    must(grid_plan(&p, "bsa,bsa+residual,mc-sparse,mc-sparse+tail", "0.10,0.250", &error), &error);
    static const char *const expected[][2] = {
        { "dense", "" },
        { "bsa s=0.10", "method=bsa density=0.1 schedule=paper residual=off dense-layers=0" },
        { "bsa+residual s=0.10", "method=bsa density=0.1 schedule=paper residual=bf16 dense-layers=0" },
        { "mc-sparse s=0.10",
          "density=0.1 schedule=paper group=128 residual=bf16 branches=apart dense-layers=0" },
        { "mc-sparse+tail s=0.10",
          "density=0.1 schedule=paper group=128 tail=means residual=bf16 branches=apart dense-layers=0" },
        { "bsa s=0.250", "method=bsa density=0.25 schedule=paper residual=off dense-layers=0" },
        { "bsa+residual s=0.250", "method=bsa density=0.25 schedule=paper residual=bf16 dense-layers=0" },
        { "mc-sparse s=0.250",
          "density=0.25 schedule=paper group=128 residual=bf16 branches=apart dense-layers=0" },
        { "mc-sparse+tail s=0.250",
          "density=0.25 schedule=paper group=128 tail=means residual=bf16 branches=apart dense-layers=0" },
    };
    assert_int_equal(p.runs, sizeof expected / sizeof expected[0]);
    for (int i = 0; i < p.runs; i++) {
        assert_string_equal(p.run[i].name, expected[i][0]);
        assert_string_equal(p.run[i].settings, expected[i][1]);
    }
    plan_free(&p);
}

static void refuse_grid(const char *methods, const char *densities, const char *sentence)
{
    plan p;
    mcsa_error error = { "" };
    assert_int_equal(grid_plan(&p, methods, densities, &error), MCSA_EINVAL);
    if (!strstr(error.text, sentence)) fail_msg("\"%s\" lacks \"%s\"", error.text, sentence);
    assert_memory_equal(error.text, "--methods: ", 11);
    plan_free(&p);
}

static void a_grid_of_what_there_is_not_is_refused(void **state)
{
    (void)state;
    refuse_grid("bsa,elephant", "0.10", "there is no method 'elephant'; `mcsa generate --method list` says");
    refuse_grid("list", "0.10", "there is no method 'list'");
    refuse_grid("+residual", "0.10", "there is no method '+residual'");
    refuse_grid("bsa+tail", "0.10", "there is no method 'bsa+tail'");
    refuse_grid("mc-sparse+tail+residual", "0.10", "there is no method 'mc-sparse+tail'");
    refuse_grid("bsa,,mc-sparse", "0.10", "--method takes NAME, not an empty text");
    refuse_grid("dense", "0.10", "dense attention is the first run of every comparison already");
    refuse_grid("bsa", "0.10,1.5", "--density takes a number above 0 and at most 1, not '1.5'");
    refuse_grid("bsa", "0.10,0.10", "there is another run named 'bsa s=0.10'");
    refuse_grid("bsa", "0.10,0.1", "run 'bsa s=0.10' has the same settings");
}

static void a_residual_is_what_the_method_can_keep(void **state)
{
    (void)state;
    plan p = { 0 };
    mcsa_error error = { "" };
    assert_int_equal(plan_add_run(&p, "b: method=bsa residual=int8", "f:1", STEPS, &error), MCSA_EINVAL);
    assert_string_equal(error.text, "f:1: --residual takes bf16 or off with bsa, not int8");
    must(plan_add_run(&p, "b: method=bsa group=64", "f:1", STEPS, &error), &error);
    /* group and branches mean nothing to it, so this is the same run */
    assert_int_equal(plan_add_run(&p, "c: method=bsa branches=apart", "f:2", STEPS, &error), MCSA_EINVAL);
    assert_string_equal(error.text, "f:2: run 'b' has the same settings");
    for (const rival_method *const *m = rival_methods; *m; m++) {
        attention_settings set = {
            .method = (*m)->name, .schedule = "paper", .dense_layers = "0", .density = 0.1f
        };
        must(attention_settle(&set, STEPS, &error), &error);
        assert_int_equal(set.residual, (*m)->residual ? MCSA_RESIDUAL_BF16 : MCSA_RESIDUAL_OFF);
        set.residual = MCSA_RESIDUAL_OFF;
        assert_int_equal(attention_settle(&set, STEPS, &error), (*m)->residual ? MCSA_EINVAL : MCSA_OK);
    }
    plan_free(&p);
}

static void every_method_is_listed(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    attention_list_methods(stream);
    fclose(stream);
    int lines = 2;
    for (const rival_method *const *m = rival_methods; *m; m++, lines++) {
        char line[300];
        snprintf(line, sizeof line, "\n%-14s %s", (*m)->name, (*m)->summary);
        if (!strstr(text, line)) fail_msg("the list lacks \"%s\":\n%s", line, text);
    }
    for (const char *at = text; (at = strchr(at, '\n')); at++) lines--;
    assert_int_equal(lines, 0);
    assert_memory_equal(text, "mc-sparse ", 10);
    assert_non_null(strstr(text, "\ndense "));
    free(text);
}

/* Two captions, three seeds, dense and one method; nothing is measured yet. */
static void open_comparison(comparison *c, plan *p)
{
    mcsa_error error = { "" };
    *p = (plan){ .seeds = { 3, { 4, 5, 6 } } };
    write_text("captions.txt", "one\ntwo\n");
    must(plan_read_captions(p, "captions.txt", &error), &error);
    must(plan_add_dense(p, &error), &error);
    must(plan_add_run(p, "b: method=bsa density=0.25", "--run", STEPS, &error), &error);
    must(comparison_open(c, cJSON_CreateObject(), NULL, &error), &error);
}

static void put(comparison *c, const plan *p, int caption, int seed, double psnr, double executed)
{
    mcsa_error error = { "" };
    const clip_numbers numbers = { .psnr_db = psnr,
                                   .reuse = 9,
                                   .density_requested = 0.25,
                                   .density_nominal = 0.2,
                                   .density_executed = executed,
                                   .held_bytes = 3 << 20 };
    must(comparison_put(c, p, (clip_place){ caption, seed, 1 }, &numbers, &error), &error);
}

static run_summary summary_of(const comparison *c, const plan *p)
{
    mcsa_error error = { "" };
    run_summary summary;
    must(comparison_summary(c, p, 1, &summary, &error), &error);
    return summary;
}

static char *table_of(const comparison *c, const plan *p)
{
    mcsa_error error = { "" };
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    must(comparison_table(c, p, "caption", TABLE_MARKDOWN, stream, &error), &error);
    fclose(stream);
    return text;
}

static void the_spread_over_seeds_is_of_whole_seeds(void **state)
{
    (void)state;
    plan p;
    comparison c;
    open_comparison(&c, &p);
    put(&c, &p, 0, 0, 30, 0.25);
    put(&c, &p, 1, 0, 34, 0.25); /* mean 32 */
    assert_int_equal(summary_of(&c, &p).seeds, 1);
    assert_true(summary_of(&c, &p).seed_deviation == 0);
    put(&c, &p, 0, 1, 20, 0.25);
    put(&c, &p, 1, 1, 38, 0.25); /* mean 29 */
    put(&c, &p, 0, 2, 99, 0.25); /* its other caption is missing */
    const run_summary summary = summary_of(&c, &p);
    assert_int_equal(summary.clips, 5);
    assert_int_equal(summary.seeds, 2);
    assert_true(summary.seed_low == 29 && summary.seed_high == 32);
    assert_true(fabs(summary.seed_deviation - 3 / sqrt(2)) < 1e-12); /* (1.5^2 + 1.5^2) / 1 */
    char *text = table_of(&c, &p);
    assert_non_null(strstr(text, " | over seeds | "));
    assert_non_null(strstr(text, " | 20.0..99.0 | 29.0..32.0 ±2.12 | "));
    free(text);
    comparison_close(&c);
    plan_free(&p);
}

static void a_density_that_was_not_hit_is_marked(void **state)
{
    (void)state;
    plan p;
    comparison c;
    open_comparison(&c, &p);
    put(&c, &p, 0, 0, 30, 0.2549);
    assert_false(summary_of(&c, &p).density_missed);
    char *text = table_of(&c, &p);
    assert_non_null(strstr(text, "| b | 0.250 | 0.200 | 0.255 | 1.27 |"));
    assert_null(strstr(text, "over seeds |")); /* nothing to say in that column */
    free(text);
    for (int low = 0; low < 2; low++) {
        put(&c, &p, 0, 0, 30, low ? 0.2449 : 0.2551);
        assert_true(summary_of(&c, &p).density_missed);
        text = table_of(&c, &p);
        assert_non_null(strstr(text, low ? "| 0.245 ! |" : "| 0.255 ! |"));
        free(text);
    }
    put(&c, &p, 0, 0, 30, NAN);
    assert_true(summary_of(&c, &p).density_missed);
    comparison_close(&c);
    plan_free(&p);
}

/* Reports from before a method was a name and before there was a tail. */
static void a_report_without_later_numbers_is_gone_on_from(void **state)
{
    (void)state;
    plan p = { .seeds = { 1, { 0 } } };
    comparison c;
    clip_numbers found;
    mcsa_error error = { "" };
    write_text("captions.txt", "one\n");
    write_text("old.json",
               "{\"settings\": {}, \"clips\": [{\"caption\": \"one\", \"seed\": \"0\", \"run\": \"r\", "
               "\"method\": \"mcsa\", \"settings\": \"density=0.1 schedule=ramp group=128 residual=bf16 "
               "branches=shared dense-layers=0\", \"density_requested\": 0.1, \"density_executed\": 0.1, "
               "\"density_run\": 0.3, \"psnr_db\": 31.5, \"ssim\": 0.9, \"rel_l2\": 0.1, \"denoise_s\": 2, "
               "\"attention_s\": 1, \"linear_s\": 0.5, \"denoise_speedup\": 1.5, \"attention_speedup\": 2.5, "
               "\"dense\": 1, \"anchor\": 2, \"reuse\": 3, \"fallback\": 0, \"selection_bytes\": 1048576, "
               "\"residual_bytes\": 2097152}]}");
    must(plan_read_captions(&p, "captions.txt", &error), &error);
    must(plan_add_dense(&p, &error), &error);
    must(plan_add_run(&p, "r: tail=off", "--run", STEPS, &error), &error);
    must(comparison_open(&c, cJSON_CreateObject(), "old.json", &error), &error);
    assert_true(comparison_find(&c, &p, (clip_place){ 0, 0, 1 }, &found));
    assert_true(found.psnr_db == 31.5 && isinf(found.held_bytes) && isinf(found.density_nominal));
    char *text = table_of(&c, &p);
    assert_non_null(strstr(text, "| r | 0.100 | 0.100 | 0.300 | 31.50 |")); /* neither kept nor alignment */
    assert_non_null(strstr(text, "| 3.0 | 1/2/3/0 |"));
    free(text);
    comparison_close(&c);
    plan_free(&p);
}

#define CLIP                                                                                             \
    "--model", "model", "--quiet", "--frames", "4", "--height", "48", "--width", "48", "--threads", "1", \
        "--steps", "5"

/* 4 x 12 x 12 = 576 tokens, 5 steps of which the first two are dense; its report. */
static cJSON *generate(const char *method, const char *density, const char *precision)
{
    small_model_make();
    if (cmd_generate(ARGUMENTS(CLIP, "--prompt", "a red star", "--seed", "3", "--schedule", "list:1",
                               "--method", (char *)method, "--density", (char *)density, "--precision",
                               (char *)precision, "--compare", "--out", "g.safetensors", "--report",
                               "g.json")) != EXIT_DONE)
        fail_msg("%s at density %s failed", method, density);
    return read_json("g.json");
}

static const cJSON *part(const cJSON *root, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(root, key);
}

static void every_method_makes_a_clip_and_says_what_it_did(void **state)
{
    (void)state;
    for (const rival_method *const *m = rival_methods; *m; m++) {
        cJSON *root = generate((*m)->name, "0.5", "auto");
        const cJSON *calls = part(root, "calls");
        assert_string_equal(cJSON_GetStringValue(part(root, "method")), (*m)->name);
        /* 2 layers, 2 branches: steps 0 and 1 dense, 2 to 4 sparse */
        assert_true(number(calls, "dense") + number(calls, "anchor") == 8 && number(calls, "reuse") == 12);
        assert_true(number(root, "density_requested") == 0.5);
        assert_true(number(root, "density_nominal") > 0);
        assert_true(number(root, "density_executed") >= number(root, "density_nominal"));
        assert_true(number(root, "density_run") > 0.4); /* the two dense steps of five */
        assert_true(number(part(root, "fidelity"), "rel_l2") > 0);
        assert_true(number(part(root, "time_s"), "attention") >= number(part(root, "time_s"), "sparse"));
        cJSON_Delete(root);
    }
}

/* What remains is the order of sums in FP32, far below one of 255 levels: as tests/cli/e2e.sh says of
 * MC-Sparse. */
static void every_method_that_keeps_everything_is_dense(void **state)
{
    (void)state;
    for (const rival_method *const *m = rival_methods; *m; m++) {
        cJSON *root = generate((*m)->name, "1", "f32");
        const cJSON *psnr = part(part(root, "fidelity"), "psnr_db");
        if (!cJSON_IsNull(psnr) && !(cJSON_IsNumber(psnr) && psnr->valuedouble > 40))
            fail_msg("%s at density 1: %g dB", (*m)->name, psnr->valuedouble);
        cJSON_Delete(root);
    }
}

static void a_comparison_of_methods_makes_the_clips_of_generate(void **state)
{
    (void)state;
    small_model_make();
    write_text("one.txt", "a red star\n");
    assert_int_equal(cmd_compare(ARGUMENTS(CLIP, "--prompts", "one.txt", "--methods", "bsa,bsa+residual",
                                           "--density", "0.5", "--schedule", "list:1", "--seeds", "3",
                                           "--report", "m.json", "--markdown", "m.md")),
                     EXIT_DONE);
    cJSON *compared = read_json("m.json"), *generated = generate("bsa", "0.5", "auto");
    const cJSON *runs = part(compared, "runs"), *bsa = cJSON_GetArrayItem(runs, 1);
    static const char *const fidelity[] = { "psnr_db", "ssim", "rel_l2" };
    static const char *const cost[] = { "density_nominal", "density_executed", "density_tail",
                                        "density_run" };
    assert_int_equal(cJSON_GetArraySize(runs), 3);
    for (int i = 0; i < 3; i++)
        assert_true(number(bsa, fidelity[i]) == number(part(generated, "fidelity"), fidelity[i]));
    for (int i = 0; i < 4; i++) assert_true(number(bsa, cost[i]) == number(generated, cost[i]));
    assert_string_equal(cJSON_GetStringValue(part(bsa, "method")), "bsa");
    assert_true(number(bsa, "held_bytes") == 0);
    const cJSON *with_residual = cJSON_GetArrayItem(runs, 2);
    /* BF16 rows of 3 heads, 576 tokens, 32 columns, in 2 layers and 2 branches */
    assert_true(number(with_residual, "held_bytes") >= 2.0 * 3 * 576 * 32 * 4);
    assert_true(number(with_residual, "rel_l2") != number(bsa, "rel_l2"));
    assert_true(number(with_residual, "anchor") == 4);
    cJSON_Delete(compared);
    cJSON_Delete(generated);
}

static void a_method_that_there_is_not_is_wrong_usage(void **state)
{
    (void)state;
    small_model_make();
    assert_int_equal(cmd_generate(ARGUMENTS(CLIP, "--prompt", "a star", "--method", "mcsa")), EXIT_USAGE);
    assert_int_equal(cmd_generate(ARGUMENTS("--method", "list")), EXIT_DONE);
    write_text("one.txt", "a star\n");
    assert_int_equal(cmd_compare(ARGUMENTS(CLIP, "--prompts", "one.txt", "--methods", "elephant")),
                     EXIT_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grid_is_every_method_at_every_density),
        cmocka_unit_test(a_grid_of_what_there_is_not_is_refused),
        cmocka_unit_test(a_residual_is_what_the_method_can_keep),
        cmocka_unit_test(every_method_is_listed),
        cmocka_unit_test(the_spread_over_seeds_is_of_whole_seeds),
        cmocka_unit_test(a_density_that_was_not_hit_is_marked),
        cmocka_unit_test(a_report_without_later_numbers_is_gone_on_from),
        cmocka_unit_test(every_method_makes_a_clip_and_says_what_it_did),
        cmocka_unit_test(every_method_that_keeps_everything_is_dense),
        cmocka_unit_test(a_comparison_of_methods_makes_the_clips_of_generate),
        cmocka_unit_test(a_method_that_there_is_not_is_wrong_usage),
    };
    return cmocka_run_group_tests(tests, scratch_enter, small_model_leave);
}
