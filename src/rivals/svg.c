/* svg.c - Sparse VideoGen (arXiv 2502.01776): each head is spatial or temporal, and keeps one fixed band either way.
 *
 * The band lies around the diagonal of the tokens frame by frame for a spatial head, position by position for a
 * temporal one.  At every call 64 rows are computed with all keys and with a coarse form of both masks, and each head
 * takes the mask with the smaller squared error.  The public code draws the rows from the first 10,000 tokens only,
 * INFERRED: from all where there are fewer; a row drawn twice counts once.  Masks are whole blocks of 128, what an
 * element mask of the same width touches. */
#include "svg.h"

#include "draw.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLED_ROWS = 64, SAMPLED_FROM = 10000 };

typedef enum svg_mask { ALL, SPATIAL, TEMPORAL } svg_mask;

typedef struct svg {
    rival_setup setup;
    rival_choice choice;
} svg;

/* The sampled rows of one call, and what they get from all keys, the spatial and the temporal mask. */
typedef struct sample {
    int32_t row[SAMPLED_ROWS]; /* ascending */
    int count;
    float *out[3]; /* by mask: [H, count, D] */
} sample;

static mcsa_status open_svg(void **state, const rival_setup *setup, mcsa_error *error)
{
    svg *s = calloc(1, sizeof *s);
    if (!s) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    s->setup = *setup;
    *state = s;
    return MCSA_OK;
}

static void close_svg(void *state)
{
    svg *s = state;
    rival_choice_free(&s->choice);
    free(s);
}

static int ascending(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void draw_rows(const rival_setup *setup, mcsa_site at, int N, sample *s)
{
    uint64_t call = ((uint64_t)at.step * setup->layers + (uint64_t)at.layer) * setup->branches + (uint64_t)at.branch;
    int from = N < SAMPLED_FROM ? N : SAMPLED_FROM, kept = 1;
    for (int i = 0; i < SAMPLED_ROWS; i++)
        s->row[i] = rival_draw_below(setup->seed, call * SAMPLED_ROWS + (uint64_t)i, from);
    qsort(s->row, SAMPLED_ROWS, sizeof *s->row, ascending);
    for (int i = 1; i < SAMPLED_ROWS; i++)
        if (s->row[i] != s->row[i - 1]) s->row[kept++] = s->row[i];
    s->count = kept;
}

/* One part of the queries for each sampled row, in all heads. */
static mcsa_status sampled_parts(const sample *s, const mcsa_dims *dims, rival_partition *queries, mcsa_error *error)
{
    TRY(rival_partition_reserve(queries, dims->H, dims->N, s->count, error));
    for (int h = 0; h < dims->H; h++) {
        memcpy(queries->order + (int64_t)h * dims->N, s->row, sizeof *s->row * (size_t)s->count);
        for (int i = 0; i <= s->count; i++) queries->first[(int64_t)h * (s->count + 1) + i] = i;
    }
    return MCSA_OK;
}

/* The coarse mask of profiling, |bi - bj| < floor(2 P / 128) and the first frame, for the blocks in which the sampled
 * rows lie.  Frames below 64 tokens would leave nothing of the band: at least the diagonal, INFERRED. */
static void fill_profile(const rival_map *map, const int32_t *block, int P)
{
    int width = 2 * P / SVG_BLOCK > 1 ? 2 * P / SVG_BLOCK : 1, sink = (P + SVG_BLOCK - 1) / SVG_BLOCK;
    for (int h = 0; h < map->H; h++)
        for (int i = 0; i < map->Q; i++)
            for (int k = 0; k < map->K; k++)
                if (k < sink || abs(k - block[i]) < width) rival_map_keep(map, h, i, k);
}

/* Attention of the sampled rows over the kept blocks, read back to the host. */
static mcsa_status attend_sampled(const svg *s, const mcsa_qkv *x, const rival_choice *profile, const sample *rows,
                                  float *out, mcsa_error *error)
{
    const rival_kernels *kernels = s->setup.kernels;
    TRY(kernels->attend(s->setup.backend, x, &profile->queries, &profile->keys, &profile->map, NULL, error));
    return kernels->read_rows(s->setup.backend, x->out, rows->row, rows->count, out, error);
}

/* rows->out[mask] of the sampled rows.  order: [N] tokens position by position. */
static mcsa_status profile_mask(const svg *s, const mcsa_qkv *x, rival_choice *profile, const int32_t *order,
                                sample *rows, svg_mask mask, mcsa_error *error)
{
    const mcsa_dims *dims = &x->dims;
    int32_t block[SAMPLED_ROWS];
    int F = s->setup.grid[0], P = s->setup.grid[1] * s->setup.grid[2];
    for (int i = 0; i < rows->count; i++) {
        int row = rows->row[i], place = mask == TEMPORAL ? row % P * F + row / P : row;
        block[i] = place / SVG_BLOCK;
    }
    TRY(rival_partition_blocks(&profile->keys, dims->H, dims->N, SVG_BLOCK, mask == TEMPORAL ? order : NULL, error));
    TRY(rival_map_reserve(&profile->map, dims->H, rows->count, profile->keys.P, error));
    fill_profile(&profile->map, block, mask == ALL ? dims->N : P);
    return attend_sampled(s, x, profile, rows, rows->out[mask], error);
}

static double squared_error(const float *a, const float *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* temporal [H]: 1 where the temporal mask comes nearer to all keys than the spatial one. */
static mcsa_status profile_heads(const svg *s, const rival_call *call, const int32_t *order, int *temporal,
                                 mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    rival_choice profile = { .queries = { .H = 0 } };
    sample rows;
    draw_rows(&s->setup, call->at, dims->N, &rows);
    int64_t head = (int64_t)rows.count * dims->D;
    float *out = malloc(sizeof *out * 3 * (size_t)dims->H * (size_t)head);
    if (!out) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d sampled rows in %d heads", rows.count, dims->H);
    mcsa_status status = sampled_parts(&rows, dims, &profile.queries, error);
    for (int mask = ALL; status == MCSA_OK && mask <= TEMPORAL; mask++) {
        rows.out[mask] = out + mask * dims->H * head;
        status = profile_mask(s, call->x, &profile, order, &rows, (svg_mask)mask, error);
    }
    for (int h = 0; status == MCSA_OK && h < dims->H; h++)
        temporal[h] = squared_error(rows.out[TEMPORAL] + h * head, rows.out[ALL] + h * head, head) <
                      squared_error(rows.out[SPATIAL] + h * head, rows.out[ALL] + h * head, head);
    rival_choice_free(&profile);
    free(out);
    return status;
}

/* The same band in all heads; a temporal head has its tokens in another order. */
static void fill_choice(rival_choice *choice, const rival_band *band, const int32_t *order, const int *temporal)
{
    int N = choice->queries.N;
    for (int h = 0; h < choice->map.H; h++) {
        if (temporal[h]) {
            memcpy(choice->queries.order + (int64_t)h * N, order, sizeof *order * (size_t)N);
            memcpy(choice->keys.order + (int64_t)h * N, order, sizeof *order * (size_t)N);
        }
        for (int q = 0; q < choice->map.Q; q++) {
            int from, to;
            rival_band_row(band, q, &from, &to);
            for (int k = 0; k < band->sink; k++) rival_map_keep(&choice->map, h, q, k);
            for (int k = from; k < to; k++) rival_map_keep(&choice->map, h, q, k);
        }
    }
}

/* order: [N] tokens position by position, temporal: [H] */
static mcsa_status fill(svg *s, const rival_call *call, int32_t *order, int *temporal, mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    rival_choice *choice = &s->choice;
    int P = s->setup.grid[1] * s->setup.grid[2];
    rival_token_major(s->setup.grid[0], P, order);
    TRY(profile_heads(s, call, order, temporal, error));
    TRY(rival_partition_blocks(&choice->queries, dims->H, dims->N, SVG_BLOCK, NULL, error));
    TRY(rival_partition_blocks(&choice->keys, dims->H, dims->N, SVG_BLOCK, NULL, error));
    TRY(rival_map_reserve(&choice->map, dims->H, choice->queries.P, choice->keys.P, error));
    rival_band band = rival_band_find(dims->N, P, s->setup.density);
    fill_choice(choice, &band, order, temporal);
    return MCSA_OK;
}

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    svg *s = state;
    const mcsa_dims *dims = &call->x->dims;
    int32_t *order = malloc(sizeof *order * (size_t)dims->N);
    int *temporal = malloc(sizeof *temporal * (size_t)dims->H);
    mcsa_status status = order && temporal
                             ? fill(s, call, order, temporal, error)
                             : mcsa_fail(error, MCSA_ENOMEM, "no memory for an order of %d tokens", dims->N);
    free(order);
    free(temporal);
    *choice = &s->choice;
    return status;
}

const rival_method rival_svg = {
    .name = "svg",
    .summary = "one fixed band per head, over frames or over positions, judged by sampled rows",
    .grid = 1,
    .open = open_svg,
    .close = close_svg,
    .choose = choose,
};
