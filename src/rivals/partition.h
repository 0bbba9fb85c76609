/* partition.h - the rows of every head cut into parts, and the choice of which parts of the keys each part of the
 * queries attends to: what all methods of sparse attention come down to.
 *
 * Blocks of consecutive tokens, clusters of k-means, groups of similar queries and single tokens are all partitions;
 * a method differs from another in the partitions it makes and the pairs it keeps. */
#ifndef RIVALS_PARTITION_H
#define RIVALS_PARTITION_H

#include "base/status.h"

/* Part p of head h is the rows order[h N + first[h (P + 1) + p] .. order[h N + first[h (P + 1) + p + 1]).  All parts
 * together hold each row at most once; a part may be empty. */
typedef struct rival_partition {
    int H, N, P;
    int32_t *order; /* [H, N] */
    int32_t *first; /* [H, P + 1] */
} rival_partition;

/* Makes room for P parts of N rows in H heads, contents unspecified; what was there is released or reused. */
mcsa_status rival_partition_reserve(rival_partition *p, int H, int N, int P, mcsa_error *error);
void rival_partition_free(rival_partition *p);

/* Parts of `size` rows in the order that is there (or ascending with order NULL); the last part of a head takes what
 * is left.  order: [N], the same for all heads, or NULL. */
mcsa_status rival_partition_blocks(rival_partition *p, int H, int N, int size, const int32_t *order, mcsa_error *error);

/* Parts by label [H, N] in [0, P); rows keep their ascending order within a part. */
mcsa_status rival_partition_labels(rival_partition *p, int H, int N, int P, const int32_t *label, mcsa_error *error);

static inline const int32_t *rival_part(const rival_partition *p, int h, int part, int *count)
{
    const int32_t *first = p->first + (int64_t)h * (p->P + 1) + part;
    *count = first[1] - first[0];
    return p->order + (int64_t)h * p->N + first[0];
}

static inline int rival_part_size(const rival_partition *p, int h, int part)
{
    const int32_t *first = p->first + (int64_t)h * (p->P + 1) + part;
    return first[1] - first[0];
}

/* Bit k of row (h, q): part q of the queries attends to part k of the keys. */
typedef struct rival_map {
    int H, Q, K;    /* heads, parts of queries, parts of keys */
    int64_t words;  /* of one row: ceil(K / 64) */
    uint64_t *kept; /* [H, Q, words]; bits past K are zero */
} rival_map;

/* Makes room for an empty map: all bits zero. */
mcsa_status rival_map_reserve(rival_map *map, int H, int Q, int K, mcsa_error *error);
void rival_map_free(rival_map *map);

static inline uint64_t *rival_map_row(const rival_map *map, int h, int q)
{
    return map->kept + ((int64_t)h * map->Q + q) * map->words;
}

static inline void rival_map_keep(const rival_map *map, int h, int q, int k)
{
    rival_map_row(map, h, q)[k / 64] |= (uint64_t)1 << (k % 64);
}

static inline int rival_map_has(const rival_map *map, int h, int q, int k)
{
    return (int)(rival_map_row(map, h, q)[k / 64] >> (k % 64) & 1);
}

/* Query-key pairs of a map.  nominal: on true sizes.  executed: what a kernel with tiles of RIVAL_TILE queries
 * computes, each part of the queries padded to a multiple of it: the paper's alignment is executed / nominal. */
enum { RIVAL_TILE = 64 /* rows of the matrix instructions of Hopper */ };

typedef struct rival_pairs {
    double nominal, executed;
} rival_pairs;

static inline int rival_tile_rows(int count)
{
    return (count + RIVAL_TILE - 1) / RIVAL_TILE * RIVAL_TILE;
}

rival_pairs rival_map_pairs(const rival_map *map, const rival_partition *queries, const rival_partition *keys);

#endif
