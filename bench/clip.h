/* clip.h - q, k and v of a few denoising steps of one layer, on the host and where the rivals' kernels compute.
 *
 * The first step is bench_problem_open's with structure in the queries; each later one is what the step before drifted
 * to.  Where there are more heads than BENCH_CLIP_HEADS, head h holds the data of head h % BENCH_CLIP_HEADS. */
#ifndef MCSA_BENCH_CLIP_H
#define MCSA_BENCH_CLIP_H

#include "problem.h"
#include "rivals/kernels.h"
#include "suites.h"

enum { BENCH_CLIP_STEPS = 3, BENCH_CLIP_HEADS = 2, BENCH_CLIP_ROWS = 64 };

/* One step on one side. */
typedef struct bench_moment {
    mcsa_tensor q, k, v; /* [H, N, D] */
} bench_moment;

typedef struct bench_clip {
    const rival_kernels *kernels;
    void *state;           /* the kernels' */
    bench_problem problem; /* of the first step, on the host; out is NaN */
    mcsa_block drifted;    /* of the later ones */
    bench_moment host[BENCH_CLIP_STEPS], there[BENCH_CLIP_STEPS];
    mcsa_memory memory; /* the kernels' */
    mcsa_block block;   /* of all that is `there`, and of */
    mcsa_tensor out;    /* [H, N, D] */
    float *lse;         /* [H, N] */
    float scale;
} bench_clip;

mcsa_status bench_clip_open(bench_clip *clip, const bench_plan *plan, mcsa_error *error);
void bench_clip_close(bench_clip *clip);

/* NaN into out. */
mcsa_status bench_clip_poison(bench_clip *clip, mcsa_error *error);

/* The tokens that are sampled, ascending: index [BENCH_CLIP_ROWS].  Returns how many. */
int bench_clip_sample(const bench_clip *clip, int32_t *index);

/* The head whose row of sample i is looked at, and where its data are on the host. */
static inline int bench_clip_head(const bench_clip *clip, int i)
{
    return i % (int)clip->out.shape[0];
}

static inline int bench_clip_host_head(const bench_clip *clip, int i)
{
    return bench_clip_head(clip, i) % (int)clip->problem.q.shape[0];
}

/* Brings the sampled rows of out: rows [samples, D]. */
mcsa_status bench_clip_fetch(bench_clip *clip, float *rows, mcsa_error *error);

#endif
