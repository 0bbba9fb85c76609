/* scores.h - scores of means: how methods guess what attention between two parts will be. */
#ifndef RIVALS_SCORES_H
#define RIVALS_SCORES_H

#include "base/status.h"

typedef struct rival_means {
    int H, Q, K, D;
    const float *query; /* [H, Q, D] */
    const float *key;   /* [H, K, D] */
} rival_means;

/* score [H, Q, K] = scale query . key, FP32 sums in ascending place. */
mcsa_status rival_score_means(const rival_means *means, float scale, int threads, float *score, mcsa_error *error);

#endif
