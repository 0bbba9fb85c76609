/* tail.c - the virtual keys of parts that were not kept. */
#include "state.h"
#include "tiles.h"

static mcsa_status tail_on(rival_cuda *cuda, rival_tail_job *job, const rival_tiles *tiles,
                           const rival_partition *queries, const rival_map *map, const rival_tail *tail,
                           mcsa_error *error)
{
    const size_t keys = (size_t)map->H * (size_t)map->K, D = (size_t)job->q.D;
    rival_array a[] = { ORDER_OF(queries),
                        { tiles->tile, sizeof *tiles->tile * (size_t)tiles->count, NULL },
                        { map->kept, sizeof *map->kept * (size_t)map->H * (size_t)map->Q * (size_t)map->words, NULL },
                        { tail->key, sizeof *tail->key * keys * D, NULL },
                        { tail->value, sizeof *tail->value * keys * D, NULL },
                        { tail->weight, sizeof *tail->weight * keys, NULL },
                        { tail->slope, sizeof *tail->slope * (size_t)map->H * D * D, NULL } };
    TRY(rival_cuda_lay(cuda, a, tail->slope ? 7 : 6, error));
    job->order = a[0].device;
    job->tiles = a[1].device;
    job->kept = a[2].device;
    job->key = a[3].device;
    job->value = a[4].device;
    job->weight = a[5].device;
    job->slope = a[6].device;
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
