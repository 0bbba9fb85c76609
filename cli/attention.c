/* attention.c - see attention.h. */
#include "attention.h"

#include "layers.h"
#include "rivals/method.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char MC_SPARSE[] = "mc-sparse", DENSE[] = "dense";

int attention_is_dense(const attention_settings *set)
{
    return strcmp(set->method, DENSE) == 0;
}

int attention_is_mc_sparse(const attention_settings *set)
{
    return strcmp(set->method, MC_SPARSE) == 0;
}

static mcsa_status check_schedule(const attention_settings *set, int steps, mcsa_error *error)
{
    mcsa_action *actions = malloc((size_t)steps * sizeof *actions);
    if (!actions) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a schedule of %d steps", steps);
    mcsa_status status = mcsa_schedule_fill(set->schedule, steps, actions, error->text, sizeof error->text);
    free(actions);
    return status;
}

mcsa_status attention_dense_layers(const attention_settings *set, int layers, unsigned char *dense,
                                   mcsa_error *error)
{
    mcsa_error said;
    if (layers_read(set->dense_layers, layers, dense, &said) == MCSA_OK) return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "--dense-layers: %.300s", said.text);
}

static mcsa_status settle_rival(attention_settings *set, mcsa_error *error)
{
    const rival_method *method = rival_method_find(set->method);
    if (!method)
        return mcsa_fail(error, MCSA_EINVAL,
                         "there is no method '%.64s'; `mcsa generate --method list` says which there are",
                         set->method);
    if (!set->residual) set->residual = method->residual ? MCSA_RESIDUAL_BF16 : MCSA_RESIDUAL_OFF;
    if (set->residual == MCSA_RESIDUAL_OFF && method->residual)
        return mcsa_fail(error, MCSA_EINVAL,
                         "%s always has its residual; --residual takes bf16 with it, not off", method->name);
    if (set->residual != MCSA_RESIDUAL_OFF && set->residual != MCSA_RESIDUAL_BF16)
        return mcsa_fail(error, MCSA_EINVAL, "--residual takes bf16 or off with %s, not %s", method->name,
                         choice_word(choices_residual, set->residual));
    return MCSA_OK;
}

mcsa_status attention_settle(attention_settings *set, int steps, mcsa_error *error)
{
    TRY(check_schedule(set, steps, error));
    TRY(attention_dense_layers(set, INT_MAX, NULL, error));
    if (!attention_is_dense(set) && !attention_is_mc_sparse(set)) return settle_rival(set, error);
    if (!set->residual) set->residual = MCSA_RESIDUAL_BF16;
    return MCSA_OK;
}

static int mc_sparse_text(const attention_settings *set, char *text, size_t bytes)
{
    return snprintf(text, bytes, "density=%g schedule=%s group=%d%s residual=%s branches=%s dense-layers=%s",
                    (double)set->density, set->schedule, set->group,
                    set->tail == MCSA_TAIL_MEANS ? " tail=means" : "",
                    choice_word(choices_residual, set->residual),
                    choice_word(choices_branches, set->branches), set->dense_layers);
}

static int rival_text(const attention_settings *set, char *text, size_t bytes)
{
    return snprintf(text, bytes, "method=%s density=%g schedule=%s residual=%s dense-layers=%s", set->method,
                    (double)set->density, set->schedule, choice_word(choices_residual, set->residual),
                    set->dense_layers);
}

mcsa_status attention_text(const attention_settings *set, char *text, size_t bytes, mcsa_error *error)
{
    int length =
        attention_is_mc_sparse(set) ? mc_sparse_text(set, text, bytes) : rival_text(set, text, bytes);
    if (length < 0 || (size_t)length >= bytes)
        return mcsa_fail(error, MCSA_EINVAL, "the settings take %d characters; at most %zu are possible",
                         length, bytes - 1);
    return MCSA_OK;
}

void attention_list_methods(FILE *out)
{
    fprintf(out, "%-14s this library's method, the default\n", MC_SPARSE);
    fprintf(out, "%-14s every key for every query\n", DENSE);
    for (const rival_method *const *m = rival_methods; *m; m++)
        fprintf(out, "%-14s %s%s\n", (*m)->name, (*m)->summary,
                (*m)->residual ? " (always with its residual)" : "");
}
