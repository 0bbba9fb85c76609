/* analyze_clip.c - see analyze_clip.h. */
#include "analyze_clip.h"

#include "rendition.h"

#include <stdlib.h>

/* What one clip needs, open. */
typedef struct clip_parts {
    video_model model;
    context condition, null_condition;
    float *noise; /* [in_channels, frames, height, width] */
    capture *capture;
} clip_parts;

static mcsa_status read_contexts(clip_parts *p, const analyze_clip *clip, mcsa_error *error)
{
    TRY(clip->prompt ? context_from_caption(&p->condition, &p->model, clip->prompt, error)
                     : context_from_file(&p->condition, &p->model, clip->context, error));
    if (clip->guidance == 1.0f) return MCSA_OK;
    if (clip->negative_context) return context_from_file(&p->null_condition, &p->model, clip->negative_context, error);
    if (!p->model.text)
        return mcsa_fail(error, MCSA_EINVAL, "--guidance %g needs --negative-context FILE, or take --guidance 1",
                         (double)clip->guidance);
    return context_from_caption(&p->null_condition, &p->model, "<null>", error);
}

static mcsa_status open_parts(clip_parts *p, const analyze_clip *clip, const char *dir, mcsa_error *error)
{
    const dit_wan_options options = { .threads = clip->threads, .precision = clip->precision, .device = clip->device };
    TRY(model_open(&p->model, clip->model, &options, error));
    const dit_wan_config *config = dit_wan_describe(p->model.transformer);
    TRY(model_check_channels(config, error));
    TRY(model_check_size(config, clip->frames, clip->height, clip->width, error));
    TRY(read_contexts(p, clip, error));
    int64_t count = (int64_t)config->in_channels * clip->frames * clip->height * clip->width;
    p->noise = malloc((size_t)count * sizeof *p->noise);
    if (!p->noise) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld noise values", (long long)count);
    dit_noise(clip->seed, p->noise, count);
    const capture_order order = {
        .dir = dir,
        .picks = clip->picks,
        .steps = clip->steps,
        .layers = config->layers,
        .branches = clip->guidance == 1.0f ? 1 : 2,
        .grid = { clip->frames / config->patch[0], clip->height / config->patch[1], clip->width / config->patch[2] },
        .device = clip->device,
    };
    return capture_open(&p->capture, &order, error);
}

static mcsa_status make(const clip_parts *p, const analyze_clip *clip, mcsa_error *error)
{
    const attention_settings dense = { .method = "dense" };
    const rendition_order order = {
        .model = &p->model,
        .frames = clip->frames,
        .height = clip->height,
        .width = clip->width,
        .noise = p->noise,
        .condition = &p->condition,
        .null_condition = &p->null_condition,
        .guidance = clip->guidance,
        .shift = p->model.shift,
        .label = "capture",
        .quiet = clip->quiet,
        .attention = &dense,
        .steps = clip->steps,
        .threads = clip->threads,
        .isa = clip->isa,
        .device = clip->device,
        .capture = p->capture,
    };
    rendition made;
    TRY(rendition_make(&made, &order, error));
    rendition_free(&made);
    return MCSA_OK;
}

mcsa_status analyze_clip_capture(const analyze_clip *clip, const char *dir, mcsa_error *error)
{
    clip_parts parts = { 0 };
    mcsa_status status = open_parts(&parts, clip, dir, error);
    if (status == MCSA_OK) status = make(&parts, clip, error);
    capture_close(parts.capture);
    context_free(&parts.condition);
    context_free(&parts.null_condition);
    free(parts.noise);
    model_close(&parts.model);
    return status;
}
