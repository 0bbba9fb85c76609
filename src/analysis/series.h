/* series.h - the steps of one (layer, branch), one head at a time: what each step leaves for the later ones. */
#ifndef ANALYSIS_SERIES_H
#define ANALYSIS_SERIES_H

#include "analysis.h"

/* One step of the head at hand. */
typedef struct analysis_moment {
    float *dense; /* [N, D] the output */
    float *lse;   /* [N] */
    analysis_choice kept[ANALYSIS_REUSES];
    uint16_t *residual[ANALYSIS_REUSES]; /* [N, D] BF16, dense - sparse, at the density at hand */
} analysis_moment;

/* Sums over heads of one step. */
typedef struct analysis_step_sums {
    analysis_sums selector[ANALYSIS_SELECTORS][ANALYSIS_DENSITIES];
    double alignment[ANALYSIS_SELECTORS], executed[ANALYSIS_SELECTORS][ANALYSIS_DENSITIES];
    analysis_per_query asked;
    analysis_waste key_binding[ANALYSIS_DENSITIES];
} analysis_step_sums;

/* Sums over heads of a pair of steps. */
typedef struct analysis_pair_sums {
    analysis_sums output;
    analysis_sums reuse[ANALYSIS_DENSITIES][ANALYSIS_REUSES][2];
    analysis_sums mc_sparse[ANALYSIS_DENSITIES];
} analysis_pair_sums;

typedef struct analysis_series {
    const analysis_source *source;
    const analysis_options *options;
    int first, steps; /* calls source->at[first .. first + steps) */
    analysis_chooser *chooser;
    analysis_head *head;
    analysis_choice choices[ANALYSIS_SELECTORS];
    float *out, *lse;         /* [N, D], [N] of the last sparse attention */
    analysis_moment *moment;  /* [steps] */
    analysis_step_sums *step; /* [steps] */
    analysis_pair_sums *pair; /* [steps, steps]: [anchor steps + step] */
} analysis_series;

/* The head of one call, loaded. */
mcsa_status analysis_series_load(analysis_series *s, int step, int h, mcsa_error *error);

/* Dense attention of a step, every selector and the queries themselves; leaves the moment. */
mcsa_status analysis_series_choose(analysis_series *s, int step, mcsa_error *error);

/* Every step with the choices and residuals of all earlier ones; all moments are there. */
mcsa_status analysis_series_reuse(analysis_series *s, int h, mcsa_error *error);

/* The same by runs of the library. */
mcsa_status analysis_series_library(analysis_series *s, int h, mcsa_error *error);

#endif
