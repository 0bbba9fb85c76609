/* cluster.c - k-means of each head's keys, from rows at even distances and always the same number of rounds: nothing is
 * kept between anchors, so the clusters of an anchor depend on its keys alone.
 *
 * Centres are rounded to the dtype of the keys, so that BF16 keys meet BF16 centres at the full rate. */
#include "base/tensor.h"
#include "cpu.h"
#include "means.h"
#include "nearest.h"

#include <string.h>

#include <omp.h>

enum { ASSIGNMENTS = 4 }; /* with a move of the centres between two of them */

/* Centre p of head h becomes the mean of these keys. */
static void move_centre(const mcsa_cpu *cpu, const mcsa_qkv *x, int h, int64_t hp, const int32_t *keys, int count)
{
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
    void *centre = mcsa_cluster_row(cpu->clusters.key, &x->dims, hp);
    mcsa_rows rows = mcsa_head_rows(x->k, h, keys, 0, count);
    mcsa_mean_row(kernels, &rows, centre);
    cpu->clusters.half[hp] = mcsa_half_square(kernels, centre, x->dims.dtype, x->dims.D);
}

static void place_centres(const mcsa_cpu *cpu, const mcsa_qkv *x, const mcsa_selection *s)
{
#pragma omp parallel for schedule(static) num_threads(cpu->threads)
    for (int64_t hp = 0; hp < (int64_t)s->H * s->P; hp++) {
        int32_t key = (int32_t)((2 * (hp % s->P) + 1) * s->N / (2 * s->P));
        move_centre(cpu, x, (int)(hp / s->P), hp, &key, 1);
    }
}

/* The centre of an empty cluster stays where it is. */
static void move_centres(const mcsa_cpu *cpu, const mcsa_qkv *x, const mcsa_selection *s)
{
#pragma omp parallel for schedule(dynamic, 16) num_threads(cpu->threads)
    for (int64_t hp = 0; hp < (int64_t)s->H * s->P; hp++) {
        int count, h = (int)(hp / s->P);
        const int32_t *keys = mcsa_cluster(s, h, (int)(hp % s->P), &count);
        if (count) move_centre(cpu, x, h, hp, keys, count);
    }
}

static void label_keys(const mcsa_cpu *cpu, const mcsa_qkv *x, const mcsa_selection *s)
{
    int tiles = (s->N + MCSA_DENSE_TILE - 1) / MCSA_DENSE_TILE, D = x->dims.D;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)s->H * tiles; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / tiles), first = (int)(task % tiles) * MCSA_DENSE_TILE;
        int count = s->N - first < MCSA_DENSE_TILE ? s->N - first : MCSA_DENSE_TILE;
        mcsa_rows keys = mcsa_head_rows(x->k, h, NULL, first, count);
        mcsa_rows centres = {
            mcsa_cluster_row(cpu->clusters.key, &x->dims, (int64_t)h * s->P), x->dims.dtype, D, 1, NULL, 0, s->P, D
        };
        mcsa_tile_load(tile, mcsa_cpu_kernels(cpu, x->dims.dtype), &keys);
        mcsa_tile_nearest(tile, &centres, cpu->clusters.half + (int64_t)h * s->P,
                          cpu->clusters.label + (int64_t)h * s->N + first);
    }
}

/* Counting sort: first [P + 1] holds sizes, then ends, and is moved to the beginnings as keys fall in from the last. */
static void sort_by_label(const int32_t *label, int N, int P, int32_t *first, int32_t *members)
{
    memset(first, 0, sizeof *first * ((size_t)P + 1));
    for (int j = 0; j < N; j++) first[label[j]]++;
    for (int p = 1; p <= P; p++) first[p] += first[p - 1];
    for (int j = N; j-- > 0;) members[--first[label[j]]] = j;
}

static void assign(const mcsa_cpu *cpu, const mcsa_qkv *x, mcsa_selection *s)
{
    label_keys(cpu, x, s);
#pragma omp parallel for schedule(static) num_threads(cpu->threads)
    for (int h = 0; h < s->H; h++)
        sort_by_label(cpu->clusters.label + (int64_t)h * s->N, s->N, s->P, s->first + (int64_t)h * (s->P + 1),
                      s->members + (int64_t)h * s->N);
}

void mcsa_cpu_cluster(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    mcsa_cpu *cpu = state;
    place_centres(cpu, x, s);
    assign(cpu, x, s);
    for (int round = 1; round < ASSIGNMENTS; round++) {
        move_centres(cpu, x, s);
        assign(cpu, x, s);
    }
}
