/* tail.c - the virtual keys of parts that were not kept. */
#include "state.h"
#include "tiles.h"

/* Arrays of a call by place. */
enum { QUERY_ORDER, TILES, KEPT, KEY, VALUE, WEIGHT, SLOPE, ARRAYS };

static mcsa_status tail_on(rival_cuda *cuda, rival_tail_job *job, const rival_tiles *tiles,
                           const rival_partition *queries, const rival_map *map, const rival_tail *tail,
                           mcsa_error *error)
{
    const size_t keys = (size_t)map->H * (size_t)map->K, D = (size_t)job->q.D;
    rival_array a[ARRAYS] = {
        [QUERY_ORDER] = rival_order_of(queries),
        [TILES] = rival_up(tiles->tile, sizeof *tiles->tile * (size_t)tiles->count),
        [KEPT] = rival_up(map->kept, sizeof *map->kept * (size_t)map->H * (size_t)map->Q * (size_t)map->words),
        [KEY] = rival_up(tail->key, sizeof *tail->key * keys * D),
        [VALUE] = rival_up(tail->value, sizeof *tail->value * keys * D),
        [WEIGHT] = rival_up(tail->weight, sizeof *tail->weight * keys),
        [SLOPE] = rival_up(tail->slope, sizeof *tail->slope * (size_t)map->H * D * D),
    };
    TRY(rival_cuda_lay(cuda, ROOM_FIRST, a, tail->slope ? ARRAYS : SLOPE, error));
    job->order = a[QUERY_ORDER].device;
    job->tiles = a[TILES].device;
    job->kept = a[KEPT].device;
    job->key = a[KEY].device;
    job->value = a[VALUE].device;
    job->weight = a[WEIGHT].device;
    job->slope = tail->slope ? a[SLOPE].device : NULL;
    return rival_cuda_finish(cuda, "attention over parts not kept", rival_launch_tail(job, cuda->stream), error);
}

mcsa_status rival_cuda_tail(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_map *map,
                            const rival_tail *tail, float *lse, mcsa_error *error)
{
    rival_tiles tiles;
    rival_tail_job job = { .words = map->words, .Q = map->Q, .K = map->K, .scale = x->scale, .lse = lse };
    TRY(rival_cuda_rows_of(&job.q, x->q, "q", error));
    TRY(rival_cuda_rows_of(&job.out, x->out, "out", error));
    mcsa_status status = rival_tiles_make(&tiles, queries, error);
    job.count = tiles.count;
    if (status == MCSA_OK && tiles.count) status = tail_on(state, &job, &tiles, queries, map, tail, error);
    rival_tiles_free(&tiles);
    return status;
}
