/* test_schedule.c - schedules as text: what each preset gives, what is sane at every step count, and how
 * bad text is refused.  R19 (by index), R20. */
#include "test.h"

/* actions as a string of D, A and r, and the anchors as "3,5,8". */
static void expand(const char *text, int steps, char *letters, char *anchors)
{
    char error[256] = "";
    mcsa_action *actions = test_alloc(sizeof *actions * (size_t)steps);
    if (mcsa_schedule_fill(text, steps, actions, error, sizeof error) != MCSA_OK) fail_msg("%s: %s", text, error);
    char *end = anchors;
    *end = 0;
    for (int t = 0; t < steps; t++) {
        letters[t] = "DAr"[actions[t]];
        if (actions[t] == MCSA_ANCHOR) end += sprintf(end, "%s%d", end == anchors ? "" : ",", t);
    }
    letters[steps] = 0;
    free(actions);
}

static void expect_anchors(const char *text, int steps, const char *expected)
{
    char letters[1024], anchors[4096];
    expand(text, steps, letters, anchors);
    if (strcmp(anchors, expected)) fail_msg("%s over %d steps has anchors %s, not %s", text, steps, anchors, expected);
}

static void expect_letters(const char *text, int steps, const char *expected)
{
    char letters[1024], anchors[4096];
    expand(text, steps, letters, anchors);
    assert_string_equal(letters, expected);
}

static void presets_give_what_the_header_says(void **state)
{
    (void)state;
    expect_anchors("ramp", 40, "3,5,8,12,17,23,30");
    expect_anchors("fast", 40, "3,10,20");
    expect_anchors("fast", 50, "4,12,25");
    expect_anchors("paper", 40, "7,18");
    expect_anchors("paper", 50, "9,23");
    expect_anchors("every:8", 40, "0,8,16,24,32");
    expect_anchors("every:8,4", 40, "3,11,19,27,35");
    expect_anchors("every:100", 10, "0");
    expect_anchors("list:3,5,8,12", 40, "3,5,8,12");
    expect_anchors("list:0", 1, "0");
    expect_anchors("list:39", 40, "39");
    expect_letters("every:3,2", 9, "DArrArrAr");
    expect_letters("list:2,3,6", 8, "DDAArrAr");
    expect_letters("fast", 8, "ArArArrr");
    expect_letters("fast", 5, "ArArr"); /* not at 1, right behind 0 */
    expect_letters("fast", 3, "Arr");   /* not at 1 either, and there is no half way */
    expect_letters("ramp", 10, "DArArArrrr"); /* not AArA...: an anchor at 0 would serve no step */
}

/* At 40 steps the gaps of ramp are 2, 3, 4, ..., and they scale with the root of the step count. */
static void ramp_scales_with_the_step_count(void **state)
{
    (void)state;
    expect_anchors("ramp", 20, "2,4,7,11,15");
    expect_anchors("ramp", 50, "4,6,9,13,19,26,34,43");
    expect_anchors("ramp", 80, "7,10,14,20,27,35,45,56,69");
}

static const char *const presets[] = { "ramp", "fast", "paper", "every:1", "every:2", "every:7,1", "every:1000000" };

/* R20: whatever the step count, dense comes first, then an anchor, and every reuse has an anchor before
 * it. */
static void every_step_count_is_sane(void **state)
{
    (void)state;
    for (size_t i = 0; i < TEST_COUNT(presets); i++)
        for (int steps = 1; steps <= 200; steps++) {
            char letters[1024], anchors[4096];
            expand(presets[i], steps, letters, anchors);
            int first = (int)strcspn(letters, "A");
            if (first == steps) fail_msg("%s over %d steps has no anchor", presets[i], steps);
            for (int t = 0; t < steps; t++)
                if ((letters[t] == 'D') != (t < first))
                    fail_msg("%s over %d steps: step %d of %s", presets[i], steps, t, letters);
        }
}

/* The gaps of ramp never shrink, and its last anchor has at least half of its gap, rounded down, to serve. */
static void gaps_of_ramp_grow(void **state)
{
    (void)state;
    for (int steps = 1; steps <= 200; steps++) {
        mcsa_action actions[200];
        assert_int_equal(mcsa_schedule_fill("ramp", steps, actions, NULL, 0), MCSA_OK);
        int before = -1, gap = 0;
        for (int t = 0; t < steps; t++) {
            if (actions[t] != MCSA_ANCHOR) continue;
            if (before >= 0) {
                if (t - before < gap) fail_msg("%d steps: gap %d after %d at %d", steps, t - before, gap, t);
                gap = t - before;
            }
            before = t;
        }
        if (steps - 1 - before < gap / 2) fail_msg("%d steps: anchor %d serves nearly nothing", steps, before);
    }
}

static void bad_text_is_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "", "not ramp, fast, paper" },
        { "Ramp", "Ramp" },
        { "ramp ", "ramp " },
        { "every", "every" },
        { "every:", "number" },
        { "every:0", "0" },
        { "every:-3", "number" },
        { "every:+3", "number" },
        { "every: 3", "number" },
        { "every:8,", "number" },
        { "every:8,0", "0" },
        { "every:8,41", "41" },
        { "every:8,4,2", ",2" },
        { "every:8x", "x" },
        { "every:99999999999999999999", "9999" },
        { "list:", "number" },
        { "list:3,", "number" },
        { "list:,3", "number" },
        { "list:40", "40" },
        { "list:-1", "number" },
        { "list:5,3", "3" },
        { "list:5,5", "5" },
        { "list:1;2", ";2" },
        { "list:4294967296", "4294967296" },
        { "list:18446744073709551617", "1844" },
    };
    for (size_t i = 0; i < TEST_COUNT(cases); i++) {
        mcsa_action actions[40];
        char error[256] = "";
        if (mcsa_schedule_fill(cases[i].text, 40, actions, error, sizeof error) != MCSA_EINVAL)
            fail_msg("\"%s\" was not refused", cases[i].text);
        if (!strstr(error, cases[i].says)) fail_msg("\"%s\": \"%s\" lacks \"%s\"", cases[i].text, error, cases[i].says);
        assert_int_equal(mcsa_schedule_fill(cases[i].text, 40, actions, NULL, 0), MCSA_EINVAL);
    }
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    mcsa_action actions[4];
    char error[256];
    assert_int_equal(mcsa_schedule_fill(NULL, 4, actions, error, sizeof error), MCSA_EINVAL);
    assert_int_equal(mcsa_schedule_fill("ramp", 4, NULL, error, sizeof error), MCSA_EINVAL);
    assert_int_equal(mcsa_schedule_fill("ramp", 0, actions, error, sizeof error), MCSA_EINVAL);
    assert_non_null(strstr(error, "0 steps"));
    assert_int_equal(mcsa_schedule_fill("ramp", -5, actions, error, sizeof error), MCSA_EINVAL);
    char tiny[8];
    memset(tiny, 'x', sizeof tiny);
    assert_int_equal(mcsa_schedule_fill("nonsense", 4, actions, tiny, 4), MCSA_EINVAL);
    assert_int_equal(strlen(tiny), 3); /* cut to fit, and ended */
    assert_int_equal(tiny[4], 'x');
}

/* What the run will do is what the text says, per layer. */
static void a_run_follows_its_schedule(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 8, .layers = 3, .branches = 2, .dense_layers = 1, .schedule = "list:2,5" };
    mcsa_run *run = test_run(&config);
    static const char expected[3][9] = { "DDDDDDDD", "DDArrArr", "DDArrArr" };
    for (int layer = 0; layer < 3; layer++)
        for (int step = 0; step < 8; step++)
            for (int branch = 0; branch < 2; branch++) {
                int action = mcsa_run_action(run, (mcsa_site){ step, layer, branch });
                assert_int_equal("DAr"[action], expected[layer][step]);
            }
    static const mcsa_site outside[] = {
        { -1, 0, 0 }, { 8, 0, 0 }, { 0, -1, 0 }, { 0, 3, 0 }, { 0, 0, -1 }, { 0, 0, 2 }
    };
    for (size_t i = 0; i < TEST_COUNT(outside); i++) assert_int_equal(mcsa_run_action(run, outside[i]), -1);
    assert_int_equal(mcsa_run_action(NULL, (mcsa_site){ 0, 0, 0 }), -1);
    mcsa_run_free(run);
}

static void actions_may_differ_by_layer(void **state)
{
    (void)state;
    enum { L = 3, S = 4 };
    mcsa_action actions[L * S] = { MCSA_ANCHOR, MCSA_REUSE, MCSA_REUSE,  MCSA_REUSE, MCSA_DENSE,  MCSA_DENSE,
                                   MCSA_ANCHOR, MCSA_REUSE, MCSA_ANCHOR, MCSA_DENSE, MCSA_ANCHOR, MCSA_REUSE };
    const mcsa_action expected[L * S] = { MCSA_DENSE,  MCSA_DENSE, MCSA_DENSE,  MCSA_DENSE, MCSA_DENSE,  MCSA_DENSE,
                                          MCSA_ANCHOR, MCSA_REUSE, MCSA_ANCHOR, MCSA_DENSE, MCSA_ANCHOR, MCSA_REUSE };
    mcsa_config config = { .steps = S, .layers = L, .actions = actions, .schedule = "ignored", .dense_layers = 1 };
    mcsa_run *run = test_run(&config);
    memset(actions, 0x7f, sizeof actions); /* the run has its own copy */
    for (int layer = 0; layer < L; layer++)
        for (int step = 0; step < S; step++)
            assert_int_equal(mcsa_run_action(run, (mcsa_site){ step, layer, 0 }), expected[layer * S + step]);
    mcsa_run_free(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_give_what_the_header_says),
        cmocka_unit_test(ramp_scales_with_the_step_count),
        cmocka_unit_test(every_step_count_is_sane),
        cmocka_unit_test(gaps_of_ramp_grow),
        cmocka_unit_test(bad_text_is_refused_with_a_sentence),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_run_follows_its_schedule),
        cmocka_unit_test(actions_may_differ_by_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
