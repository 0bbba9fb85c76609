/* assign.c - the centre nearest to each row, for k-means.
 *
 * Centres are rounded to the dtype of the rows first, in which Flash-KMeans keeps them: BF16 rows meet BF16 centres at
 * the full rate, and rounding costs nothing that matters, since labels are nearest to the rounded centres exactly. */
#include "cpu.h"

#include "cpu/nearest.h"

#include <stdlib.h>

#include <omp.h>

/* The centres of all heads as the kernels read them. */
typedef struct centres {
    int P, D;
    mcsa_dtype dtype;
    void *rows;  /* [H, P, D] */
    float *half; /* [H, P] |c|^2 / 2 */
} centres;

static void *row_of(const centres *all, int64_t c)
{
    return (char *)all->rows + c * all->D * (int64_t)mcsa_dtype_bytes(all->dtype);
}

static void round_centres(const mcsa_kernels *kernels, const float *centre, int64_t count, const centres *to)
{
    for (int64_t c = 0; c < count; c++) {
        kernels->store_row(centre + c * to->D, to->D, to->dtype, 1, row_of(to, c));
        to->half[c] = mcsa_half_square(kernels, row_of(to, c), to->dtype, to->D);
    }
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
        mcsa_rows centre_rows = { row_of(&all, (int64_t)h * P), all.dtype, D, 1, NULL, 0, P, D };
        mcsa_tile_load(tile, kernels, &rows);
        mcsa_tile_nearest(tile, &centre_rows, all.half + (int64_t)h * P, label + (int64_t)h * N + first);
    }
done:
    free(all.rows);
    free(all.half);
    return status;
}
