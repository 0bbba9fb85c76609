/* kmeans.c - k-means of queries as SVG2 runs it: 50 iterations from a random start at a run's first sparse step, 2 from
 * the centres of the step before at the others.  Gate: one more iteration from the settled centres gives every sampled
 * query the nearest of them. */
#include "kmeans.h"

#include "rivals/clusters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED_ROWS = 64, SEED = 1 };

/* One at a time, so that none is saved by an early stop: these queries are settled after a dozen iterations, those of a
 * video are not. */
static mcsa_status iterate(rival_kmeans *k, const rival_points *points, int iterations, mcsa_error *error)
{
    for (int i = 0; i < iterations; i++) TRY(rival_kmeans_iterate(k, points, 1, NULL, error));
    return MCSA_OK;
}

static mcsa_status cluster_first(bench_kmeans *k)
{
    TRY(rival_kmeans_start(&k->first, &k->points, k->clusters, SEED, &k->error));
    return iterate(&k->first, &k->points, BENCH_KMEANS_FIRST, &k->error);
}

static void run_first(void *context)
{
    bench_kmeans *k = context;
    mcsa_status status = cluster_first(k);
    if (status != MCSA_OK) k->status = status;
}

static void run_next(void *context)
{
    bench_kmeans *k = context;
    memcpy(k->next.centre, k->settled, sizeof *k->settled * k->centres);
    mcsa_status status = iterate(&k->next, &k->points, BENCH_KMEANS_NEXT, &k->error);
    if (status != MCSA_OK) k->status = status;
}

/* x . c - |c|^2 / 2, largest for the nearest centre, and what D + 2 roundings may move it by.  Rows meet centres of
 * their dtype, as Flash-KMeans keeps them. */
static double closeness(const mcsa_tensor *x, int h, int n, const float *centre, double *bound)
{
    int D = (int)x->shape[2];
    double sum = 0, size = 0;
    for (int d = 0; d < D; d++) {
        double c = (double)bench_rounded(centre[d], x->dtype), product = bench_element(x, h, n, d) * c;
        sum += product - c * c / 2;
        size += fabs(product) + c * c / 2;
    }
    *bound = (D + 2) * 0x1p-24 * size;
    return sum;
}

int bench_labels_are_nearest(const rival_kmeans *k, const mcsa_tensor *x, const float *centres)
{
    for (int sample = 0; sample < SAMPLED_ROWS; sample++) {
        int h = sample % k->H, n = (int)((int64_t)sample * (k->N - 1) / (SAMPLED_ROWS - 1));
        int label = k->label[(int64_t)h * k->N + n];
        const float *of_head = centres + (int64_t)h * k->P * k->D;
        double own_bound, bound;
        if (label < 0 || label >= k->P) return 0;
        double own = closeness(x, h, n, of_head + (int64_t)label * k->D, &own_bound);
        for (int c = 0; c < k->P; c++) {
            double other = closeness(x, h, n, of_head + (int64_t)c * k->D, &bound);
            if (!(own >= other - own_bound - bound)) return 0;
        }
    }
    return 1;
}

/* Centres that settled, and one more iteration from them, to be judged. */
static mcsa_status settle(bench_kmeans *k, mcsa_error *error)
{
    TRY(rival_kmeans_start(&k->first, &k->points, k->clusters, SEED, error));
    TRY(rival_kmeans_iterate(&k->first, &k->points, BENCH_KMEANS_FIRST, NULL, error));
    k->centres = (size_t)k->first.H * (size_t)k->first.P * (size_t)k->first.D;
    k->settled = malloc(sizeof *k->settled * k->centres);
    if (!k->settled) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d centres", k->first.P);
    memcpy(k->settled, k->first.centre, sizeof *k->settled * k->centres);
    TRY(rival_kmeans_reserve(&k->next, k->points.x, k->clusters, error));
    memcpy(k->next.centre, k->settled, sizeof *k->settled * k->centres);
    return rival_kmeans_iterate(&k->next, &k->points, 1, NULL, error);
}

static void add_row(bench_kmeans *k, bench_table *table, int iterations, void (*run)(void *), int right)
{
    char label[48];
    snprintf(label, sizeof label, "k-means, %d iterations, N = %d", iterations, k->first.N);
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = k;
    one->operations = 2.0 * iterations * (double)k->centres * k->first.N;
    one->tokens = k->first.N;
    one->wrong = !right;
}

mcsa_status bench_kmeans_add(bench_kmeans *k, const bench_problem *problem, const bench_shape *shape,
                             bench_table *table, mcsa_error *error)
{
    const mcsa_config config = { .threads = shape->threads, .isa = shape->isa };
    TRY(rival_kernels_cpu.open(&k->kernels, &config, error));
    k->points = (rival_points){ &rival_kernels_cpu, k->kernels, &problem->q };
    k->clusters = rival_query_clusters(shape->tokens);
    TRY(settle(k, error));
    int right = bench_labels_are_nearest(&k->next, &problem->q, k->settled);
    k->row = table->count;
    add_row(k, table, BENCH_KMEANS_FIRST, run_first, right);
    add_row(k, table, BENCH_KMEANS_NEXT, run_next, right);
    return MCSA_OK;
}

void bench_kmeans_close(bench_kmeans *k)
{
    rival_kmeans_free(&k->first);
    rival_kmeans_free(&k->next);
    free(k->settled);
    if (k->kernels) rival_kernels_cpu.close(k->kernels);
}

double bench_kmeans_per_step(const bench_kmeans *k, const bench_table *table)
{
    const bench_case *first = &table->cases[k->row], *next = first + 1;
    return (first->median_s + (BENCH_KMEANS_STEPS - 1) * next->median_s) / BENCH_KMEANS_STEPS;
}
