/* per_query.h - the oracle that lets every query choose its own keys, for a sample of the queries: N x N masses would
 * be 23 GB a head at 75,600 tokens.
 *
 * Plain arithmetic on the host: scores and probabilities in float, sums in double. */
#ifndef ANALYSIS_PER_QUERY_H
#define ANALYSIS_PER_QUERY_H

#include "binding.h"
#include "fidelity.h"

/* Selections whose pairs are held against what each query itself would keep. */
enum { ANALYSIS_SHARED = 3 };
extern const analysis_selector analysis_shared[ANALYSIS_SHARED];

typedef struct analysis_per_query {
    analysis_sums sums[ANALYSIS_DENSITIES];
    analysis_waste shared[ANALYSIS_DENSITIES][ANALYSIS_SHARED];
} analysis_per_query;

/* Adds the head's `sample` queries, evenly spaced, or all of them where there are fewer. */
mcsa_status analysis_ask_queries(analysis_per_query *out, const analysis_chooser *c, const analysis_head *head,
                                 const analysis_choice choices[ANALYSIS_SELECTORS], int sample, mcsa_error *error);

#endif
