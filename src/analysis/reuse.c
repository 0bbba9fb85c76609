/* reuse.c - one head over the steps of its series: choices and residuals of earlier steps at later ones (figures 4 and
 * 5).  Residuals are kept in BF16, as a run keeps them. */
#include "series.h"

#include "base/half.h"

const analysis_selector analysis_reused[ANALYSIS_REUSES] = { ANALYSIS_POOLED, ANALYSIS_BLOCKS, ANALYSIS_PDDP_TOKENS };

static int64_t numbers(const analysis_series *s)
{
    return (int64_t)s->head->N * s->head->D;
}

static int threads_of(const analysis_series *s)
{
    return s->chooser->machine->threads;
}

/* The head of `step`, with the choice of `from`. */
static mcsa_status attend_by(analysis_series *s, int from, int reuse, int density, mcsa_error *error)
{
    const analysis_choice *choice = &s->moment[from].kept[reuse];
    return analysis_head_attend(s->head, &choice->queries, analysis_keys(s->chooser, analysis_reused[reuse]),
                                &choice->map[density], s->out, s->lse, error);
}

/* What the step itself misses with its own choice. */
static mcsa_status record(analysis_series *s, int step, int reuse, int density, mcsa_error *error)
{
    analysis_moment *now = &s->moment[step];
    TRY(attend_by(s, step, reuse, density, error));
    const int64_t count = numbers(s);
#pragma omp parallel for schedule(static) num_threads(threads_of(s))
    for (int64_t i = 0; i < count; i++) now->residual[reuse][i] = mcsa_to_bf16(now->dense[i] - s->out[i]);
    return MCSA_OK;
}

/* s->out, made at `step`, with and without the residual of `anchor`. */
static void compare(analysis_series *s, int anchor, int step, int reuse, int density)
{
    const analysis_moment *now = &s->moment[step], *then = &s->moment[anchor];
    analysis_sums *to = s->pair[anchor * s->steps + step].reuse[density][reuse];
    for (int added = 0; added < 2; added++) {
        analysis_sums_add(&to[added], now->dense, s->out, added ? then->residual[reuse] : NULL, numbers(s),
                          threads_of(s));
        analysis_sums_recall(&to[added], now->lse, s->lse, s->head->N);
    }
}

static mcsa_status reuse_at(analysis_series *s, int step, int density, mcsa_error *error)
{
    TRY(record(s, step, ANALYSIS_FRESH_POOLED, density, error));
    for (int anchor = 0; anchor < step; anchor++) compare(s, anchor, step, ANALYSIS_FRESH_POOLED, density);
    for (int reuse = ANALYSIS_OLD_BLOCKS; reuse < ANALYSIS_REUSES; reuse++) {
        TRY(record(s, step, reuse, density, error));
        for (int anchor = 0; anchor < step; anchor++) {
            TRY(attend_by(s, anchor, reuse, density, error));
            compare(s, anchor, step, reuse, density);
        }
    }
    return MCSA_OK;
}

/* How far the output itself moved. */
static void drift(analysis_series *s)
{
    for (int step = 1; step < s->steps; step++)
        for (int anchor = 0; anchor < step; anchor++)
            analysis_sums_add(&s->pair[anchor * s->steps + step].output, s->moment[step].dense, s->moment[anchor].dense,
                              NULL, numbers(s), threads_of(s));
}

/* Residuals of one density at a time: there are as many as steps. */
mcsa_status analysis_series_reuse(analysis_series *s, int h, mcsa_error *error)
{
    if (s->steps == 1) return MCSA_OK;
    for (int density = 0; density < s->chooser->densities; density++)
        for (int step = 0; step < s->steps; step++) {
            TRY(analysis_series_load(s, step, h, error));
            TRY(reuse_at(s, step, density, error));
        }
    drift(s);
    return MCSA_OK;
}
