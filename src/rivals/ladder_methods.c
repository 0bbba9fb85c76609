/* ladder_methods.c - the rungs of table 3.  With the residual, bsa+group is MC-Sparse with the branches apart. */
#include "ladder.h"

#include <stdlib.h>

static mcsa_status open_rung(void **state, const rival_setup *setup, rival_group_queries group, int key_rows,
                             mcsa_error *error)
{
    rival_rung *rung = malloc(sizeof *rung);
    if (!rung) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    mcsa_status status = rival_rung_init(rung, setup, group, key_rows, error);
    if (status == MCSA_OK)
        *state = rung;
    else
        free(rung);
    return status;
}

static void close_rung(void *state)
{
    rival_rung_release(state);
    free(state);
}

static mcsa_status open_reuse(void **state, const rival_setup *setup, mcsa_error *error)
{
    return open_rung(state, setup, rival_group_consecutive, RIVAL_BLOCK_KEYS, error);
}

static mcsa_status open_token(void **state, const rival_setup *setup, mcsa_error *error)
{
    return open_rung(state, setup, rival_group_consecutive, 1, error);
}

static mcsa_status open_group(void **state, const rival_setup *setup, mcsa_error *error)
{
    return open_rung(state, setup, rival_group_pddp, 1, error);
}

const rival_method rival_bsa_reuse = {
    .name = "bsa+reuse",
    .summary = "blocks ranked by their exact mass at the last anchor",
    .anchors = 1,
    .open = open_reuse,
    .close = close_rung,
    .observe = rival_rung_observe,
    .choose = rival_rung_choose,
};

const rival_method rival_bsa_token = {
    .name = "bsa+token",
    .summary = "bsa+reuse with single tokens as keys",
    .anchors = 1,
    .open = open_token,
    .close = close_rung,
    .observe = rival_rung_observe,
    .choose = rival_rung_choose,
};

const rival_method rival_bsa_group = {
    .name = "bsa+group",
    .summary = "bsa+token for groups of similar queries, by Fast PDDP",
    .anchors = 1,
    .open = open_group,
    .close = close_rung,
    .observe = rival_rung_observe,
    .choose = rival_rung_choose,
};
