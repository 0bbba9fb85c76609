/* attend.c - exact attention over kept parts: the GPU counts keys, the host deals tiles, the GPU lists keys and
 * attends.
 *
 * The host is part of the way only for the dealing.  At 13,824 tokens, H = 3, D = 64 and 15 % in blocks of 128 x 64 an
 * H200 takes 0.15 ms: map and orders to the GPU 50 us, counts and back 22, dealing 24, lists 18, attention 76 (each
 * with a wait of its own). */
#include "state.h"
#include "tiles.h"

#include <stdlib.h>

/* One call: its map on the GPU, and what the host made of the counts. */
typedef struct attend_call {
    const rival_partition *queries, *keys;
    const rival_map *map;
    rival_expand_job expand;
    const int32_t *order; /* of the queries, on the GPU */
    int32_t *counts;      /* [H, Q] keys of a part of the queries */
    int64_t *list;        /* [H, Q] where its list begins */
    int64_t listed;       /* keys of all lists */
    rival_tiles tiles;
} attend_call;

static size_t map_rows(const attend_call *call)
{
    return (size_t)call->map->H * (size_t)call->map->Q;
}

/* Whether each part of the keys is one row. */
static int single_rows(const rival_partition *keys)
{
    for (int64_t i = 0; i < (int64_t)keys->H * (keys->P + 1); i++)
        if (keys->first[i] != i % (keys->P + 1)) return 0;
    return 1;
}

/* Arrays of a call by place. */
enum { QUERY_ORDER, KEY_ORDER, KEY_FIRST, KEPT, COUNTS, MAP_ARRAYS };
enum { LIST, TILES, DEAL, LISTS, TILE_ARRAYS };

static mcsa_status count_keys(rival_cuda *cuda, attend_call *call, mcsa_error *error)
{
    const rival_map *map = call->map;
    rival_array a[MAP_ARRAYS] = { [QUERY_ORDER] = rival_order_of(call->queries),
                                  [KEY_ORDER] = rival_order_of(call->keys),
                                  [KEY_FIRST] = rival_first_of(call->keys),
                                  [KEPT] = rival_up(map->kept, sizeof *map->kept * map_rows(call) * (size_t)map->words),
                                  [COUNTS] = rival_space(sizeof *call->counts * map_rows(call)) };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, MAP_ARRAYS, error));
    call->order = a[QUERY_ORDER].device;
    call->expand = (rival_expand_job){ .keys = rival_cuda_parts(call->keys, &a[KEY_ORDER], &a[KEY_FIRST]),
                                       .single = single_rows(call->keys),
                                       .kept = a[KEPT].device,
                                       .words = map->words,
                                       .Q = map->Q,
                                       .counts = a[COUNTS].device };
    return rival_cuda_fetch(cuda, "counting kept keys", rival_launch_count(&call->expand, cuda->stream), &a[COUNTS],
                            call->counts, error);
}

static mcsa_status deal_tiles(const rival_cuda *cuda, attend_call *call, mcsa_error *error)
{
    TRY(rival_tiles_make(&call->tiles, call->queries, error));
    for (size_t r = 0; r < map_rows(call); r++) {
        call->list[r] = call->listed;
        call->listed += call->counts[r];
    }
    for (int t = 0; t < call->tiles.count; t++) {
        rival_tile *tile = &call->tiles.tile[t];
        const int64_t r = (int64_t)tile->head * call->map->Q + tile->part;
        tile->count = call->counts[r];
        tile->list = call->list[r];
    }
    return rival_tiles_deal(&call->tiles, cuda->processors, error);
}

static mcsa_status attend_tiles(rival_cuda *cuda, const mcsa_qkv *x, attend_call *call, float *lse, mcsa_error *error)
{
    const rival_tiles *tiles = &call->tiles;
    rival_clear_job clear = { .count = tiles->count - tiles->busy, .order = call->order, .lse = lse };
    rival_array a[TILE_ARRAYS] = { [LIST] = rival_up(call->list, sizeof *call->list * map_rows(call)),
                                   [TILES] = rival_up(tiles->tile, sizeof *tiles->tile * (size_t)tiles->count),
                                   [DEAL] = rival_up(tiles->deal, sizeof *tiles->deal * (size_t)(tiles->blocks + 1)),
                                   [LISTS] = rival_space(sizeof(int32_t) * (size_t)call->listed) };
    TRY(rival_cuda_rows_of(&clear.out, x->out, "out", error));
    TRY(rival_cuda_lay(cuda, ROOM_SECOND, a, TILE_ARRAYS, error));
    call->expand.list = a[LIST].device;
    call->expand.lists = a[LISTS].device;
    clear.tiles = (const rival_tile *)a[TILES].device + tiles->busy;
    const rival_attend_job attend = { .tiles = a[TILES].device,
                                      .deal = a[DEAL].device,
                                      .blocks = tiles->blocks,
                                      .order = call->order,
                                      .lists = a[LISTS].device,
                                      .lse = lse };
    cudaError_t launched = cudaSuccess;
    if (tiles->busy) launched = rival_launch_expand(&call->expand, cuda->stream);
    if (tiles->busy && launched == cudaSuccess) launched = rival_launch_attend(x, &attend, cuda->stream);
    if (clear.count && launched == cudaSuccess) launched = rival_launch_clear(&clear, cuda->stream);
    return rival_cuda_finish(cuda, "attention over kept parts", launched, error);
}

static mcsa_status attend_call_run(rival_cuda *cuda, const mcsa_qkv *x, attend_call *call, float *lse,
                                   mcsa_error *error)
{
    const size_t rows = map_rows(call);
    call->counts = malloc(sizeof *call->counts * rows);
    call->list = malloc(sizeof *call->list * rows);
    if (!call->counts || !call->list) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu lists of keys", rows);
    TRY(count_keys(cuda, call, error));
    TRY(deal_tiles(cuda, call, error));
    return attend_tiles(cuda, x, call, lse, error);
}

mcsa_status rival_cuda_attend(void *state, const mcsa_qkv *x, const rival_partition *queries,
                              const rival_partition *keys, const rival_map *map, float *lse, mcsa_error *error)
{
    attend_call call = { .queries = queries, .keys = keys, .map = map };
    TRY(rival_cuda_check_call(x, error));
    mcsa_status status = attend_call_run(state, x, &call, lse, error);
    free(call.counts);
    free(call.list);
    rival_tiles_free(&call.tiles);
    return status;
}
