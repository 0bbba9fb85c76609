/* analysis.h - where sparse attention loses fidelity, measured on captured tensors: the oracles and splits of figures 2
 * to 5 of the paper.
 *
 * Everything is exact attention over some choice of keys, computed by the kernels of src/rivals, held against dense
 * attention of the same call.  Calls of one (layer, branch) are a series; within it selections and residuals of a step
 * are tried at every later one. */
#ifndef ANALYSIS_ANALYSIS_H
#define ANALYSIS_ANALYSIS_H

#include "per_query.h"

/* The captured calls. */
typedef struct analysis_source {
    int count;
    const mcsa_site *at; /* [count] ascending by layer, then branch, then step; all different */
    void *user;
    /* *call is valid until the next load. */
    mcsa_status (*load)(void *user, int i, analysis_call *call, mcsa_error *error);
    /* Asked before each head of each series; non-zero cancels.  May be NULL. */
    int (*progress)(void *user, int done, int total);
} analysis_source;

typedef struct analysis_options {
    mcsa_config attention; /* threads, isa, device, device_index, stream */
    int densities;
    double density[ANALYSIS_DENSITIES]; /* ascending, in (0, 1] */
    int sample;                         /* queries of a head that choose for themselves */
    int heads;                          /* that are looked at; 0: all */
    const int *head;                    /* [heads] ascending */
} analysis_options;

/* What is tried at a later step. */
typedef enum analysis_reuse {
    ANALYSIS_FRESH_POOLED, /* pooled blocks chosen anew: what vanilla BSA does at every step */
    ANALYSIS_OLD_BLOCKS,   /* exact blocks of the earlier step */
    ANALYSIS_OLD_TOKENS,   /* PDDP groups and their exact tokens of the earlier step: MC-Sparse without a tail */
    ANALYSIS_REUSES
} analysis_reuse;

/* The selectors behind them. */
extern const analysis_selector analysis_reused[ANALYSIS_REUSES];

/* Two steps of a series; means over the series that have both. */
typedef struct analysis_pair {
    int anchor, step;      /* anchor < step */
    analysis_tally output; /* the output of `anchor` taken for that of `step`: how attention itself drifts */
    /* [.][.][0] the sparse output of `step`; [1] the same with dense - sparse of `anchor` added, so that its rel_l2 is
     * how far that residual drifted.  recall is equal in both. */
    analysis_tally reuse[ANALYSIS_DENSITIES][ANALYSIS_REUSES][2];
    analysis_tally mc_sparse[ANALYSIS_DENSITIES]; /* MC-Sparse as it comes: groups, clusters, means and residual of
                                                   `anchor` at `step`, by a run of the library; recall is not known */
} analysis_pair;

/* One series alone: layers differ more than steps do. */
typedef struct analysis_layer {
    int layer, branch;
    analysis_tally pooled[ANALYSIS_DENSITIES], tokens[ANALYSIS_DENSITIES]; /* ANALYSIS_POOLED, ANALYSIS_PDDP_TOKENS */
    analysis_tally own[ANALYSIS_DENSITIES];                                /* per query */
    analysis_tally reused[ANALYSIS_DENSITIES];    /* ANALYSIS_OLD_TOKENS with the residual, over all pairs of steps */
    analysis_tally mc_sparse[ANALYSIS_DENSITIES]; /* MC-Sparse as it comes, over the same */
} analysis_layer;

typedef struct analysis {
    int H, N, D, calls, series;
    int heads; /* looked at */
    int densities;
    double density[ANALYSIS_DENSITIES];
    int sample; /* queries asked per head */
    analysis_tally selector[ANALYSIS_SELECTORS][ANALYSIS_DENSITIES];
    double alignment[ANALYSIS_SELECTORS]; /* mean over heads and calls; so is executed */
    double executed[ANALYSIS_SELECTORS][ANALYSIS_DENSITIES];
    analysis_tally per_query[ANALYSIS_DENSITIES];
    analysis_waste key_binding[ANALYSIS_DENSITIES];
    analysis_waste query_binding[ANALYSIS_DENSITIES][ANALYSIS_SHARED];
    int pairs;
    analysis_pair *pair;   /* [pairs] ascending by anchor, then step */
    analysis_layer *layer; /* [series] in the order of the source */
} analysis;

/* Errors: those of loading, MCSA_EINVAL (calls of different shapes), MCSA_ENOMEM, MCSA_EUNSUPPORTED and MCSA_EDEVICE of
 * the backend, MCSA_ECANCELED.  On failure nothing is held. */
mcsa_status analysis_measure(analysis *out, const analysis_options *options, const analysis_source *source,
                             mcsa_error *error);
void analysis_free(analysis *a);

/* What vanilla BSA loses, split by what causes it (figure 2): the differences between one selector and the next better
 * one, from pooled blocks to the block oracle, the token oracle, each query's own keys, and all keys.  They add up to
 * the whole loss.  Parts of the mass are never negative: each oracle keeps the most that its freedom lets it.  Parts of
 * the error can be: keys of most mass are not those whose values are missed most, and where attention is flat they are
 * a worse sample of the values than blocks. */
typedef struct analysis_parts {
    double selection, key_binding, query_binding, tail;
} analysis_parts;

typedef struct analysis_split {
    analysis_parts mass;  /* of 1 - recall */
    analysis_parts error; /* of the relative L2 of the output */
} analysis_split;

analysis_split analysis_split_at(const analysis *a, int density);

/* The pairs by how many steps lie between: lag [a->pairs] gets one for each lag, ascending, with anchor 0 and step the
 * lag; means over the calls of its pairs.  Returns how many. */
int analysis_by_lag(const analysis *a, analysis_pair *lag);

#endif
