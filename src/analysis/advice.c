/* advice.c - see advice.h. */
#include "advice.h"

#include <math.h>
#include <stdlib.h>

/* Sparse attention that costs as much as this is not worth its error. */
static const double WORTH = 0.95;

/* Groups twice as large halve the memory of a selection and how often keys are gathered.  They are taken when the
 * output is at most this much farther from dense than with groups of 64.  In a prototype a clip lost 0.3 dB by groups
 * of 128 and 1.1 dB by groups of 256; where the shipped model was measured they are within this bound and out of it. */
static const double GROUP_SLACK_DB = 2;

static double measured(const analysis *a, int density, int pair)
{
    return a->pair[pair].mc_sparse[density].rel_l2;
}

/* The first pair of the measured anchor nearest to `anchor`, of two the earlier one; -1 without pairs. */
static int nearest_anchor(const analysis *a, int anchor)
{
    int best = -1;
    for (int p = 0; p < a->pairs; p++)
        if (best < 0 || abs(a->pair[p].anchor - anchor) < abs(a->pair[best].anchor - anchor)) best = p;
    return best;
}

double analysis_expected_error(const analysis *a, int density, int anchor, int step)
{
    int p = nearest_anchor(a, anchor), lag = step - anchor;
    if (p < 0) return NAN;
    const int from = a->pair[p].anchor;
    double lag0 = 0, error0 = 0, lag1 = a->pair[p].step - from, error1 = measured(a, density, p);
    for (p++; lag1 < lag && p < a->pairs && a->pair[p].anchor == from; p++) {
        lag0 = lag1;
        error0 = error1;
        lag1 = a->pair[p].step - from;
        error1 = measured(a, density, p);
    }
    double error = error0 + (error1 - error0) * (lag - lag0) / (lag1 - lag0);
    return lag > lag1 && error < error1 ? error1 : error; /* past the last lag it does not fall */
}

/* Anchors as far apart as the tolerance lets them be.  Steps before the last of a run of anchors that serve nothing are
 * dense. */
static void schedule(mcsa_action *actions, const analysis *a, const analysis_wish *wish, int density)
{
    int anchor = 0;
    actions[0] = MCSA_ANCHOR;
    for (int t = 1; t < wish->steps; t++) {
        int serves = analysis_expected_error(a, density, anchor, t) <= wish->tolerance;
        actions[t] = serves ? MCSA_REUSE : MCSA_ANCHOR;
        if (!serves) anchor = t;
    }
    for (int t = 0; t + 1 < wish->steps && actions[t + 1] == MCSA_ANCHOR; t++) actions[t] = MCSA_DENSE;
}

static analysis_outlook look(const analysis *a, const analysis_wish *wish, int density, const mcsa_action *actions)
{
    analysis_outlook o = { 0 };
    const double s = a->density[density];
    int anchor = 0;
    for (int t = 0; t < wish->steps; t++) {
        if (actions[t] == MCSA_REUSE) {
            double error = analysis_expected_error(a, density, anchor, t);
            o.reuse++;
            o.mean += (error - o.mean) / o.reuse;
            o.worst = fmax(o.worst, error);
            o.cost += s;
        } else {
            int is_anchor = actions[t] == MCSA_ANCHOR;
            if (is_anchor) anchor = t;
            o.anchors += is_anchor;
            o.cost += 1 + is_anchor * (s + wish->selection_cost);
        }
    }
    o.cost /= wish->steps;
    return o;
}

static void advise_group(analysis_advice *out, const analysis *a, const analysis_wish *wish)
{
    static const analysis_selector selectors[ANALYSIS_GROUPS] = { ANALYSIS_PDDP_64, ANALYSIS_PDDP_TOKENS,
                                                                  ANALYSIS_PDDP_256 };
    for (int i = 0; i < ANALYSIS_GROUPS; i++) {
        const int group = analysis_rules[selectors[i]].group;
        out->group_db[i] = a->selector[selectors[i]][out->density].psnr_db;
        int wanted =
            wish->group_fixed ? group == wish->group_fixed : out->group_db[0] - out->group_db[i] <= GROUP_SLACK_DB;
        if (wanted) out->group = group;
    }
}

mcsa_status analysis_advise(analysis_advice *out, const analysis *a, const analysis_wish *wish, mcsa_error *error)
{
    *out = (analysis_advice){ 0 };
    if (!a->pairs)
        return mcsa_fail(error, MCSA_EINVAL,
                         "every layer and branch was captured at one step only: a recommendation needs two steps or "
                         "more of one layer");
    for (int s = 0; s < a->densities; s++) {
        schedule(out->actions, a, wish, s);
        out->outlook[s] = look(a, wish, s, out->actions);
        if (out->outlook[s].cost < out->outlook[out->density].cost) out->density = s;
    }
    schedule(out->actions, a, wish, out->density);
    out->worthwhile = out->outlook[out->density].cost < WORTH;
    advise_group(out, a, wish);

    mcsa_action ramp[ANALYSIS_STEPS];
    TRY(mcsa_schedule_fill("ramp", wish->steps, ramp, error->text, sizeof error->text));
    out->ramp = look(a, wish, out->density, ramp);
    return MCSA_OK;
}
