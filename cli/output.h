/* output.h - what --out names: the ending says the format, and --compare writes a second file beside it. */
#ifndef MCSA_CLI_OUTPUT_H
#define MCSA_CLI_OUTPUT_H

#include "options.h"
#include "quality.h"

/* Before anything is computed: endings must be known (MCSA_EINVAL lists them), pictures need 3 channels
 * (MCSA_EINVAL), directories must accept files (MCSA_EIO). */
mcsa_status output_check(const option_texts *paths, int channels, mcsa_error *error);

/* "clip.mp4" -> "clip-dense.mp4" */
mcsa_status output_dense_name(const char *path, char *name, size_t bytes, mcsa_error *error);

/* Writes latent in the format of the ending of `path`: .mp4, .png and .y4m as pictures, .safetensors as
 * one F32 tensor "latent" [channels, frames, height, width].  path has passed output_check. */
mcsa_status output_write(const char *path, const planes *latent, mcsa_error *error);

#endif
