/* plan.h - what `mcsa compare` is to make: captions, seeds, and the runs that are set against dense.
 *
 * A run is a line "NAME: key=value key=value ..."; its keys are the attention options of `mcsa generate`, and
 * what is not said has the default that it has there. */
#ifndef MCSA_CLI_PLAN_H
#define MCSA_CLI_PLAN_H

#include "attention.h"
#include "lines.h"

/* A list schedule of 100 anchors takes about 400. */
enum { PLAN_SETTINGS_BYTES = 512 };

typedef struct plan_run {
    char *name, *words; /* owned; method and schedule lie in the words */
    attention_settings attention;
    char settings[PLAN_SETTINGS_BYTES]; /* attention_text: what tells one run from another */
} plan_run;

typedef struct plan {
    text_lines captions;
    option_seeds seeds;
    plan_run *run; /* [runs]; the first is dense attention, what all others are set against */
    int runs;
} plan;

/* A plan starts as { 0 } and ends with plan_free, whatever failed between. */
mcsa_status plan_read_captions(plan *p, const char *path, mcsa_error *error);

/* Before other runs. */
mcsa_status plan_add_dense(plan *p, mcsa_error *error);

/* where: what sentences start with, "--run" or "ladder.txt:3".  MCSA_EINVAL for a line that is not a run of
 * this many steps, and for a name or settings that the plan has already. */
mcsa_status plan_add_run(plan *p, const char *text, const char *where, int steps, mcsa_error *error);
mcsa_status plan_read_runs(plan *p, const char *path, int steps, mcsa_error *error);

/* Methods at densities by one schedule: a run "NAME s=DENSITY" for each pair, density by density.  A name may
 * end with "+residual": the method with the cached residual.  mc-sparse is as in the paper, branches apart
 * and no tail; mc-sparse+tail has means. */
typedef struct plan_grid {
    const char *methods, *densities; /* "bsa,pisa+residual", "0.10,0.25" */
    const char *schedule;
} plan_grid;

mcsa_status plan_add_grid(plan *p, const plan_grid *grid, int steps, mcsa_error *error);
void plan_free(plan *p);

/* All clips of the plan. */
int plan_clips(const plan *p);

#endif
