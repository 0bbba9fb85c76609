/* contender.h - one method of the table of methods: a run of it on a clip, step by step, judged and timed.
 *
 * Steps of a run: 0 dense, FIRST the first anchor, GATE a sparse one, and three for each round: an anchor and a sparse
 * call after it, both only in some rounds, and the sparse call that is timed.  Branch b of step t reads the q, k and v
 * of step (t + b) of the clip. */
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
    int anchors, steps;    /* rounds with an anchor; steps of a run */
    mcsa_action *actions;  /* [steps] */
    bench_answer *answers; /* [ANSWERS, samples]: see contender.c */
} bench_arena;

/* Seconds beyond those of dense attention, where a call computes that too, with the backend idle at the ends. */
typedef struct bench_call_cost {
    double choose, attend; /* MC-Sparse does not tell them apart: all is attend */
} bench_call_cost;

typedef struct bench_contender {
    const char *name; /* of rival_methods, or bench_mc_sparse itself */
    int branches;     /* of which the second follows the first: MC-Sparse alone has more than one here */
    mcsa_tail tail;   /* of MC-Sparse */
    rival_run *rival;
    mcsa_run *ours;          /* instead */
    int anchors;             /* 1: a schedule's later anchors are anchors to it */
    int learns;              /* 1: an anchor costs more than dense attention */
    int residual;            /* 1: adds that of the last anchor */
    double executed;         /* density of a sparse call; of MC-Sparse, means included */
    double virtual_keys;     /* density of another method's tail */
    double used;             /* share of a bound that the worst sampled row uses; above 1 is wrong */
    char missing[96];        /* why there is nothing to time, or "" */
    bench_call_cost watch;   /* of a dense step; all are means over the branches */
    bench_call_cost *anchor; /* [anchors] */
    bench_call_cost *calls;  /* [repeats] sparse */
} bench_contender;

extern const char bench_mc_sparse[];

mcsa_status bench_arena_open(bench_arena *arena, const bench_plan *plan, mcsa_error *error);
void bench_arena_close(bench_arena *arena);

/* *used: share of its bound that the worst sampled row of dense attention uses. */
mcsa_status bench_arena_judge(bench_arena *arena, double *used, mcsa_error *error);

/* Seconds of one dense call. */
mcsa_status bench_arena_dense(bench_arena *arena, double *seconds, mcsa_error *error);

/* c->name, c->branches and c->tail are set.  What is missing is not an error; all other calls are for those that miss
 * nothing.
 */
mcsa_status bench_contender_open(bench_contender *c, bench_arena *arena, float density, mcsa_error *error);
void bench_contender_close(bench_contender *c);

/* The first anchor and a sparse step: c->used of the sampled rows of both; c->missing unless the density executed is
 * the one asked within half a point. */
mcsa_status bench_contender_judge(bench_contender *c, bench_arena *arena, float density, mcsa_error *error);

/* A dense step: c->watch.  The gate has warmed up all else. */
mcsa_status bench_contender_watch(bench_contender *c, bench_arena *arena, mcsa_error *error);

/* Round r, at whose beginning dense attention took `dense` seconds: c->calls[r], and in some rounds the next of
 * c->anchor. */
mcsa_status bench_contender_round(bench_contender *c, bench_arena *arena, int r, double dense, mcsa_error *error);

#endif
