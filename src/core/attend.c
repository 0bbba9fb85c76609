/* attend.c - Algorithm 1 on one screen.  Equations: METHOD.md. */
#include "attend.h"

#include "cache.h"

static mcsa_status reserve_scratch(mcsa_run *run, const mcsa_dims *dims, int K)
{
    if (run->backend->reserve(run->state, dims, K) == MCSA_OK) return MCSA_OK;
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
    TRY(reserve_scratch(run, &x->dims, 0));
    attend_dense(run, x, lse);
    return run->backend->outcome(run->state, &run->error);
}

mcsa_status mcsa_attend_step(mcsa_run *run, mcsa_site at, const mcsa_qkv *x)
{
    mcsa_row_lse lse;
    TRY(mcsa_cache_lse(run, at, &x->dims, 0, &lse));
    TRY(mcsa_attend_full(run, x, lse.data));
    mcsa_cache_lse_written(&lse, at, &x->dims);
    run->pairs_run += full_pairs(&x->dims);
    return MCSA_OK;
}

/* Dense output, groups, kept keys.  With the row LSE of an earlier step at hand masses are taken where the
 * probabilities are, in this one pass; else exactly, in a second pass over the scores.  Returns the passes. */
static double attend_and_choose(mcsa_run *run, const mcsa_qkv *x, const mcsa_row_lse *lse, mcsa_selection *selection)
{
    const mcsa_backend *backend = run->backend;
    if (lse->earlier) {
        backend->lap(run->state, NULL);
        backend->group(run->state, x, selection); /* similar queries meet */
        backend->lap(run->state, &run->stats.grouping_s);
        backend->attend_select(run->state, x, lse->data, selection);
        backend->lap(run->state, &run->stats.dense_s);
        return 1;
    }
    attend_dense(run, x, lse->data);
    backend->group(run->state, x, selection);
    backend->lap(run->state, &run->stats.grouping_s);
    backend->select(run->state, x, lse->data, selection);
    backend->lap(run->state, &run->stats.selection_s);
    return 1.5;
}

/* Pay for exactness once.  A follower takes the leader's groups and keys of this very step, and records a residual of
 * its own with them. */
mcsa_status mcsa_attend_anchor(mcsa_run *run, mcsa_site at, const mcsa_qkv *x)
{
    const mcsa_backend *backend = run->backend;
    mcsa_plan *plan = mcsa_cache_plan(run, at.layer, at.branch), *leader = mcsa_cache_leader(run, at, &x->dims);
    mcsa_selection *selection = leader ? &leader->own : &plan->own;
    mcsa_row_lse lse = { 0 };
    double pairs = full_pairs(&x->dims);
    TRY(mcsa_cache_reserve(run, plan, &x->dims, !leader));
    TRY(reserve_scratch(run, &x->dims, selection->K));
    if (leader) {
        attend_dense(run, x, NULL);
    } else {
        TRY(mcsa_cache_lse(run, at, &x->dims, 1, &lse));
        pairs *= attend_and_choose(run, x, &lse, selection);
    }
    if (run->config.residual != MCSA_RESIDUAL_OFF) {
        mcsa_residual_rows record = { run->config.residual, plan->residual.data, 1 };
        pairs += (double)backend->attend_tokens(run->state, x, selection, &record);
        backend->lap(run->state, &run->stats.sparse_s);
    }
    TRY(backend->outcome(run->state, &run->error));
    if (!leader) selection->number = ++run->selections;
    mcsa_cache_lse_written(&lse, at, &x->dims);
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
