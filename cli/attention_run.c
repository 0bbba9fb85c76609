/* attention_run.c - the one place that knows that methods are of two kinds. */
#include "attention_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* actions [layers, steps] of the settings; dense ones where that is all that is asked for. */
static mcsa_status fill_actions(const attention_order *order, unsigned char *dense, mcsa_action *actions,
                                mcsa_error *error)
{
    const attention_settings *set = order->settings;
    /* MCSA_DENSE is zero, so actions begin as a schedule of dense calls only. */
    memset(actions, 0, sizeof *actions * (size_t)order->layers * (size_t)order->steps);
    if (attention_is_dense(set)) return MCSA_OK;
    TRY(attention_dense_layers(set, order->layers, dense, error));
    for (int l = 0; l < order->layers; l++) {
        if (dense[l]) continue;
        TRY(mcsa_schedule_fill(set->schedule, order->steps, actions + (int64_t)l * order->steps, error->text,
                               sizeof error->text));
    }
    return MCSA_OK;
}

static mcsa_config config_of(const attention_order *order, const mcsa_action *actions)
{
    const attention_settings *set = order->settings;
    mcsa_config config = { .steps = order->steps,
                           .layers = order->layers,
                           .branches = order->branches,
                           .density = 1.0f,
                           .actions = actions,
                           .threads = order->threads,
                           .isa = order->isa,
                           .device = order->device };
    if (attention_is_dense(set)) return config;
    config.density = set->density;
    config.group = set->group;
    config.sharing = (mcsa_sharing)set->branches;
    config.tail = (mcsa_tail)set->tail;
    config.residual = (mcsa_residual)set->residual;
    return config;
}

/* Whether recall is measured at this sparse step: those of its layer and branch are counted. */
static int samples_recall(const attention_run *r, mcsa_site at)
{
    int before = 0, all = 0;
    mcsa_site other = at;
    if (!r->recall || attention_run_action(r, at) != MCSA_REUSE) return 0;
    for (other.step = 0; other.step < r->steps; other.step++) {
        const int sparse = attention_run_action(r, other) == MCSA_REUSE;
        before += sparse && other.step < at.step;
        all += sparse;
    }
    return rival_recall_samples(before, all);
}

static mcsa_status attend_self(void *state, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k,
                               const mcsa_tensor *v, const mcsa_tensor *out)
{
    attention_run *r = state;
    const mcsa_qkv x = { .q = q, .k = k, .v = v, .out = out };
    TRY(r->rival ? rival_attend(r->rival, at, q, k, v, out) : mcsa_attend(r->run, at, q, k, v, out));
    if (!samples_recall(r, at)) return MCSA_OK;
    if (r->rival) return rival_recall_add(r->recall, &x, rival_run_choice(r->rival), &r->error);
    return rival_recall_add_reuse(r->recall, at, &x, &r->error);
}

static const char *self_sentence(const void *state)
{
    const attention_run *r = state;
    if (r->error.text[0]) return r->error.text;
    return r->rival ? rival_run_error(r->rival) : mcsa_run_error(r->run);
}

static mcsa_status open_rival(attention_run *out, const attention_order *order, const mcsa_config *attention,
                              mcsa_error *error)
{
    rival_config config = { .attention = *attention,
                            .method = order->settings->method,
                            .residual = order->settings->residual != MCSA_RESIDUAL_OFF,
                            .grid = { order->grid[0], order->grid[1], order->grid[2] },
                            .seed = order->seed };
    TRY(rival_run_create(&out->rival, &config, error));
    out->run = rival_run_dense(out->rival);
    return MCSA_OK;
}

static mcsa_status open_run(attention_run *out, const attention_order *order, mcsa_error *error)
{
    const attention_settings *set = order->settings;
    unsigned char *dense = malloc((size_t)order->layers);
    mcsa_action *actions = malloc(sizeof *actions * (size_t)order->layers * (size_t)order->steps);
    mcsa_config config = config_of(order, actions);
    mcsa_status status = dense && actions
                             ? fill_actions(order, dense, actions, error)
                             : mcsa_fail(error, MCSA_ENOMEM, "no memory for a schedule of %d steps", order->steps);
    if (status != MCSA_OK) goto done;
    if (attention_is_dense(set) || attention_is_mc_sparse(set))
        status = mcsa_run_create(&out->run, &config, error->text, sizeof error->text);
    else
        status = open_rival(out, order, &config, error);
done:
    free(actions);
    free(dense);
    return status;
}

mcsa_status attention_run_open(attention_run *out, const attention_order *order, mcsa_error *error)
{
    const int tokens = order->grid[0] * order->grid[1] * order->grid[2], group = order->settings->group;
    *out = (attention_run){ .density = (double)order->settings->density,
                            .steps = order->steps,
                            .tokens = tokens };
    if (order->device == MCSA_DEVICE_CUDA && group) out->rows = (tokens + group - 1) / group * group;
    TRY(open_run(out, order, error));
    mcsa_status status = MCSA_OK;
    if (order->recall && !attention_is_dense(order->settings))
        status = rival_recall_open(&out->recall, out->run, error);
    if (status != MCSA_OK) attention_run_close(out);
    out->self = (dit_attention){ out, attend_self, self_sentence };
    return status;
}

void attention_run_close(attention_run *r)
{
    rival_recall_close(r->recall);
    if (r->rival)
        rival_run_free(r->rival);
    else
        mcsa_run_free(r->run);
    *r = (attention_run){ 0 };
}

const dit_attention *attention_run_self(const attention_run *r)
{
    return r->rival || r->recall ? &r->self : NULL;
}

int attention_run_action(const attention_run *r, mcsa_site at)
{
    return r->rival ? rival_run_action(r->rival, at) : mcsa_run_action(r->run, at);
}

/* K / N, K as METHOD.md rounds it. */
static double kept_share(double density, int tokens)
{
    return fmin(fmax(floor(density * tokens + 0.5), 1), tokens) / tokens;
}

/* As rival_map_pairs counts: queries in whole tiles, keys as they are.  A GPU's kernels take whole blocks of
 * keys, of any method; mcsa_stats would count that for MC-Sparse alone. */
static double executed_share(const attention_run *r, const mcsa_stats *s, double nominal)
{
    return r->rows ? nominal * r->rows / r->tokens : s->density_executed;
}

static attention_cost mc_sparse_cost(const attention_run *r, const mcsa_stats *s)
{
    const double nominal = s->reuse ? kept_share(s->density_requested, r->tokens) : 0;
    return (attention_cost){ .dense = s->dense,
                             .anchor = s->anchor,
                             .reuse = s->reuse,
                             .fallback = s->fallback,
                             .density_requested = s->density_requested,
                             .density_nominal = nominal,
                             .density_executed = executed_share(r, s, nominal),
                             .density_run = s->density_run,
                             .attention_s = s->attention_s,
                             .dense_s = s->dense_s,
                             .grouping_s = s->grouping_s,
                             .selection_s = s->selection_s,
                             .sparse_s = s->sparse_s,
                             .selection_bytes = s->selection_bytes,
                             .residual_bytes = s->residual_bytes,
                             .held_bytes = s->selection_bytes + s->residual_bytes };
}

/* dense: of the run that computed the dense calls and cross-attention. */
static attention_cost rival_cost(const rival_stats *s, const mcsa_stats *dense, double density)
{
    return (attention_cost){ .dense = s->dense,
                             .anchor = s->anchor,
                             .reuse = s->sparse,
                             .density_requested = density,
                             .density_nominal = s->density_nominal,
                             .density_executed = s->density_executed,
                             .density_tail = s->density_tail,
                             .density_run = s->density_run,
                             .attention_s = dense->attention_s + s->choose_s + s->attend_s,
                             .dense_s = dense->attention_s,
                             .selection_s = s->choose_s,
                             .sparse_s = s->attend_s,
                             .held_bytes = s->held_bytes };
}

mcsa_status attention_run_cost(const attention_run *r, attention_cost *cost)
{
    mcsa_stats stats = { .size = sizeof stats };
    TRY(mcsa_run_stats(r->run, &stats));
    if (r->rival) {
        rival_stats own;
        rival_run_stats(r->rival, &own);
        *cost = rival_cost(&own, &stats, r->density);
    } else {
        *cost = mc_sparse_cost(r, &stats);
    }
    cost->recall = INFINITY;
    if (!r->recall) return MCSA_OK;
    const rival_recalled recalled = rival_recall_read(r->recall);
    if (recalled.queries) cost->recall = recalled.mean;
    cost->recall_s = recalled.seconds;
    return MCSA_OK;
}
