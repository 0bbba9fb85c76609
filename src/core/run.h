/* run.h - the state behind mcsa_run: configuration, the schedule, one plan per (layer, branch), counters. */
#ifndef MCSA_CORE_RUN_H
#define MCSA_CORE_RUN_H

#include "backend.h"

/* Why a REUSE could not reuse. */
typedef enum mcsa_miss {
    MCSA_MISS_NONE,
    MCSA_MISS_NO_ANCHOR,
    MCSA_MISS_STALE,
    MCSA_MISS_SHAPE,
    MCSA_MISS_LEADER
} mcsa_miss;

struct mcsa_run {
    mcsa_config config; /* defaults resolved; pointers not kept */
    mcsa_memory host;   /* of this struct */
    mcsa_memory memory; /* of what the backend reads and writes: the same caller's allocator, unless that is a GPU's */
    const mcsa_backend *backend;
    void *state;          /* the backend's */
    mcsa_action *actions; /* [layers, steps] */
    mcsa_plan *plans;     /* [layers, branches] */
    size_t bytes;         /* of this struct with actions and plans, one allocation */
    mcsa_block lse;       /* [H, N] floats, within one anchor */
    int64_t selections;   /* choices made so far; the last one's number */
    mcsa_stats stats;
    double pairs_reuse, full_reuse, pairs_run, full_run; /* query-key pairs computed, and what dense would compute */
    mcsa_error error;
};

/* The wall: checks the tensors of a call, and fills in dims and scale.  cross: k and v may have another number of tokens
 * than q. */
mcsa_status mcsa_run_check(mcsa_run *run, mcsa_qkv *x, int cross);

static inline const mcsa_action *mcsa_run_actions(const mcsa_run *run, int layer)
{
    return run->actions + (int64_t)layer * run->config.steps;
}

#endif
