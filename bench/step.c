/* step.c - see step.h.
 *
 * Latent and context are noise: what a step costs does not depend on them.  Cross-attention is the same call in every
 * step and all dense attention of a reuse step, so its time is read there; steps of other kinds subtract it. */
#include "step.h"

#include "dit/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT_ROWS = 512 /* Wan's, for a model without our text encoder */ };

static mcsa_status create_run(bench_step *step, const bench_plan *plan, mcsa_error *error)
{
    int layers = dit_wan_describe(step->model.transformer)->layers;
    mcsa_action *actions = malloc(sizeof *actions * (size_t)layers * BENCH_ACTIONS);
    if (!actions) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a schedule of %d layers", layers);
    for (int i = 0; i < layers * BENCH_ACTIONS; i++) actions[i] = (mcsa_action)(i % BENCH_ACTIONS);
    mcsa_config config = { .steps = BENCH_ACTIONS,
                           .layers = layers,
                           .branches = BENCH_BRANCHES,
                           .density = plan->densities[0],
                           .group = plan->shape.group,
                           .tail = plan->tail,
                           .actions = actions,
                           .threads = plan->shape.threads,
                           .isa = plan->shape.isa,
                           .device = plan->device };
    mcsa_status status = mcsa_run_create(&step->run, &config, error->text, sizeof error->text);
    free(actions);
    return status;
}

static mcsa_status make_inputs(bench_step *step, int rows, mcsa_error *error)
{
    const dit_wan_config *config = dit_wan_describe(step->model.transformer);
    int64_t places = (int64_t)step->call.frames * step->call.height * step->call.width;
    int64_t inputs = places * config->in_channels, words = (int64_t)rows * config->text_dim;
    step->outputs = places * config->out_channels;
    const mcsa_allocator allocator = dit_wan_host_memory(step->model.transformer);
    step->memory = mcsa_memory_from(&allocator);
    if (mcsa_block_reserve(&step->memory, &step->block,
                           sizeof(float) * (size_t)(inputs + words + BENCH_BRANCHES * step->outputs)) != 0)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a latent of %lld numbers", (long long)inputs);
    step->latent = step->block.data;
    step->context = step->latent + inputs;
    step->velocity = step->context + words;
    dit_noise(1, step->latent, inputs);
    dit_noise(2, step->context, words);
    return MCSA_OK;
}

static void count_operations(bench_step *step, double rows)
{
    const dit_wan_config *c = dit_wan_describe(step->model.transformer);
    double N = step->tokens, dim = (double)c->heads * c->head_dim, layers = (double)c->layers * BENCH_BRANCHES;
    double patch = (double)c->patch[0] * c->patch[1] * c->patch[2];
    step->attention_operations = layers * 4 * dim * N * N;
    step->linear_operations = layers * (2 * N * dim * (6 * dim + 2.0 * c->ffn_dim) + 4 * rows * dim * dim) +
                              BENCH_BRANCHES * 2 * N * dim * patch * (c->in_channels + c->out_channels);
}

static mcsa_status open_step(bench_step *step, const bench_plan *plan, mcsa_dtype precision, mcsa_error *error)
{
    dit_wan_options options = {
        .threads = plan->shape.threads, .precision = precision, .isa = plan->shape.isa, .device = plan->device
    };
    dit_wan_call *call = &step->call;
    if (plan->made)
        TRY(dit_wan_open_random(&step->model.transformer, &plan->made->config, 1, &options, error));
    else
        TRY(model_open(&step->model, plan->model, &options, error));
    const dit_wan *transformer = step->model.transformer;
    TRY(model_check_size(dit_wan_describe(transformer), call->frames, call->height, call->width, error));
    TRY(dit_wan_check_size(transformer, call->frames, call->height, call->width, error));
    step->tokens = (int)dit_wan_tokens(transformer, call->frames, call->height, call->width);
    TRY(create_run(step, plan, error));
    call->context_rows = step->model.text ? dit_text_rows(step->model.text) : CONTEXT_ROWS;
    TRY(make_inputs(step, call->context_rows, error));
    call->latent = step->latent;
    call->context = step->context;
    call->timestep = 500;
    call->run = step->run;
    count_operations(step, call->context_rows);
    return MCSA_OK;
}

mcsa_status bench_step_open(bench_step *step, const bench_plan *plan, mcsa_dtype precision, mcsa_error *error)
{
    *step = (bench_step){ .call = { .frames = plan->frames, .height = plan->height, .width = plan->width } };
    mcsa_status status = open_step(step, plan, precision, error);
    if (status != MCSA_OK) bench_step_close(step);
    return status;
}

void bench_step_close(bench_step *step)
{
    mcsa_run_free(step->run);
    mcsa_block_release(&step->memory, &step->block); /* before the model, whose memory it is */
    model_close(&step->model);
    *step = (bench_step){ 0 };
}

void bench_step_run(bench_step *step, mcsa_action action)
{
    mcsa_stats before = { .size = sizeof before }, after = { .size = sizeof after };
    dit_wan *transformer = step->model.transformer;
    dit_wan_times from = dit_wan_spent(transformer);
    mcsa_run_stats(step->run, &before);
    step->call.step = (int)action;
    for (int branch = 0; branch < BENCH_BRANCHES; branch++) {
        step->call.branch = branch;
        step->call.velocity = step->velocity + branch * step->outputs;
        mcsa_status status = dit_wan_forward(transformer, &step->call, &step->error);
        if (status != MCSA_OK) step->status = status;
    }
    mcsa_run_stats(step->run, &after);
    dit_wan_times to = dit_wan_spent(transformer);
    bench_stages *s = &step->stages[action];
    double attention = after.attention_s - before.attention_s;
    s->cross = action == MCSA_REUSE ? after.dense_s - before.dense_s : step->stages[MCSA_REUSE].cross;
    s->self = attention - s->cross;
    s->dense = after.dense_s - before.dense_s - s->cross;
    s->grouping = after.grouping_s - before.grouping_s;
    s->selection = after.selection_s - before.selection_s;
    s->sparse = after.sparse_s - before.sparse_s;
    s->linear = to.linear_s - from.linear_s;
    s->total = to.forward_s - from.forward_s;
    s->other = s->total - attention - s->linear;
}

void bench_step_dense(void *step)
{
    bench_step_run(step, MCSA_DENSE);
}

void bench_step_anchor(void *step)
{
    bench_step_run(step, MCSA_ANCHOR);
}

void bench_step_reuse(void *step)
{
    bench_step_run(step, MCSA_REUSE);
}

double bench_relative(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double move = (double)a[i] - (double)b[i];
        difference += move * move;
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

/* In a reuse step each attention output moves by two roundings to BF16, as it does between BF16 and F32 weights: the
 * same 5e-3 is allowed. */
mcsa_status bench_step_check(bench_step *step, int *right, mcsa_error *error)
{
    int64_t count = BENCH_BRANCHES * step->outputs;
    mcsa_stats stats = { .size = sizeof stats };
    float *dense = malloc(sizeof *dense * (size_t)count);
    if (!dense) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a velocity of %lld numbers", (long long)count);
    bench_step_run(step, MCSA_DENSE);
    memcpy(dense, step->velocity, sizeof *dense * (size_t)count);
    right[MCSA_DENSE] = isfinite(bench_relative(dense, dense, count));
    bench_step_run(step, MCSA_ANCHOR);
    right[MCSA_ANCHOR] = right[MCSA_DENSE] && memcmp(dense, step->velocity, sizeof *dense * (size_t)count) == 0;
    bench_step_run(step, MCSA_REUSE);
    mcsa_run_stats(step->run, &stats);
    right[MCSA_REUSE] = stats.fallback == 0 && bench_relative(step->velocity, dense, count) <= 5e-3;
    free(dense);
    return step->status == MCSA_OK ? MCSA_OK : mcsa_fail(error, step->status, "%s", step->error.text);
}
