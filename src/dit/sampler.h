/* sampler.h - flow-matching samplers with shift: Euler, and UniPC as Diffusers' UniPCMultistepScheduler runs
 * Wan (prediction_type flow_prediction, use_flow_sigmas, solver order 2, bh2, lower_order_final).
 *
 * Sigmas: s(u) = shift u / (1 + (shift - 1) u).  Euler takes u = 1 - i / steps, what Diffusers' pipelines
 * hand to FlowMatchEulerDiscreteScheduler (its own default grid spends the last step below sigma 0.01).
 * UniPC takes u = 1 - 0.999 i / steps and a first sigma of 1 - 1e-6, as its set_timesteps does.  Both end at 0.
 *
 * Latents: x = (1 - sigma) x0 + sigma e; the model predicts the velocity e - x0. */
#ifndef MCSA_DIT_SAMPLER_H
#define MCSA_DIT_SAMPLER_H

#include "base/status.h"

typedef enum dit_sampler_kind { DIT_EULER = 0, DIT_UNIPC = 1 } dit_sampler_kind;

typedef struct dit_sampler dit_sampler;

mcsa_status dit_sampler_create(dit_sampler **out, dit_sampler_kind kind, int steps, float shift, int64_t count,
                               mcsa_error *error);
void dit_sampler_free(dit_sampler *sampler);

/* The sigma at which step i evaluates the model, 0 <= i < steps, and the timestep to tell it: 1000 sigma,
 * which UniPC cuts to a whole number because its Diffusers twin keeps timesteps as integers. */
float dit_sampler_sigma(const dit_sampler *sampler, int i);
float dit_sampler_timestep(const dit_sampler *sampler, int i);

/* Moves x from step i to i + 1 in place; i runs 0, 1, ... and starting again at 0 starts a new trajectory.
 * x, velocity: [count]. */
void dit_sampler_step(dit_sampler *sampler, int i, float *x, const float *velocity);

#endif
