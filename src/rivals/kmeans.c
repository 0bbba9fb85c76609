/* kmeans.c - see kmeans.h. */
#include "kmeans.h"

#include "draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

mcsa_status rival_kmeans_reserve(rival_kmeans *k, const mcsa_tensor *x, int clusters, mcsa_error *error)
{
    int H = (int)x->shape[0], N = (int)x->shape[1], D = (int)x->shape[2], P = clusters < N ? clusters : N;
    size_t centres = (size_t)H * (size_t)P * (size_t)D;
    rival_kmeans_free(k);
    k->centre = malloc(sizeof *k->centre * centres);
    k->mean = malloc(sizeof *k->mean * centres);
    k->label = malloc(sizeof *k->label * (size_t)H * (size_t)N);
    if (!k->centre || !k->mean || !k->label) {
        rival_kmeans_free(k);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d clusters of %d rows in %d heads", P, N, H);
    }
    k->H = H;
    k->N = N;
    k->D = D;
    k->P = P;
    return MCSA_OK;
}

void rival_kmeans_free(rival_kmeans *k)
{
    free(k->centre);
    free(k->mean);
    free(k->label);
    rival_partition_free(&k->parts);
    *k = (rival_kmeans){ 0 };
}

mcsa_status rival_kmeans_start(rival_kmeans *k, const rival_points *points, int clusters, uint64_t seed,
                               mcsa_error *error)
{
    TRY(rival_kmeans_reserve(k, points->x, clusters, error));
    for (int c = 0; c < k->P; c++) k->label[c] = rival_draw_below(seed, (uint64_t)c, k->N); /* room for N >= P */
    return points->kernels->read_rows(points->backend, points->x, k->label, k->P, k->centre, error);
}

/* Centres to the means of their members.  Returns how far the one that moved furthest did. */
static double move_centres(rival_kmeans *k)
{
    double furthest = 0;
    for (int h = 0; h < k->H; h++)
        for (int c = 0; c < k->P; c++) {
            if (rival_part_size(&k->parts, h, c) == 0) continue;
            int64_t at = ((int64_t)h * k->P + c) * k->D;
            double square = 0;
            for (int d = 0; d < k->D; d++) {
                double moved = (double)k->mean[at + d] - (double)k->centre[at + d];
                square += moved * moved;
            }
            memcpy(k->centre + at, k->mean + at, sizeof *k->centre * (size_t)k->D);
            furthest = square > furthest ? square : furthest;
        }
    return sqrt(furthest);
}

mcsa_status rival_kmeans_iterate(rival_kmeans *k, const rival_points *points, int iterations, int *done,
                                 mcsa_error *error)
{
    const rival_kernels *kernels = points->kernels;
    int count = 0;
    for (double shift = INFINITY; count < iterations && shift >= RIVAL_KMEANS_SHIFT; count++) {
        TRY(kernels->assign(points->backend, points->x, k->P, k->centre, k->label, error));
        TRY(rival_partition_labels(&k->parts, k->H, k->N, k->P, k->label, error));
        TRY(kernels->pool(points->backend, points->x, &k->parts, k->mean, error));
        shift = move_centres(k);
    }
    if (done) *done = count;
    return MCSA_OK;
}
