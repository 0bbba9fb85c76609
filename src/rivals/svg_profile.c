/* svg_profile.c - which mask of Sparse VideoGen serves a head: at every call 64 rows are computed with all keys and
 * with a coarse form of both masks, and the mask with the smaller squared error is taken.
 *
 * The public code draws the rows from the first 10,000 tokens only, INFERRED: from all where there are fewer; a row
 * drawn twice counts once.  Rows in one block keep the same keys and are computed together, which matters at short
 * sequences: a row alone takes as long as a tile. */
#include "draw.h"
#include "svg.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLED_ROWS = 64, SAMPLED_FROM = 10000 };

typedef enum svg_mask { ALL, SPATIAL, TEMPORAL } svg_mask;

/* The sampled rows of one call, and what they get by each mask. */
typedef struct sample {
    int32_t row[SAMPLED_ROWS]; /* ascending */
    int count;
    float *out[3]; /* [H, count, D] */
} sample;

/* A sampled row, and where its token is in the order of the mask. */
typedef struct placed {
    int32_t place, row;
} placed;

static int ascending(const void *a, const void *b) /* int32_t, or placed by place */
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void draw_rows(const rival_setup *setup, mcsa_site at, int N, sample *s)
{
    uint64_t call = ((uint64_t)at.step * setup->layers + (uint64_t)at.layer) * setup->branches + (uint64_t)at.branch;
    int from = N < SAMPLED_FROM ? N : SAMPLED_FROM;
    for (int i = 0; i < SAMPLED_ROWS; i++)
        s->row[i] = rival_draw_below(setup->seed, call * SAMPLED_ROWS + (uint64_t)i, from);
    qsort(s->row, SAMPLED_ROWS, sizeof *s->row, ascending);
    s->count = 1;
    for (int i = 1; i < SAMPLED_ROWS; i++)
        if (s->row[i] != s->row[i - 1]) s->row[s->count++] = s->row[i];
}

/* The rows in one block are one part, in all heads; with all keys, all rows.  block [parts]: where each part lies. */
static mcsa_status place_rows(const rival_setup *setup, const mcsa_dims *dims, const sample *s, svg_mask mask,
                              rival_partition *queries, int32_t *block, mcsa_error *error)
{
    int F = setup->grid[0], P = setup->grid[1] * setup->grid[2], parts = 0;
    int32_t first[SAMPLED_ROWS + 1];
    placed rows[SAMPLED_ROWS];
    for (int i = 0; i < s->count; i++) {
        int row = s->row[i];
        rows[i] = (placed){ mask == TEMPORAL ? row % P * F + row / P : row, row };
    }
    qsort(rows, (size_t)s->count, sizeof *rows, ascending);
    for (int i = 0; i < s->count; i++) {
        int in = mask == ALL ? 0 : rows[i].place / SVG_BLOCK;
        if (parts && block[parts - 1] == in) continue;
        block[parts] = in;
        first[parts++] = i;
    }
    first[parts] = s->count;
    TRY(rival_partition_reserve(queries, dims->H, dims->N, parts, error));
    for (int h = 0; h < dims->H; h++) {
        memcpy(queries->first + (int64_t)h * (parts + 1), first, sizeof *first * (size_t)(parts + 1));
        for (int i = 0; i < s->count; i++) queries->order[(int64_t)h * dims->N + i] = rows[i].row;
    }
    return MCSA_OK;
}

/* The coarse mask of profiling, |bi - bj| < floor(2 P / 128) and the first frame.  Frames below 64 tokens would leave
 * nothing of the band: at least the diagonal, INFERRED. */
static void fill_profile(const rival_map *map, const int32_t *block, int P)
{
    int width = 2 * P / SVG_BLOCK > 1 ? 2 * P / SVG_BLOCK : 1, sink = (P + SVG_BLOCK - 1) / SVG_BLOCK;
    for (int h = 0; h < map->H; h++)
        for (int q = 0; q < map->Q; q++)
            for (int k = 0; k < map->K; k++)
                if (k < sink || abs(k - block[q]) < width) rival_map_keep(map, h, q, k);
}

/* s->out[mask].  order: [N] tokens position by position. */
static mcsa_status profile_mask(const rival_setup *setup, const mcsa_qkv *x, rival_choice *profile,
                                const int32_t *order, sample *s, svg_mask mask, mcsa_error *error)
{
    const mcsa_dims *dims = &x->dims;
    const rival_kernels *kernels = setup->kernels;
    int32_t block[SAMPLED_ROWS];
    /* a frame as long as the sequence keeps all */
    int P = mask == ALL ? dims->N : setup->grid[1] * setup->grid[2];
    TRY(place_rows(setup, dims, s, mask, &profile->queries, block, error));
    TRY(rival_partition_blocks(&profile->keys, dims->H, dims->N, SVG_BLOCK, mask == TEMPORAL ? order : NULL, error));
    TRY(rival_map_reserve(&profile->map, dims->H, profile->queries.P, profile->keys.P, error));
    fill_profile(&profile->map, block, P);
    TRY(kernels->attend(setup->backend, x, &profile->queries, &profile->keys, &profile->map, NULL, error));
    return kernels->read_rows(setup->backend, x->out, s->row, s->count, s->out[mask], error);
}

static double squared_error(const float *a, const float *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

mcsa_status rival_svg_profile(const rival_setup *setup, const rival_call *call, const int32_t *order, int *temporal,
                              mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    rival_choice profile = { .queries = { .H = 0 } };
    sample s;
    draw_rows(setup, call->at, dims->N, &s);
    int64_t head = (int64_t)s.count * dims->D;
    float *out = malloc(sizeof *out * 3 * (size_t)dims->H * (size_t)head);
    if (!out) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d sampled rows in %d heads", s.count, dims->H);
    mcsa_status status = MCSA_OK;
    for (int mask = ALL; status == MCSA_OK && mask <= TEMPORAL; mask++) {
        s.out[mask] = out + mask * dims->H * head;
        status = profile_mask(setup, call->x, &profile, order, &s, (svg_mask)mask, error);
    }
    for (int h = 0; status == MCSA_OK && h < dims->H; h++)
        temporal[h] = squared_error(s.out[TEMPORAL] + h * head, s.out[ALL] + h * head, head) <
                      squared_error(s.out[SPATIAL] + h * head, s.out[ALL] + h * head, head);
    rival_choice_free(&profile);
    free(out);
    return status;
}
