/* fidelity.h - how near a sparse output is to the dense one: sums that add up over heads, and what a call of all heads
 * comes to. */
#ifndef ANALYSIS_FIDELITY_H
#define ANALYSIS_FIDELITY_H

#include <stdint.h>

typedef struct analysis_sums {
    double error, power; /* |o - dense|^2, |dense|^2 */
    double kept;         /* attention mass that was kept; 1 per row is all of it */
    int64_t numbers, rows;
    float low, high; /* range of dense */
} analysis_sums;

/* Means over calls. */
typedef struct analysis_tally {
    int calls;
    double recall, rel_l2, psnr_db;
} analysis_tally;

/* Where sums start. */
analysis_sums analysis_sums_start(void);

/* The error of out + added against dense, each [count].  added: BF16, or NULL. */
void analysis_sums_add(analysis_sums *sums, const float *dense, const float *out, const uint16_t *added, int64_t count,
                       int threads);

/* Mass that rows kept: exp(lse - dense_lse), where lse sums the kept keys alone. */
void analysis_sums_recall(analysis_sums *sums, const float *dense_lse, const float *lse, int rows);

void analysis_sums_merge(analysis_sums *to, const analysis_sums *from);

/* |o - dense| / |dense|; 0 without error, also where dense is zero. */
double analysis_rel_l2(const analysis_sums *sums);

/* Peak is the range of the dense output of all heads of the call (INFERRED: the paper names PSNR of videos only); a
 * call without any error counts as 100 dB, so that it does not make the mean infinite. */
double analysis_psnr(const analysis_sums *sums);

/* The means over the calls of both. */
void analysis_tally_merge(analysis_tally *to, const analysis_tally *from);

/* One call more. */
void analysis_tally_add(analysis_tally *tally, const analysis_sums *sums);

#endif
