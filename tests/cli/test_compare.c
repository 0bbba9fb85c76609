/* test_compare.c - plans that are refused in words, measurements that survive a file, and the command itself
 * on a small random model: what it makes, what it does not make again, and what an interrupt leaves.
 *
 * Nothing is skipped where the trained model is not: small_model.h. */
#include "command.h"
#include "comparison_table.h"
#include "fingerprint.h"
#include "small_model.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const LADDER = MCSA_GOLDEN_DIR "/../../bench/ladder.txt";
static const char *const CAPTIONS = MCSA_GOLDEN_DIR "/../../bench/captions.txt";

static void the_shipped_lists_are_plans(void **state)
{
    (void)state;
    plan p = { .seeds = { 1, { 0 } } };
    mcsa_error error = { "" };
    must(plan_add_dense(&p, &error), &error);
    must(plan_read_runs(&p, LADDER, 40, &error), &error);
    must(plan_read_captions(&p, CAPTIONS, &error), &error);
    assert_int_equal(p.runs, 12);
    assert_int_equal(p.captions.count, 6);
    assert_int_equal(plan_clips(&p), 72);
    assert_string_equal(p.captions.line[0].text,
                        "a red star orbits over a blue checker background, camera pans left");
    assert_string_equal(p.run[2].name, "paper s=0.25 apart");
    assert_string_equal(p.run[2].settings,
                        "density=0.25 schedule=paper group=128 residual=bf16 branches=apart dense-layers=0");
    assert_string_equal(p.run[11].name, "every:8,4 s=0.10 shared");
    assert_string_equal(p.run[11].settings, "density=0.1 schedule=every:8,4 group=128 tail=means residual=bf16 "
                                            "branches=shared dense-layers=0");
    assert_string_equal(p.run[11].attention.schedule, "every:8,4");
    plan_free(&p);
}

static void refuse_run(const char *text, const char *sentence)
{
    plan p = { 0 };
    mcsa_error error = { "" };
    must(plan_add_dense(&p, &error), &error);
    must(plan_add_run(&p, "a: density=0.2", "--run", 40, &error), &error);
    assert_int_equal(plan_add_run(&p, text, "f:3", 40, &error), MCSA_EINVAL);
    assert_string_equal(error.text, sentence);
    assert_int_equal(p.runs, 2);
    plan_free(&p);
}

static void runs_that_are_none_are_refused_with_their_place(void **state)
{
    (void)state;
    refuse_run("b density=0.1", "f:3: 'b density=0.1' is not of the form NAME: key=value ...");
    refuse_run(" : density=0.1", "f:3: a name must stand before the colon");
    refuse_run("b: density", "f:3: 'density' is not of the form key=value");
    refuse_run("b: density=2", "f:3: --density takes a number above 0 and at most 1, not '2'");
    refuse_run("b: densty=0.1", "f:3: unknown option --densty; did you mean --density?");
    refuse_run("b: tail=mean", "f:3: --tail takes means or off, not 'mean'");
    refuse_run("b: residual=int2", "f:3: --residual takes bf16, int8, int4 or off, not 'int2'");
    refuse_run("b: dense-layers=1,7",
               "f:3: --dense-layers: layers are N, the first N, or list:A,B,C, ascending, not '1,7'");
    refuse_run("a: density=0.3", "f:3: there is another run named 'a'");
    refuse_run("dense: density=0.3", "f:3: there is another run named 'dense'");
    refuse_run("b: group=128 density=0.20", "f:3: run 'a' has the same settings");

    plan p = { 0 };
    mcsa_error error = { "" };
    assert_int_equal(plan_add_run(&p, "b: schedule=list:50", "f:3", 40, &error), MCSA_EINVAL);
    assert_non_null(strstr(error.text, "f:3: "));
    write_text("runs.txt", "# none\n\na: density=0.1 # said\n  b: group=0\n");
    assert_int_equal(plan_read_runs(&p, "runs.txt", 40, &error), MCSA_EINVAL);
    assert_string_equal(error.text, "runs.txt:4: --group takes a whole number from 1 to 4096, not '0'");
    assert_int_equal(p.runs, 1);
    write_text("none.txt", "# only this\n");
    assert_int_equal(plan_read_runs(&p, "none.txt", 40, &error), MCSA_EINVAL);
    assert_int_equal(plan_read_captions(&p, "none.txt", &error), MCSA_EINVAL);
    assert_int_equal(plan_read_captions(&p, "absent.txt", &error), MCSA_EIO);
    plan_free(&p);
}

/* A plan of 3 captions, 1 seed, dense and one run. */
static void make_plan(plan *p)
{
    mcsa_error error = { "" };
    *p = (plan){ .seeds = { 1, { UINT64_MAX } } };
    write_text("captions.txt", "one\ntwo\nthree\n");
    must(plan_read_captions(p, "captions.txt", &error), &error);
    must(plan_add_dense(p, &error), &error);
    must(plan_add_run(p, "r: density=0.2", "--run", 40, &error), &error);
}

static cJSON *settings_of(int steps)
{
    cJSON *settings = cJSON_CreateObject();
    cJSON_AddNumberToObject(settings, "steps", steps);
    return settings;
}

static void numbers_survive_the_file_and_are_summed_up(void **state)
{
    (void)state;
    plan p;
    comparison c;
    mcsa_error error = { "" };
    make_plan(&p);
    must(comparison_open(&c, settings_of(40), "c.json", &error), &error);
    const double psnr[] = { 30.0, 33.0, 42.0 }, seconds[] = { 2.0, 1.0, 9.0 };
    for (int i = 0; i < 3; i++) {
        clip_numbers numbers = {
            .psnr_db = psnr[i], .denoise_s = seconds[i], .denoise_speedup = 1.5, .ssim = 0.5
        };
        must(comparison_put(&c, &p, (clip_place){ i, 0, 1 }, &numbers, &error), &error);
    }
    clip_numbers same = { .psnr_db = INFINITY, .denoise_s = 3.0 };
    must(comparison_put(&c, &p, (clip_place){ 0, 0, 0 }, &same, &error), &error);
    must(comparison_write(&c, &p, "c.json", &error), &error);
    comparison_close(&c);

    must(comparison_open(&c, settings_of(40), "c.json", &error), &error);
    clip_numbers found;
    assert_true(comparison_find(&c, &p, (clip_place){ 0, 0, 0 }, &found));
    assert_true(isinf(found.psnr_db));
    assert_false(comparison_find(&c, &p, (clip_place){ 1, 0, 0 }, NULL));

    run_summary summary;
    must(comparison_summary(&c, &p, 1, &summary, &error), &error);
    assert_int_equal(summary.clips, 3);
    assert_true(summary.typical.psnr_db == 35.0);  /* the mean */
    assert_true(summary.typical.denoise_s == 2.0); /* the median: one slow clip says nothing of the others */
    assert_true(summary.psnr_low == 30.0 && summary.psnr_high == 42.0);
    assert_true(summary.typical.ssim == 0.5);

    /* Measured again: replaced, not added. */
    clip_numbers again = { .psnr_db = 36.0 };
    must(comparison_put(&c, &p, (clip_place){ 1, 0, 1 }, &again, &error), &error);
    must(comparison_summary(&c, &p, 1, &summary, &error), &error);
    assert_int_equal(summary.clips, 3);
    assert_true(summary.typical.psnr_db == 36.0);
    comparison_close(&c);
    plan_free(&p);
}

static void refuse_report(const char *text, mcsa_status status, const char *sentence)
{
    comparison c;
    mcsa_error error = { "" };
    write_text("c.json", text);
    assert_int_equal(comparison_open(&c, settings_of(40), "c.json", &error), status);
    assert_non_null(strstr(error.text, sentence));
    assert_null(c.clips);
}

static void other_reports_are_refused(void **state)
{
    (void)state;
    refuse_report("{\"settings\": {\"steps\": 20}, \"clips\": []}", MCSA_EINVAL,
                  "c.json was made with \"steps\": 20, not 40");
    refuse_report("{\"clips\": []}", MCSA_EINVAL, "c.json was made with \"steps\": unsaid, not 40");
    refuse_report("{\"settings\": {\"steps\": 40}}", MCSA_EFORMAT, "c.json has no array \"clips\"");
    refuse_report("{\"settings\": {\"steps\": 40}, \"clips\": [{\"density_requested\": 1}]}", MCSA_EFORMAT,
                  "clip 0 has no number \"density_executed\"");
    refuse_report("no json", MCSA_EFORMAT, "c.json");
    unlink("c.json");
}

#define COMPARE(...) cmd_compare(ARGUMENTS(SMALL, "--prompts", "two.txt", __VA_ARGS__))
#define HALF "half: density=0.5 group=8 schedule=list:1 tail=off"
#define EIGHTH "eighth: density=0.125 group=8 schedule=list:1 tail=off"

static void an_interrupted_comparison_keeps_whole_clips(void **state)
{
    (void)state;
    small_model_make();
    write_text("two.txt", "a red star\na blue star\n");
    pid_t child = fork(); /* before any thread was started here */
    assert_true(child >= 0);
    if (child == 0)
        _exit(COMPARE("--steps", "400", "--run", HALF, "--report", "cut.json", "--seeds",
                      "0,1,2,3,4,5,6,7,8,9"));
    int status;
    while (access("cut.json", F_OK) != 0) {
        assert_int_equal(waitpid(child, &status, WNOHANG), 0); /* it has not ended */
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    kill(child, SIGTERM);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_FAILED);
    cJSON *root = read_json("cut.json");
    int clips = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, "clips"));
    assert_in_range(clips, 1, 59);
    cJSON_Delete(root);
}

static void a_second_call_makes_only_what_is_new(void **state)
{
    (void)state;
    small_model_make();
    write_text("two.txt", "a red star\na blue star # and a comment\n");
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--seeds", "0,7", "--report", "r.json",
                             "--markdown", "r.md", "--sheet", "r.png"),
                     EXIT_DONE);
    cJSON *first = read_json("r.json");
    const cJSON *clips = cJSON_GetObjectItemCaseSensitive(first, "clips");
    const cJSON *runs = cJSON_GetObjectItemCaseSensitive(first, "runs");
    assert_int_equal(cJSON_GetArraySize(clips), 8);
    const cJSON *dense = cJSON_GetArrayItem(runs, 0), *half = cJSON_GetArrayItem(runs, 1);
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(dense, "psnr_db")));
    assert_true(number(dense, "denoise_speedup") == 1.0);
    assert_true(number(half, "clips") == 4.0);
    assert_true(isfinite(number(half, "psnr_db")));
    assert_true(number(half, "psnr_db_low") <= number(half, "psnr_db"));
    assert_true(number(half, "psnr_db") <= number(half, "psnr_db_high"));
    assert_true(number(half, "psnr_db_low") < number(half, "psnr_db_high")); /* clips do differ */
    /* 2 layers, 2 branches: step 0 dense, step 1 an anchor, steps 2 and 3 reuse it */
    assert_true(number(half, "dense") == 4.0 && number(half, "anchor") == 4.0 &&
                number(half, "reuse") == 8.0);
    assert_int_equal(access("r.md", F_OK) | access("r.png", F_OK), 0);

    /* The same again: no clip is made, so no clock reads otherwise. */
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--seeds", "0,7", "--report", "r.json"),
                     EXIT_DONE);
    cJSON *second = read_json("r.json");
    assert_true(cJSON_Compare(first, second, 1));

    /* One run more: those of before stay. */
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--run", EIGHTH, "--seeds", "0,7", "--report",
                             "r.json"),
                     EXIT_DONE);
    cJSON *third = read_json("r.json");
    runs = cJSON_GetObjectItemCaseSensitive(third, "runs");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(third, "clips")), 12);
    assert_true(cJSON_Compare(half, cJSON_GetArrayItem(runs, 1), 1));
    const cJSON *eighth = cJSON_GetArrayItem(runs, 2);
    assert_true(number(eighth, "density_executed") < number(half, "density_executed"));
    assert_true(number(eighth, "psnr_db") < number(half, "psnr_db"));

    assert_int_equal(COMPARE("--steps", "5", "--run", HALF, "--report", "r.json"), EXIT_USAGE);
    cJSON *fourth = read_json("r.json");
    assert_true(cJSON_Compare(third, fourth, 1));
    cJSON_Delete(first);
    cJSON_Delete(second);
    cJSON_Delete(third);
    cJSON_Delete(fourth);
}

static const cJSON *run_of(const cJSON *report, int run)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(report, "runs"), run);
}

static int tells_recall(const cJSON *object)
{
    return cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(object, "recall"));
}

#define WHOLE "whole: density=1 group=8 schedule=list:1 tail=off"
#define MEANS "means: density=0.5 group=8 schedule=list:1 tail=means"
#define TOKENS "tokens: method=bsa+token density=0.5 schedule=list:1"
#define ALL_DENSE "no sparse call: schedule=list:3"

static void recall_is_what_sparse_calls_keep(void **state)
{
    (void)state;
    small_model_make();
    write_text("two.txt", "a red star\na blue star\n");
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--run", EIGHTH, "--run", WHOLE, "--run", MEANS, "--run",
                             TOKENS, "--run", ALL_DENSE, "--recall", "--report", "k.json", "--markdown", "k.md"),
                     EXIT_DONE);
    cJSON *report = read_json("k.json");
    assert_false(tells_recall(run_of(report, 0))); /* dense, and so is the last */
    assert_false(tells_recall(run_of(report, 6)));
    const double half = number(run_of(report, 1), "recall"), eighth = number(run_of(report, 2), "recall");
    assert_true(0 < eighth && eighth < half && half < 1);
    assert_true(number(run_of(report, 3), "recall") == 1);
    for (int run = 4; run < 6; run++) assert_in_range(1e6 * number(run_of(report, run), "recall"), 1, 999999);

    /* The mean over clips, which are the same as without looking. */
    const cJSON *clips = cJSON_GetObjectItemCaseSensitive(report, "clips");
    double sum = 0;
    for (const cJSON *made = clips->child; made; made = made->next)
        if (strcmp(cJSON_GetObjectItemCaseSensitive(made, "run")->valuestring, "half") == 0)
            sum += number(made, "recall");
    assert_true(fabs(sum / 2 - half) < 1e-6);
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--report", "p.json"), EXIT_DONE);
    cJSON *plain = read_json("p.json");
    assert_false(tells_recall(run_of(plain, 1)));
    assert_true(number(run_of(plain, 1), "psnr_db") == number(run_of(report, 1), "psnr_db"));
    cJSON_Delete(plain);

    /* Nothing lacks it: no clip is made, so no clock reads otherwise. */
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--run", EIGHTH, "--run", WHOLE, "--run", MEANS, "--run",
                             TOKENS, "--run", ALL_DENSE, "--recall", "--report", "k.json"),
                     EXIT_DONE);
    cJSON *again = read_json("k.json");
    assert_true(cJSON_Compare(report, again, 1));
    cJSON_Delete(report);
    cJSON_Delete(again);
}

/* As a report of before there was recall. */
static void forget_recall(const char *path)
{
    cJSON *report = read_json(path);
    for (cJSON *made = cJSON_GetObjectItemCaseSensitive(report, "clips")->child; made; made = made->next)
        cJSON_DeleteItemFromObjectCaseSensitive(made, "recall");
    char *text = cJSON_Print(report);
    write_text(path, text);
    cJSON_free(text);
    cJSON_Delete(report);
}

static void reports_without_recall_go_on(void **state)
{
    (void)state;
    small_model_make();
    write_text("two.txt", "a red star\na blue star\n");
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--report", "o.json"), EXIT_DONE);
    cJSON *first = read_json("o.json");
    forget_recall("o.json");
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--report", "o.json"), EXIT_DONE);
    cJSON *second = read_json("o.json");
    assert_true(cJSON_Compare(run_of(first, 1), run_of(second, 1), 1)); /* no clip was made */
    assert_false(tells_recall(run_of(second, 1)));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(second, "clips")), 4);

    /* Asked for, it takes making the clips again; made once more for a sheet they keep it. */
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--recall", "--report", "o.json"), EXIT_DONE);
    cJSON *third = read_json("o.json");
    const double recall = number(run_of(third, 1), "recall");
    assert_true(0 < recall && recall < 1);
    assert_true(number(run_of(third, 1), "psnr_db") == number(run_of(first, 1), "psnr_db"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(third, "clips")), 4);
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--sheet", "o.png", "--report", "o.json"), EXIT_DONE);
    cJSON *fourth = read_json("o.json");
    assert_true(number(run_of(fourth, 1), "recall") == recall);
    cJSON_Delete(first);
    cJSON_Delete(second);
    cJSON_Delete(third);
    cJSON_Delete(fourth);
}

static void a_clip_is_the_one_that_generate_makes(void **state)
{
    (void)state;
    small_model_make();
    write_text("two.txt", "a blue star\n");
    assert_int_equal(COMPARE("--steps", "4", "--run", HALF, "--seeds", "3", "--report", "c.json"), EXIT_DONE);
    assert_int_equal(cmd_generate(ARGUMENTS(SMALL, "--prompt", "a blue star", "--seed", "3", "--steps", "4",
                                            "--density", "0.5", "--group", "8", "--schedule", "list:1", "--tail", "off",
                                            "--compare", "--out", "g.safetensors", "--report", "g.json")),
                     EXIT_DONE);
    cJSON *compared = read_json("c.json"), *generated = read_json("g.json");
    const cJSON *run = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(compared, "runs"), 1);
    const cJSON *fidelity = cJSON_GetObjectItemCaseSensitive(generated, "fidelity");
    static const char *const keys[] = { "psnr_db", "ssim", "rel_l2" };
    for (int i = 0; i < 3; i++) assert_true(number(run, keys[i]) == number(fidelity, keys[i]));
    assert_true(number(run, "density_run") == number(generated, "density_run"));
    cJSON_Delete(compared);
    cJSON_Delete(generated);
}

static void other_weights_have_another_fingerprint(void **state)
{
    (void)state;
    char before[17], after[17], back[17];
    mcsa_error error = { "" };
    small_model_make();
    must(fingerprint_model(before, "model", &error), &error);
    write_text("model/more.safetensors", "weights");
    must(fingerprint_model(after, "model", &error), &error);
    unlink("model/more.safetensors");
    must(fingerprint_model(back, "model", &error), &error);
    assert_string_not_equal(before, after);
    assert_string_equal(before, back);

    write_text("two.txt", "a red star\n");
    assert_int_equal(COMPARE("--steps", "2", "--run", HALF, "--report", "f.json"), EXIT_DONE);
    write_text("model/more.safetensors", "weights");
    assert_int_equal(COMPARE("--steps", "2", "--run", HALF, "--report", "f.json"), EXIT_USAGE);
    unlink("model/more.safetensors");
}

static void wrong_usage_is_said_before_anything_is_made(void **state)
{
    (void)state;
    small_model_make();
    write_text("two.txt", "a red star\n");
    write_text("words.txt", "# first\na red elephant\n");
    int before = scratch_files();
    assert_int_equal(cmd_compare(ARGUMENTS("--model", "model")), EXIT_USAGE);
    assert_int_equal(cmd_compare(ARGUMENTS("--prompts", "two.txt")), EXIT_USAGE);
    assert_int_equal(cmd_compare(ARGUMENTS(SMALL, "--prompts", "words.txt", "--report", "w.json")),
                     EXIT_USAGE);
    assert_int_equal(COMPARE("--seeds", "0,1,0", "--report", "w.json"), EXIT_USAGE);
    assert_int_equal(COMPARE("--seeds", "0,,1", "--report", "w.json"), EXIT_USAGE);
    assert_int_equal(COMPARE("--run", "half", "--report", "w.json"), EXIT_USAGE);
    assert_int_equal(COMPARE("--run", "far: dense-layers=list:0,2", "--report", "w.json"), EXIT_USAGE);
    assert_int_equal(COMPARE("--runs", "absent.txt", "--report", "w.json"), EXIT_FAILED);
    assert_int_equal(COMPARE("--report", "absent/w.json"), EXIT_FAILED);
    assert_int_equal(scratch_files(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_interrupted_comparison_keeps_whole_clips),
        cmocka_unit_test(the_shipped_lists_are_plans),
        cmocka_unit_test(runs_that_are_none_are_refused_with_their_place),
        cmocka_unit_test(numbers_survive_the_file_and_are_summed_up),
        cmocka_unit_test(other_reports_are_refused),
        cmocka_unit_test(a_second_call_makes_only_what_is_new),
        cmocka_unit_test(recall_is_what_sparse_calls_keep),
        cmocka_unit_test(reports_without_recall_go_on),
        cmocka_unit_test(a_clip_is_the_one_that_generate_makes),
        cmocka_unit_test(other_weights_have_another_fingerprint),
        cmocka_unit_test(wrong_usage_is_said_before_anything_is_made),
    };
    return cmocka_run_group_tests(tests, scratch_enter, small_model_leave);
}
