/* clusters.h - what SVG2 and SVG-EAR share: clusters of the queries and of the keys of every layer and branch that
 * follow the run, and for each cluster of queries the clusters of keys ranked by the attention that centroids expect.
 */
#ifndef RIVALS_CLUSTERS_H
#define RIVALS_CLUSTERS_H

#include "kmeans.h"
#include "method.h"
#include "ranking.h"

typedef struct rival_cluster_pair {
    rival_kmeans queries, keys;
    int step; /* of the last call */
} rival_cluster_pair;

typedef struct rival_clusters {
    rival_setup setup;
    rival_cluster_pair *pairs; /* [layers, branches] */
} rival_clusters;

mcsa_status rival_clusters_open(rival_clusters *c, const rival_setup *setup, mcsa_error *error);
void rival_clusters_close(rival_clusters *c);

/* The held of a rival_method whose state begins with clusters: their centres, which the next call starts from. */
int64_t rival_clusters_held(const void *state);

/* At the anchor that ends the dense warm-up: clusters from a random start, 50 iterations. */
mcsa_status rival_clusters_observe(rival_clusters *c, const rival_call *call, mcsa_error *error);

/* At a sparse call: 2 iterations from where the clusters of the step before were; from a random start where there are
 * none, of another shape, or of a later step. */
mcsa_status rival_clusters_follow(rival_clusters *c, const rival_call *call, const rival_cluster_pair **pair,
                                  mcsa_error *error);

/* How many clusters N queries, and N keys, are cut into. */
int rival_query_clusters(int N);
int rival_key_clusters(int N);

/* The expected attention of every cluster of queries, clusters of keys ranked by it. */
typedef struct rival_expected {
    int H, Q, K;
    float *score;   /* [H, Q, K] scale q . k of the centroids, by cluster */
    int32_t *rank;  /* [H, Q, K] clusters of keys by descending share */
    float *share;   /* [H, Q, K] n_k exp(score) over its sum, by rank; n_k members */
    int32_t *reach; /* [H, Q, K + 1] keys in the first r of the rank */
} rival_expected;

mcsa_status rival_expected_rank(rival_expected *e, const rival_cluster_pair *pair, float scale, int threads,
                                mcsa_error *error);
void rival_expected_free(rival_expected *e);

/* One cluster of queries whose budget goes to the clusters of keys that would cost most to leave out. */
typedef struct rival_route {
    int K;
    const int32_t *reach;  /* [K + 1] keys in the first r of the rank by expected attention */
    const int32_t *rank;   /* [K] that rank */
    const int32_t *place;  /* [K] of each cluster in it */
    const int32_t *costly; /* [K] clusters by descending cost per pair */
} rival_route;

/* The first `sure` of the rank, then costly ones as long as fewer keys are taken than the first `budget` of the rank
 * hold.  Adds the bits of all taken to kept [words], unless that is NULL; returns their keys. */
int32_t rival_route_keys(const rival_route *route, int budget, int sure, uint64_t *kept);

/* Ranks of row `row` (of all heads) that are kept whatever p is: the share `least` of K, whole as the public code takes
 * it, or the part of it that x < 0 leaves, spread over the rows so that their sum follows x. */
int rival_least_ranks(int row, int K, double least, double x);

/* Clusters of keys that SVG2 keeps whatever p is, and that SVG-EAR computes whatever their cost. */
#define RIVAL_LEAST_SHARE 0.10

/* The knob of top-p over clusters at which pairs(x) is nearest to density H N N.  From 0 on p = x, above a minimum of
 * kept ranks.  That minimum, made for densities of 22 to 30 % of true sizes, can be more than the density asked: then p
 * is 0, and x < 0 shrinks it, at -1 to the first rank alone (INFERRED; a lower minimum from the start, with more say
 * for p, served the outputs of the shipped model worse).  A density of 1 keeps everything: padded tiles would not let
 * it. */
double rival_top_p_knob(rival_pairs_at pairs, void *user, double density, const mcsa_dims *dims);

#endif
