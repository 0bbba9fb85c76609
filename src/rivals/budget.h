/* budget.h - the pairs that a call is to execute at a density. */
#ifndef RIVALS_BUDGET_H
#define RIVALS_BUDGET_H

#include "method.h"

/* Pairs: density H N N, or all with their padding at density 1. */
double rival_target_pairs(const rival_choice *choice, double density);

/* The share of its keys that each part of the queries keeps then, the same for all: below the density where parts are
 * padded. */
double rival_target_share(const rival_choice *choice, double density);

/* Scores below which counting them once more takes less than starting the threads to do it. */
enum { RIVAL_SERIAL_SCORES = 1 << 20 };

/* Rows of part q of the queries as a kernel executes them, where parts have the same sizes in all heads. */
static inline int rival_padded_rows(const rival_choice *choice, int q)
{
    return rival_tile_rows(rival_part_size(&choice->queries, 0, q));
}

#endif
