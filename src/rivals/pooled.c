/* pooled.c - see pooled.h. */
#include "pooled.h"

#include "blocks.h"
#include "scores.h"

#include <stdlib.h>

mcsa_status rival_pooled_open(void **state, const rival_setup *setup, mcsa_error *error)
{
    rival_pooled *p = calloc(1, sizeof *p);
    if (!p) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    p->setup = *setup;
    *state = p;
    return MCSA_OK;
}

static void release_arrays(rival_pooled *p)
{
    free(p->query);
    free(p->key);
    free(p->value);
    free(p->weight);
    free(p->slope);
    free(p->score);
    p->query = p->key = p->value = p->weight = p->slope = p->score = NULL;
    p->dims = (mcsa_dims){ 0 };
}

void rival_pooled_close(void *state)
{
    rival_pooled *p = state;
    p->choice.tail = (rival_tail){ 0 };
    rival_choice_free(&p->choice);
    release_arrays(p);
    free(p);
}

static mcsa_status reserve_arrays(rival_pooled *p, const mcsa_dims *dims, mcsa_error *error)
{
    size_t H = (size_t)dims->H, D = (size_t)dims->D, Q = (size_t)p->choice.map.Q, K = (size_t)p->choice.map.K;
    if (p->dims.H == dims->H && p->dims.N == dims->N && p->dims.D == dims->D) return MCSA_OK;
    release_arrays(p);
    p->query = malloc(sizeof *p->query * H * Q * D);
    p->key = malloc(sizeof *p->key * H * K * D);
    p->value = malloc(sizeof *p->value * H * K * D);
    p->weight = malloc(sizeof *p->weight * H * K);
    p->slope = malloc(sizeof *p->slope * H * D * D);
    p->score = malloc(sizeof *p->score * H * Q * K);
    if (!p->query || !p->key || !p->value || !p->weight || !p->slope || !p->score) {
        release_arrays(p);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the means of %zu x %zu blocks in %zu heads", Q, K, H);
    }
    p->dims = *dims;
    return MCSA_OK;
}

mcsa_status rival_pooled_begin(rival_pooled *p, const mcsa_qkv *x, int query_size, int key_size, mcsa_error *error)
{
    p->choice.tail = (rival_tail){ 0 };
    TRY(rival_choice_blocks(&p->choice, &x->dims, query_size, key_size, error));
    return reserve_arrays(p, &x->dims, error);
}

mcsa_status rival_pooled_score(rival_pooled *p, const mcsa_qkv *x, float scale, mcsa_error *error)
{
    const rival_map *map = &p->choice.map;
    rival_means means = { map->H, map->Q, map->K, x->dims.D, p->query, p->key };
    TRY(p->setup.kernels->pool(p->setup.backend, x->q, &p->choice.queries, p->query, error));
    TRY(p->setup.kernels->pool(p->setup.backend, x->k, &p->choice.keys, p->key, error));
    return rival_score_means(&means, scale, p->setup.threads, p->score, error);
}

mcsa_status rival_pooled_tail(rival_pooled *p, const mcsa_qkv *x, mcsa_error *error)
{
    const rival_partition *keys = &p->choice.keys;
    TRY(p->setup.kernels->pool(p->setup.backend, x->v, keys, p->value, error));
    for (int h = 0; h < keys->H; h++)
        for (int k = 0; k < keys->P; k++) p->weight[(int64_t)h * keys->P + k] = (float)rival_part_size(keys, h, k);
    p->choice.tail = (rival_tail){ .key = p->key, .value = p->value, .weight = p->weight };
    return MCSA_OK;
}
