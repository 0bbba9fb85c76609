/* assign.c - the centre nearest to each row, for k-means: scores of strips of 64 rows against blocks of centres, and a
 * running minimum down the columns.  The distances [N, P] are never stored.
 *
 * Centres are rounded to the dtype of the rows first, in which Flash-KMeans keeps them: BF16 rows meet BF16 centres at
 * the full rate, and rounding costs nothing that matters, since labels are nearest to the rounded centres exactly. */
#include "strips.h"

#include "cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

/* The centres of all heads as the kernels read them. */
typedef struct centres {
    int P, D;
    mcsa_dtype dtype;
    void *rows;  /* [H, P, D] */
    float *half; /* [H, P] |c|^2 / 2 */
} centres;

/* The largest x . c - |c|^2 / 2 so far, -1/2 of the distance without |x|^2, and whose it is. */
typedef struct nearest {
    float score[MCSA_STRIP];
    int32_t label[MCSA_STRIP];
} nearest;

static void round_centres(const mcsa_kernels *kernels, const float *centre, int64_t count, centres *to)
{
    float row[MCSA_MAX_DIM];
    size_t bytes = (size_t)to->D * mcsa_dtype_bytes(to->dtype);
    for (int64_t c = 0; c < count; c++) {
        char *rounded = (char *)to->rows + (size_t)c * bytes;
        double squares = 0;
        kernels->store_row(centre + c * to->D, to->D, to->dtype, 1, rounded);
        kernels->load_row(rounded, to->dtype, 1, to->D, row);
        for (int d = 0; d < to->D; d++) squares += (double)row[d] * (double)row[d];
        to->half[c] = (float)(squares / 2);
    }
}

/* scores [count, lanes] of centres first .. first + count.  Of equal distances the lower label stays.  Masks instead of
 * a choice, which gcc 12 does not vectorise: it was as long as the product itself. */
static void take_nearest(const float *restrict scores, const float *restrict half, int first, int count, int lanes,
                         float *restrict top, int32_t *restrict label)
{
    for (int j = 0; j < count; j++, scores += lanes) {
        int32_t centre = first + j;
        float shift = half[j];
        for (int i = 0; i < lanes; i++) {
            float score = scores[i] - shift, before = top[i];
            int32_t better = -(int32_t)(score > before);
            label[i] = (centre & better) | (label[i] & ~better);
            top[i] = score > before ? score : before;
        }
    }
}

/* Labels of the rows that the tile holds.  A row with NaN, which is no nearer to one than to another, gets 0. */
static void assign_tile(mcsa_tile *tile, const mcsa_kernels *kernels, const centres *all, int h, int32_t *label)
{
    nearest best[MCSA_DENSE_TILE / MCSA_STRIP];
    const char *rows =
        (const char *)all->rows + (size_t)h * (size_t)all->P * (size_t)all->D * mcsa_dtype_bytes(all->dtype);
    const float *half = all->half + (int64_t)h * all->P;
    for (int s = 0; s < MCSA_DENSE_TILE / MCSA_STRIP; s++)
        for (int l = 0; l < MCSA_STRIP; l++) {
            best[s].score[l] = -INFINITY;
            best[s].label[l] = 0;
        }
    for (int j = 0; j < all->P; j += MCSA_KEY_BLOCK) {
        int count = all->P - j < MCSA_KEY_BLOCK ? all->P - j : MCSA_KEY_BLOCK;
        mcsa_rows block = { rows, all->dtype, all->D, 1, NULL, j, count, all->D };
        kernels->stage_keys(&block, tile->staged, tile->keys);
        for (int i = 0; i < tile->count; i += MCSA_STRIP) {
            int lanes = rival_strip_lanes(tile, i);
            kernels->scores(tile->keys, rival_strip_queries(tile, i), count, all->D, lanes, tile->scores);
            take_nearest(tile->scores, half + j, j, count, lanes, best[i / MCSA_STRIP].score,
                         best[i / MCSA_STRIP].label);
        }
    }
    for (int i = 0; i < tile->count; i++) label[i] = best[i / MCSA_STRIP].label[i % MCSA_STRIP];
}

mcsa_status rival_cpu_assign(void *state, const mcsa_tensor *x, int P, const float *centre, int32_t *label,
                             mcsa_error *error)
{
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, x->dtype);
    int H = (int)x->shape[0], N = (int)x->shape[1], D = (int)x->shape[2];
    int tiles = (N + MCSA_DENSE_TILE - 1) / MCSA_DENSE_TILE;
    int64_t count = (int64_t)H * P;
    TRY(rival_cpu_reserve(cpu, D, 1, error));
    centres all = { P, D, x->dtype, malloc((size_t)count * (size_t)D * mcsa_dtype_bytes(x->dtype)),
                    malloc(sizeof(float) * (size_t)count) };
    mcsa_status status = MCSA_OK;
    if (!all.rows || !all.half) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for %d centres of D = %d in %d heads", P, D, H);
        goto done;
    }
    round_centres(kernels, centre, count, &all);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)H * tiles; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / tiles), first = (int)(task % tiles) * MCSA_DENSE_TILE;
        mcsa_rows rows = mcsa_head_rows(x, h, NULL, first, N - first < MCSA_DENSE_TILE ? N - first : MCSA_DENSE_TILE);
        mcsa_tile_load(tile, kernels, &rows);
        assign_tile(tile, kernels, &all, h, label + (int64_t)h * N + first);
    }
done:
    free(all.rows);
    free(all.half);
    return status;
}
