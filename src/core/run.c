/* run.c - the public entry points: validate once, own, hand over.  Below this wall nothing checks arguments again. */
#include "run.h"

#include "attend.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "cache.h"
#include "cpu/features.h"
#include "schedule.h"

#include <stdio.h>
#include <string.h>

#include <omp.h>

static mcsa_status check_range(mcsa_error *error, const char *name, long long value, long long least, long long most)
{
    if (value >= least && value <= most) return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "%s is %lld; it must be %lld to %lld", name, value, least, most);
}

/* Copies what caller and library both know; a newer caller may not ask for what this library cannot do. */
static mcsa_status copy_config(mcsa_config *to, const mcsa_config *from, mcsa_error *error)
{
    size_t size = from->size ? from->size : sizeof *to;
    if (size < offsetof(mcsa_config, branches))
        return mcsa_fail(error, MCSA_EINVAL, "config.size is %zu; it must be sizeof(mcsa_config) or 0", size);
    for (size_t i = sizeof *to; i < size; i++)
        if (((const unsigned char *)from)[i])
            return mcsa_fail(error, MCSA_EUNSUPPORTED,
                             "config has a field at byte %zu that version " MCSA_VERSION " does not know", i);
    memset(to, 0, sizeof *to);
    memcpy(to, from, size < sizeof *to ? size : sizeof *to);
    return MCSA_OK;
}

static mcsa_status resolve_config(mcsa_config *c, mcsa_error *error)
{
    if (c->branches == 0) c->branches = 1;
    if (c->density == 0) c->density = 0.10f;
    if (c->group == 0) c->group = 128;
    if (c->threads == 0) c->threads = omp_get_max_threads();
    if (!c->schedule) c->schedule = "ramp";
    if (c->residual == MCSA_RESIDUAL_DEFAULT) c->residual = MCSA_RESIDUAL_BF16;
    if (c->tail == MCSA_TAIL_DEFAULT) c->tail = MCSA_TAIL_MEANS;
    if (c->sharing == MCSA_BRANCHES_DEFAULT) c->sharing = c->branches == 2 ? MCSA_BRANCHES_SHARED : MCSA_BRANCHES_APART;
    TRY(check_range(error, "config.steps", c->steps, 1, 1000000));
    TRY(check_range(error, "config.layers", c->layers, 1, 10000));
    TRY(check_range(error, "config.branches", c->branches, 1, 64));
    TRY(check_range(error, "config.group", c->group, 1, 4096));
    TRY(check_range(error, "config.threads", c->threads, 1, 4096));
    TRY(check_range(error, "config.dense_layers", c->dense_layers, 0, c->layers));
    TRY(check_range(error, "config.residual", (int)c->residual, MCSA_RESIDUAL_BF16, MCSA_RESIDUAL_OFF));
    TRY(check_range(error, "config.tail", (int)c->tail, MCSA_TAIL_MEANS, MCSA_TAIL_OFF));
    TRY(check_range(error, "config.sharing", (int)c->sharing, MCSA_BRANCHES_SHARED, MCSA_BRANCHES_APART));
    TRY(check_range(error, "config.isa", (int)c->isa, MCSA_ISA_AUTO, MCSA_ISA_AVX512BF16));
    TRY(check_range(error, "config.device", (int)c->device, MCSA_DEVICE_CPU, MCSA_DEVICE_CUDA));
    TRY(check_range(error, "config.device_index", c->device_index, 0, 1023));
    if (!(c->density > 0 && c->density <= 1))
        return mcsa_fail(error, MCSA_EINVAL, "config.density is %g; it must be above 0 and at most 1",
                         (double)c->density);
    if (!(c->scale >= 0 && c->scale < 1e6f))
        return mcsa_fail(error, MCSA_EINVAL, "config.scale is %g; it must be above 0 and below 1e6, or 0 for 1/sqrt(D)",
                         (double)c->scale);
    if (!c->allocator.alloc != !c->allocator.free)
        return mcsa_fail(error, MCSA_EINVAL, "config.allocator has only one of alloc and free");
    mcsa_isa best = mcsa_cpu_isa();
    if (c->isa > best)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "config.isa is %s; this machine has %s", mcsa_isa_name(c->isa),
                         mcsa_isa_name(best));
    if (c->isa == MCSA_ISA_AUTO) c->isa = best;
    return MCSA_OK;
}

/* actions [layers, steps] from config->actions or from the schedule. */
static mcsa_status fill_actions(mcsa_run *run, mcsa_error *error)
{
    const mcsa_config *c = &run->config;
    for (int l = 0; l < c->layers; l++) {
        mcsa_action *row = run->actions + (int64_t)l * c->steps;
        if (l < c->dense_layers)
            for (int t = 0; t < c->steps; t++) row[t] = MCSA_DENSE;
        else if (c->actions)
            memcpy(row, c->actions + (int64_t)l * c->steps, sizeof *row * (size_t)c->steps);
        else
            TRY(mcsa_schedule_parse(c->schedule, c->steps, row, error));
        for (int t = 0; t < c->steps; t++)
            if ((unsigned)row[t] > MCSA_REUSE)
                return mcsa_fail(error, MCSA_EINVAL, "config.actions[%d][%d] is %d; known are 0, 1 and 2", l, t,
                                 (int)row[t]);
    }
    return MCSA_OK;
}

/* The run with its tables in one allocation: where actions and plans lie, and the bytes of all. */
static size_t carve_run(mcsa_run *run, const mcsa_config *c, mcsa_action **actions, mcsa_plan **plans)
{
    mcsa_arena arena = { (char *)run, 0 };
    (void)mcsa_arena_take(&arena, sizeof *run);
    *actions = mcsa_arena_take(&arena, sizeof **actions * (size_t)c->layers * (size_t)c->steps);
    *plans = mcsa_arena_take(&arena, sizeof **plans * (size_t)c->layers * (size_t)c->branches);
    return arena.used;
}

static mcsa_status create(mcsa_run **out, const mcsa_config *config, mcsa_error *error)
{
    mcsa_config c;
    mcsa_action *actions;
    mcsa_plan *plans;
    TRY(copy_config(&c, config, error));
    TRY(resolve_config(&c, error));
    const mcsa_backend *backend;
    TRY(mcsa_backend_find(&backend, c.device, error));
    mcsa_memory host = mcsa_memory_from(c.device == MCSA_DEVICE_CPU ? &c.allocator : &(mcsa_allocator){ 0 });
    mcsa_block block = { 0 };
    if (mcsa_block_reserve(&host, &block, carve_run(NULL, &c, &actions, &plans)))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a run of %d layers and %d steps", c.layers, c.steps);
    mcsa_run *run = block.data;
    memset(run, 0, block.bytes);
    carve_run(run, &c, &run->actions, &run->plans);
    run->bytes = block.bytes;
    run->config = c;
    run->host = host;
    run->memory = c.device == MCSA_DEVICE_CPU ? host : (mcsa_memory){ .allocator = c.allocator };
    run->backend = backend;
    mcsa_cache_forget(run);
    mcsa_status status = fill_actions(run, error);
    if (status != MCSA_OK) goto done;
    run->config.actions = NULL;
    run->config.schedule = NULL;
    mcsa_backend_options options = {
        .memory = &run->memory,
        .threads = c.threads,
        .C = c.group,
        .isa = c.isa,
        .residual = c.residual,
        .check_finite = c.check_finite,
        .device_index = c.device_index,
        .stream = c.stream,
        .error = error,
    };
    status = backend->open(&run->state, &options);
    if (status == MCSA_ENOMEM)
        mcsa_fail(error, status, "no memory for the %s backend with %d threads", backend->name, c.threads);
    if (status != MCSA_OK) goto done;
    *out = run;
    run = NULL; /* ownership has moved */
done:
    mcsa_run_free(run);
    return status;
}

mcsa_status mcsa_run_create(mcsa_run **out, const mcsa_config *config, char *error, size_t error_bytes)
{
    mcsa_error e = { "" };
    mcsa_status status;
    if (out) *out = NULL;
    if (!out || !config)
        status = mcsa_fail(&e, MCSA_EINVAL, "%s is NULL", out ? "config" : "out");
    else
        status = create(out, config, &e);
    if (error && error_bytes) snprintf(error, error_bytes, "%s", e.text);
    return status;
}

void mcsa_run_free(mcsa_run *run)
{
    if (!run) return;
    mcsa_cache_release(run);
    if (run->state) run->backend->close(run->state);
    mcsa_memory host = run->host;
    mcsa_block block = { run, run->bytes };
    mcsa_block_release(&host, &block);
}

void mcsa_run_reset(mcsa_run *run)
{
    if (run) mcsa_cache_forget(run);
}

const char *mcsa_run_error(const mcsa_run *run)
{
    return run ? run->error.text : "run is NULL";
}

static mcsa_status check_site(mcsa_run *run, mcsa_site at)
{
    TRY(check_range(&run->error, "step", at.step, 0, run->config.steps - 1));
    TRY(check_range(&run->error, "layer", at.layer, 0, run->config.layers - 1));
    return check_range(&run->error, "branch", at.branch, 0, run->config.branches - 1);
}

int mcsa_run_action(const mcsa_run *run, mcsa_site at)
{
    if (!run || at.step < 0 || at.step >= run->config.steps || at.layer < 0 || at.layer >= run->config.layers ||
        at.branch < 0 || at.branch >= run->config.branches)
        return -1;
    return mcsa_run_actions(run, at.layer)[at.step];
}

static mcsa_status check_same(mcsa_run *run, const mcsa_tensor *a, const char *a_name, const mcsa_tensor *b,
                              const char *b_name, int first_axis)
{
    static const char *axes[] = { "heads", "tokens", "head dimension" };
    if (a->dtype != b->dtype)
        return mcsa_fail(&run->error, MCSA_EINVAL, "%s has dtype %d, %s has %d; they must be the same", a_name,
                         (int)a->dtype, b_name, (int)b->dtype);
    for (int i = 0; i < 3; i++)
        if (a->shape[i] != b->shape[i] && !(i == 1 && first_axis))
            return mcsa_fail(&run->error, MCSA_EINVAL, "%s has %lld %s, %s has %lld; they must be the same", a_name,
                             (long long)a->shape[i], axes[i], b_name, (long long)b->shape[i]);
    return MCSA_OK;
}

static mcsa_status check_finite(mcsa_run *run, const mcsa_tensor *t, const char *name)
{
    int64_t at[3] = { 0, 0, 0 }, bad = mcsa_tensor_nonfinite(t, at);
    if (!bad) return MCSA_OK;
    return mcsa_fail(&run->error, MCSA_EINVAL, "%s has %lld NaN or infinite elements, the first at [%lld, %lld, %lld]",
                     name, (long long)bad, (long long)at[0], (long long)at[1], (long long)at[2]);
}

mcsa_status mcsa_run_check(mcsa_run *run, mcsa_qkv *x, int cross)
{
    mcsa_error *error = &run->error;
    TRY(mcsa_tensor_check(x->q, "q", error));
    TRY(mcsa_tensor_check(x->k, "k", error));
    TRY(mcsa_tensor_check(x->v, "v", error));
    TRY(mcsa_tensor_check(x->out, "out", error));
    TRY(check_same(run, x->q, "q", x->k, "k", cross));
    TRY(check_same(run, x->k, "k", x->v, "v", 0));
    TRY(check_same(run, x->q, "q", x->out, "out", 0));
    if (x->q->shape[1] > INT32_MAX / 2 || x->k->shape[1] > INT32_MAX / 2)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%lld queries and %lld keys; up to %d are supported",
                         (long long)x->q->shape[1], (long long)x->k->shape[1], INT32_MAX / 2);
    x->dims =
        (mcsa_dims){ (int)x->q->shape[0], (int)x->q->shape[1], (int)x->k->shape[1], (int)x->q->shape[2], x->q->dtype };
    x->scale = run->config.scale > 0 ? run->config.scale : 1 / __builtin_sqrtf((float)x->dims.D);
    TRY(run->backend->supports(run->state, x, error));
    if (mcsa_tensor_overlap(x->out, x->q) || mcsa_tensor_overlap(x->out, x->k) || mcsa_tensor_overlap(x->out, x->v))
        return mcsa_fail(error, MCSA_EINVAL, "out shares memory with q, k or v");
    if (run->config.check_finite) {
        TRY(check_finite(run, x->q, "q"));
        TRY(check_finite(run, x->k, "k"));
        TRY(check_finite(run, x->v, "v"));
    }
    return MCSA_OK;
}

static void count_miss(mcsa_stats *stats, mcsa_miss miss)
{
    stats->fallback++;
    if (miss == MCSA_MISS_NO_ANCHOR) stats->fallback_no_anchor++;
    if (miss == MCSA_MISS_STALE) stats->fallback_stale++;
    if (miss == MCSA_MISS_SHAPE) stats->fallback_shape++;
    if (miss == MCSA_MISS_LEADER) stats->fallback_leader++;
}

static mcsa_status dispatch(mcsa_run *run, mcsa_site at, const mcsa_qkv *x)
{
    mcsa_stats *stats = &run->stats;
    const mcsa_selection *selection = NULL;
    mcsa_miss miss;
    double full = (double)x->dims.H * x->dims.N * x->dims.N;
    switch (mcsa_run_actions(run, at.layer)[at.step]) {
    case MCSA_DENSE:
        TRY(mcsa_attend_full(run, x, NULL));
        run->pairs_run += full;
        stats->dense++;
        break;
    case MCSA_ANCHOR:
        TRY(mcsa_attend_anchor(run, at, x));
        stats->anchor++;
        break;
    case MCSA_REUSE:
        miss = mcsa_cache_find(run, at, &x->dims, &selection);
        if (miss == MCSA_MISS_NONE) {
            TRY(mcsa_attend_reuse(run, at, x, selection));
            stats->reuse++;
        } else {
            TRY(mcsa_attend_anchor(run, at, x));
            count_miss(stats, miss);
        }
        break;
    }
    run->full_run += full;
    return MCSA_OK;
}

mcsa_status mcsa_attend(mcsa_run *run, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                        const mcsa_tensor *out)
{
    if (!run) return MCSA_EINVAL;
    double begin = mcsa_seconds();
    mcsa_qkv x = { .q = q, .k = k, .v = v, .out = out };
    TRY(check_site(run, at));
    TRY(mcsa_run_check(run, &x, 0));
    mcsa_status status = dispatch(run, at, &x);
    run->stats.attention_s += mcsa_seconds() - begin;
    return status;
}

mcsa_status mcsa_attend_dense(mcsa_run *run, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                              const mcsa_tensor *out, float *lse)
{
    if (!run) return MCSA_EINVAL;
    double begin = mcsa_seconds();
    mcsa_qkv x = { .q = q, .k = k, .v = v, .out = out };
    TRY(mcsa_run_check(run, &x, 1));
    mcsa_status status = mcsa_attend_full(run, &x, lse);
    run->stats.attention_s += mcsa_seconds() - begin;
    return status;
}

mcsa_status mcsa_run_stats(const mcsa_run *run, mcsa_stats *stats)
{
    if (!run || !stats) return MCSA_EINVAL;
    run->backend->settle(run->state);
    mcsa_stats now = run->stats;
    if (run->config.device == MCSA_DEVICE_CUDA)
        now.attention_s = now.dense_s + now.grouping_s + now.selection_s + now.sparse_s;
    now.density_requested = (double)run->config.density;
    now.density_executed = run->full_reuse > 0 ? run->pairs_reuse / run->full_reuse : 0;
    now.density_run = run->full_run > 0 ? run->pairs_run / run->full_run : 0;
    mcsa_cache_bytes(run, &now.selection_bytes, &now.residual_bytes);
    now.scratch_bytes = run->backend->scratch_bytes(run->state) + (int64_t)run->lse.bytes;
    now.allocations = run->memory.calls;
    now.size = stats->size && stats->size < sizeof now ? stats->size : sizeof now;
    memcpy(stats, &now, now.size);
    return MCSA_OK;
}
