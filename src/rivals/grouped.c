/* grouped.c - the rest of table 4 of the paper: queries grouped by k-means or by Fast PDDP, keys kept as blocks or as
 * tokens.  Groups are made and parts kept at anchors, by exact mass, as on the rungs of table 3; there are bsa+reuse
 * and bsa+token with consecutive queries, and bsa+group with Fast PDDP and tokens.
 *
 * k-means gives as many groups as there are tiles of 128 queries, of whatever sizes they turn out to have.  Padding
 * them to tiles is part of the density, so that each group keeps fewer keys than tiles of equal size do: the paper's
 * rows in black. */
#include "budget.h"
#include "draw.h"
#include "kmeans.h"
#include "ladder.h"

enum { ITERATIONS = 50 }; /* of SVG2's first call; anew at each anchor, of which a run has few */

static mcsa_status group_kmeans(rival_rung *rung, const rival_call *call, rival_partition *queries, mcsa_error *error)
{
    const rival_setup *setup = &rung->setup;
    const mcsa_dims *dims = &call->x->dims;
    const rival_points points = { setup->kernels, setup->backend, call->x->q };
    int groups = (dims->N + RIVAL_BLOCK_QUERIES - 1) / RIVAL_BLOCK_QUERIES;
    uint64_t place = (uint64_t)call->at.layer * (uint64_t)setup->branches + (uint64_t)call->at.branch;
    rival_kmeans k = { 0 };
    mcsa_status status = rival_kmeans_start(&k, &points, groups, rival_draw(setup->seed, place), error);
    if (status == MCSA_OK) status = rival_kmeans_iterate(&k, &points, ITERATIONS, NULL, error);
    if (status == MCSA_OK) status = rival_partition_labels(queries, k.H, k.N, k.P, k.label, error);
    rival_kmeans_free(&k);
    return status;
}

static mcsa_status open_kmeans_token(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, group_kmeans, 1, error);
}

static mcsa_status open_kmeans_block(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, group_kmeans, RIVAL_BLOCK_KEYS, error);
}

static mcsa_status open_pddp_block(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, rival_group_pddp, RIVAL_BLOCK_KEYS, error);
}

/* Unlike rival_rung_observe it pays for the padding of groups where keys are tokens too. */
static mcsa_status observe(void *state, const rival_call *call, mcsa_error *error)
{
    rival_rung *rung = state;
    rival_kept *kept;
    if (!call->anchor) return MCSA_OK;
    TRY(rival_rung_begin(rung, call, &kept, error));
    return rival_rung_keep(rung, call, kept, rival_target_share(&kept->choice, rung->setup.density), error);
}

const rival_method rival_kmeans_token = {
    .name = "kmeans+token",
    .summary = "bsa+token for groups of similar queries, by k-means",
    .anchors = 1,
    .open = open_kmeans_token,
    .close = rival_rung_close,
    .observe = observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};

const rival_method rival_kmeans_block = {
    .name = "kmeans+block",
    .summary = "bsa+reuse for groups of similar queries, by k-means",
    .anchors = 1,
    .open = open_kmeans_block,
    .close = rival_rung_close,
    .observe = observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};

const rival_method rival_pddp_block = {
    .name = "pddp+block",
    .summary = "bsa+reuse for groups of similar queries, by Fast PDDP",
    .anchors = 1,
    .open = open_pddp_block,
    .close = rival_rung_close,
    .observe = observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};
