/* attend.c - Algorithm 1 on one screen.  Equations: METHOD.md. */
#include "attend.h"

#include "cache.h"

static mcsa_status reserve_scratch(mcsa_run *run, const mcsa_dims *dims, int K, int P)
{
    if (run->backend->reserve(run->state, dims, K, P) == MCSA_OK) return MCSA_OK;
    return mcsa_fail(&run->error, MCSA_ENOMEM, "no memory for scratch: %d heads of %d queries and %d keys, D = %d",
                     dims->H, dims->N, dims->M, dims->D);
}

static double full_pairs(const mcsa_dims *dims)
{
    return (double)dims->H * dims->N * dims->M;
}

static void attend_dense(mcsa_run *run, const mcsa_qkv *x, float *lse)
{
    const mcsa_backend *backend = run->backend;
    backend->lap(run->state, NULL);
    backend->attend_dense(run->state, x, lse);
    backend->lap(run->state, &run->stats.dense_s);
}

mcsa_status mcsa_attend_full(mcsa_run *run, const mcsa_qkv *x, float *lse)
{
    TRY(reserve_scratch(run, &x->dims, 0, 0));
    attend_dense(run, x, lse);
    return run->backend->outcome(run->state, &run->error);
}

/* Similar queries meet, and so do similar keys where means stand for those that are not kept. */
static void group_and_cluster(mcsa_run *run, const mcsa_qkv *x, mcsa_selection *selection)
{
    const mcsa_backend *backend = run->backend;
    backend->group(run->state, x, selection);
    if (selection->P) backend->cluster(run->state, x, selection);
    backend->lap(run->state, &run->stats.grouping_s);
}

/* Dense output, groups, kept keys: at once where the backend can, else dense attention that leaves its row LSE for a
 * second pass over the scores.  Returns the query-key pairs, half for scores alone. */
static double attend_and_choose(mcsa_run *run, const mcsa_qkv *x, mcsa_selection *selection)
{
    const mcsa_backend *backend = run->backend;
    double pairs = full_pairs(&x->dims);
    if (backend->attend_select) {
        backend->lap(run->state, NULL);
        group_and_cluster(run, x, selection);
        pairs += backend->attend_select(run->state, x, selection);
        backend->lap(run->state, &run->stats.dense_s);
        return pairs;
    }
    attend_dense(run, x, run->lse.data);
    group_and_cluster(run, x, selection);
    backend->select(run->state, x, run->lse.data, selection);
    backend->lap(run->state, &run->stats.selection_s);
    return 1.5 * pairs;
}

/* Pay for exactness once.  A follower takes the leader's groups and keys of this very step, and records a residual of
 * its own with them. */
mcsa_status mcsa_attend_anchor(mcsa_run *run, mcsa_site at, const mcsa_qkv *x)
{
    const mcsa_backend *backend = run->backend;
    mcsa_plan *plan = mcsa_cache_plan(run, at.layer, at.branch), *leader = mcsa_cache_leader(run, at, &x->dims);
    mcsa_selection *selection = leader ? &leader->own : &plan->own;
    double pairs = full_pairs(&x->dims);
    TRY(mcsa_cache_reserve(run, plan, &x->dims, !leader));
    TRY(reserve_scratch(run, &x->dims, selection->K, selection->P));
    if (leader)
        attend_dense(run, x, NULL);
    else
        pairs = attend_and_choose(run, x, selection);
    if (run->config.residual != MCSA_RESIDUAL_OFF) {
        mcsa_residual_rows record = { run->config.residual, plan->residual.data, 1 };
        pairs += (double)backend->attend_tokens(run->state, x, selection, &record);
        backend->lap(run->state, &run->stats.sparse_s);
    }
    TRY(backend->outcome(run->state, &run->error));
    if (!leader) selection->number = ++run->selections;
    plan->follows = leader != NULL;
    plan->selection = selection->number;
    plan->step = at.step;
    run->pairs_run += pairs;
    return MCSA_OK;
}

/* Today's queries, keys and values; the anchor's choices and its error. */
mcsa_status mcsa_attend_reuse(mcsa_run *run, mcsa_site at, const mcsa_qkv *x, const mcsa_selection *selection)
{
    const mcsa_backend *backend = run->backend;
    mcsa_plan *plan = mcsa_cache_plan(run, at.layer, at.branch);
    mcsa_residual_rows add = { run->config.residual, plan->residual.data, 0 };
    backend->lap(run->state, NULL);
    double pairs = (double)backend->attend_tokens(run->state, x, selection, &add);
    backend->lap(run->state, &run->stats.sparse_s);
    TRY(backend->outcome(run->state, &run->error));
    run->pairs_run += pairs;
    run->pairs_reuse += pairs;
    run->full_reuse += full_pairs(&x->dims);
    return MCSA_OK;
}
