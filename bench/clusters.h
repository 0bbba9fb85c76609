/* clusters.h - clusters of the keys in a selection: what is in them, and the gates of what made and kept them. */
#ifndef MCSA_BENCH_CLUSTERS_H
#define MCSA_BENCH_CLUSTERS_H

#include "problem.h"

/* Keys of cluster p of head h. */
static inline const int32_t *bench_cluster(const mcsa_selection *s, int h, int p, int *count)
{
    const int32_t *first = s->first + (int64_t)h * (s->P + 1) + p;
    *count = first[1] - first[0];
    return s->members + (int64_t)h * s->N + first[0];
}

/* Whether (head, group) `row` keeps cluster p, or key p where there are no clusters. */
static inline int bench_kept(const mcsa_selection *s, int64_t row, int p)
{
    return (int)(s->kept[row * s->words + p / 64] >> (p % 64) & 1);
}

/* Operations of k-means as an anchor runs it. */
double bench_cluster_operations(const mcsa_selection *s, int D);

/* mean [D]: as backends make it, FP32 sums in the order of the keys, rounded to the dtype of t. */
void bench_cluster_mean(const mcsa_tensor *t, int h, const int32_t *keys, int count, float *mean);

/* Whether each head's clusters hold every key once, ascending in each cluster. */
int bench_is_partition(const mcsa_selection *s);

/* Whether the clusters of two heads scatter no more about their means than keys do that are nearest to the same first
 * centre: k-means lowers that from round to round, see clusters.c. */
int bench_clusters_are_tight(const bench_problem *problem, const mcsa_selection *s);

/* Clusters the keys where the selection has clusters.  Returns whether they then hold every key once. */
int bench_clusters_make(const bench_problem *problem, mcsa_selection *s);

/* Every group keeps the clusters that fit, from a random one on. */
void bench_clusters_keep(mcsa_selection *s);

/* Whether a group keeps the clusters of most worth that fit into K rows.  worth [P]: mass per key, off by at most the
 * share `slack` of the larger of two. */
int bench_keeps_what_fits(const mcsa_selection *s, int h, int g, const double *worth, double slack);

#endif
