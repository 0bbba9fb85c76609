/* attention.h - what a user may choose about MC-Sparse: the settings, their rows in a table of options, and
 * the library's configuration they stand for.
 *
 * `mcsa generate` takes them as options and `mcsa compare` as the words of a run; both read these rows, so
 * names, limits and defaults are the same. */
#ifndef MCSA_CLI_ATTENTION_H
#define MCSA_CLI_ATTENTION_H

#include "choices.h"

typedef struct attention_settings {
    float density;
    const char *schedule; /* borrowed */
    int group, residual, branches, dense_layers;
} attention_settings;

/* Rows for a table whose settings struct `type` has an attention_settings called `member`. */
/* clang-format off */
#define ATTENTION_OPTIONS(type, member)                                                                     \
    { .name = "density", .kind = OPTION_REAL, .offset = offsetof(type, member.density), .value = "X",       \
      .fallback = "0.10", .min = 0, .max = 1, .above_min = 1,                                               \
      .help = "share of the keys that each group of queries keeps" },                                       \
    { .name = "schedule", .kind = OPTION_TEXT, .offset = offsetof(type, member.schedule),                   \
      .value = "ramp|paper|every:N[,W]|list:A,B,C", .fallback = "ramp",                                     \
      .help = "which steps are anchors, where selection and residual are taken anew. ramp: the first "      \
              "tenth of the steps dense, then growing gaps between anchors. paper: the first fifth dense, " \
              "then one more anchor. every:8,4: 4 dense steps, then an anchor every 8. list:3,5,8,12: "     \
              "exactly these" },                                                                            \
    { .name = "group", .kind = OPTION_INT, .offset = offsetof(type, member.group), .value = "N",            \
      .fallback = "128", .min = 1, .max = 4096,                                                             \
      .help = "queries that share one selection" },                                                         \
    { .name = "residual", .kind = OPTION_CHOICE, .offset = offsetof(type, member.residual),                 \
      .choices = choices_residual, .fallback = "bf16",                                                      \
      .help = "how the compensation is kept: int8 and int4 take a half and a quarter of the memory, off "   \
              "drops it" },                                                                                 \
    { .name = "branches", .kind = OPTION_CHOICE, .offset = offsetof(type, member.branches),                 \
      .choices = choices_branches, .fallback = "shared",                                                    \
      .help = "whether both branches of guidance use one selection" },                                      \
    { .name = "dense-layers", .kind = OPTION_INT, .offset = offsetof(type, member.dense_layers),            \
      .value = "N", .fallback = "0", .min = 0, .max = 1000,                                                 \
      .help = "keep the first N layers dense throughout" }
/* clang-format on */

/* MCSA_EINVAL unless the schedule can be spread over that many steps. */
mcsa_status attention_check(const attention_settings *set, int steps, mcsa_error *error);

/* Layers and branches are left to whoever knows the model. */
mcsa_config attention_config(const attention_settings *set, int steps, int threads, int isa);

/* All settings as one line, "density=0.1 schedule=ramp ...", equal for equal settings.  MCSA_EINVAL when
 * they take more than bytes - 1. */
mcsa_status attention_text(const attention_settings *set, char *text, size_t bytes, mcsa_error *error);

#endif
