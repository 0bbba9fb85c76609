/* analyze_json.c - the findings as JSON: every point of figures 2 to 5, ready to plot. */
#include "analyze_report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>

/* Six decimals as in other reports; JSON has no infinity and no NaN. */
static void add_number(cJSON *object, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, round(value * 1e6) / 1e6);
    else
        cJSON_AddNullToObject(object, key);
}

static cJSON *add_point(cJSON *array)
{
    cJSON *point = cJSON_CreateObject();
    cJSON_AddItemToArray(array, point);
    return point;
}

static void add_tally(cJSON *point, const analysis_tally *t)
{
    add_number(point, "recall", t->recall);
    add_number(point, "rel_l2", t->rel_l2);
    add_number(point, "psnr_db", t->psnr_db);
}

static void add_oracles(cJSON *root, const analysis *a)
{
    cJSON *points = cJSON_AddArrayToObject(root, "oracles");
    for (int k = 0; k <= ANALYSIS_SELECTORS; k++)
        for (int s = 0; s < a->densities; s++) {
            cJSON *point = add_point(points);
            int own = k == ANALYSIS_SELECTORS;
            cJSON_AddStringToObject(point, "selection", own ? "per-query" : analysis_rules[k].name);
            add_number(point, "density", a->density[s]);
            add_tally(point, own ? &a->per_query[s] : &a->selector[k][s]);
            if (own) continue;
            add_number(point, "density_executed", a->executed[k][s]);
            add_number(point, "alignment", a->alignment[k]);
        }
}

static void add_parts(cJSON *point, const analysis_parts *parts)
{
    add_number(point, "selection", parts->selection);
    add_number(point, "key_binding", parts->key_binding);
    add_number(point, "query_binding", parts->query_binding);
    add_number(point, "discarded_tail", parts->tail);
}

static void add_splits(cJSON *root, const analysis *a)
{
    cJSON *points = cJSON_AddArrayToObject(root, "split");
    for (int s = 0; s < a->densities; s++) {
        analysis_split split = analysis_split_at(a, s);
        cJSON *point = add_point(points);
        add_number(point, "density", a->density[s]);
        add_parts(cJSON_AddObjectToObject(point, "mass"), &split.mass);
        add_parts(cJSON_AddObjectToObject(point, "rel_l2"), &split.error);
    }
}

static void add_waste(cJSON *root, const analysis *a)
{
    cJSON *points = cJSON_AddArrayToObject(root, "waste");
    for (int s = 0; s < a->densities; s++) {
        cJSON *point = add_point(points);
        add_number(point, "density", a->density[s]);
        add_number(point, "keys_in_blocks", 1 - a->key_binding[s].wanted / a->key_binding[s].kept);
        cJSON *pairs = cJSON_AddObjectToObject(point, "pairs");
        for (int k = 0; k < ANALYSIS_SHARED; k++)
            add_number(pairs, analysis_rules[analysis_shared[k]].name,
                       1 - a->query_binding[s][k].wanted / a->query_binding[s][k].kept);
    }
}

static void add_reuse(cJSON *root, const analysis *a)
{
    static const char *const names[ANALYSIS_REUSES] = { "fresh-pooled-blocks", "old-exact-blocks", "old-pddp-tokens" };
    cJSON *points = cJSON_AddArrayToObject(root, "reuse");
    for (int p = 0; p < a->pairs; p++)
        for (int s = 0; s < a->densities; s++)
            for (int r = 0; r < ANALYSIS_REUSES; r++) {
                const analysis_pair *pair = &a->pair[p];
                cJSON *point = add_point(points);
                cJSON_AddNumberToObject(point, "anchor", pair->anchor);
                cJSON_AddNumberToObject(point, "step", pair->step);
                add_number(point, "density", a->density[s]);
                cJSON_AddStringToObject(point, "selection", names[r]);
                add_number(point, "recall", pair->reuse[s][r][0].recall);
                add_number(point, "rel_l2", pair->reuse[s][r][0].rel_l2);
                add_number(point, "rel_l2_with_residual", pair->reuse[s][r][1].rel_l2);
            }
    points = cJSON_AddArrayToObject(root, "mc_sparse");
    for (int p = 0; p < a->pairs; p++)
        for (int s = 0; s < a->densities; s++) {
            cJSON *point = add_point(points);
            cJSON_AddNumberToObject(point, "anchor", a->pair[p].anchor);
            cJSON_AddNumberToObject(point, "step", a->pair[p].step);
            add_number(point, "density", a->density[s]);
            add_number(point, "rel_l2", a->pair[p].mc_sparse[s].rel_l2);
        }
    points = cJSON_AddArrayToObject(root, "output_drift");
    for (int p = 0; p < a->pairs; p++) {
        cJSON *point = add_point(points);
        cJSON_AddNumberToObject(point, "anchor", a->pair[p].anchor);
        cJSON_AddNumberToObject(point, "step", a->pair[p].step);
        add_number(point, "rel_l2", a->pair[p].output.rel_l2);
    }
}

static void add_layers(cJSON *root, const analysis *a)
{
    cJSON *points = cJSON_AddArrayToObject(root, "layers");
    for (int i = 0; i < a->series; i++)
        for (int s = 0; s < a->densities; s++) {
            const analysis_layer *layer = &a->layer[i];
            cJSON *point = add_point(points);
            cJSON_AddNumberToObject(point, "layer", layer->layer);
            cJSON_AddNumberToObject(point, "branch", layer->branch);
            add_number(point, "density", a->density[s]);
            add_tally(cJSON_AddObjectToObject(point, "pooled-blocks"), &layer->pooled[s]);
            add_tally(cJSON_AddObjectToObject(point, "pddp-tokens"), &layer->tokens[s]);
            add_tally(cJSON_AddObjectToObject(point, "per-query"), &layer->own[s]);
            if (!layer->reused[s].calls) continue;
            add_number(point, "rel_l2_with_residual", layer->reused[s].rel_l2);
            add_number(point, "rel_l2_mc_sparse", layer->mc_sparse[s].rel_l2);
        }
}

static void add_rivals(cJSON *root, const analyze_findings *f)
{
    cJSON *points = cJSON_AddArrayToObject(root, "methods");
    for (int i = 0; i < f->rivals; i++) {
        const analysis_rival *r = &f->rival[i];
        cJSON *point = add_point(points);
        cJSON_AddStringToObject(point, "method", r->method->name);
        add_number(point, "density", f->measured.density[r->density]);
        add_number(point, "density_nominal", r->nominal);
        add_number(point, "density_executed", r->executed);
        add_tally(point, &r->made);
        add_number(point, "rel_l2_with_residual", r->compensated.rel_l2);
    }
}

static void add_outlook(cJSON *point, const analysis_outlook *o)
{
    add_number(point, "cost", o->cost);
    add_number(point, "rel_l2_mean", o->mean);
    add_number(point, "rel_l2_worst", o->worst);
    cJSON_AddNumberToObject(point, "anchors", o->anchors);
    cJSON_AddNumberToObject(point, "reuse_steps", o->reuse);
}

static void add_advice(cJSON *root, const analyze_findings *f)
{
    const analysis *a = &f->measured;
    const analysis_advice *advice = &f->advice;
    cJSON *object = cJSON_AddObjectToObject(root, "recommendation");
    cJSON_AddBoolToObject(object, "worthwhile", advice->worthwhile);
    add_number(object, "tolerance", f->wish.tolerance);
    cJSON_AddNumberToObject(object, "steps", f->wish.steps);
    add_number(object, "density", a->density[advice->density]);
    cJSON_AddNumberToObject(object, "group", advice->group);
    cJSON *anchors = cJSON_AddArrayToObject(object, "anchors");
    for (int t = 0; t < f->wish.steps; t++)
        if (advice->actions[t] == MCSA_ANCHOR) cJSON_AddItemToArray(anchors, cJSON_CreateNumber(t));
    cJSON *each = cJSON_AddArrayToObject(object, "by_density");
    for (int s = 0; s < a->densities; s++) {
        cJSON *point = add_point(each);
        add_number(point, "density", a->density[s]);
        add_outlook(point, &advice->outlook[s]);
    }
    add_outlook(cJSON_AddObjectToObject(object, "ramp"), &advice->ramp);
    char *sentence = analyze_sentence(f);
    if (sentence) cJSON_AddStringToObject(object, "text", sentence);
    free(sentence);
}

char *analyze_json(const analyze_findings *f)
{
    const analysis *a = &f->measured;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", mcsa_version());
    cJSON_AddStringToObject(root, "title", f->title);
    cJSON_AddNumberToObject(root, "calls", a->calls);
    cJSON_AddNumberToObject(root, "heads", a->H);
    cJSON_AddNumberToObject(root, "heads_analysed", a->heads);
    cJSON_AddNumberToObject(root, "tokens", a->N);
    cJSON_AddNumberToObject(root, "head_dim", a->D);
    cJSON_AddNumberToObject(root, "sampled_queries", a->sample);
    add_oracles(root, a);
    add_splits(root, a);
    add_waste(root, a);
    add_reuse(root, a);
    add_layers(root, a);
    if (f->rivals) add_rivals(root, f);
    if (f->advised) add_advice(root, f);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}
