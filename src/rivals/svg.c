/* svg.c - Sparse VideoGen (arXiv 2502.01776): each head is spatial or temporal, and keeps one fixed band either way:
 * around the diagonal of the tokens frame by frame, or position by position.  Masks are whole blocks of 128, what an
 * element mask of the same width touches. */
#include "svg.h"

#include <stdlib.h>
#include <string.h>

typedef struct svg {
    rival_setup setup;
    rival_choice choice;
} svg;

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
    TRY(rival_svg_profile(&s->setup, call, order, temporal, error));
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
