/* sol.c - Sol-Attn (arXiv 2607.24027): blocks whose score of means stands out by tau standard deviations exactly, the
 * others by their sums.
 *
 * Blocks of 64.  For block i of the queries the scores of all blocks have the mean mu_i and, with the dimensions of the
 * mean keys taken as independent ("diag"), the variance scale^2 sum_d q_d^2 Var_j k_jd; block j is exact where its
 * score is above mu_i + tau sqrt(variance + 1e-6), in units of log2, or |i - j| <= 1.  A ragged last block counts as
 * one in mean and variance.  There are no sinks: they are for text, which self-attention of ours has none of.
 *
 * tau is one number in the public kernel, 1 unless told, and what it executes depends on the input.  Here it is found
 * for each call so that the density asked is executed; which row and head gets how much of it stays the method's. */
#include "budget.h"
#include "pooled.h"
#include "ranking.h"

#include <math.h>
#include <stdlib.h>

enum { SOL_BLOCK = 64, SOL_NEAR = 1 /* blocks to either side that are always exact */ };

#define LOG2E 1.44269504088896341
#define VARIANCE_FLOOR 1e-6

/* variance [D] of mean keys [K, D].  Sums of equal floats are exact in double, so equal keys give 0. */
static void key_variance(const float *key, int K, int D, double *variance)
{
    for (int d = 0; d < D; d++) {
        double mean = 0, square = 0;
        for (int k = 0; k < K; k++) mean += (double)key[(int64_t)k * D + d];
        mean /= K;
        for (int k = 0; k < K; k++) {
            double apart = (double)key[(int64_t)k * D + d] - mean;
            square += apart * apart;
        }
        variance[d] = square / K;
    }
}

/* Scores of one row, in units of log2, to standard deviations from their mean; equal scores to exactly 0, so that no
 * rounding decides about their blocks. */
static void standardise_row(const float *query, const double *variance, int D, double scale, float *score, int K)
{
    double mean = 0, square = 0;
    for (int k = 0; k < K; k++) mean += (double)score[k];
    mean /= K;
    for (int d = 0; d < D; d++) square += (double)query[d] * (double)query[d] * variance[d];
    double deviation = sqrt(scale * scale * square + VARIANCE_FLOOR);
    for (int k = 0; k < K; k++) score[k] = (float)(((double)score[k] - mean) / deviation);
}

static mcsa_status standardise(rival_pooled *p, double scale, mcsa_error *error)
{
    const rival_map *map = &p->choice.map;
    int D = p->dims.D;
    double *variance = malloc(sizeof *variance * (size_t)map->H * (size_t)D);
    if (!variance) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d variances in %d heads", D, map->H);
    for (int h = 0; h < map->H; h++)
        key_variance(p->key + (int64_t)h * map->K * D, map->K, D, variance + (int64_t)h * D);
#pragma omp parallel for schedule(static) num_threads(p->setup.threads)
    for (int64_t row = 0; row < (int64_t)map->H * map->Q; row++)
        standardise_row(p->query + row * D, variance + row / map->Q * D, D, scale, p->score + row * map->K, map->K);
    free(variance);
    return MCSA_OK;
}

static int is_exact(const float *score, int q, int k, float tau)
{
    return score[k] > tau || abs(q - k) <= SOL_NEAR;
}

/* Keys of the exact blocks of one row.  The loop over all blocks has no branch: it runs some 30 times a call. */
static int64_t exact_keys(const rival_choice *choice, const float *score, int q, float tau)
{
    int K = choice->map.K, above = 0;
    for (int k = 0; k < K; k++) above += score[k] > tau;
    int64_t keys = (int64_t)above * SOL_BLOCK;
    if (score[K - 1] > tau) keys -= (int64_t)K * SOL_BLOCK - choice->keys.N;
    for (int k = q - SOL_NEAR; k <= q + SOL_NEAR; k++)
        if (k >= 0 && k < K && !(score[k] > tau)) keys += rival_part_size(&choice->keys, 0, k);
    return keys;
}

static double exact_pairs(void *user, double tau)
{
    const rival_pooled *p = user;
    const rival_map *map = &p->choice.map;
    int64_t rows = (int64_t)map->H * map->Q, pairs = 0;
    int threads = rows * map->K > RIVAL_SERIAL_SCORES ? p->setup.threads : 1;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : pairs)
    for (int64_t row = 0; row < rows; row++) {
        int q = (int)(row % map->Q);
        pairs += exact_keys(&p->choice, p->score + row * map->K, q, (float)tau) * rival_padded_rows(&p->choice, q);
    }
    return (double)pairs;
}

/* Between all blocks and only the nearest. */
static float find_tau(rival_pooled *p)
{
    const rival_map *map = &p->choice.map;
    float low = p->score[0], high = p->score[0];
    for (int64_t i = 0; i < (int64_t)map->H * map->Q * map->K; i++) {
        low = p->score[i] < low ? p->score[i] : low;
        high = p->score[i] > high ? p->score[i] : high;
    }
    /* below by more than the rounding of the largest float */
    double margin = 1 + 0x1p-20 * fabs((double)low);
    return (float)rival_knob(exact_pairs, p, (double)low - margin, (double)high,
                             rival_target_pairs(&p->choice, p->setup.density));
}

static void keep(rival_pooled *p, float tau)
{
    const rival_map *map = &p->choice.map;
#pragma omp parallel for schedule(static) num_threads(p->setup.threads)
    for (int64_t row = 0; row < (int64_t)map->H * map->Q; row++) {
        int h = (int)(row / map->Q), q = (int)(row % map->Q);
        for (int k = 0; k < map->K; k++)
            if (is_exact(p->score + row * map->K, q, k, tau)) rival_map_keep(map, h, q, k);
    }
}

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    rival_pooled *p = state;
    double scale = (double)call->x->scale * LOG2E;
    TRY(rival_pooled_begin(p, call->x, SOL_BLOCK, SOL_BLOCK, error));
    TRY(rival_pooled_score(p, call->x, (float)scale, error));
    TRY(standardise(p, scale, error));
    keep(p, find_tau(p));
    TRY(rival_pooled_tail(p, call->x, error));
    *choice = &p->choice;
    return MCSA_OK;
}

const rival_method rival_sol = {
    .name = "sol",
    .summary = "blocks of 64 whose score of means is above a threshold; the others by their sums",
    .open = rival_pooled_open,
    .close = rival_pooled_close,
    .choose = choose,
};
