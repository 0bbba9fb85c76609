/* oracles.c - one head at one step: dense attention, what every selector keeps of it, and what each query would. */
#include "series.h"

static mcsa_status try_choice(analysis_series *s, const analysis_moment *now, analysis_selector selector,
                              analysis_step_sums *sums, mcsa_error *error)
{
    const analysis_chooser *c = s->chooser;
    const analysis_choice *choice = &s->choices[selector];
    for (int i = 0; i < c->densities; i++) {
        analysis_sums *to = &sums->selector[selector][i];
        sums->executed[selector][i] += choice->executed[i];
        TRY(analysis_head_attend(s->head, &choice->queries, analysis_keys(c, selector), &choice->map[i], s->out, s->lse,
                                 error));
        analysis_sums_add(to, now->dense, s->out, NULL, (int64_t)s->head->N * s->head->D, c->machine->threads);
        analysis_sums_recall(to, now->lse, s->lse, s->head->N);
    }
    return MCSA_OK;
}

/* The chosen parts move into the moment. */
static void keep_for_later(analysis_series *s, analysis_moment *now)
{
    for (int r = 0; r < ANALYSIS_REUSES; r++) {
        analysis_choice_free(&now->kept[r]);
        now->kept[r] = s->choices[analysis_reused[r]];
        s->choices[analysis_reused[r]] = (analysis_choice){ 0 };
    }
}

mcsa_status analysis_series_choose(analysis_series *s, int step, mcsa_error *error)
{
    const analysis_chooser *c = s->chooser;
    analysis_moment *now = &s->moment[step];
    analysis_step_sums *sums = &s->step[step];
    TRY(analysis_head_dense(s->head, now->dense, now->lse, error));
    TRY(analysis_choose(s->chooser, s->head, s->choices, error));
    for (int k = 0; k < ANALYSIS_SELECTORS; k++) {
        TRY(try_choice(s, now, (analysis_selector)k, sums, error));
        sums->alignment[k] += s->choices[k].alignment;
    }
    TRY(analysis_ask_queries(&sums->asked, c, s->head, s->choices, s->options->sample, error));
    for (int i = 0; i < c->densities; i++) {
        analysis_waste w =
            analysis_key_binding(&s->choices[ANALYSIS_BLOCKS].map[i], &s->choices[ANALYSIS_TOKENS].map[i], s->head->N);
        sums->key_binding[i].kept += w.kept;
        sums->key_binding[i].wanted += w.wanted;
    }
    keep_for_later(s, now);
    return MCSA_OK;
}
