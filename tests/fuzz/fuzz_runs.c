/* fuzz_runs.c - a file of runs for `mcsa compare`, "NAME: key=value ..." line by line, for 40 steps. */
#include "fuzz.h"

#include "layers.h"
#include "plan.h"
#include "rivals/method.h"

#include <limits.h>
#include <string.h>

enum { STEPS = 40 };

static void check_run(const plan_run *run)
{
    const attention_settings *set = &run->attention;
    attention_settings again = *set;
    mcsa_error error = { "" };
    REQUIRE(run->name[0] && run->settings[0]);
    REQUIRE(attention_is_mc_sparse(set) || rival_method_find(set->method));
    REQUIRE(set->density > 0 && set->density <= 1);
    REQUIRE(set->group >= 1 && set->group <= 4096);
    REQUIRE(layers_read(set->dense_layers, INT_MAX, NULL, &error) == MCSA_OK);
    REQUIRE(set->residual >= MCSA_RESIDUAL_BF16 && set->residual <= MCSA_RESIDUAL_OFF);
    REQUIRE(set->branches == MCSA_BRANCHES_SHARED || set->branches == MCSA_BRANCHES_APART);
    REQUIRE(attention_settle(&again, STEPS, &error) == MCSA_OK && again.residual == set->residual);
}

/* The settings of a run, as they are reported, make the same run. */
static void check_again(const plan_run *run)
{
    char text[PLAN_SETTINGS_BYTES + 8];
    mcsa_error error = { "" };
    plan again = { 0 };
    snprintf(text, sizeof text, "again: %s", run->settings);
    REQUIRE(plan_add_run(&again, text, "again", STEPS, &error) == MCSA_OK);
    REQUIRE(again.runs == 1 && !strcmp(again.run[0].settings, run->settings));
    plan_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    plan p = { 0 };
    char *path = fuzz_file("runs.txt", data, size);
    mcsa_status status = plan_read_runs(&p, path, STEPS, &error);
    for (int i = 0; i < p.runs; i++) {
        check_run(&p.run[i]);
        check_again(&p.run[i]);
        for (int other = 0; other < i; other++)
            REQUIRE(strcmp(p.run[other].name, p.run[i].name) && strcmp(p.run[other].settings, p.run[i].settings));
    }
    if (status == MCSA_OK) {
        REQUIRE(p.runs > 0);
        fuzz_accepted();
    } else {
        fuzz_refused(status, &error);
    }
    plan_free(&p);
    free(path);
    return 0;
}
