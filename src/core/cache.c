/* cache.c - see cache.h.
 *
 * An anchor matches a REUSE when it was made at or after the schedule's last anchor before that step (else steps were
 * skipped and it is stale), not after the step (else the run restarted), for the same shape, and when the groups and
 * keys that its residual was recorded with are still there (else the leader has chosen again). */
#include "cache.h"

#include "schedule.h"

mcsa_plan *mcsa_cache_plan(mcsa_run *run, int layer, int branch)
{
    return &run->plans[(int64_t)layer * run->config.branches + branch];
}

static int same_shape(const mcsa_dims *a, const mcsa_dims *b)
{
    return a->H == b->H && a->N == b->N && a->D == b->D;
}

mcsa_plan *mcsa_cache_leader(mcsa_run *run, mcsa_site at, const mcsa_dims *dims)
{
    if (run->config.sharing != MCSA_BRANCHES_SHARED || at.branch == 0) return NULL;
    mcsa_plan *leader = mcsa_cache_plan(run, at.layer, 0);
    return leader->step == at.step && same_shape(&leader->dims, dims) ? leader : NULL;
}

mcsa_miss mcsa_cache_find(mcsa_run *run, mcsa_site at, const mcsa_dims *dims, const mcsa_selection **selection)
{
    mcsa_plan *plan = mcsa_cache_plan(run, at.layer, at.branch);
    if (plan->step < 0) return MCSA_MISS_NO_ANCHOR;
    if (!same_shape(&plan->dims, dims)) return MCSA_MISS_SHAPE;
    if (plan->step > at.step || plan->step < mcsa_schedule_anchor(mcsa_run_actions(run, at.layer), at.step))
        return MCSA_MISS_STALE;
    *selection = plan->follows ? &mcsa_cache_plan(run, at.layer, 0)->own : &plan->own;
    return (*selection)->number == plan->selection ? MCSA_MISS_NONE : MCSA_MISS_LEADER;
}

static int rows_of_group(const mcsa_run *run, int N)
{
    int K = (int)((double)run->config.density * N + 0.5);
    return K < 1 ? 1 : K > N ? N : K;
}

/* Clusters for a third of the rows: of a fifth, a third and a half, at densities from 0.05 to 0.25, it is the nearest to
 * dense or within 0.6 dB of that (docs/LOG.md). */
int mcsa_cache_clusters(int K)
{
    int P = K / 3;
    return P < 1 ? 1 : P > MCSA_MAX_CLUSTERS ? MCSA_MAX_CLUSTERS : P;
}

/* Lays the selection out in its block; with block NULL only measures. */
static size_t carve_selection(mcsa_selection *s, void *block)
{
    mcsa_arena arena = { block, 0 };
    size_t keys = (size_t)s->H * (size_t)s->N, firsts = (size_t)s->H * ((size_t)s->P + 1);
    s->order = mcsa_arena_take(&arena, sizeof *s->order * keys);
    s->members = s->P ? mcsa_arena_take(&arena, sizeof *s->members * keys) : NULL;
    s->first = s->P ? mcsa_arena_take(&arena, sizeof *s->first * firsts) : NULL;
    s->kept = mcsa_arena_take(&arena, sizeof *s->kept * (size_t)s->H * (size_t)s->G * (size_t)s->words);
    return arena.used;
}

static mcsa_status reserve_selection(mcsa_run *run, mcsa_selection *s, const mcsa_dims *dims)
{
    s->number = 0;
    s->H = dims->H;
    s->N = dims->N;
    s->C = run->config.group;
    s->G = (dims->N + s->C - 1) / s->C;
    s->K = rows_of_group(run, dims->N);
    s->P = run->config.tail == MCSA_TAIL_MEANS ? mcsa_cache_clusters(s->K) : 0;
    s->words = ((int64_t)(s->P ? s->P : dims->N) + 63) / 64;
    size_t bytes = carve_selection(s, NULL);
    if (mcsa_block_reserve(&run->memory, &s->memory, bytes))
        return mcsa_fail(&run->error, MCSA_ENOMEM,
                         "no memory for groups and kept keys: %zu bytes for %d heads of %d tokens", bytes, dims->H,
                         dims->N);
    carve_selection(s, s->memory.data);
    return MCSA_OK;
}

mcsa_status mcsa_cache_reserve(mcsa_run *run, mcsa_plan *plan, const mcsa_dims *dims, int own_selection)
{
    plan->step = -1;
    plan->dims = *dims;
    if (own_selection) {
        TRY(reserve_selection(run, &plan->own, dims));
        size_t bytes = run->backend->attend_select ? 0 : sizeof(float) * (size_t)dims->H * (size_t)dims->N;
        if (mcsa_block_reserve(&run->memory, &run->lse, bytes))
            return mcsa_fail(&run->error, MCSA_ENOMEM, "no memory for row sums: %zu bytes for %d heads of %d tokens",
                             bytes, dims->H, dims->N);
    } else {
        plan->own.number = 0;
        mcsa_block_release(&run->memory, &plan->own.memory);
    }
    size_t bytes = (size_t)run->backend->residual_bytes(run->config.residual, dims);
    if (mcsa_block_reserve(&run->memory, &plan->residual, bytes))
        return mcsa_fail(&run->error, MCSA_ENOMEM, "no memory for a residual: %zu bytes for %d heads of %d tokens",
                         bytes, dims->H, dims->N);
    return MCSA_OK;
}

static int64_t plan_count(const mcsa_run *run)
{
    return (int64_t)run->config.layers * run->config.branches;
}

void mcsa_cache_forget(mcsa_run *run)
{
    for (int64_t i = 0; i < plan_count(run); i++) run->plans[i].step = -1;
}

void mcsa_cache_release(mcsa_run *run)
{
    for (int64_t i = 0; i < plan_count(run); i++) {
        mcsa_block_release(&run->memory, &run->plans[i].own.memory);
        mcsa_block_release(&run->memory, &run->plans[i].residual);
    }
    mcsa_block_release(&run->memory, &run->lse);
}

void mcsa_cache_bytes(const mcsa_run *run, int64_t *selection, int64_t *residual)
{
    *selection = *residual = 0;
    for (int64_t i = 0; i < plan_count(run); i++) {
        *selection += (int64_t)run->plans[i].own.memory.bytes;
        *residual += (int64_t)run->plans[i].residual.bytes;
    }
}
