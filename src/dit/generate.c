/* generate.c - see generate.h.
 *
 *     x = noise;  for each step: v = u + guidance (c - u);  x = sampler(x, v)
 *
 * with c and u the velocities under the two contexts.  Branch 0, the conditional one, goes first: it leads a
 * run whose branches share their selection. */
#include "generate.h"

#include "base/clock.h"
#include "base/memory.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static mcsa_status check(const dit_wan *model, const dit_generate_options *o, mcsa_error *error)
{
    const dit_wan_config *config = dit_wan_describe(model);
    if (config->in_channels != config->out_channels)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "the model maps %d channels to %d; generating needs the same number on both sides",
                         config->in_channels, config->out_channels);
    TRY(dit_wan_check_size(model, o->frames, o->height, o->width, error));
    if (!o->noise || !o->context || (o->guidance != 1 && !o->null_context))
        return mcsa_fail(error, MCSA_EINVAL, "noise, context or null_context is NULL");
    if (!isfinite(o->guidance)) return mcsa_fail(error, MCSA_EINVAL, "guidance is not a finite number");
    return MCSA_OK;
}

/* Buffers of one generation, each [count], in the host's memory for the model. */
typedef struct buffers {
    float *latent, *conditional, *unconditional;
} buffers;

static mcsa_status guided_velocity(dit_wan *model, const dit_generate_options *o, dit_wan_call *call, buffers *v,
                                   int64_t count, mcsa_error *error)
{
    call->branch = 0;
    call->context = o->context;
    call->context_rows = o->context_rows;
    call->velocity = v->conditional;
    TRY(dit_wan_forward(model, call, error));
    if (o->guidance == 1) return MCSA_OK;

    call->branch = 1;
    call->context = o->null_context;
    call->context_rows = o->null_rows;
    call->velocity = v->unconditional;
    TRY(dit_wan_forward(model, call, error));
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < count; c++)
        v->conditional[c] = v->unconditional[c] + o->guidance * (v->conditional[c] - v->unconditional[c]);
    return MCSA_OK;
}

static mcsa_status report(const dit_generate_options *o, int step, double start, mcsa_error *error)
{
    dit_progress progress = { .step = step, .steps = o->steps, .elapsed_s = mcsa_seconds() - start };
    if (!o->progress || !o->progress(o->user, &progress)) return MCSA_OK;
    return mcsa_fail(error, MCSA_ECANCELED, "canceled after %d of %d steps", step, o->steps);
}

static mcsa_status denoise(dit_wan *model, mcsa_run *run, const dit_generate_options *o, dit_sampler *sampler,
                           buffers *v, int64_t count, mcsa_error *error)
{
    const double start = mcsa_seconds();
    dit_wan_call call = { .frames = o->frames,
                          .height = o->height,
                          .width = o->width,
                          .latent = v->latent,
                          .run = run,
                          .self_attention = o->self_attention };
    TRY(report(o, 0, start, error));
    for (int step = 0; step < o->steps; step++) {
        call.step = step;
        call.timestep = dit_sampler_timestep(sampler, step);
        TRY(guided_velocity(model, o, &call, v, count, error));
        dit_sampler_step(sampler, step, v->latent, v->conditional);
        TRY(report(o, step + 1, start, error));
    }
    return MCSA_OK;
}

mcsa_status dit_generate(dit_wan *model, mcsa_run *run, const dit_generate_options *o, float *latent, double *denoise_s,
                         mcsa_error *error)
{
    mcsa_status status;
    dit_sampler *sampler = NULL;
    mcsa_block block = { 0 };
    TRY(check(model, o, error));
    const mcsa_allocator allocator = dit_wan_host_memory(model);
    mcsa_memory memory = mcsa_memory_from(&allocator);
    const int64_t count = (int64_t)dit_wan_describe(model)->in_channels * o->frames * o->height * o->width;
    const size_t bytes = (size_t)count * sizeof *latent;
    if (mcsa_block_reserve(&memory, &block, 3 * bytes) != 0)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a latent and two velocities of %lld numbers",
                         (long long)count);
    buffers v = { .latent = block.data };
    v.conditional = v.latent + count;
    v.unconditional = v.conditional + count;
    if ((status = dit_sampler_create(&sampler, o->sampler, o->steps, o->shift, count, error)) != MCSA_OK) goto done;
    memcpy(v.latent, o->noise, bytes);

    const int threads = omp_get_max_threads();
    const double start = mcsa_seconds();
    omp_set_num_threads(dit_wan_threads(model));
    status = denoise(model, run, o, sampler, &v, count, error);
    omp_set_num_threads(threads);
    if (denoise_s) *denoise_s = mcsa_seconds() - start;
    memcpy(latent, v.latent, bytes);
done:
    dit_sampler_free(sampler);
    mcsa_block_release(&memory, &block);
    return status;
}
