/* contender.h - one method of the table of methods: a run of it on a clip, step by step, judged and timed.
 *
 * Steps of a run: 0 dense, FIRST the first anchor, then a sparse one, later anchors each before a sparse one, and the
 * sparse ones that are timed.  Branch b of step t reads the q, k and v of step (t + b) of the clip. */
#ifndef MCSA_BENCH_CONTENDER_H
#define MCSA_BENCH_CONTENDER_H

#include "clip.h"
#include "methods_gate.h"
#include "rivals/rival.h"

enum { BENCH_FIRST_ANCHOR = 1, BENCH_GATE_STEP = 2, BENCH_BOTH = 2 /* branches of guidance */ };

/* What all contenders of a table share. */
typedef struct bench_arena {
    const bench_plan *plan;
    bench_clip clip;
    mcsa_run *dense;
    int anchors, steps;    /* later anchors; steps of a run */
    mcsa_action *actions;  /* [steps] */
    bench_answer *answers; /* [ANSWERS, samples]: see contender.c */
} bench_arena;

/* Seconds of a call, with the backend idle at the ends. */
typedef struct bench_call_cost {
    double total;          /* of MC-Sparse and dense attention */
    double choose, attend; /* of another method, beside dense attention */
} bench_call_cost;

typedef struct bench_contender {
    const char *name; /* of rival_methods, or bench_mc_sparse */
    int branches;     /* of which the second follows the first: MC-Sparse alone has more than one here */
    rival_run *rival;
    mcsa_run *ours;        /* instead */
    int anchors;           /* 1: a schedule's later anchors are anchors to it */
    int residual;          /* 1: adds that of the last anchor */
    double executed, tail; /* densities of a sparse call */
    int wrong;
    char missing[96];       /* why there is nothing to time, or "" */
    bench_call_cost watch;  /* of a dense step; all are means over the branches */
    bench_call_cost first;  /* of the first anchor */
    bench_call_cost *later; /* [anchors] */
    bench_call_cost *calls; /* [repeats] sparse */
} bench_contender;

extern const char bench_mc_sparse[];

/* Later anchors that `repeats` sparse steps are timed with. */
int bench_arena_anchors(int repeats);
mcsa_status bench_arena_open(bench_arena *arena, const bench_plan *plan, mcsa_error *error);
void bench_arena_close(bench_arena *arena);

/* *wrong gets whether sampled rows of dense attention are. */
mcsa_status bench_arena_judge(bench_arena *arena, int *wrong, mcsa_error *error);

/* Seconds of one dense call. */
mcsa_status bench_arena_dense(bench_arena *arena, double *seconds, mcsa_error *error);

/* c->name and c->branches are set.  What is missing is not an error; all other calls are for those that miss nothing.
 */
mcsa_status bench_contender_open(bench_contender *c, bench_arena *arena, float density, mcsa_error *error);
void bench_contender_close(bench_contender *c);

/* The first anchor and a sparse step: c->wrong unless the sampled rows of both are right, c->missing unless the
 * density executed is the one asked within half a point. */
mcsa_status bench_contender_judge(bench_contender *c, bench_arena *arena, float density, mcsa_error *error);

/* All steps before those that are timed in turn: c->watch, first and later. */
mcsa_status bench_contender_warm_up(bench_contender *c, bench_arena *arena, mcsa_error *error);

/* The sparse step of round r: c->calls[r]. */
mcsa_status bench_contender_round(bench_contender *c, bench_arena *arena, int r, mcsa_error *error);

#endif
