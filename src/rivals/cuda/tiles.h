/* tiles.h - the queries of all parts in tiles of at most 128, and how tiles are dealt to multiprocessors. */
#ifndef RIVALS_CUDA_TILES_H
#define RIVALS_CUDA_TILES_H

#include "kernels.h"
#include "rivals/partition.h"

static inline int rival_tiles_of(int rows)
{
    return (rows + RIVAL_CUDA_TILE - 1) / RIVAL_CUDA_TILE;
}

typedef struct rival_tiles {
    rival_tile *tile; /* [count] */
    int count;
    int busy;      /* the first ones, which have keys; after rival_tiles_deal */
    int32_t *deal; /* [blocks + 1] where the tiles of a thread block begin; after rival_tiles_deal */
    int blocks;
} rival_tiles;

/* Every non-empty part, head after head; count and list are 0. */
mcsa_status rival_tiles_make(rival_tiles *tiles, const rival_partition *queries, mcsa_error *error);

/* Puts the tiles with keys in the order in which at most `processors` blocks take them, the others behind. */
mcsa_status rival_tiles_deal(rival_tiles *tiles, int processors, mcsa_error *error);
void rival_tiles_free(rival_tiles *tiles);

#endif
