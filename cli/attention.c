/* attention.c - see attention.h. */
#include "attention.h"

#include <stdlib.h>

mcsa_status attention_check(const attention_settings *set, int steps, mcsa_error *error)
{
    mcsa_action *actions = malloc((size_t)steps * sizeof *actions);
    if (!actions) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a schedule of %d steps", steps);
    mcsa_status status = mcsa_schedule_fill(set->schedule, steps, actions, error->text, sizeof error->text);
    free(actions);
    return status;
}

mcsa_config attention_config(const attention_settings *set, int steps, int threads, int isa)
{
    return (mcsa_config){ .steps = steps,
                          .density = set->density,
                          .group = set->group,
                          .schedule = set->schedule,
                          .dense_layers = set->dense_layers,
                          .sharing = (mcsa_sharing)set->branches,
                          .residual = (mcsa_residual)set->residual,
                          .threads = threads,
                          .isa = (mcsa_isa)isa };
}

mcsa_status attention_text(const attention_settings *set, char *text, size_t bytes, mcsa_error *error)
{
    int length =
        snprintf(text, bytes, "density=%g schedule=%s group=%d residual=%s branches=%s dense-layers=%d",
                 (double)set->density, set->schedule, set->group,
                 choice_word(choices_residual, set->residual), choice_word(choices_branches, set->branches),
                 set->dense_layers);
    if (length < 0 || (size_t)length >= bytes)
        return mcsa_fail(error, MCSA_EINVAL, "the settings take %d characters; at most %zu are possible",
                         length, bytes - 1);
    return MCSA_OK;
}
