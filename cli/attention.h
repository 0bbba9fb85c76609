/* attention.h - what a user may choose about attention: the settings, and their rows in a table of options.
 *
 * `mcsa generate` takes them as options and `mcsa compare` as the words of a run; both read these rows, so
 * names, limits and defaults are the same. */
#ifndef MCSA_CLI_ATTENTION_H
#define MCSA_CLI_ATTENTION_H

#include "choices.h"

typedef struct attention_settings {
    const char *method; /* borrowed: "mc-sparse", "dense" or one of rival_methods */
    float density;
    const char *schedule; /* borrowed */
    const char *dense_layers; /* borrowed, as layers.h reads it */
    int group, tail, residual, branches;
} attention_settings;

/* Rows for a table whose settings struct `type` has an attention_settings called `member`. */
/* clang-format off */
#define ATTENTION_OPTIONS(type, member)                                                                     \
    { .name = "method", .kind = OPTION_TEXT, .offset = offsetof(type, member.method), .value = "NAME",      \
      .fallback = "mc-sparse",                                                                              \
      .help = "mc-sparse, dense, or another method to compare with; `mcsa generate --method list` says "    \
              "which there are" },                                                                          \
    { .name = "density", .kind = OPTION_REAL, .offset = offsetof(type, member.density), .value = "X",       \
      .fallback = "0.10", .min = 0, .max = 1, .above_min = 1,                                               \
      .help = "share of the keys that each group of queries attends to, means included; of another "        \
              "method, share of all query-key pairs that a sparse call computes" },                         \
    { .name = "schedule", .kind = OPTION_TEXT, .offset = offsetof(type, member.schedule),                   \
      .value = "ramp|fast|paper|every:N[,W]|list:A,B,C", .fallback = "ramp",                                \
      .help = "which steps are anchors, where selection and residual are taken anew. ramp: the first "      \
              "tenth of the steps dense, then growing gaps between anchors. fast: the first tenth dense, "  \
              "then anchors at a quarter and half of the steps. paper: the first fifth dense, "             \
              "then one more anchor. every:8,4: 4 dense steps, then an anchor every 8. list:3,5,8,12: "     \
              "exactly these. Methods that keep nothing from an anchor are sparse at the later ones" },     \
    { .name = "tail", .kind = OPTION_CHOICE, .offset = offsetof(type, member.tail),                         \
      .choices = choices_tail, .fallback = TAIL_DEFAULT,                                                    \
      .help = "what stands for the keys that a group does not keep. means: keys are kept by clusters of "   \
              "similar ones, and each other cluster takes part as one row, its mean key and value. off: "   \
              "nothing, as in the paper. Of mc-sparse alone" },                                             \
    { .name = "residual", .kind = OPTION_CHOICE, .offset = offsetof(type, member.residual),                 \
      .choices = choices_residual,                                                                          \
      .help = "how the compensation is kept: int8 and int4 take a half and a quarter of the memory of "     \
              "bf16, the default, and off drops it. Other methods have none unless bf16 adds it" },         \
    { .name = "dense-layers", .kind = OPTION_TEXT, .offset = offsetof(type, member.dense_layers),           \
      .value = "N|list:A,B,C", .fallback = "0",                                                             \
      .help = "keep the first N layers, or exactly these, dense throughout; the first layer is 0" },        \
    { .name = "group", .kind = OPTION_INT, .offset = offsetof(type, member.group), .value = "N",            \
      .fallback = "128", .min = 1, .max = 4096,                                                             \
      .help = "queries that share one selection; of mc-sparse alone" },                                     \
    { .name = "branches", .kind = OPTION_CHOICE, .offset = offsetof(type, member.branches),                 \
      .choices = choices_branches, .fallback = "shared",                                                    \
      .help = "whether both branches of guidance use one selection; of mc-sparse alone" }
/* clang-format on */

/* Looks the method up and gives `residual` its default.  MCSA_EINVAL for a method that there is not, for a
 * residual that it has not, for dense layers not as layers.h has them, and unless the schedule can be
 * spread over that many steps. */
mcsa_status attention_settle(attention_settings *set, int steps, mcsa_error *error);

/* Which layers stay dense: layers_read of that setting.  dense: [layers] or NULL. */
mcsa_status attention_dense_layers(const attention_settings *set, int layers, unsigned char *dense,
                                   mcsa_error *error);

int attention_is_dense(const attention_settings *set);
int attention_is_mc_sparse(const attention_settings *set);

/* All that makes a difference to the method as one line, "method=bsa density=0.1 schedule=ramp ...", equal
 * for equal settings.  mc-sparse is not named, nor is tail=off: reports from before there was a tail go on.
 * MCSA_EINVAL when it takes more than bytes - 1. */
mcsa_status attention_text(const attention_settings *set, char *text, size_t bytes, mcsa_error *error);

/* "mc-sparse   what it is" for every method. */
void attention_list_methods(FILE *out);

#endif
