/* clip_options.h - rows for the tables of commands that make clips: how large, how sampled, and where.
 *
 * `type` is the settings struct; its fields are called as the options are. */
#ifndef MCSA_CLI_CLIP_OPTIONS_H
#define MCSA_CLI_CLIP_OPTIONS_H

#include "choices.h"

/* clang-format off */
#define CLIP_SIZE_OPTIONS(type)                                                                             \
    { .name = "frames", .kind = OPTION_INT, .offset = offsetof(type, frames), .value = "N",                 \
      .fallback = "16", .min = 1, .max = 4096,                                                              \
      .help = "frames of what the transformer denoises: pictures for tiny-t2v, which works on pixels, "     \
              "latent frames for a model with a VAE" },                                                     \
    { .name = "height", .kind = OPTION_INT, .offset = offsetof(type, height), .value = "N",                 \
      .fallback = "64", .min = 1, .max = 4096,                                                              \
      .help = "its height, in pixels or latent rows; the model's patch must divide it" },                   \
    { .name = "width", .kind = OPTION_INT, .offset = offsetof(type, width), .value = "N",                   \
      .fallback = "64", .min = 1, .max = 4096,                                                              \
      .help = "its width, likewise" }

#define GUIDANCE_OPTION(type)                                                                               \
    { .name = "guidance", .kind = OPTION_REAL, .offset = offsetof(type, guidance), .value = "X",            \
      .fallback = "3", .min = 0, .max = 100,                                                                \
      .help = "how strongly to follow the caption; 1 turns guidance off and halves the work" }

#define SAMPLING_OPTIONS(type)                                                                              \
    { .name = "steps", .kind = OPTION_INT, .offset = offsetof(type, steps), .value = "N",                   \
      .fallback = "40", .min = 1, .max = 1000,                                                              \
      .help = "denoising steps" },                                                                          \
    GUIDANCE_OPTION(type),                                                                                  \
    { .name = "sampler", .kind = OPTION_CHOICE, .offset = offsetof(type, sampler),                          \
      .choices = choices_sampler, .fallback = "euler",                                                      \
      .help = "flow-matching integrator" },                                                                 \
    { .name = "shift", .kind = OPTION_REAL, .offset = offsetof(type, shift), .value = "X", .min = 0,        \
      .max = 100, .above_min = 1,                                                                           \
      .help = "of the noise schedule towards high noise; the default is in the model's "                    \
              "scheduler_config.json, or 3" }

#define MACHINE_OPTIONS(type)                                                                               \
    { .name = "threads", .kind = OPTION_INT, .offset = offsetof(type, threads), .value = "N",               \
      .min = 1, .max = 4096,                                                                                \
      .help = "default: all cores, or what OMP_NUM_THREADS says" },                                         \
    { .name = "isa", .kind = OPTION_CHOICE, .offset = offsetof(type, isa), .choices = choices_isa,          \
      .fallback = "auto",                                                                                   \
      .help = "highest instruction set that attention may use" },                                           \
    { .name = "backend", .kind = OPTION_CHOICE, .offset = offsetof(type, backend),                          \
      .choices = choices_backend, .fallback = "cpu",                                                        \
      .help = "where to compute; cuda is the first GPU, models in BF16. `mcsa info` says what is there" },  \
    { .name = "precision", .kind = OPTION_CHOICE, .offset = offsetof(type, precision),                      \
      .choices = choices_precision, .fallback = "auto",                                                     \
      .help = "arithmetic of linear layers and attention; auto follows the weights, F32 on machines "       \
              "without BF16" }
/* clang-format on */

#endif
