/* partition.c - see partition.h. */
#include "partition.h"

#include <stdlib.h>
#include <string.h>

mcsa_status rival_partition_reserve(rival_partition *p, int H, int N, int P, mcsa_error *error)
{
    size_t rows = (size_t)H * (size_t)N, bounds = (size_t)H * ((size_t)P + 1);
    rival_partition_free(p);
    p->order = malloc(sizeof *p->order * rows);
    p->first = malloc(sizeof *p->first * bounds);
    if (!p->order || !p->first) {
        rival_partition_free(p);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d parts of %d rows in %d heads", P, N, H);
    }
    p->H = H;
    p->N = N;
    p->P = P;
    return MCSA_OK;
}

void rival_partition_free(rival_partition *p)
{
    free(p->order);
    free(p->first);
    *p = (rival_partition){ 0 };
}

mcsa_status rival_partition_blocks(rival_partition *p, int H, int N, int size, const int32_t *order, mcsa_error *error)
{
    int P = (N + size - 1) / size;
    TRY(rival_partition_reserve(p, H, N, P, error));
    for (int h = 0; h < H; h++) {
        int32_t *rows = p->order + (int64_t)h * N, *first = p->first + (int64_t)h * (P + 1);
        for (int i = 0; i < N; i++) rows[i] = order ? order[i] : i;
        for (int b = 0; b < P; b++) first[b] = b * size;
        first[P] = N;
    }
    return MCSA_OK;
}

/* Counting sort, which keeps rows of equal label ascending. */
mcsa_status rival_partition_labels(rival_partition *p, int H, int N, int P, const int32_t *label, mcsa_error *error)
{
    int32_t *next = malloc(sizeof *next * ((size_t)P + 1));
    if (!next) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the sizes of %d parts", P);
    mcsa_status status = rival_partition_reserve(p, H, N, P, error);
    for (int h = 0; status == MCSA_OK && h < H; h++) {
        const int32_t *labels = label + (int64_t)h * N;
        int32_t *first = p->first + (int64_t)h * (P + 1);
        memset(first, 0, sizeof *first * ((size_t)P + 1));
        for (int i = 0; i < N; i++) first[labels[i] + 1]++;
        for (int c = 0; c < P; c++) first[c + 1] += first[c];
        memcpy(next, first, sizeof *next * ((size_t)P + 1));
        for (int i = 0; i < N; i++) p->order[(int64_t)h * N + next[labels[i]]++] = i;
    }
    free(next);
    return status;
}

mcsa_status rival_map_reserve(rival_map *map, int H, int Q, int K, mcsa_error *error)
{
    rival_map_free(map);
    int64_t words = ((int64_t)K + 63) / 64;
    map->kept = calloc((size_t)H * (size_t)Q * (size_t)words, sizeof *map->kept);
    if (!map->kept) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a map of %d x %d parts in %d heads", Q, K, H);
    map->H = H;
    map->Q = Q;
    map->K = K;
    map->words = words;
    return MCSA_OK;
}

void rival_map_free(rival_map *map)
{
    free(map->kept);
    *map = (rival_map){ 0 };
}

/* Rows of each part of head h but the last, which may be shorter; 0 when they differ. */
static int even_size(const rival_partition *p, int h)
{
    int size = rival_part_size(p, h, 0);
    for (int k = 1; k < p->P - 1; k++)
        if (rival_part_size(p, h, k) != size) return 0;
    return rival_part_size(p, h, p->P - 1) <= size ? size : 0;
}

/* Keys of all kept parts of one row.  even: even_size; blocks and single tokens, of which there are many, are counted a
 * word at a time. */
static int64_t kept_keys(const rival_map *map, const rival_partition *keys, int h, int q, int even)
{
    const uint64_t *row = rival_map_row(map, h, q);
    int64_t count = 0;
    for (int64_t w = 0; even && w < map->words; w++) count += (int64_t)even * __builtin_popcountll(row[w]);
    if (even) return rival_map_has(map, h, q, map->K - 1) ? count - even + rival_part_size(keys, h, map->K - 1) : count;
    for (int64_t w = 0; w < map->words; w++)
        for (uint64_t left = row[w]; left; left &= left - 1)
            count += rival_part_size(keys, h, (int)(w * 64) + __builtin_ctzll(left));
    return count;
}

rival_pairs rival_map_pairs(const rival_map *map, const rival_partition *queries, const rival_partition *keys)
{
    rival_pairs pairs = { 0, 0 };
    for (int h = 0; h < map->H; h++) {
        int even = even_size(keys, h);
        for (int q = 0; q < map->Q; q++) {
            int size = rival_part_size(queries, h, q);
            double kept = (double)kept_keys(map, keys, h, q, even);
            pairs.nominal += size * kept;
            pairs.executed += rival_tile_rows(size) * kept;
        }
    }
    return pairs;
}
