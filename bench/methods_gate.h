/* methods_gate.h - rows of what a method of sparse attention should have computed, in double and with bounds: attention
 * over the keys that it kept, the virtual keys of its tail, and the residual of its anchor. */
#ifndef MCSA_BENCH_METHODS_GATE_H
#define MCSA_BENCH_METHODS_GATE_H

#include "clip.h"
#include "core/run.h"
#include "rivals/method.h"

enum { BENCH_ANSWER_DIM = 256 };

/* One row.  size: the norms of all that was rounded to the dtype of the tensors on the way to it. */
typedef struct bench_answer {
    double out[BENCH_ANSWER_DIM], bound[BENCH_ANSWER_DIM], size;
} bench_answer;

/* answer [samples] of the sampled rows at a step of the clip: of dense attention when choice is NULL. */
mcsa_status bench_answers(bench_answer *answer, const bench_clip *clip, int step, const rival_choice *choice,
                          mcsa_error *error);

/* now += residual, which was recorded at an anchor as the BF16 of dense - sparse. */
void bench_answer_compensate(bench_answer *now, const bench_answer *dense, const bench_answer *sparse,
                             const bench_clip *clip);

/* The largest share of its bound that a row [samples, D] uses; above 1 is wrong. */
double bench_answers_used(const bench_answer *answer, const float *rows, const bench_clip *clip);

/* Groups and what they keep of a run as a choice: consecutive parts of its order; single keys, or clusters and the
 * means of them at a step of the clip.  Freed by rival_choice_free. */
mcsa_status bench_choice_of(rival_choice *choice, mcsa_run *run, int branch, const bench_clip *clip, int step,
                            mcsa_error *error);

#endif
