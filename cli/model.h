/* model.h - a model directory as the command understands it.
 *
 *   DIR/transformer/config.json           or DIR/config.json alone: a transformer without its surroundings
 *   DIR/text_encoder/config.json          read when its _class_name is ours, WordWindowEncoder; a checkpoint
 *                                         with another text encoder takes contexts from files
 *   DIR/scheduler/scheduler_config.json   "shift" or, as UniPC calls it, "flow_shift"; 3 without the file */
#ifndef MCSA_CLI_MODEL_H
#define MCSA_CLI_MODEL_H

#include "dit/text.h"
#include "dit/wan.h"

typedef struct video_model {
    dit_wan *transformer;
    dit_text *text; /* NULL without our text encoder */
    float shift;
} video_model;

/* On failure nothing is held. */
mcsa_status model_open(video_model *model, const char *dir, const dit_wan_options *options,
                       mcsa_error *error);
void model_close(video_model *model);

/* What cross-attention reads. */
typedef struct context {
    int rows, width;
    float *data; /* [rows, width] */
} context;

/* MCSA_EINVAL for a caption that the encoder refuses or when the model has no encoder of ours. */
mcsa_status context_from_caption(context *out, const video_model *model, const char *caption,
                                 mcsa_error *error);

/* The tensor "context" [rows, text_dim] of a .safetensors file. */
mcsa_status context_from_file(context *out, const video_model *model, const char *path, mcsa_error *error);
void context_free(context *c);

/* MCSA_EUNSUPPORTED for a model that takes more than the noise. */
mcsa_status model_check_channels(const dit_wan_config *config, mcsa_error *error);

/* MCSA_EINVAL unless the patch divides frames x height x width and RoPE reaches that far; the sentence
 * names the nearest sizes. */
mcsa_status model_check_size(const dit_wan_config *config, int frames, int height, int width,
                             mcsa_error *error);

#endif
