/* ladder_methods.c - the rungs of table 3.  With the residual, bsa+group is MC-Sparse with branches apart, no tail. */
#include "ladder.h"

static mcsa_status open_reuse(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, rival_group_consecutive, RIVAL_BLOCK_KEYS, error);
}

static mcsa_status open_token(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, rival_group_consecutive, 1, error);
}

static mcsa_status open_group(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, rival_group_pddp, 1, error);
}

const rival_method rival_bsa_reuse = {
    .name = "bsa+reuse",
    .summary = "blocks ranked by their exact mass at the last anchor",
    .anchors = 1,
    .open = open_reuse,
    .close = rival_rung_close,
    .observe = rival_rung_observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};

const rival_method rival_bsa_token = {
    .name = "bsa+token",
    .summary = "bsa+reuse with single tokens as keys",
    .anchors = 1,
    .open = open_token,
    .close = rival_rung_close,
    .observe = rival_rung_observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};

const rival_method rival_bsa_group = {
    .name = "bsa+group",
    .summary = "bsa+token for groups of similar queries, by Fast PDDP",
    .anchors = 1,
    .open = open_group,
    .close = rival_rung_close,
    .observe = rival_rung_observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};
