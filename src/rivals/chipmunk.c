/* chipmunk.c - Chipmunk (arXiv 2506.03275): for groups of 192 queries that are neighbours in the video, the keys that
 * had most of their attention at the last full step, and the rest of the output cached from there.
 *
 * Groups are runs of 192 tokens in the order of boxes of 4 frames, 6 rows and 8 columns; tokens that no whole box
 * covers follow.  At an anchor the attention of each group to each key is summed with the log-sum-exp of the dense call
 * before (the first dense call has only its own), as the public code does to need one pass; the best keys are kept.
 *
 * One key in eleven is drawn at random instead, once per anchor, layer, head and group: the public settings for Wan add
 * 1 % of random keys to 10 % of best ones; that they grow with the density is INFERRED.  They also keep the 3 x 3 x 3
 * boxes around, 6.9 % of the 75,600 tokens that they are for; those for HunyuanVideo keep no keys for their place, and
 * so does this: at 13,824 tokens the boxes would be 37 %, and on our model the group's own box alone loses 1 to 4 % in
 * relative error. */
#include "budget.h"
#include "draw.h"
#include "ladder.h"
#include "ranking.h"
#include "voxels.h"

#include <math.h>
#include <stdlib.h>

#include <omp.h>

enum { CHIPMUNK_GROUP = 192 };

static const int chipmunk_box[3] = { 4, 6, 8 };

/* Row sums of the last dense call of a (layer, branch). */
typedef struct chipmunk_past {
    float *lse; /* [H, N] */
    int H, N;   /* 0: none */
} chipmunk_past;

typedef struct chipmunk {
    rival_rung rung;
    chipmunk_past *past; /* [layers, branches] */
    mcsa_memory memory;  /* the backend's */
    mcsa_block lse;      /* [H, N] floats, within one call */
} chipmunk;

static mcsa_status group_boxes(rival_rung *rung, const rival_call *call, rival_partition *queries, mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    int32_t *order = malloc(sizeof *order * (size_t)dims->N);
    if (!order) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the order of %d tokens", dims->N);
    rival_voxel_order(rung->setup.grid, chipmunk_box, order);
    mcsa_status status = rival_partition_blocks(queries, dims->H, dims->N, CHIPMUNK_GROUP, order, error);
    free(order);
    return status;
}

static void close_chipmunk(void *state)
{
    chipmunk *c = state;
    int count = c->rung.setup.layers * c->rung.setup.branches;
    for (int i = 0; c->past && i < count; i++) free(c->past[i].lse);
    free(c->past);
    mcsa_block_release(&c->memory, &c->lse);
    rival_rung_release(&c->rung);
    free(c);
}

static mcsa_status open_chipmunk(void **state, const rival_setup *setup, mcsa_error *error)
{
    chipmunk *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    c->memory = (mcsa_memory){ .allocator = setup->kernels->memory(setup->backend) };
    mcsa_status status = rival_rung_init(&c->rung, setup, group_boxes, 1, error);
    c->past = calloc((size_t)setup->layers * (size_t)setup->branches, sizeof *c->past);
    if (status == MCSA_OK && !c->past) status = mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    if (status == MCSA_OK)
        *state = c;
    else
        close_chipmunk(c);
    return status;
}

/* Sets the bit.  Returns 1 when it was not set. */
static int keep_key(uint64_t *row, int key)
{
    uint64_t bit = (uint64_t)1 << (key % 64);
    int added = !(row[key / 64] & bit);
    row[key / 64] |= bit;
    return added;
}

/* `count` keys of row (h, g).  mass: [N], lost where a key was drawn; room: [N] */
static void keep_row(const rival_choice *choice, int h, int g, int count, uint64_t seed, float *mass, uint32_t *room)
{
    int N = choice->keys.N, kept = 0;
    uint64_t *row = rival_map_row(&choice->map, h, g);
    for (int r = 0; r < count / 11; r++) kept += keep_key(row, rival_draw_below(seed, (uint64_t)r, N));
    for (int j = 0; j < N; j++)
        if (rival_map_has(&choice->map, h, g, j)) mass[j] = -INFINITY;
    if (kept < count) rival_keep_top(mass, N, count - kept, room, row);
}

/* mass: [Q, N] of head h */
static mcsa_status keep_head(const rival_setup *setup, const rival_choice *choice, int h, uint64_t seed, float *mass,
                             mcsa_error *error)
{
    int Q = choice->map.Q, N = choice->map.K, threads = setup->threads;
    double share = rival_target_share(choice, setup->density);
    uint32_t *room = malloc(sizeof *room * (size_t)threads * (size_t)N);
    if (!room) return mcsa_fail(error, MCSA_ENOMEM, "no memory to rank %d keys in %d threads", N, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int g = 0; g < Q; g++)
        keep_row(choice, h, g, rival_row_budget(g, N, share), rival_draw(seed, (uint64_t)h * (uint64_t)Q + (uint64_t)g),
                 mass + (int64_t)g * N, room + (int64_t)omp_get_thread_num() * N);
    free(room);
    return MCSA_OK;
}

static chipmunk_past *past_at(const chipmunk *c, mcsa_site at)
{
    return &c->past[at.layer * c->rung.setup.branches + at.branch];
}

/* The row sums to measure with, in the backend's memory: those of the dense call before, if it was of this shape. */
static mcsa_status past_lse(chipmunk *c, const rival_call *call, float **lse, mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    const chipmunk_past *past = past_at(c, call->at);
    size_t bytes = sizeof(float) * (size_t)dims->H * (size_t)dims->N;
    *lse = call->lse;
    if (past->H != dims->H || past->N != dims->N) return MCSA_OK;
    if (mcsa_block_reserve(&c->memory, &c->lse, bytes))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the row sums of %d heads", dims->H);
    *lse = c->lse.data;
    return c->rung.setup.kernels->write(c->rung.setup.backend, past->lse, bytes, *lse, error);
}

static mcsa_status keep_lse(chipmunk *c, const rival_call *call, mcsa_error *error)
{
    const mcsa_dims *dims = &call->x->dims;
    chipmunk_past *past = past_at(c, call->at);
    size_t bytes = sizeof(float) * (size_t)dims->H * (size_t)dims->N;
    float *lse = realloc(past->lse, bytes);
    if (!lse) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the row sums of %d heads", dims->H);
    *past = (chipmunk_past){ lse, dims->H, dims->N };
    return c->rung.setup.kernels->read(c->rung.setup.backend, call->lse, bytes, lse, error);
}

static mcsa_status select_keys(chipmunk *c, const rival_call *call, mcsa_error *error)
{
    rival_kept *kept;
    rival_call earlier = *call;
    const rival_setup *setup = &c->rung.setup;
    uint64_t seed = rival_draw(rival_draw(setup->seed, (uint64_t)call->at.layer), (uint64_t)call->at.step);
    TRY(past_lse(c, call, &earlier.lse, error));
    TRY(rival_rung_begin(&c->rung, call, &kept, error));
    const rival_map *map = &kept->choice.map;
    float *mass = malloc(sizeof *mass * (size_t)map->Q * (size_t)map->K);
    if (!mass) return mcsa_fail(error, MCSA_ENOMEM, "no memory for masses of %d x %d parts", map->Q, map->K);
    mcsa_status status = MCSA_OK;
    for (int h = 0; status == MCSA_OK && h < map->H; h++) {
        status = rival_rung_mass(&c->rung, &earlier, &kept->choice, h, mass, error);
        if (status == MCSA_OK) status = keep_head(setup, &kept->choice, h, seed, mass, error);
    }
    free(mass);
    if (status == MCSA_OK) kept->step = call->at.step;
    return status;
}

static mcsa_status observe(void *state, const rival_call *call, mcsa_error *error)
{
    chipmunk *c = state;
    if (call->anchor) TRY(select_keys(c, call, error));
    return keep_lse(c, call, error);
}

static int64_t held(const void *state)
{
    const chipmunk *c = state;
    int64_t bytes = rival_rung_held(state);
    for (int i = 0; i < c->rung.setup.layers * c->rung.setup.branches; i++)
        bytes += (int64_t)sizeof(float) * c->past[i].H * c->past[i].N;
    return bytes;
}

const rival_method rival_chipmunk = {
    .name = "chipmunk",
    .summary = "tokens by their mass for fixed groups of 192 queries, by the row sums of the dense step before",
    .anchors = 1,
    .grid = 1,
    .residual = 1,
    .open = open_chipmunk,
    .close = close_chipmunk,
    .observe = observe,
    .choose = rival_rung_choose,
    .held = held,
};
