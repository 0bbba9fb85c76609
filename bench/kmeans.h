/* kmeans.h - the rows of k-means in the table of grouping: what SVG2 groups queries by, on the same problem. */
#ifndef MCSA_BENCH_KMEANS_H
#define MCSA_BENCH_KMEANS_H

#include "rivals/kmeans.h"
#include "suites.h"

/* Steps of the paper's table 7: the first is clustered from a random start, the others from the step before. */
enum { BENCH_KMEANS_STEPS = 40, BENCH_KMEANS_FIRST = 50, BENCH_KMEANS_NEXT = 2 };

typedef struct bench_kmeans {
    void *kernels; /* state of the rivals' */
    rival_points points;
    rival_kmeans first, next; /* after the iterations of the first step, and of another one */
    float *settled;           /* [H, P, D] centres that `next` starts from */
    size_t centres;           /* H P D */
    int clusters, row;        /* row: of `first` in the table; that of `next` follows */
    mcsa_status status;       /* of the rows that ran */
    mcsa_error error;
} bench_kmeans;

/* Clusters the queries of an open problem, checks the labels, and adds both rows. */
mcsa_status bench_kmeans_add(bench_kmeans *k, const bench_problem *problem, const bench_shape *shape,
                             bench_table *table, mcsa_error *error);
void bench_kmeans_close(bench_kmeans *k);

/* Seconds per step over all steps of table 7, once the rows were timed. */
double bench_kmeans_per_step(const bench_kmeans *k, const bench_table *table);

/* Whether sampled rows have labels of the nearest of centres [H, P, D], up to the rounding of FP32 sums. */
int bench_labels_are_nearest(const rival_kmeans *k, const mcsa_tensor *x, const float *centres);

#endif
