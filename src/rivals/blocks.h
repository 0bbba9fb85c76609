/* blocks.h - the commonest choice: blocks of consecutive queries and of consecutive keys, and in each row of blocks
 * those of the highest score. */
#ifndef RIVALS_BLOCKS_H
#define RIVALS_BLOCKS_H

#include "method.h"

/* Blocks of `queries` and of `keys` rows of the heads and tokens in dims, and a map that keeps nothing.  Partitions
 * that already are of this shape stay. */
mcsa_status rival_choice_blocks(rival_choice *choice, const mcsa_dims *dims, int queries, int keys, mcsa_error *error);

/* Keeps in row q of every head the parts of highest score [H, Q, K]: of blocks of keys rival_row_budget(q, K, density),
 * of single tokens the K of METHOD.md, the same for all rows. */
mcsa_status rival_choice_keep_top(rival_choice *choice, const float *score, double density, int threads,
                                  mcsa_error *error);

/* The same for head h alone: score [Q, K]. */
mcsa_status rival_choice_keep_head(rival_choice *choice, int h, const float *score, double density, int threads,
                                   mcsa_error *error);

#endif
