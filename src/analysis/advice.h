/* advice.h - from measurements to one recommendation: density, group size and anchor steps for a whole run.
 *
 * The rule.  At a reuse step t the output of MC-Sparse misses R_t - R_a, the drift of the residual since its anchor a;
 * runs of the library over pairs of captured steps say how much that is.  With a tolerance for it, anchors follow:
 * the first step is one, and each later step that the last anchor cannot serve within the tolerance.  Every density
 * measured gives such a schedule and a cost in query-key pairs; the cheapest is recommended. */
#ifndef ANALYSIS_ADVICE_H
#define ANALYSIS_ADVICE_H

#include "analysis.h"

enum {
    ANALYSIS_STEPS = 1000, /* of a run, at most */
    ANALYSIS_GROUPS = 3    /* of 64, 128 and 256 queries */
};

typedef struct analysis_wish {
    int steps;             /* of the whole run, up to ANALYSIS_STEPS */
    double tolerance;      /* relative L2 that a reuse step may miss */
    double selection_cost; /* of an anchor beyond dense and sparse attention: half a dense pass of scores on a GPU */
    int group_fixed;       /* the only group that there is, or 0 */
} analysis_wish;

/* What a schedule costs and misses at one density. */
typedef struct analysis_outlook {
    double cost;        /* query-key pairs over dense attention at all steps */
    double mean, worst; /* expected relative L2 over reuse steps; 0 without any */
    int anchors, reuse; /* steps */
} analysis_outlook;

typedef struct analysis_advice {
    int worthwhile;                   /* 0: nothing that was measured is cheaper than dense and within the tolerance */
    int density;                      /* index of the recommended one */
    int group;                        /* queries */
    double group_db[ANALYSIS_GROUPS]; /* PSNR of the output by a fresh selection; all else here is of groups of 128 */
    mcsa_action actions[ANALYSIS_STEPS];
    analysis_outlook outlook[ANALYSIS_DENSITIES]; /* of each density with its own schedule */
    analysis_outlook ramp;                        /* the default schedule at the recommended density */
} analysis_advice;

/* Relative L2 that reuse at `step` of what was chosen and recorded at `anchor` is expected to miss: linear between the
 * measured lags of the nearest measured anchor, from 0 at lag 0, and on along the last two.  INFERRED: nothing says
 * that it is linear.  NAN when no pair was measured. */
double analysis_expected_error(const analysis *a, int density, int anchor, int step);

mcsa_status analysis_advise(analysis_advice *out, const analysis *a, const analysis_wish *wish, mcsa_error *error);

#endif
