/* xattn.c - XAttention (arXiv 2503.16428): blocks of 128 by the sums of every eighth antidiagonal of their scores, in
 * each row of blocks as many as it takes to hold a share tau of the sum.
 *
 * Keys past the end stay out of the softmax; the public code forgets them when nothing is causal.  It also keeps block
 * 0 of the keys in every row, by the way it drops the others; that is not done here.  tau is 0.9 to 0.95 in the paper;
 * here it is found for each call so that the density asked is executed, and which row and head gets how much of it
 * stays the method's. */
#include "blocks.h"
#include "budget.h"
#include "ranking.h"

#include <stdlib.h>

enum { XATTN_BLOCK = 128, XATTN_STRIDE = 8 };

typedef struct xattn {
    rival_setup setup;
    rival_choice choice;
    float *share;  /* [H, B, B] of the row's sum, in the order of the rank */
    int32_t *rank; /* [H, B, B] blocks of keys by descending sum */
} xattn;

static mcsa_status open_xattn(void **state, const rival_setup *setup, mcsa_error *error)
{
    xattn *x = calloc(1, sizeof *x);
    if (!x) return mcsa_fail(error, MCSA_ENOMEM, "no memory for xattn");
    x->setup = *setup;
    *state = x;
    return MCSA_OK;
}

static void close_xattn(void *state)
{
    xattn *x = state;
    rival_choice_free(&x->choice);
    free(x->share);
    free(x->rank);
    free(x);
}

static mcsa_status reserve(xattn *x, const mcsa_dims *dims, mcsa_error *error)
{
    if (x->choice.map.H == dims->H && x->choice.keys.N == dims->N && x->share && x->rank)
        return rival_choice_blocks(&x->choice, dims, XATTN_BLOCK, XATTN_BLOCK, error);
    TRY(rival_choice_blocks(&x->choice, dims, XATTN_BLOCK, XATTN_BLOCK, error));
    size_t B = (size_t)x->choice.map.K, count = (size_t)dims->H * B * B;
    free(x->share);
    free(x->rank);
    x->share = malloc(sizeof *x->share * count);
    x->rank = malloc(sizeof *x->rank * count);
    if (x->share && x->rank) return MCSA_OK;
    return mcsa_fail(error, MCSA_ENOMEM, "no memory for the sums of %zu x %zu blocks in %d heads", B, B, dims->H);
}

/* From sums [K] to shares of them in the order of the rank.  A row of zeros, where every term fell below the smallest
 * float, stays one. */
static void rank_row(const float *sum, int K, int32_t *rank, float *share)
{
    double total = 0;
    rival_rank(sum, K, rank);
    for (int k = 0; k < K; k++) total += (double)sum[k];
    for (int r = 0; r < K; r++) share[r] = total > 0 ? (float)((double)sum[rank[r]] / total) : 0;
}

static mcsa_status rank(xattn *x, const mcsa_qkv *qkv, mcsa_error *error)
{
    const rival_map *map = &x->choice.map;
    int64_t rows = (int64_t)map->H * map->Q;
    float *sum = malloc(sizeof *sum * (size_t)(rows * map->K));
    if (!sum) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the sums of %d x %d blocks", map->Q, map->K);
    mcsa_status status = x->setup.kernels->diagonal(x->setup.backend, qkv, XATTN_STRIDE, XATTN_BLOCK, sum, error);
    if (status == MCSA_OK) {
#pragma omp parallel for schedule(static) num_threads(x->setup.threads)
        for (int64_t row = 0; row < rows; row++)
            rank_row(sum + row * map->K, map->K, x->rank + row * map->K, x->share + row * map->K);
    }
    free(sum);
    return status;
}

static int kept_blocks(const xattn *x, int64_t row, double tau)
{
    int K = x->choice.map.K;
    return rival_prefix(x->share + row * K, K, RIVAL_BOUNDARY_STRICT, tau, 1);
}

static double kept_pairs(void *user, double tau)
{
    const xattn *x = user;
    const rival_map *map = &x->choice.map;
    int64_t rows = (int64_t)map->H * map->Q, pairs = 0;
    int threads = rows * map->K > RIVAL_SERIAL_SCORES ? x->setup.threads : 1;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : pairs)
    for (int64_t row = 0; row < rows; row++) {
        int64_t keys = 0;
        for (int r = kept_blocks(x, row, tau) - 1; r >= 0; r--)
            keys += rival_part_size(&x->choice.keys, 0, x->rank[row * map->K + r]);
        pairs += keys * rival_padded_rows(&x->choice, (int)(row % map->Q));
    }
    return (double)pairs;
}

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    xattn *x = state;
    const rival_map *map = &x->choice.map;
    TRY(reserve(x, &call->x->dims, error));
    TRY(rank(x, call->x, error));
    /* the shares before a rank are below 2, whatever their rounding: tau = 2 keeps everything, and tau = 0 the best */
    double tau = rival_knob(kept_pairs, x, 0, 2, rival_target_pairs(&x->choice, x->setup.density));
    for (int64_t row = 0; row < (int64_t)map->H * map->Q; row++)
        for (int r = kept_blocks(x, row, tau) - 1; r >= 0; r--)
            rival_map_keep(map, (int)(row / map->Q), (int)(row % map->Q), x->rank[row * map->K + r]);
    *choice = &x->choice;
    return MCSA_OK;
}

const rival_method rival_xattn = {
    .name = "xattn",
    .summary = "blocks of 128 by sums of antidiagonals of their scores",
    .open = open_xattn,
    .close = close_xattn,
    .choose = choose,
};
