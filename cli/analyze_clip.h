/* analyze_clip.h - a dense clip made only for the attention calls on the way: what `mcsa analyze --model` looks at. */
#ifndef MCSA_CLI_ANALYZE_CLIP_H
#define MCSA_CLI_ANALYZE_CLIP_H

#include "capture.h"

typedef struct analyze_clip {
    const char *model;  /* directory */
    const char *prompt; /* NULL: context */
    const char *context, *negative_context;
    int steps, frames, height, width;
    float guidance;
    uint64_t seed;
    int threads, quiet;
    mcsa_isa isa;
    mcsa_device device;
    mcsa_dtype precision;
    captured_picks picks;
} analyze_clip;

/* Leaves the captured calls in `dir`.  MCSA_ECANCELED when interrupted. */
mcsa_status analyze_clip_capture(const analyze_clip *clip, const char *dir, mcsa_error *error);

#endif
