/* tiles.c - see tiles.h.
 *
 * Dealing: the longest tile first, each to the block that has least so far, of equal ones the first; a tile costs its
 * blocks of keys and one more for its queries and its output.  Tiles of equal length keep their order, so that all
 * blocks sweep one head at a time where a method keeps as many keys everywhere. */
#include "tiles.h"

#include <stdlib.h>
#include <string.h>

mcsa_status rival_tiles_make(rival_tiles *tiles, const rival_partition *queries, mcsa_error *error)
{
    int64_t count = 0;
    *tiles = (rival_tiles){ 0 };
    for (int h = 0; h < queries->H; h++)
        for (int p = 0; p < queries->P; p++) count += rival_tiles_of(rival_part_size(queries, h, p));
    tiles->tile = calloc((size_t)count + 1, sizeof *tiles->tile);
    if (!tiles->tile) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld tiles of queries", (long long)count);
    for (int h = 0; h < queries->H; h++)
        for (int p = 0; p < queries->P; p++) {
            const int place = queries->first[(int64_t)h * (queries->P + 1) + p], size = rival_part_size(queries, h, p);
            for (int at = 0; at < size; at += RIVAL_CUDA_TILE)
                tiles->tile[tiles->count++] =
                    (rival_tile){ .head = h,
                                  .part = p,
                                  .place = place + at,
                                  .rows = size - at < RIVAL_CUDA_TILE ? size - at : RIVAL_CUDA_TILE };
        }
    return MCSA_OK;
}

void rival_tiles_free(rival_tiles *tiles)
{
    free(tiles->tile);
    free(tiles->deal);
    *tiles = (rival_tiles){ 0 };
}

static int key_blocks(const rival_tile *tile)
{
    return (tile->count + RIVAL_CUDA_KEY_BLOCK - 1) / RIVAL_CUDA_KEY_BLOCK;
}

/* sorted = tiles by descending blocks of keys, equal ones in their order; start: [most + 2] scratch. */
static void sort_tiles(rival_tile *sorted, rival_tiles *tiles, int most, int *start)
{
    memset(start, 0, sizeof *start * (size_t)(most + 2));
    for (int t = 0; t < tiles->count; t++) start[most - key_blocks(&tiles->tile[t]) + 1]++;
    for (int b = 0; b <= most; b++) start[b + 1] += start[b];
    tiles->busy = start[most]; /* tiles without keys come last */
    for (int t = 0; t < tiles->count; t++) sorted[start[most - key_blocks(&tiles->tile[t])]++] = tiles->tile[t];
}

/* What a block has been dealt. */
typedef struct hand {
    int64_t load;
    int block;
} hand;

static int less(const hand *a, const hand *b)
{
    return a->load != b->load ? a->load < b->load : a->block < b->block;
}

/* Lets the first of a heap sink to its place. */
static void sink(hand *heap, int count)
{
    int at = 0;
    for (int child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && less(&heap[child + 1], &heap[child])) child++;
        if (less(&heap[at], &heap[child])) return;
        const hand swapped = heap[at];
        heap[at] = heap[child];
        heap[child] = swapped;
        at = child;
    }
}

/* owner of each busy tile; heap: [blocks] scratch, the least loaded first. */
static void choose_owners(int *owner, const rival_tile *sorted, const rival_tiles *tiles, hand *heap)
{
    for (int b = 0; b < tiles->blocks; b++) heap[b] = (hand){ 0, b };
    for (int t = 0; t < tiles->busy; t++) {
        owner[t] = heap->block;
        heap->load += key_blocks(&sorted[t]) + 1;
        sink(heap, tiles->blocks);
    }
}

static void gather_hands(rival_tiles *tiles, const rival_tile *sorted, const int *owner)
{
    int at = 0;
    int32_t *deal = tiles->deal;
    memset(deal, 0, sizeof *deal * (size_t)(tiles->blocks + 1));
    for (int t = 0; t < tiles->busy; t++) deal[owner[t] + 1]++;
    for (int b = 0; b < tiles->blocks; b++) deal[b + 1] += deal[b];
    for (int t = 0; t < tiles->busy; t++) tiles->tile[deal[owner[t]]++] = sorted[t];
    for (int b = 0; b < tiles->blocks; b++) { /* each was moved to its end, the begin of the next */
        const int end = deal[b];
        deal[b] = at;
        at = end;
    }
    memcpy(tiles->tile + tiles->busy, sorted + tiles->busy, sizeof *sorted * (size_t)(tiles->count - tiles->busy));
}

mcsa_status rival_tiles_deal(rival_tiles *tiles, int processors, mcsa_error *error)
{
    int most = 0;
    for (int t = 0; t < tiles->count; t++)
        most = key_blocks(&tiles->tile[t]) > most ? key_blocks(&tiles->tile[t]) : most;
    rival_tile *sorted = malloc(sizeof *sorted * (size_t)(tiles->count + 1));
    int *start = malloc(sizeof *start * (size_t)(most + 2));
    int *owner = malloc(sizeof *owner * (size_t)(tiles->count + 1));
    hand *heap = malloc(sizeof *heap * (size_t)processors);
    tiles->deal = malloc(sizeof *tiles->deal * (size_t)(processors + 1));
    mcsa_status status = MCSA_OK;
    if (!sorted || !start || !owner || !heap || !tiles->deal) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory to deal %d tiles", tiles->count);
    } else {
        sort_tiles(sorted, tiles, most, start);
        tiles->blocks = tiles->busy < processors ? tiles->busy : processors;
        choose_owners(owner, sorted, tiles, heap);
        gather_hands(tiles, sorted, owner);
    }
    free(sorted);
    free(start);
    free(owner);
    free(heap);
    return status;
}
