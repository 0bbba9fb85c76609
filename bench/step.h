/* step.h - one denoising step of a model, both branches of guidance, as a dense, an anchor and a reuse step. */
#ifndef MCSA_BENCH_STEP_H
#define MCSA_BENCH_STEP_H

#include "base/memory.h"
#include "model.h"
#include "suites.h"

/* Step s of a run takes action s, and the three can be repeated in any order: a reuse step finds the anchor's choices
 * of whenever that was run last. */
enum { BENCH_ACTIONS = 3, BENCH_BRANCHES = 2 };

/* Seconds of the last step of an action, and its parts; dense to sparse are parts of self. */
typedef struct bench_stages {
    double total, self, cross, linear, other;
    double dense, grouping, selection, sparse;
} bench_stages;

typedef struct bench_step {
    video_model model;
    mcsa_run *run;
    mcsa_memory memory;                 /* the host's, for the model */
    mcsa_block block;                   /* of the next three */
    float *latent, *context, *velocity; /* [channels, frames, height, width]; [rows, text_dim]; both branches */
    int64_t outputs;                    /* of one branch */
    dit_wan_call call;
    int tokens;
    bench_stages stages[BENCH_ACTIONS];             /* by mcsa_action */
    double attention_operations, linear_operations; /* of a dense step */
    mcsa_status status;
    mcsa_error error;
} bench_step;

/* Opens plan->model or plan->made for plan's clip, threads and instruction set, or for a GPU.  precision: see
 * dit_wan_options; 0 follows the weights.
 */
mcsa_status bench_step_open(bench_step *step, const bench_plan *plan, mcsa_dtype precision, mcsa_error *error);
void bench_step_close(bench_step *step);

/* Runs a step and measures its stages.  Failures stay in step->status. */
void bench_step_run(bench_step *step, mcsa_action action);
void bench_step_dense(void *step);
void bench_step_anchor(void *step);
void bench_step_reuse(void *step);

/* Runs each action once: an anchor's velocities are the dense ones bit for bit, a reuse step of the same latent comes
 * back to them within roundings, and nothing fell back.  right: [3] */
mcsa_status bench_step_check(bench_step *step, int *right, mcsa_error *error);

/* |a - b| / |b| over `count` numbers. */
double bench_relative(const float *a, const float *b, int64_t count);

#endif
