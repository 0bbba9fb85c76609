/* choice.c - what a run of MC-Sparse chose, as a choice of the rivals: queries in the groups of its order; keys one by
 * one, or by its clusters with a tail of their means. */
#include "methods_gate.h"

#include "clusters.h"
#include "core/cache.h"

#include <stdlib.h>
#include <string.h>

/* Clusters that do not hold every key once are taken for empty, and then no answer is right. */
static mcsa_status read_clusters(rival_partition *keys, const mcsa_selection *s, const bench_clip *clip,
                                 mcsa_error *error)
{
    const size_t members = sizeof *s->members * (size_t)s->H * (size_t)s->N;
    const size_t first = sizeof *s->first * (size_t)s->H * ((size_t)s->P + 1);
    TRY(rival_partition_reserve(keys, s->H, s->N, s->P, error));
    TRY(clip->kernels->read(clip->state, s->members, members, keys->order, error));
    TRY(clip->kernels->read(clip->state, s->first, first, keys->first, error));
    const mcsa_selection here = { .H = s->H, .N = s->N, .P = s->P, .members = keys->order, .first = keys->first };
    if (!bench_is_partition(&here)) memset(keys->first, 0, first);
    return MCSA_OK;
}

static mcsa_status make_means(rival_choice *choice, const bench_clip *clip, int step, mcsa_error *error)
{
    const bench_moment *at = &clip->host[step];
    const rival_partition *keys = &choice->keys;
    const int64_t rows = (int64_t)keys->H * keys->P, D = clip->out.shape[2];
    rival_tail *tail = &choice->tail;
    tail->key = calloc((size_t)(rows * D), sizeof *tail->key);
    tail->value = calloc((size_t)(rows * D), sizeof *tail->value);
    tail->weight = calloc((size_t)rows, sizeof *tail->weight);
    if (!tail->key || !tail->value || !tail->weight)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the means of %d clusters in %d heads", keys->P, keys->H);
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < rows; row++) {
        const int h = (int)(row / keys->P), from = h % (int)at->k.shape[0];
        int count;
        const int32_t *part = rival_part(keys, h, (int)(row % keys->P), &count);
        tail->weight[row] = (float)count;
        if (!count) continue;
        bench_cluster_mean(&at->k, from, part, count, tail->key + row * D);
        bench_cluster_mean(&at->v, from, part, count, tail->value + row * D);
    }
    return MCSA_OK;
}

static mcsa_status fill(rival_choice *choice, const mcsa_selection *s, const bench_clip *clip, int step,
                        mcsa_error *error)
{
    const size_t order = sizeof *s->order * (size_t)s->H * (size_t)s->N;
    const size_t kept = sizeof *s->kept * (size_t)s->H * (size_t)s->G * (size_t)s->words;
    TRY(rival_partition_blocks(&choice->queries, s->H, s->N, s->C, NULL, error));
    TRY(s->P ? read_clusters(&choice->keys, s, clip, error)
             : rival_partition_blocks(&choice->keys, s->H, s->N, 1, NULL, error));
    TRY(rival_map_reserve(&choice->map, s->H, s->G, choice->keys.P, error));
    TRY(clip->kernels->read(clip->state, s->order, order, choice->queries.order, error));
    TRY(clip->kernels->read(clip->state, s->kept, kept, choice->map.kept, error));
    return s->P ? make_means(choice, clip, step, error) : MCSA_OK;
}

mcsa_status bench_choice_of(rival_choice *choice, mcsa_run *run, int branch, const bench_clip *clip, int step,
                            mcsa_error *error)
{
    const mcsa_plan *plan = mcsa_cache_plan(run, 0, branch);
    const mcsa_selection *s = plan->follows ? &mcsa_cache_plan(run, 0, 0)->own : &plan->own;
    *choice = (rival_choice){ 0 };
    mcsa_status status = fill(choice, s, clip, step, error);
    if (status != MCSA_OK) rival_choice_free(choice);
    return status;
}
