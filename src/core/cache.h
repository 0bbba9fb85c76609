/* cache.h - plans by (layer, branch): finding the one a REUSE needs, and holding memory for the one an anchor makes. */
#ifndef MCSA_CORE_CACHE_H
#define MCSA_CORE_CACHE_H

#include "run.h"

/* P clusters of a head's keys where a group attends to K rows, means among them. */
int mcsa_cache_clusters(int K);

mcsa_plan *mcsa_cache_plan(mcsa_run *run, int layer, int branch);

/* The plan whose groups and keys serve `branch` at an anchor of this step, or NULL when the branch makes its own. */
mcsa_plan *mcsa_cache_leader(mcsa_run *run, mcsa_site at, const mcsa_dims *dims);

/* Whether the plan of `at` can serve a REUSE there, or why not.  *selection gets the groups and keys. */
mcsa_miss mcsa_cache_find(mcsa_run *run, mcsa_site at, const mcsa_dims *dims, const mcsa_selection **selection);

/* Makes room for an anchor: residual, LSE, and groups and keys when the branch makes its own.  MCSA_ENOMEM says for
 * what and leaves the plan empty. */
mcsa_status mcsa_cache_reserve(mcsa_run *run, mcsa_plan *plan, const mcsa_dims *dims, int own_selection);

void mcsa_cache_forget(mcsa_run *run);
void mcsa_cache_release(mcsa_run *run);
void mcsa_cache_bytes(const mcsa_run *run, int64_t *selection, int64_t *residual);

#endif
