/* kmeans.h - clusters of similar rows by Lloyd's iteration, as Flash-KMeans (arXiv 2603.09229) runs it for SVG2.
 *
 * Differences from its public code, none for the worse of the rival: sums run over the members of a cluster in
 * ascending order instead of through atomic additions, so that the bits repeat; centres are rounded to the dtype of the
 * rows where they meet them, but kept in FP32; and after an early stop they are the means of the last assignment too.
 */
#ifndef RIVALS_KMEANS_H
#define RIVALS_KMEANS_H

#include "kernels.h"

/* The rows to cluster, and what computes on them. */
typedef struct rival_points {
    const rival_kernels *kernels;
    void *backend;
    const mcsa_tensor *x; /* [H, N, D] */
} rival_points;

typedef struct rival_kmeans {
    int H, N, D, P;        /* P clusters per head: those asked for, or N where there are fewer rows */
    float *centre;         /* [H, P, D] means of the members; that of an empty cluster stays where it was */
    rival_partition parts; /* members by the last assignment; a cluster may be empty */
    float *mean;           /* [H, P, D] of the iteration under way */
    int32_t *label;        /* [H, N] */
} rival_kmeans;

/* Stop when no centre moved as far, as SVG2 does. */
#define RIVAL_KMEANS_SHIFT 1e-4

/* Makes room for `clusters` centres per head of such rows, contents unspecified. */
mcsa_status rival_kmeans_reserve(rival_kmeans *k, const mcsa_tensor *x, int clusters, mcsa_error *error);
void rival_kmeans_free(rival_kmeans *k);

/* Centres on rows drawn with replacement, the same row numbers in all heads (SVG2 draws apart for each: no row is
 * likelier either way). */
mcsa_status rival_kmeans_start(rival_kmeans *k, const rival_points *points, int clusters, uint64_t seed,
                               mcsa_error *error);

/* At most `iterations` >= 1 times: each row to the nearest centre, each centre to the mean of its rows.
 * done: how many, or NULL. */
mcsa_status rival_kmeans_iterate(rival_kmeans *k, const rival_points *points, int iterations, int *done,
                                 mcsa_error *error);

#endif
