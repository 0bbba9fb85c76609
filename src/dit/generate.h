/* generate.h - the denoising loop: noise and two contexts in, latent out, guidance in two branches. */
#ifndef MCSA_DIT_GENERATE_H
#define MCSA_DIT_GENERATE_H

#include "sampler.h"
#include "wan.h"

typedef struct dit_progress {
    int step, steps; /* step: finished steps, 0 .. steps */
    double elapsed_s;
} dit_progress;

typedef struct dit_generate_options {
    int steps;
    float guidance; /* 1: one branch only */
    float shift;
    dit_sampler_kind sampler;
    int frames, height, width; /* of the latent */
    const float *noise;        /* [in_channels, frames, height, width] */
    const float *context;      /* [context_rows, text_dim] */
    const float *null_context; /* [null_rows, text_dim]; unused when guidance is 1 */
    int context_rows, null_rows;
    const dit_attention *self_attention; /* NULL: that of the run */
    int (*progress)(void *user, const dit_progress *progress); /* non-zero cancels; may be NULL */
    void *user;
} dit_generate_options;

/* latent: [out_channels, frames, height, width], out.  run: created with the same number of steps, the
 * model's layers, and 2 branches (0 conditional, 1 unconditional) when guidance is not 1.  denoise_s: wall
 * time of the loop. */
mcsa_status dit_generate(dit_wan *model, mcsa_run *run, const dit_generate_options *options, float *latent,
                         double *denoise_s, mcsa_error *error);

/* Standard normal numbers from a seed, the same bits on every machine: noise [count].  See noise.c. */
void dit_noise(uint64_t seed, float *noise, int64_t count);

#endif
