/* binding.h - what binding wastes (figure 3 of the paper): keys that are kept because of their neighbours, and keys
 * that a query computes because its group wants them.  How the paper counts is not said; that of keys here is INFERRED.
 */
#ifndef ANALYSIS_BINDING_H
#define ANALYSIS_BINDING_H

#include "selectors.h"

typedef struct analysis_waste {
    double kept, wanted; /* keys, or query-key pairs */
} analysis_waste;

/* Keys that a row keeps, over N keys of `unit` each bit, and those of them in `wanted`, a bitmap of single keys. */
analysis_waste analysis_overlap(const uint64_t *row, int unit, const uint64_t *wanted, int N);

/* Keys that blocks keep, and those of them that the same groups keep singly at the same density. */
analysis_waste analysis_key_binding(const rival_map *blocks, const rival_map *tokens, int N);

/* group [N] of each query */
void analysis_groups_of(const rival_partition *queries, int32_t *group);

#endif
