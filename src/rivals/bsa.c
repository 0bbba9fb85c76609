/* bsa.c - vanilla block-sparse attention: blocks of keys ranked by the score of mean query and mean key, anew at every
 * step.  Blocks of 128 queries and 64 keys are INFERRED: the paper says that they are "typically aligned with the
 * tile". */
#include "blocks.h"

#include <stdlib.h>

enum { BSA_QUERIES = 128, BSA_KEYS = 64 };

typedef struct bsa {
    rival_setup setup;
    rival_choice choice;
} bsa;

static mcsa_status open_bsa(void **state, const rival_setup *setup, mcsa_error *error)
{
    bsa *b = calloc(1, sizeof *b);
    if (!b) return mcsa_fail(error, MCSA_ENOMEM, "no memory for bsa");
    b->setup = *setup;
    *state = b;
    return MCSA_OK;
}

static void close_bsa(void *state)
{
    bsa *b = state;
    rival_choice_free(&b->choice);
    free(b);
}

/* score [H, Q, K]: products of the means; their scale does not change a ranking. */
static void score_means(const rival_map *map, int D, const float *query, const float *key, int threads, float *score)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < (int64_t)map->H * map->Q; row++)
        for (int k = 0; k < map->K; k++) {
            const float *a = query + row * D, *b = key + (row / map->Q * map->K + k) * D;
            float dot = 0;
            for (int d = 0; d < D; d++) dot += a[d] * b[d];
            score[row * map->K + k] = dot;
        }
}

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    bsa *b = state;
    const mcsa_dims *dims = &call->x->dims;
    TRY(rival_choice_blocks(&b->choice, dims, BSA_QUERIES, BSA_KEYS, error));
    const rival_map *map = &b->choice.map;
    size_t H = (size_t)map->H, Q = (size_t)map->Q, K = (size_t)map->K, D = (size_t)dims->D;
    float *query = malloc(sizeof *query * (H * (Q + K) * D + H * Q * K));
    double *density = malloc(sizeof *density * H);
    mcsa_status status = MCSA_ENOMEM;
    if (!query || !density) {
        mcsa_fail(error, status, "no memory for the means of %zu x %zu blocks in %d heads", Q, K, dims->H);
        goto done;
    }
    float *key = query + H * Q * D, *score = key + H * K * D;
    if ((status = b->setup.kernels->pool(b->setup.backend, call->x->q, &b->choice.queries, query, error)) != MCSA_OK)
        goto done;
    if ((status = b->setup.kernels->pool(b->setup.backend, call->x->k, &b->choice.keys, key, error)) != MCSA_OK)
        goto done;
    score_means(map, dims->D, query, key, b->setup.threads, score);
    for (size_t h = 0; h < H; h++) density[h] = b->setup.density;
    status = rival_choice_keep_top(&b->choice, score, density, b->setup.threads, error);
    *choice = &b->choice;
done:
    free(query);
    free(density);
    return status;
}

const rival_method rival_bsa = {
    .name = "bsa",
    .summary = "blocks ranked by mean query and mean key, chosen at every step",
    .open = open_bsa,
    .close = close_bsa,
    .choose = choose,
};
