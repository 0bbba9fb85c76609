/* cache.h - plans by (layer, branch): finding the one a REUSE needs, and holding memory for the one an anchor makes. */
#ifndef MCSA_CORE_CACHE_H
#define MCSA_CORE_CACHE_H

#include "run.h"

mcsa_plan *mcsa_cache_plan(mcsa_run *run, int layer, int branch);

/* The plan whose groups and keys serve `branch` at an anchor of this step, or NULL when the branch makes its own. */
mcsa_plan *mcsa_cache_leader(mcsa_run *run, mcsa_site at, const mcsa_dims *dims);

/* Whether the plan of `at` can serve a REUSE there, or why not.  *selection gets the groups and keys. */
mcsa_miss mcsa_cache_find(mcsa_run *run, mcsa_site at, const mcsa_dims *dims, const mcsa_selection **selection);

/* Where a dense pass leaves its row LSE. */
typedef struct mcsa_row_lse {
    float *data;     /* [H, N], or NULL: nobody will read it */
    int earlier;     /* 1: until then it holds those of an earlier step, which masses can be weighed with */
    mcsa_plan *plan; /* the one it belongs to, or NULL: it is forgotten after the call */
} mcsa_row_lse;

/* needed: the call itself reads it.  A plan that chooses in one pass keeps its LSE at anchors, and at dense steps before
 * one. */
mcsa_status mcsa_cache_lse(mcsa_run *run, mcsa_site at, const mcsa_dims *dims, int needed, mcsa_row_lse *lse);

/* The pass is done: what lse points to is that of step at.step now. */
void mcsa_cache_lse_written(const mcsa_row_lse *lse, mcsa_site at, const mcsa_dims *dims);

/* Makes room for an anchor: residual, and groups and keys when the branch makes its own.  MCSA_ENOMEM says for what and
 * leaves the plan empty. */
mcsa_status mcsa_cache_reserve(mcsa_run *run, mcsa_plan *plan, const mcsa_dims *dims, int own_selection);

void mcsa_cache_forget(mcsa_run *run);
void mcsa_cache_release(mcsa_run *run);
void mcsa_cache_bytes(const mcsa_run *run, int64_t *selection, int64_t *residual);

#endif
