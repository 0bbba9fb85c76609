/* scores.c - see scores.h.  Keys are transposed first, so that lanes are keys and each sum keeps its order. */
#include "scores.h"

#include <stdlib.h>

enum { WIDTH = 64 }; /* keys at a time: their sums stay in registers, their columns in L1 */

/* columns [D, K] of rows [K, D] */
static void transpose(const float *rows, int K, int D, float *columns)
{
    for (int k = 0; k < K; k++)
        for (int d = 0; d < D; d++) columns[(int64_t)d * K + k] = rows[(int64_t)k * D + d];
}

static void score_row(const float *query, const float *columns, int K, int D, float scale, float *score)
{
    for (int at = 0; at < K; at += WIDTH) {
        int width = K - at < WIDTH ? K - at : WIDTH;
        float sum[WIDTH] = { 0 };
        for (int d = 0; d < D; d++) {
            const float *keys = columns + (int64_t)d * K + at;
            for (int k = 0; k < width; k++) sum[k] += query[d] * keys[k];
        }
        for (int k = 0; k < width; k++) score[at + k] = scale * sum[k];
    }
}

mcsa_status rival_score_means(const rival_means *m, float scale, int threads, float *score, mcsa_error *error)
{
    int64_t keys = (int64_t)m->K * m->D;
    float *columns = malloc(sizeof *columns * (size_t)m->H * (size_t)keys);
    if (!columns) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d mean keys in %d heads", m->K, m->H);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int h = 0; h < m->H; h++) transpose(m->key + h * keys, m->K, m->D, columns + h * keys);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < (int64_t)m->H * m->Q; row++)
        score_row(m->query + row * m->D, columns + row / m->Q * keys, m->K, m->D, scale, score + row * m->K);
    free(columns);
    return MCSA_OK;
}
