/* run.c - one trajectory with another method: the schedule, the dense calls, the execution of what the method chooses,
 * the residual, and the counting.
 *
 * Stages are timed with the backend idle at their ends.  Counting pairs is not part of any stage. */
#include "rival.h"

#include "base/clock.h"
#include "base/tensor.h"
#include "core/run.h"
#include "core/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a (layer, branch) missed at an anchor. */
typedef struct rival_missed {
    mcsa_block rows; /* [H, N, D] BF16 */
    mcsa_dims dims;
    int step; /* of the anchor; -1: none */
} rival_missed;

struct rival_run {
    mcsa_run *dense; /* schedule, checks and dense attention */
    const rival_kernels *kernels;
    void *backend;
    const rival_method *method;
    void *state;                /* the method's */
    const rival_choice *choice; /* its latest */
    int residual;
    int grid[3];
    mcsa_memory memory;   /* the backend's */
    mcsa_block lse;       /* [H, N] floats, within one call */
    mcsa_block sparse;    /* [H, N, D] the sparse output of an anchor, within one call */
    rival_missed *missed; /* [layers, branches] */
    rival_stats stats;
    double full_sparse, nominal, executed, tail; /* query-key pairs of sparse calls, and what dense would compute */
    double full, computed;                       /* of all calls */
    mcsa_error error;
};

static mcsa_status check_config(const rival_config *config, const rival_method *method, mcsa_error *error)
{
    const int *grid = config->grid;
    if (!method)
        return mcsa_fail(error, MCSA_EINVAL, "method \"%.40s\" is not known", config->method ? config->method : "");
    if (grid[0] < 0 || grid[1] < 0 || grid[2] < 0)
        return mcsa_fail(error, MCSA_EINVAL, "the grid of tokens is %d x %d x %d", grid[0], grid[1], grid[2]);
    if (method->grid && (!grid[0] || !grid[1] || !grid[2]))
        return mcsa_fail(error, MCSA_EINVAL, "method %s needs the grid of tokens: frames, rows and columns",
                         method->name);
    return MCSA_OK;
}

static mcsa_status open_run(rival_run *run, const rival_config *config, mcsa_error *error)
{
    run->method = config->method ? rival_method_find(config->method) : NULL;
    TRY(check_config(config, run->method, error));
    TRY(mcsa_run_create(&run->dense, &config->attention, error->text, sizeof error->text));
    const mcsa_config *attention = &run->dense->config;
    size_t count = (size_t)attention->layers * (size_t)attention->branches;
    run->missed = calloc(count, sizeof *run->missed);
    if (!run->missed) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a run of %d layers", attention->layers);
    for (size_t i = 0; i < count; i++) run->missed[i].step = -1;
    TRY(rival_kernels_find(&run->kernels, attention->device, error));
    TRY(run->kernels->open(&run->backend, attention, error));
    run->memory = (mcsa_memory){ .allocator = run->kernels->memory(run->backend) };
    run->residual = config->residual || run->method->residual;
    memcpy(run->grid, config->grid, sizeof run->grid);
    rival_setup setup = {
        .kernels = run->kernels,
        .backend = run->backend,
        .dense = run->dense,
        .layers = attention->layers,
        .branches = attention->branches,
        .grid = { config->grid[0], config->grid[1], config->grid[2] },
        .density = (double)attention->density,
        .threads = attention->threads,
        .seed = config->seed,
    };
    return run->method->open(&run->state, &setup, error);
}

mcsa_status rival_run_create(rival_run **out, const rival_config *config, mcsa_error *error)
{
    mcsa_error unheard;
    if (!error) error = &unheard;
    *out = NULL;
    rival_run *run = calloc(1, sizeof *run);
    if (!run) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a run");
    mcsa_status status = open_run(run, config, error);
    if (status == MCSA_OK)
        *out = run;
    else
        rival_run_free(run);
    return status;
}

void rival_run_free(rival_run *run)
{
    if (!run) return;
    if (run->state) run->method->close(run->state);
    if (run->backend) {
        int count = run->dense->config.layers * run->dense->config.branches;
        for (int i = 0; i < count; i++) mcsa_block_release(&run->memory, &run->missed[i].rows);
        mcsa_block_release(&run->memory, &run->lse);
        mcsa_block_release(&run->memory, &run->sparse);
        run->kernels->close(run->backend);
    }
    free(run->missed);
    mcsa_run_free(run->dense);
    free(run);
}

const char *rival_run_error(const rival_run *run)
{
    return run->error.text;
}

mcsa_run *rival_run_dense(rival_run *run)
{
    return run->dense;
}

const rival_choice *rival_run_choice(const rival_run *run)
{
    return run->choice;
}

static rival_missed *missed_at(rival_run *run, mcsa_site at)
{
    return &run->missed[at.layer * run->dense->config.branches + at.branch];
}

static mcsa_status reserve(rival_run *run, mcsa_block *block, size_t bytes, const char *what)
{
    if (mcsa_block_reserve(&run->memory, block, bytes) == 0) return MCSA_OK;
    return mcsa_fail(&run->error, MCSA_ENOMEM, "no memory for %zu bytes of %s", bytes, what);
}

static double full_pairs(const mcsa_dims *dims)
{
    return (double)dims->H * dims->N * dims->N;
}

/* Adds the seconds since *mark to *stage and moves the mark. */
static mcsa_status lap(rival_run *run, double *mark, double *stage)
{
    TRY(run->kernels->wait(run->backend, &run->error));
    double now = mcsa_seconds();
    if (stage) {
        *stage += now - *mark;
        run->stats.attention_s += now - *mark;
    }
    *mark = now;
    return MCSA_OK;
}

/* Queries times virtual keys: parts of the keys that stand in for their rows. */
static double tail_pairs(const rival_choice *choice)
{
    const rival_map *map = &choice->map;
    double pairs = 0;
    for (int h = 0; choice->tail.key && h < map->H; h++)
        for (int q = 0; q < map->Q; q++) {
            int parts = 0;
            for (int k = 0; k < map->K; k++)
                parts += !rival_map_has(map, h, q, k) && choice->tail.weight[(int64_t)h * map->K + k] > 0;
            pairs += (double)parts * rival_part_size(&choice->queries, h, q);
        }
    return pairs;
}

typedef struct computed_pairs {
    rival_pairs exact;
    double tail;
} computed_pairs;

/* What the method chooses, computed into x->out. */
static mcsa_status attend_sparse(rival_run *run, mcsa_site at, const mcsa_qkv *x, double *mark,
                                 computed_pairs *computed)
{
    const rival_choice *choice = NULL;
    rival_call call = { .at = at, .x = x, .lse = run->lse.data };
    run->choice = NULL;
    TRY(run->method->choose(run->state, &call, &choice, &run->error));
    run->choice = choice;
    TRY(lap(run, mark, &run->stats.choose_s));
    float *lse = choice->tail.key ? run->lse.data : NULL;
    TRY(run->kernels->attend(run->backend, x, &choice->queries, &choice->keys, &choice->map, lse, &run->error));
    if (choice->tail.key)
        TRY(run->kernels->tail(run->backend, x, &choice->queries, &choice->map, &choice->tail, lse, &run->error));
    TRY(lap(run, mark, &run->stats.attend_s));
    computed->exact = rival_map_pairs(&choice->map, &choice->queries, &choice->keys);
    computed->tail = tail_pairs(choice);
    return lap(run, mark, NULL);
}

/* A tensor for the sparse output beside the dense one. */
static mcsa_tensor sparse_tensor(const rival_run *run, const mcsa_dims *dims)
{
    return (mcsa_tensor){ .data = run->sparse.data,
                          .dtype = dims->dtype,
                          .shape = { dims->H, dims->N, dims->D },
                          .stride = { (int64_t)dims->N * dims->D, dims->D, 1 } };
}

/* What the method would have missed here: the residual of the calls that follow. */
static mcsa_status record_missed(rival_run *run, mcsa_site at, const mcsa_qkv *x, double *mark)
{
    rival_missed *missed = missed_at(run, at);
    size_t elements = (size_t)x->dims.H * (size_t)x->dims.N * (size_t)x->dims.D;
    computed_pairs computed;
    missed->step = -1;
    TRY(reserve(run, &missed->rows, 2 * elements, "the residual"));
    TRY(reserve(run, &run->sparse, mcsa_dtype_bytes(x->dims.dtype) * elements, "a sparse output"));
    mcsa_tensor sparse = sparse_tensor(run, &x->dims);
    mcsa_qkv beside = *x;
    beside.out = &sparse;
    TRY(attend_sparse(run, at, &beside, mark, &computed));
    TRY(run->kernels->subtract(run->backend, x->out, &sparse, missed->rows.data, &run->error));
    TRY(lap(run, mark, &run->stats.attend_s));
    missed->dims = x->dims;
    missed->step = at.step;
    run->computed += computed.exact.executed + computed.tail;
    return MCSA_OK;
}

static mcsa_status attend_dense(rival_run *run, mcsa_site at, const mcsa_qkv *x, int anchor, double *mark)
{
    mcsa_status status = mcsa_attend_dense(run->dense, x->q, x->k, x->v, x->out, run->lse.data);
    if (status != MCSA_OK) return mcsa_fail(&run->error, status, "%s", mcsa_run_error(run->dense));
    TRY(lap(run, mark, &run->stats.dense_s));
    if (run->method->observe) {
        rival_call call = { .at = at, .x = x, .lse = run->lse.data, .anchor = anchor };
        TRY(run->method->observe(run->state, &call, &run->error));
        TRY(lap(run, mark, &run->stats.choose_s));
    }
    run->computed += full_pairs(&x->dims);
    if (anchor && run->residual) TRY(record_missed(run, at, x, mark));
    run->stats.dense += !anchor;
    run->stats.anchor += anchor;
    return MCSA_OK;
}

/* The residual that serves this call: of the last anchor of the schedule or a later one, for the same shape. */
static mcsa_status check_missed(rival_run *run, mcsa_site at, const mcsa_dims *dims)
{
    const rival_missed *missed = missed_at(run, at);
    int anchor = mcsa_schedule_anchor(mcsa_run_actions(run->dense, at.layer), at.step);
    if (missed->step < 0 || missed->step < anchor || missed->step > at.step)
        return mcsa_fail(&run->error, MCSA_EINVAL,
                         "step %d of layer %d, branch %d adds the residual of the anchor at step %d, which was not run",
                         at.step, at.layer, at.branch, anchor);
    if (memcmp(&missed->dims, dims, sizeof *dims) != 0)
        return mcsa_fail(&run->error, MCSA_EINVAL,
                         "step %d of layer %d has %d heads of %d tokens, D = %d; its anchor had %d of %d, D = %d",
                         at.step, at.layer, dims->H, dims->N, dims->D, missed->dims.H, missed->dims.N, missed->dims.D);
    return MCSA_OK;
}

static mcsa_status attend_instead(rival_run *run, mcsa_site at, const mcsa_qkv *x, double *mark)
{
    computed_pairs computed;
    if (run->residual) TRY(check_missed(run, at, &x->dims));
    TRY(attend_sparse(run, at, x, mark, &computed));
    if (run->residual) {
        TRY(run->kernels->add(run->backend, x->out, missed_at(run, at)->rows.data, &run->error));
        TRY(lap(run, mark, &run->stats.attend_s));
    }
    run->stats.sparse++;
    run->full_sparse += full_pairs(&x->dims);
    run->nominal += computed.exact.nominal;
    run->executed += computed.exact.executed;
    run->tail += computed.tail;
    run->computed += computed.exact.executed + computed.tail;
    return MCSA_OK;
}

/* Anchors of the warm-up are dense for all methods, others for those that learn from them. */
int rival_run_action(const rival_run *run, mcsa_site at)
{
    int action = mcsa_run_action(run->dense, at);
    if (action != MCSA_ANCHOR || run->method->anchors || run->residual) return action;
    for (int t = 0; t < at.step; t++)
        if (mcsa_run_actions(run->dense, at.layer)[t] == MCSA_REUSE) return MCSA_REUSE;
    return MCSA_ANCHOR;
}

static mcsa_status check_grid(rival_run *run, const mcsa_dims *dims)
{
    const int *grid = run->grid;
    if ((int64_t)grid[0] * grid[1] * grid[2] == dims->N || !grid[0] || !grid[1] || !grid[2]) return MCSA_OK;
    return mcsa_fail(&run->error, MCSA_EINVAL, "%d tokens are not a grid of %d x %d x %d", dims->N, grid[0], grid[1],
                     grid[2]);
}

mcsa_status rival_attend(rival_run *run, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                         const mcsa_tensor *out)
{
    mcsa_qkv x = { .q = q, .k = k, .v = v, .out = out };
    double mark;
    int action = rival_run_action(run, at);
    if (action < 0)
        return mcsa_fail(&run->error, MCSA_EINVAL, "step %d, layer %d, branch %d is not part of the run", at.step,
                         at.layer, at.branch);
    mcsa_status status = mcsa_run_check(run->dense, &x, 0);
    if (status != MCSA_OK) return mcsa_fail(&run->error, status, "%s", mcsa_run_error(run->dense));
    TRY(check_grid(run, &x.dims));
    TRY(reserve(run, &run->lse, sizeof(float) * (size_t)x.dims.H * (size_t)x.dims.N, "row sums"));
    TRY(lap(run, &mark, NULL));
    TRY(action == MCSA_REUSE ? attend_instead(run, at, &x, &mark)
                             : attend_dense(run, at, &x, action == MCSA_ANCHOR, &mark));
    run->full += full_pairs(&x.dims);
    return MCSA_OK;
}

void rival_run_stats(const rival_run *run, rival_stats *stats)
{
    *stats = run->stats;
    if (run->full_sparse > 0) {
        stats->density_nominal = run->nominal / run->full_sparse;
        stats->density_executed = run->executed / run->full_sparse;
        stats->density_tail = run->tail / run->full_sparse;
    }
    if (run->full > 0) stats->density_run = run->computed / run->full;
    if (run->method->held) stats->held_bytes = run->method->held(run->state);
    int count = run->dense->config.layers * run->dense->config.branches;
    for (int i = 0; i < count; i++) stats->held_bytes += (int64_t)run->missed[i].rows.bytes;
}
