/* rendition.h - one clip made by one method of attention from given noise, with what it cost. */
#ifndef MCSA_CLI_RENDITION_H
#define MCSA_CLI_RENDITION_H

#include "attention_run.h"
#include "capture.h"
#include "dit/sampler.h"
#include "model.h"
#include "progress.h"
#include "quality.h"

typedef struct rendition_order {
    const video_model *model;
    int frames, height, width;
    const float *noise; /* [in_channels, frames, height, width] */
    const context *condition, *null_condition;
    float guidance, shift;
    dit_sampler_kind sampler;
    const char *label; /* of the progress line */
    int quiet;
    const attention_settings *attention; /* settled */
    int steps, threads;
    mcsa_isa isa;
    mcsa_device device;
    uint64_t seed;    /* of what another method of attention draws */
    int recall;       /* 1: measured */
    capture *capture; /* looks at self-attention; NULL: nobody does */
} rendition_order;

typedef struct rendition {
    planes latent;              /* owns its data */
    double denoise_s, linear_s; /* denoise_s: without measuring recall */
    attention_cost cost;
    int *anchors; /* [anchor_count] steps at which the schedule puts anchors */
    int anchor_count;
} rendition;

/* MCSA_ECANCELED when interrupted.  On failure nothing is held. */
mcsa_status rendition_make(rendition *out, const rendition_order *order, mcsa_error *error);
void rendition_free(rendition *r);

#endif
