/* attend.c - exact attention over kept parts: the host counts keys and makes tiles, the GPU expands lists and attends.
 */
#include "state.h"
#include "tiles.h"

#include <stdlib.h>

typedef struct attend_plan {
    int32_t *keys;  /* [H, Q] how many a part of the queries attends to */
    int64_t *list;  /* [H, Q] where their list begins */
    int64_t listed; /* of all lists */
    rival_tiles tiles;
} attend_plan;

/* Whether each part of the keys is one row: kept keys are kept bits then. */
static int single_rows(const rival_partition *keys)
{
    for (int64_t i = 0; i < (int64_t)keys->H * (keys->P + 1); i++)
        if (keys->first[i] != i % (keys->P + 1)) return 0;
    return 1;
}

static int32_t kept_keys(const rival_map *map, const rival_partition *keys, int single, int h, int q)
{
    const uint64_t *row = rival_map_row(map, h, q);
    int32_t count = 0;
    for (int64_t w = 0; w < map->words; w++) {
        if (single)
            count += __builtin_popcountll(row[w]);
        else
            for (uint64_t left = row[w]; left; left &= left - 1)
                count += rival_part_size(keys, h, (int)(w * 64) + __builtin_ctzll(left));
    }
    return count;
}

static void plan_lists(attend_plan *plan, const rival_partition *keys, const rival_map *map, int threads)
{
    const int64_t rows = (int64_t)map->H * map->Q;
    const int single = single_rows(keys);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; r++)
        plan->keys[r] = kept_keys(map, keys, single, (int)(r / map->Q), (int)(r % map->Q));
    for (int64_t r = 0; r < rows; r++) {
        plan->list[r] = plan->listed;
        plan->listed += plan->keys[r];
    }
    for (int t = 0; t < plan->tiles.count; t++) {
        rival_tile *tile = &plan->tiles.tile[t];
        const int64_t r = (int64_t)tile->head * map->Q + tile->part;
        tile->count = plan->keys[r];
        tile->list = plan->list[r];
    }
}

static void plan_free(attend_plan *plan)
{
    free(plan->keys);
    free(plan->list);
    rival_tiles_free(&plan->tiles);
}

static mcsa_status plan_make(attend_plan *plan, const rival_cuda *cuda, const rival_partition *queries,
                             const rival_partition *keys, const rival_map *map, mcsa_error *error)
{
    const size_t rows = (size_t)map->H * (size_t)map->Q;
    plan->keys = malloc(sizeof *plan->keys * rows);
    plan->list = malloc(sizeof *plan->list * rows);
    if (!plan->keys || !plan->list) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu lists of keys", rows);
    TRY(rival_tiles_make(&plan->tiles, queries, error));
    plan_lists(plan, keys, map, cuda->threads);
    return rival_tiles_deal(&plan->tiles, cuda->processors, error);
}

/* Arrays of a call by place. */
enum { QUERY_ORDER, KEY_ORDER, KEY_FIRST, KEPT, LIST, TILES, DEAL, LISTS, ARRAYS };

static mcsa_status attend_plan_on(rival_cuda *cuda, const mcsa_qkv *x, const attend_plan *plan,
                                  const rival_partition *queries, const rival_partition *keys, const rival_map *map,
                                  float *lse, mcsa_error *error)
{
    const size_t rows = (size_t)map->H * (size_t)map->Q;
    const rival_tiles *tiles = &plan->tiles;
    rival_clear_job clear = { .count = tiles->count - tiles->busy, .lse = lse };
    rival_array a[ARRAYS] = { [QUERY_ORDER] = ORDER_OF(queries),
                              [KEY_ORDER] = ORDER_OF(keys),
                              [KEY_FIRST] = FIRST_OF(keys),
                              [KEPT] = { map->kept, sizeof *map->kept * rows * (size_t)map->words, NULL },
                              [LIST] = { plan->list, sizeof *plan->list * rows, NULL },
                              [TILES] = { tiles->tile, sizeof *tiles->tile * (size_t)tiles->count, NULL },
                              [DEAL] = { tiles->deal, sizeof *tiles->deal * (size_t)(tiles->blocks + 1), NULL },
                              [LISTS] = ROOM(sizeof(int32_t) * (size_t)plan->listed) };
    TRY(rival_cuda_rows_of(&clear.out, x->out, "out", error));
    TRY(rival_cuda_lay(cuda, a, ARRAYS, error));
    const rival_expand_job expand = { .keys = rival_cuda_parts(keys, &a[KEY_ORDER], &a[KEY_FIRST]),
                                      .kept = a[KEPT].device,
                                      .words = map->words,
                                      .Q = map->Q,
                                      .list = a[LIST].device,
                                      .lists = a[LISTS].device };
    const rival_attend_job attend = { .tiles = a[TILES].device,
                                      .deal = a[DEAL].device,
                                      .blocks = tiles->blocks,
                                      .order = a[QUERY_ORDER].device,
                                      .lists = a[LISTS].device,
                                      .lse = lse };
    clear.order = a[QUERY_ORDER].device;
    clear.tiles = (const rival_tile *)a[TILES].device + tiles->busy;
    cudaError_t launched = cudaSuccess;
    if (tiles->busy) launched = rival_launch_expand(&expand, cuda->stream);
    if (tiles->busy && launched == cudaSuccess) launched = rival_launch_attend(x, &attend, cuda->stream);
    if (clear.count && launched == cudaSuccess) launched = rival_launch_clear(&clear, cuda->stream);
    return rival_cuda_finish(cuda, "attention over kept parts", launched, error);
}

mcsa_status rival_cuda_attend(void *state, const mcsa_qkv *x, const rival_partition *queries,
                              const rival_partition *keys, const rival_map *map, float *lse, mcsa_error *error)
{
    attend_plan plan = { 0 };
    TRY(rival_cuda_check_call(x, error));
    mcsa_status status = plan_make(&plan, state, queries, keys, map, error);
    if (status == MCSA_OK) status = attend_plan_on(state, x, &plan, queries, keys, map, lse, error);
    plan_free(&plan);
    return status;
}
