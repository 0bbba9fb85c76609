/* library.c - MC-Sparse as the library runs it, means of what is not kept and all: every step of a series an anchor,
 * and what reuse at each later step misses.
 *
 * These are runs of the library itself, one for a density, so that rounding and residuals are what a user gets.  A
 * layer of such a run stands for one anchor: it is dense before that step and reuses it afterwards. */
#include "series.h"

#include <stdlib.h>

static mcsa_status open_run(mcsa_run **run, const analysis_series *s, int density, mcsa_error *error)
{
    const int steps = s->steps;
    mcsa_config config = s->options->attention;
    mcsa_action *actions = malloc(sizeof *actions * (size_t)steps * (size_t)steps);
    if (!actions) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a schedule of %d steps", steps);
    for (int anchor = 0; anchor < steps; anchor++)
        for (int step = 0; step < steps; step++)
            actions[anchor * steps + step] = step < anchor ? MCSA_DENSE : step == anchor ? MCSA_ANCHOR : MCSA_REUSE;
    config.steps = config.layers = steps;
    config.actions = actions;
    config.density = (float)s->options->density[density];
    config.scale = s->head->x.scale;
    mcsa_status status = mcsa_run_create(run, &config, error->text, sizeof error->text);
    free(actions);
    return status;
}

static mcsa_status attend(const analysis_series *s, mcsa_run *run, int anchor, int step, mcsa_error *error)
{
    const analysis_head *head = s->head;
    const mcsa_site at = { step, anchor, 0 };
    mcsa_status status = mcsa_attend(run, at, &head->q, &head->k, &head->v, &head->out);
    return status == MCSA_OK ? MCSA_OK : mcsa_fail(error, status, "%s", mcsa_run_error(run));
}

/* The loaded head of `step`, by all earlier anchors; then it is one itself, if a later step is left to reuse it. */
static mcsa_status reuse_at(analysis_series *s, mcsa_run *run, int step, int density, mcsa_error *error)
{
    const analysis_head *head = s->head;
    const analysis_machine *machine = head->machine;
    for (int anchor = 0; anchor < step; anchor++) {
        TRY(attend(s, run, anchor, step, error));
        TRY(machine->kernels->read_rows(machine->backend, &head->out, head->every, head->N, s->out, error));
        analysis_sums_add(&s->pair[anchor * s->steps + step].mc_sparse[density], s->moment[step].dense, s->out, NULL,
                          (int64_t)head->N * head->D, machine->threads);
    }
    return step + 1 < s->steps ? attend(s, run, step, step, error) : MCSA_OK;
}

mcsa_status analysis_series_library(analysis_series *s, int h, mcsa_error *error)
{
    for (int density = 0; s->steps > 1 && density < s->chooser->densities; density++) {
        mcsa_run *run;
        TRY(open_run(&run, s, density, error));
        mcsa_status status = MCSA_OK;
        for (int step = 0; status == MCSA_OK && step < s->steps; step++) {
            status = analysis_series_load(s, step, h, error);
            if (status == MCSA_OK) status = reuse_at(s, run, step, density, error);
        }
        mcsa_run_free(run);
        if (status != MCSA_OK) return status;
    }
    return MCSA_OK;
}
