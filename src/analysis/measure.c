/* measure.c - see analysis.h: series after series, head after head, and the means over calls of what they sum to. */
#include "series.h"

#include "base/tensor.h"

#include <math.h>
#include <stdlib.h>

static void close_series(analysis_series *s)
{
    for (int t = 0; s->moment && t < s->steps; t++) {
        analysis_moment *m = &s->moment[t];
        free(m->dense);
        free(m->lse);
        for (int r = 0; r < ANALYSIS_REUSES; r++) {
            analysis_choice_free(&m->kept[r]);
            free(m->residual[r]);
        }
    }
    for (int k = 0; k < ANALYSIS_SELECTORS; k++) analysis_choice_free(&s->choices[k]);
    free(s->moment);
    free(s->step);
    free(s->pair);
    free(s->out);
    free(s->lse);
}

static void start_sums(analysis_series *s)
{
    for (int t = 0; t < s->steps; t++) {
        analysis_step_sums *step = &s->step[t];
        for (int i = 0; i < ANALYSIS_DENSITIES; i++) {
            for (int k = 0; k < ANALYSIS_SELECTORS; k++) step->selector[k][i] = analysis_sums_start();
            step->asked.sums[i] = analysis_sums_start();
        }
    }
    for (int p = 0; p < s->steps * s->steps; p++) {
        s->pair[p].output = analysis_sums_start();
        for (int i = 0; i < ANALYSIS_DENSITIES; i++) s->pair[p].mc_sparse[i] = analysis_sums_start();
        for (int i = 0; i < ANALYSIS_DENSITIES; i++)
            for (int r = 0; r < ANALYSIS_REUSES; r++)
                s->pair[p].reuse[i][r][0] = s->pair[p].reuse[i][r][1] = analysis_sums_start();
    }
}

static mcsa_status open_series(analysis_series *s, mcsa_error *error)
{
    const size_t rows = (size_t)s->head->N, count = rows * (size_t)s->head->D, steps = (size_t)s->steps;
    int have = 1;
    s->moment = calloc(steps, sizeof *s->moment);
    s->step = calloc(steps, sizeof *s->step);
    s->pair = calloc(steps * steps, sizeof *s->pair);
    s->out = malloc(sizeof *s->out * count);
    s->lse = malloc(sizeof *s->lse * rows);
    have = s->moment && s->step && s->pair && s->out && s->lse;
    for (size_t t = 0; have && t < steps; t++) {
        analysis_moment *m = &s->moment[t];
        m->dense = malloc(sizeof *m->dense * count);
        m->lse = malloc(sizeof *m->lse * rows);
        have = m->dense && m->lse;
        for (int r = 0; r < ANALYSIS_REUSES; r++)
            have &= (m->residual[r] = malloc(sizeof **m->residual * count)) != NULL;
    }
    if (!have)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d steps of a head of %zu x %d numbers", s->steps, rows,
                         s->head->D);
    start_sums(s);
    return MCSA_OK;
}

static mcsa_status check_finite(const analysis_head *head, mcsa_site at, int h, mcsa_error *error)
{
    int64_t place[3];
    for (int i = 0; i < 3; i++)
        if (mcsa_tensor_nonfinite(&head->host[i], place))
            return mcsa_fail(error, MCSA_EINVAL,
                             "step %d, layer %d, branch %d: %c of head %d, token %lld is not finite", at.step, at.layer,
                             at.branch, "qkv"[i], h, (long long)place[1]);
    return MCSA_OK;
}

static mcsa_status load_call(const analysis_series *s, int step, analysis_call *call, mcsa_error *error)
{
    const mcsa_dims *dims = &s->head->x.dims;
    TRY(s->source->load(s->source->user, s->first + step, call, error));
    if (call->q.shape[1] == dims->N && call->q.shape[2] == dims->D && call->q.dtype == dims->dtype) return MCSA_OK;
    return mcsa_fail(
        error, MCSA_EINVAL,
        "step %d, layer %d, branch %d has %lld tokens of %lld numbers, the first call %d of %d, or another "
        "dtype; analyse them apart",
        call->at.step, call->at.layer, call->at.branch, (long long)call->q.shape[1], (long long)call->q.shape[2],
        dims->N, dims->D);
}

mcsa_status analysis_series_load(analysis_series *s, int step, int h, mcsa_error *error)
{
    analysis_call call;
    TRY(load_call(s, step, &call, error));
    return analysis_head_load(s->head, &call, h, error);
}

/* Refuses before the long part what one of the calls would refuse in the middle of it. */
static mcsa_status check_calls(const analysis_series *s, int H, mcsa_error *error)
{
    analysis_call call;
    float scale = 0;
    for (int step = 0; step < s->steps; step++) {
        TRY(load_call(s, step, &call, error));
        if (step == 0) scale = call.scale;
        if (call.scale != scale) /* a run of the library has one */
            return mcsa_fail(error, MCSA_EINVAL,
                             "step %d, layer %d, branch %d scales its scores by %g, the first step by %g; analyse them "
                             "apart",
                             call.at.step, call.at.layer, call.at.branch, (double)call.scale, (double)scale);
        if (call.q.shape[0] != H)
            return mcsa_fail(error, MCSA_EINVAL, "step %d, layer %d, branch %d has %lld heads, the first call %d",
                             call.at.step, call.at.layer, call.at.branch, (long long)call.q.shape[0], H);
        for (int h = 0; h < H; h++) {
            TRY(analysis_head_load(s->head, &call, h, error));
            TRY(check_finite(s->head, call.at, h, error));
        }
    }
    return MCSA_OK;
}

static analysis_pair *pair_of(analysis *out, int anchor, int step)
{
    for (int p = 0; p < out->pairs; p++)
        if (out->pair[p].anchor == anchor && out->pair[p].step == step) return &out->pair[p];
    analysis_pair *pair = &out->pair[out->pairs++]; /* count_pairs has made room */
    *pair = (analysis_pair){ .anchor = anchor, .step = step };
    return pair;
}

/* Sums of which no attention mass is known. */
static void add_output(analysis_tally *tally, analysis_sums sums)
{
    sums.rows = 1;
    analysis_tally_add(tally, &sums);
}

static void add_pairs(analysis *out, const analysis_series *s)
{
    const mcsa_site *at = s->source->at + s->first;
    for (int anchor = 0; anchor < s->steps; anchor++)
        for (int step = anchor + 1; step < s->steps; step++) {
            const analysis_pair_sums *sums = &s->pair[anchor * s->steps + step];
            analysis_pair *pair = pair_of(out, at[anchor].step, at[step].step);
            analysis_layer *layer = &out->layer[out->series];
            add_output(&pair->output, sums->output);
            for (int i = 0; i < out->densities; i++) {
                for (int r = 0; r < ANALYSIS_REUSES; r++)
                    for (int added = 0; added < 2; added++)
                        analysis_tally_add(&pair->reuse[i][r][added], &sums->reuse[i][r][added]);
                analysis_tally_add(&layer->reused[i], &sums->reuse[i][ANALYSIS_OLD_TOKENS][1]);
                add_output(&pair->mc_sparse[i], sums->mc_sparse[i]);
                add_output(&layer->mc_sparse[i], sums->mc_sparse[i]);
            }
        }
}

static void add_waste(analysis_waste *to, const analysis_waste *from)
{
    to->kept += from->kept;
    to->wanted += from->wanted;
}

static void add_steps(analysis *out, const analysis_series *s)
{
    analysis_layer *layer = &out->layer[out->series];
    layer->layer = s->source->at[s->first].layer;
    layer->branch = s->source->at[s->first].branch;
    for (int t = 0; t < s->steps; t++) {
        const analysis_step_sums *step = &s->step[t];
        out->calls++;
        for (int k = 0; k < ANALYSIS_SELECTORS; k++)
            out->alignment[k] += (step->alignment[k] / out->heads - out->alignment[k]) / out->calls;
        for (int i = 0; i < out->densities; i++) {
            analysis_sums asked = step->asked.sums[i];
            asked.low = step->selector[0][i].low; /* the sample has the peak of all rows */
            asked.high = step->selector[0][i].high;
            analysis_tally_add(&out->per_query[i], &asked);
            analysis_tally_add(&layer->own[i], &asked);
            analysis_tally_add(&layer->pooled[i], &step->selector[ANALYSIS_POOLED][i]);
            analysis_tally_add(&layer->tokens[i], &step->selector[ANALYSIS_PDDP_TOKENS][i]);
            for (int k = 0; k < ANALYSIS_SELECTORS; k++) {
                analysis_tally_add(&out->selector[k][i], &step->selector[k][i]);
                out->executed[k][i] += (step->executed[k][i] / out->heads - out->executed[k][i]) / out->calls;
            }
            add_waste(&out->key_binding[i], &step->key_binding[i]);
            for (int k = 0; k < ANALYSIS_SHARED; k++) add_waste(&out->query_binding[i][k], &step->asked.shared[i][k]);
        }
    }
}

/* Calls from `first` that are of its layer and branch. */
static int series_length(const analysis_source *source, int first)
{
    int count = 1;
    while (first + count < source->count && source->at[first + count].layer == source->at[first].layer &&
           source->at[first + count].branch == source->at[first].branch)
        count++;
    return count;
}

static int count_series(const analysis_source *source)
{
    int series = 0;
    for (int first = 0; first < source->count; first += series_length(source, first)) series++;
    return series;
}

static int64_t count_pairs(const analysis_source *source)
{
    int64_t pairs = 0;
    for (int first = 0, steps; first < source->count; first += steps) {
        steps = series_length(source, first);
        pairs += (int64_t)steps * (steps - 1) / 2;
    }
    return pairs;
}

static mcsa_status measure_series(analysis *out, analysis_series *s, mcsa_error *error)
{
    const analysis_source *source = s->source;
    TRY(check_calls(s, out->H, error));
    for (int i = 0; i < out->heads; i++) {
        const int h = s->options->heads ? s->options->head[i] : i;
        if (source->progress &&
            source->progress(source->user, s->first * out->heads + i * s->steps, source->count * out->heads))
            return mcsa_fail(error, MCSA_ECANCELED, "canceled");
        for (int step = 0; step < s->steps; step++) {
            TRY(analysis_series_load(s, step, h, error));
            TRY(analysis_series_choose(s, step, error));
        }
        TRY(analysis_series_reuse(s, h, error));
        TRY(analysis_series_library(s, h, error));
    }
    add_steps(out, s);
    add_pairs(out, s);
    out->series++;
    return MCSA_OK;
}

static mcsa_status measure_all(analysis *out, const analysis_options *options, const analysis_source *source,
                               analysis_chooser *chooser, analysis_head *head, mcsa_error *error)
{
    for (int first = 0, steps; first < source->count; first += steps) {
        steps = series_length(source, first);
        analysis_series s = {
            .source = source, .options = options, .first = first, .steps = steps, .chooser = chooser, .head = head
        };
        mcsa_status status = open_series(&s, error);
        if (status == MCSA_OK) status = measure_series(out, &s, error);
        close_series(&s);
        if (status != MCSA_OK) return status;
    }
    return MCSA_OK;
}

static int by_steps(const void *a, const void *b)
{
    const analysis_pair *p = a, *q = b;
    return p->anchor != q->anchor ? (p->anchor > q->anchor) - (p->anchor < q->anchor)
                                  : (p->step > q->step) - (p->step < q->step);
}

static mcsa_status prepare(analysis *out, const analysis_options *options, const analysis_source *source,
                           const analysis_machine *machine, analysis_chooser *chooser, analysis_head *head,
                           mcsa_error *error)
{
    analysis_call call;
    TRY(source->load(source->user, 0, &call, error));
    *out = (analysis){
        .H = (int)call.q.shape[0], .N = (int)call.q.shape[1], .D = (int)call.q.shape[2], .densities = options->densities
    };
    out->heads = options->heads ? options->heads : out->H;
    out->sample = options->sample < out->N ? options->sample : out->N;
    for (int i = 0; i < options->densities; i++) out->density[i] = options->density[i];
    out->pair = calloc((size_t)count_pairs(source) + 1, sizeof *out->pair);
    out->layer = calloc((size_t)count_series(source), sizeof *out->layer);
    if (!out->pair || !out->layer)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for pairs of %d calls", source->count);
    TRY(analysis_chooser_open(chooser, machine, options->densities, options->density, &options->attention, error));
    TRY(analysis_chooser_fit(chooser, out->N, error));
    return analysis_head_open(head, machine, &call, error);
}

mcsa_status analysis_measure(analysis *out, const analysis_options *options, const analysis_source *source,
                             mcsa_error *error)
{
    analysis_machine machine = { .threads = options->attention.threads };
    analysis_chooser chooser = { 0 };
    analysis_head head = { 0 };
    *out = (analysis){ 0 };
    TRY(rival_kernels_find(&machine.kernels, options->attention.device, error));
    TRY(machine.kernels->open(&machine.backend, &options->attention, error));
    mcsa_status status = prepare(out, options, source, &machine, &chooser, &head, error);
    if (status == MCSA_OK) status = measure_all(out, options, source, &chooser, &head, error);
    if (status == MCSA_OK) qsort(out->pair, (size_t)out->pairs, sizeof *out->pair, by_steps);
    analysis_head_close(&head);
    analysis_chooser_close(&chooser);
    machine.kernels->close(machine.backend);
    if (status != MCSA_OK) analysis_free(out);
    return status;
}

void analysis_free(analysis *a)
{
    free(a->pair);
    free(a->layer);
    *a = (analysis){ 0 };
}

static analysis_parts parts_of(double pooled, double blocks, double tokens, double own)
{
    return (analysis_parts){ pooled - blocks, blocks - tokens, tokens - own, own };
}

analysis_split analysis_split_at(const analysis *a, int density)
{
    const analysis_tally *pooled = &a->selector[ANALYSIS_POOLED][density],
                         *blocks = &a->selector[ANALYSIS_BLOCKS][density],
                         *tokens = &a->selector[ANALYSIS_TOKENS][density], *own = &a->per_query[density];
    return (analysis_split){
        .mass = parts_of(1 - pooled->recall, 1 - blocks->recall, 1 - tokens->recall, 1 - own->recall),
        .error = parts_of(pooled->rel_l2, blocks->rel_l2, tokens->rel_l2, own->rel_l2),
    };
}

static void merge_pair(analysis_pair *to, const analysis_pair *from, int densities)
{
    analysis_tally_merge(&to->output, &from->output);
    for (int i = 0; i < densities; i++) analysis_tally_merge(&to->mc_sparse[i], &from->mc_sparse[i]);
    for (int i = 0; i < densities; i++)
        for (int r = 0; r < ANALYSIS_REUSES; r++)
            for (int added = 0; added < 2; added++)
                analysis_tally_merge(&to->reuse[i][r][added], &from->reuse[i][r][added]);
}

int analysis_by_lag(const analysis *a, analysis_pair *lag)
{
    int count = 0;
    for (int p = 0; p < a->pairs; p++) {
        int steps = a->pair[p].step - a->pair[p].anchor, at = 0;
        while (at < count && lag[at].step != steps) at++;
        if (at == count) lag[count++] = (analysis_pair){ .step = steps };
        merge_pair(&lag[at], &a->pair[p], a->densities);
    }
    qsort(lag, (size_t)count, sizeof *lag, by_steps);
    return count;
}
