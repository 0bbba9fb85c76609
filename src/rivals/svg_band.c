/* svg_band.c - see svg.h. */
#include "svg.h"

#include "ranking.h"

#include <math.h>

/* A whole half-width is the same for all rows.  Of a fraction f, the share f of all (row, side) is one block wider,
 * spread by multiples of the golden ratio: whole steps are two blocks in every row, 6 points of density at 4,096
 * tokens, too coarse to compare at equal densities. */
static int reach(double half, int row, int side)
{
    double phase = (2 * row + side) * 0.6180339887498949;
    return (int)(half + phase - floor(phase));
}

void rival_band_row(const rival_band *band, int row, int *from, int *to)
{
    int left = reach(band->half, row, 0), right = reach(band->half, row, 1);
    *from = row > left ? row - left : 0;
    *to = right < band->blocks - row ? row + right + 1 : band->blocks;
}

static int keys_before(int block, int N)
{
    return block * SVG_BLOCK < N ? block * SVG_BLOCK : N;
}

typedef struct band_user {
    rival_band band;
    int N;
} band_user;

static double pairs_at(void *user, double half)
{
    band_user *u = user;
    double pairs = 0;
    u->band.half = half;
    for (int row = 0; row < u->band.blocks; row++) {
        int from, to, rows = keys_before(row + 1, u->N) - keys_before(row, u->N);
        rival_band_row(&u->band, row, &from, &to);
        if (from < u->band.sink) from = to < u->band.sink ? to : u->band.sink;
        pairs += rival_tile_rows(rows) *
                 (double)(keys_before(u->band.sink, u->N) + keys_before(to, u->N) - keys_before(from, u->N));
    }
    return pairs;
}

/* The keys of the first frame are kept by all rows, as on Wan; where they would take more than half of the budget, only
 * as many blocks as fit in that half (INFERRED: at 10 % a frame in ten is the whole budget). */
rival_band rival_band_find(int N, int P, double density)
{
    int blocks = (N + SVG_BLOCK - 1) / SVG_BLOCK, sink = (P + SVG_BLOCK - 1) / SVG_BLOCK;
    int most = (int)(density * N / 2 / SVG_BLOCK);
    band_user u = { { .blocks = blocks, .sink = sink < most ? sink : most, .half = blocks }, N };
    if (density < 1) u.band.half = rival_knob(pairs_at, &u, 0, blocks, density * N * N);
    return u.band;
}

void rival_token_major(int frames, int positions, int32_t *row)
{
    for (int p = 0; p < positions; p++)
        for (int f = 0; f < frames; f++) *row++ = f * positions + p;
}
