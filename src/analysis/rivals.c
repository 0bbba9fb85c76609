/* rivals.c - see rivals.h. */
#include "rivals.h"

#include "base/half.h"
#include "base/tensor.h"
#include "core/run.h"

#include <stdlib.h>

/* One call with all its heads, where the backend computes, and its outputs on the host. */
typedef struct stage {
    const rival_kernels *kernels;
    void *backend;
    int threads; /* of the host */
    mcsa_run *dense;
    mcsa_memory memory;      /* the backend's */
    mcsa_block blocks[5];    /* of q, k, v, out and lse */
    mcsa_tensor tensor[4];   /* q, k, v, out [H, N, D] */
    mcsa_qkv x;              /* of these */
    int32_t *every;          /* [N] 0, 1, 2, ... */
    float *exact, *made;     /* [H, N, D] the dense output and the method's */
    float *exact_lse, *kept; /* [H, N] of all keys, and of those that the method attends to */
    uint16_t *residual;      /* [H, N, D] BF16, of the series' first step */
} stage;

static int64_t rows_of(const stage *s)
{
    return (int64_t)s->x.dims.H * s->x.dims.N;
}

static int64_t numbers_of(const stage *s)
{
    return rows_of(s) * s->x.dims.D;
}

static mcsa_status reserve(stage *s, const analysis_call *like, mcsa_error *error)
{
    const int64_t H = like->q.shape[0], N = like->q.shape[1], D = like->q.shape[2];
    const size_t bytes = (size_t)(H * N * D) * mcsa_dtype_bytes(like->q.dtype);
    s->x = (mcsa_qkv){
        &s->tensor[0], &s->tensor[1], &s->tensor[2], &s->tensor[3], { (int)H, (int)N, (int)N, (int)D, like->q.dtype },
        like->scale
    };
    int have = 1;
    for (int i = 0; i < 5; i++)
        have &= mcsa_block_reserve(&s->memory, &s->blocks[i], i < 4 ? bytes : sizeof(float) * (size_t)(H * N)) == 0;
    for (int i = 0; i < 4; i++)
        s->tensor[i] = (mcsa_tensor){ s->blocks[i].data, like->q.dtype, { H, N, D }, { N * D, D, 1 } };
    s->every = malloc(sizeof *s->every * (size_t)N);
    s->exact = malloc(sizeof *s->exact * (size_t)numbers_of(s));
    s->made = malloc(sizeof *s->made * (size_t)numbers_of(s));
    s->exact_lse = malloc(sizeof *s->exact_lse * (size_t)rows_of(s));
    s->kept = malloc(sizeof *s->kept * (size_t)rows_of(s));
    s->residual = malloc(sizeof *s->residual * (size_t)numbers_of(s));
    if (!have || !s->every || !s->exact || !s->made || !s->exact_lse || !s->kept || !s->residual)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld heads of %lld tokens, D = %lld", (long long)H,
                         (long long)N, (long long)D);
    for (int i = 0; i < (int)N; i++) s->every[i] = i;
    return MCSA_OK;
}

static void close_stage(stage *s)
{
    if (s->backend) {
        for (int i = 0; i < 5; i++) mcsa_block_release(&s->memory, &s->blocks[i]);
        s->kernels->close(s->backend);
    }
    mcsa_run_free(s->dense);
    free(s->every);
    free(s->exact);
    free(s->made);
    free(s->exact_lse);
    free(s->kept);
    free(s->residual);
}

static mcsa_status load(stage *s, const analysis_source *source, int i, mcsa_error *error)
{
    analysis_call call;
    TRY(source->load(source->user, i, &call, error));
    const mcsa_tensor *from[] = { &call.q, &call.k, &call.v };
    const size_t bytes = (size_t)numbers_of(s) * mcsa_dtype_bytes(s->x.dims.dtype);
    s->x.scale = call.scale;
    for (int t = 0; t < 3; t++) TRY(s->kernels->write(s->backend, from[t]->data, bytes, s->tensor[t].data, error));
    return MCSA_OK;
}

static mcsa_status read_out(const stage *s, float *out, float *lse, mcsa_error *error)
{
    if (lse) TRY(s->kernels->read(s->backend, s->blocks[4].data, sizeof *lse * (size_t)rows_of(s), lse, error));
    return s->kernels->read_rows(s->backend, &s->tensor[3], s->every, s->x.dims.N, out, error);
}

/* All keys for all queries: the same kernels as the method's, so that a difference is the choice alone. */
static mcsa_status attend_dense(const stage *s, mcsa_error *error)
{
    rival_choice all = { 0 };
    const mcsa_dims *dims = &s->x.dims;
    mcsa_status status = rival_partition_blocks(&all.queries, dims->H, dims->N, 128, NULL, error);
    if (status == MCSA_OK) status = rival_partition_blocks(&all.keys, dims->H, dims->N, dims->N, NULL, error);
    if (status == MCSA_OK) status = rival_map_reserve(&all.map, dims->H, all.queries.P, 1, error);
    for (int h = 0; status == MCSA_OK && h < dims->H; h++)
        for (int q = 0; q < all.queries.P; q++) rival_map_keep(&all.map, h, q, 0);
    if (status == MCSA_OK)
        status = s->kernels->attend(s->backend, &s->x, &all.queries, &all.keys, &all.map, s->blocks[4].data, error);
    if (status == MCSA_OK) status = read_out(s, s->exact, s->exact_lse, error);
    rival_choice_free(&all);
    return status;
}

static mcsa_status attend_chosen(const stage *s, const rival_method *method, void *state, mcsa_site at,
                                 rival_pairs *pairs, mcsa_error *error)
{
    const rival_choice *choice = NULL;
    float *lse = s->blocks[4].data;
    rival_call call = { .at = at, .x = &s->x, .lse = lse };
    TRY(method->choose(state, &call, &choice, error));
    TRY(s->kernels->attend(s->backend, &s->x, &choice->queries, &choice->keys, &choice->map, lse, error));
    TRY(s->kernels->read(s->backend, lse, sizeof *s->kept * (size_t)rows_of(s), s->kept, error));
    if (choice->tail.key)
        TRY(s->kernels->tail(s->backend, &s->x, &choice->queries, &choice->map, &choice->tail, lse, error));
    *pairs = rival_map_pairs(&choice->map, &choice->queries, &choice->keys);
    return read_out(s, s->made, NULL, error);
}

/* A step after the first of its series. */
static void add_call(analysis_rival *out, const stage *s, const rival_pairs *pairs)
{
    const mcsa_dims *dims = &s->x.dims;
    const double all = (double)dims->H * dims->N * dims->N;
    for (int added = 0; added < 2; added++) {
        analysis_sums sums = analysis_sums_start();
        analysis_sums_add(&sums, s->exact, s->made, added ? s->residual : NULL, numbers_of(s), s->threads);
        for (int h = 0; h < dims->H; h++)
            analysis_sums_recall(&sums, s->exact_lse + (int64_t)h * dims->N, s->kept + (int64_t)h * dims->N, dims->N);
        analysis_tally_add(added ? &out->compensated : &out->made, &sums);
    }
    out->nominal += (pairs->nominal / all - out->nominal) / out->made.calls;
    out->executed += (pairs->executed / all - out->executed) / out->made.calls;
}

static int same_series(const mcsa_site *a, const mcsa_site *b)
{
    return a->layer == b->layer && a->branch == b->branch;
}

static mcsa_status run_calls(analysis_rival *out, stage *s, void *state, const analysis_source *source,
                             mcsa_error *error)
{
    for (int i = 0; i < source->count; i++) {
        rival_pairs pairs;
        mcsa_site at = source->at[i];
        int first = !i || !same_series(&at, &source->at[i - 1]);
        if (source->progress && source->progress(source->user, i, source->count))
            return mcsa_fail(error, MCSA_ECANCELED, "canceled");
        TRY(load(s, source, i, error));
        TRY(attend_dense(s, error));
        if (first && out->method->observe) {
            rival_call call = { .at = at, .x = &s->x, .lse = s->blocks[4].data, .anchor = 1 };
            TRY(out->method->observe(state, &call, error));
        }
        TRY(attend_chosen(s, out->method, state, at, &pairs, error));
        if (!first) {
            add_call(out, s, &pairs);
            continue;
        }
        for (int64_t n = 0; n < numbers_of(s); n++) s->residual[n] = mcsa_to_bf16(s->exact[n] - s->made[n]);
    }
    return MCSA_OK;
}

static mcsa_status measure_one(analysis_rival *out, stage *s, const analysis_options *options, const int grid[3],
                               const analysis_source *source, mcsa_error *error)
{
    const rival_method *method = out->method;
    void *state = NULL;
    rival_setup setup = {
        .kernels = s->kernels,
        .backend = s->backend,
        .dense = s->dense,
        .layers = s->dense->config.layers,
        .branches = s->dense->config.branches,
        .grid = { grid[0], grid[1], grid[2] },
        .density = options->density[out->density],
        .threads = options->attention.threads,
    };
    TRY(method->open(&state, &setup, error));
    mcsa_status status = run_calls(out, s, state, source, error);
    method->close(state);
    return status;
}

/* The run whose schedule methods look their anchor up in, and which groups queries for those that do: in every layer
 * the first captured step is the anchor. */
static mcsa_status open_dense(stage *s, const analysis_options *options, const analysis_source *source,
                              mcsa_error *error)
{
    mcsa_config config = options->attention;
    config.layers = source->at[source->count - 1].layer + 1;
    for (int i = 0; i < source->count; i++) {
        if (source->at[i].step >= config.steps) config.steps = source->at[i].step + 1;
        if (source->at[i].branch >= config.branches) config.branches = source->at[i].branch + 1;
    }
    mcsa_action *actions = calloc((size_t)config.layers * (size_t)config.steps, sizeof *actions); /* MCSA_DENSE is 0 */
    if (!actions)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a schedule of %d steps and %d layers", config.steps,
                         config.layers);
    for (int i = 0; i < source->count; i++) {
        const mcsa_site *at = &source->at[i];
        mcsa_action *row = actions + (int64_t)at->layer * config.steps;
        if (i && source->at[i - 1].layer == at->layer) continue;
        row[at->step] = MCSA_ANCHOR;
        for (int t = at->step + 1; t < config.steps; t++) row[t] = MCSA_REUSE;
    }
    config.actions = actions;
    mcsa_status status = mcsa_run_create(&s->dense, &config, error->text, sizeof error->text);
    free(actions);
    return status;
}

static mcsa_status open_stage(stage *s, const analysis_options *options, const analysis_source *source,
                              mcsa_error *error)
{
    analysis_call call;
    TRY(rival_kernels_find(&s->kernels, options->attention.device, error));
    TRY(s->kernels->open(&s->backend, &options->attention, error));
    s->threads = options->attention.threads;
    s->memory = (mcsa_memory){ .allocator = s->kernels->memory(s->backend) };
    TRY(open_dense(s, options, source, error));
    TRY(source->load(source->user, 0, &call, error));
    return reserve(s, &call, error);
}

static mcsa_status check_grid(const rival_method *method, const int grid[3], mcsa_error *error)
{
    if (!method->grid || (grid[0] && grid[1] && grid[2])) return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "method %s needs the grid of tokens: frames, rows and columns", method->name);
}

mcsa_status analysis_measure_rivals(analysis_rival *out, const rival_method *const *methods, int count,
                                    const analysis_options *options, const int grid[3], const analysis_source *source,
                                    mcsa_error *error)
{
    stage s = { 0 };
    for (int m = 0; m < count; m++) TRY(check_grid(methods[m], grid, error));
    mcsa_status status = open_stage(&s, options, source, error);
    for (int i = 0; status == MCSA_OK && i < count * options->densities; i++) {
        out[i] = (analysis_rival){ .method = methods[i / options->densities], .density = i % options->densities };
        status = measure_one(&out[i], &s, options, grid, source, error);
    }
    close_stage(&s);
    return status;
}
