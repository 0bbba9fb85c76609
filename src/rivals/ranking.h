/* ranking.h - from scores to kept parts: the rules by which methods differ, and the knob of each turned until a call
 * executes the density asked. */
#ifndef RIVALS_RANKING_H
#define RIVALS_RANKING_H

#include "partition.h"

/* rank [K]: indices by descending score, of equal ones the lower index first; NaN last. */
void rival_rank(const float *score, int K, int32_t *rank);

/* Sets the bits of the `count` highest scores [K] in `row`: those that rival_rank puts first.  1 <= count <= K; key:
 * [K] room. */
void rival_keep_top(const float *score, int K, int count, uint32_t *key, uint64_t *row);

/* Where a method ends a row whose parts, ranked, hold the shares p_0 >= p_1 >= ... of its mass. */
typedef enum rival_boundary {
    RIVAL_BOUNDARY_EXCLUSIVE, /* keep rank r while p_0 + ... + p_{r-1} <= x: the part that crosses is kept (SVG2, EAR)
                               */
    RIVAL_BOUNDARY_STRICT,    /* while p_0 + ... + p_{r-1} < x (XAttention) */
    RIVAL_BOUNDARY_INCLUSIVE  /* while p_0 + ... + p_r <= x (SpargeAttn cdf) */
} rival_boundary;

/* How many of the ranked shares [K] are kept at x, at least `least`. */
int rival_prefix(const float *share, int K, rival_boundary boundary, double x, int least);

/* Parts that row `row` keeps when all rows of K parts together are to keep the share `density`: whole numbers whose sum
 * over rows 0 .. r is floor((r + 1) density K + 1/2), but at least 1 and at most K each. */
int rival_row_budget(int row, int K, double density);

/* The x in [low, high] at which pairs(x), executed pairs that grow (or fall, when pairs(low) > pairs(high)) with x, is
 * nearest to `target`: bisection until the bracket cannot be halved in float or 40 times. */
typedef double (*rival_pairs_at)(void *user, double x);
double rival_knob(rival_pairs_at pairs, void *user, double low, double high, double target);

#endif
