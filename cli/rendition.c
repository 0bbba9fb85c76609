/* rendition.c - a run for the attention, the denoising loop, and the bookkeeping of both. */
#include "rendition.h"

#include <stdlib.h>

static mcsa_status open_attention(attention_run *run, const rendition_order *order, mcsa_error *error)
{
    const dit_wan_config *model = dit_wan_describe(order->model->transformer);
    const attention_order ordered = {
        .settings = order->attention,
        .steps = order->steps,
        .layers = model->layers,
        .branches = order->guidance == 1.0f ? 1 : 2,
        .grid = { order->frames / model->patch[0], order->height / model->patch[1],
                  order->width / model->patch[2] },
        .threads = order->threads,
        .isa = order->isa,
        .device = order->device,
        .seed = order->seed,
        .recall = order->recall,
    };
    return attention_run_open(run, &ordered, error);
}

/* Anchors of the last layer: the first ones may be held dense. */
static mcsa_status list_anchors(rendition *out, const attention_run *run, const rendition_order *order,
                                mcsa_error *error)
{
    int steps = order->steps, last = dit_wan_describe(order->model->transformer)->layers - 1;
    out->anchors = malloc((size_t)steps * sizeof *out->anchors);
    if (!out->anchors) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a list of %d steps", steps);
    for (int step = 0; step < steps; step++)
        if (attention_run_action(run, (mcsa_site){ step, last, 0 }) == MCSA_ANCHOR)
            out->anchors[out->anchor_count++] = step;
    return MCSA_OK;
}

static mcsa_status denoise(rendition *out, const attention_run *run, const rendition_order *order,
                           mcsa_error *error)
{
    const dit_attention *self = attention_run_self(run);
    progress line;
    progress_start(&line, order->label, order->quiet);
    dit_generate_options options = {
        .steps = order->steps,
        .guidance = order->guidance,
        .shift = order->shift,
        .sampler = order->sampler,
        .frames = order->frames,
        .height = order->height,
        .width = order->width,
        .noise = order->noise,
        .context = order->condition->data,
        .context_rows = order->condition->rows,
        .null_context = order->null_condition->data,
        .null_rows = order->null_condition->rows,
        .self_attention = order->capture ? capture_before(order->capture, run->run, self) : self,
        .progress = progress_step,
        .user = &line,
    };
    double linear_before = dit_wan_spent(order->model->transformer).linear_s;
    mcsa_status status =
        dit_generate(order->model->transformer, run->run, &options, out->latent.data, &out->denoise_s, error);
    out->linear_s = dit_wan_spent(order->model->transformer).linear_s - linear_before;
    progress_end(&line);
    return status;
}

mcsa_status rendition_make(rendition *out, const rendition_order *order, mcsa_error *error)
{
    *out = (rendition){ 0 };
    int channels = dit_wan_describe(order->model->transformer)->out_channels;
    out->latent = (planes){ channels, order->frames, order->height, order->width, NULL };
    size_t count = (size_t)channels * (size_t)order->frames * (size_t)order->height * (size_t)order->width;
    attention_run run = { 0 };
    mcsa_status status = MCSA_OK;
    out->latent.data = malloc(count * sizeof(float));
    if (!out->latent.data) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu latent values", count);
        goto done;
    }
    status = open_attention(&run, order, error);
    if (status == MCSA_OK) status = list_anchors(out, &run, order, error);
    if (status == MCSA_OK) status = denoise(out, &run, order, error);
    if (status == MCSA_OK) status = attention_run_cost(&run, &out->cost);
    out->denoise_s -= out->cost.recall_s;
done:
    attention_run_close(&run);
    if (status != MCSA_OK) rendition_free(out);
    return status;
}

void rendition_free(rendition *r)
{
    free(r->latent.data);
    free(r->anchors);
    *r = (rendition){ 0 };
}
