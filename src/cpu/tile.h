/* tile.h - one thread's scratch, and the two things done with a tile of queries: attend, and weigh the keys.
 *
 * A tile is cut into strips of up to 64 lanes; for each block of keys, staged once, every strip runs scores, softmax
 * and accumulate.  At C = 128, D = 128 in bf16 the working set is 32 KiB of queries, 64 KiB of output, 72 KiB of scores
 * and probabilities and 96 KiB of keys and values: it stays in a 1 MiB L2. */
#ifndef MCSA_CPU_TILE_H
#define MCSA_CPU_TILE_H

#include "base/memory.h"
#include "kernels.h"

enum { MCSA_DENSE_TILE = 128 }; /* queries of a tile of dense attention */

/* Rows that stand for several keys each, and for their values. */
typedef struct mcsa_means {
    mcsa_rows keys, values;
    const float *log2_size; /* by row of the head: how many keys, its logarithm */
} mcsa_means;

typedef struct mcsa_tile {
    const mcsa_kernels *kernels;
    int count, D;              /* of the queries loaded now */
    uint32_t *queries;         /* [strips][words, lanes] */
    float *output;             /* [strips][D, lanes] */
    mcsa_strip *strips;        /* [strips] */
    uint32_t *staged, *values; /* blocks of keys (where they are not words already) and values, [KEY_BLOCK, D] words */
    const uint32_t *keys[MCSA_KEY_BLOCK]; /* where each key's words are */
    uint32_t *probabilities;              /* [KEY_BLOCK, STRIP] words */
    float *scores;                        /* [KEY_BLOCK, STRIP] */
    float *partial; /* [KEY_BLOCK, LANES] masses of a block of keys before their lanes are summed */
    float *rows;    /* [count, D] attention output */
    float *lse;     /* [count] */
    int32_t *kept;  /* [M] */
    float *mass;    /* [M], and LANES more */
    size_t trail_words;
    uint32_t *trail;  /* [blocks][strips] probabilities of one attend, for weighing the keys afterwards */
    float *trail_max; /* [blocks][strips][STRIP] the maxima that they are relative to */
} mcsa_tile;

/* Takes a tile for up to `queries` queries, D and M from the arena. */
void mcsa_tile_carve(mcsa_tile *tile, mcsa_arena *arena, int queries, int D, int M);

/* Loads the tile's queries. */
void mcsa_tile_load(mcsa_tile *tile, const mcsa_kernels *kernels, const mcsa_rows *queries);

/* tile->rows = softmax(q k^T scale) v over the given rows of k and v;  tile->lse = natural log of the denominators.
 * trail: leave the probabilities for mcsa_tile_trail_mass, where mcsa_tile_trail_fits. */
void mcsa_tile_attend(mcsa_tile *tile, const mcsa_rows *keys, const mcsa_rows *values, float scale, int trail);

/* The same over the given rows and means, either of which may be none, in one softmax. */
void mcsa_tile_attend_means(mcsa_tile *tile, const mcsa_rows *keys, const mcsa_rows *values, const mcsa_means *means,
                            float scale);

/* Whether the probabilities of `keys` keys fit the trail: beyond it they would go through memory, and computing the
 * scores again is as cheap. */
int mcsa_tile_trail_fits(const mcsa_tile *tile, int keys);

/* tile->mass[j] = sum over the tile's queries of exp(scale s_ij - lse_i), lse: [count], for all `keys` keys: from the
 * trail of the last attend with its tile->lse, or from the scores once more. */
void mcsa_tile_trail_mass(mcsa_tile *tile, int keys);
void mcsa_tile_mass(mcsa_tile *tile, const mcsa_rows *keys, float scale, const float *lse);

/* Lanes that `count` queries occupy. */
static inline int mcsa_lanes(int count)
{
    return (count + MCSA_LANES - 1) / MCSA_LANES * MCSA_LANES;
}

/* Lanes of the strip that begins at query `at`. */
static inline int mcsa_strip_lanes(const mcsa_tile *tile, int at)
{
    int left = tile->count - at;
    return left < MCSA_STRIP ? mcsa_lanes(left) : MCSA_STRIP;
}

#endif
