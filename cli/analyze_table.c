/* analyze_table.c - the findings as tables for people. */
#include "analyze_report.h"

#include "options.h"

#include <math.h>
#include <stdlib.h>

enum { NAME = 26 }; /* columns of the first column; one of 22 for each density follows */

/* first, then the densities; below them what their columns are called */
static void headings(const analysis *a, const char *first, const char *columns, FILE *out)
{
    fprintf(out, "%-*s", NAME, first);
    for (int s = 0; s < a->densities; s++) fprintf(out, "   s = %-15g", a->density[s]);
    fprintf(out, "\n%-*s", NAME, "");
    for (int s = 0; s < a->densities; s++) fprintf(out, "   %-19s", columns);
    fputc('\n', out);
}

/* Half a point off what was asked. */
static char mark(double executed, double density)
{
    return fabs(executed - density) > 0.005 ? '*' : ' ';
}

static void own_row(const analysis *a, FILE *out)
{
    fprintf(out, "%-*s", NAME, "own keys of each query");
    for (int s = 0; s < a->densities; s++) {
        const analysis_tally *t = &a->per_query[s];
        fprintf(out, "   %5.3f %6.4f %5.1f ", t->recall, t->rel_l2, t->psnr_db);
    }
    fputc('\n', out);
}

static void oracle_table(const analysis *a, FILE *out)
{
    headings(a, "What is kept", " kept rel L2    dB", out);
    for (int k = 0; k < ANALYSIS_SELECTORS; k++) {
        char name[64];
        int length = snprintf(name, sizeof name, "%s", analysis_rules[k].meaning);
        if (a->alignment[k] > 1.005) snprintf(name + length, sizeof name - (size_t)length, " (x%.2f)", a->alignment[k]);
        fprintf(out, "%-*s", NAME, name);
        for (int s = 0; s < a->densities; s++) {
            const analysis_tally *t = &a->selector[k][s];
            fprintf(out, "  %c%5.3f %6.4f %5.1f ", mark(a->executed[k][s], a->density[s]), t->recall, t->rel_l2,
                    t->psnr_db);
        }
        fputc('\n', out);
    }
    own_row(a, out);
    fprintf(
        out,
        "\nkept: attention mass; rel L2 and PSNR: of the attention output against dense, peak its range; means over "
        "calls.\nOwn keys: %d queries of each head. (x1.20): pairs executed over pairs meant; s counts the former.\n"
        "*: more than half a point off s, as there are too few keys to cut.\n\n",
        a->sample);
}

static void parts_row(const analysis *a, const char *name, const double *mass, const double *error, FILE *out)
{
    fprintf(out, "%-*s", NAME, name);
    for (int s = 0; s < a->densities; s++) fprintf(out, "  %6.3f %6.3f       ", mass[s], error[s]);
    fputc('\n', out);
}

static void split_table(const analysis *a, FILE *out)
{
    double selection[2][ANALYSIS_DENSITIES], keys[2][ANALYSIS_DENSITIES], queries[2][ANALYSIS_DENSITIES],
        tail[2][ANALYSIS_DENSITIES];
    for (int s = 0; s < a->densities; s++) {
        const analysis_split split = analysis_split_at(a, s);
        for (int i = 0; i < 2; i++) {
            const analysis_parts *parts = i ? &split.error : &split.mass;
            selection[i][s] = parts->selection;
            keys[i][s] = parts->key_binding;
            queries[i][s] = parts->query_binding;
            tail[i][s] = parts->tail;
        }
    }
    headings(a, "Where pooled blocks lose", " mass rel L2", out);
    parts_row(a, "selection", selection[0], selection[1], out);
    parts_row(a, "binding of keys", keys[0], keys[1], out);
    parts_row(a, "binding of queries", queries[0], queries[1], out);
    parts_row(a, "discarded tail", tail[0], tail[1], out);
    fputs(
        "\nFrom pooled blocks to the block oracle, from there to the token oracle, from there to own keys, and what "
        "those miss;\nthe parts add up. Of the error they can be negative: keys of most mass are not always those that "
        "are missed most.\n\n",
        out);
}

static void waste_row(const analysis *a, const char *name, const double *shares, FILE *out)
{
    fprintf(out, "%-*s", NAME, name);
    for (int s = 0; s < a->densities; s++) fprintf(out, "   %5.3f              ", shares[s]);
    fputc('\n', out);
}

static void waste_table(const analysis *a, FILE *out)
{
    static const char *const names[ANALYSIS_SHARED] = { "pairs, block oracle", "pairs, token oracle",
                                                        "pairs, PDDP tokens" };
    double share[ANALYSIS_DENSITIES];
    headings(a, "What binding wastes", "share", out);
    for (int s = 0; s < a->densities; s++) share[s] = 1 - a->key_binding[s].wanted / a->key_binding[s].kept;
    waste_row(a, "keys in blocks", share, out);
    for (int k = 0; k < ANALYSIS_SHARED; k++) {
        for (int s = 0; s < a->densities; s++)
            share[s] = 1 - a->query_binding[s][k].wanted / a->query_binding[s][k].kept;
        waste_row(a, names[k], share, out);
    }
    fputs("\nKeys of kept blocks that the group would not keep one by one, and query-key pairs that the query itself\n"
          "would not keep, at the same density.\n\n",
          out);
}

static void lag_row(const analysis_pair *lag, int s, FILE *out)
{
    fprintf(out, "%4d%*s%6.4f", lag->step, NAME - 4, "", lag->output.rel_l2);
    for (int r = 0; r < ANALYSIS_REUSES; r++) {
        const analysis_tally *t = lag->reuse[s][r];
        fprintf(out, "   %5.3f %6.4f %6.4f", t[0].recall, t[0].rel_l2, t[1].rel_l2);
    }
    fprintf(out, "   %6.4f\n", lag->mc_sparse[s].rel_l2);
}

static mcsa_status lag_table(const analysis *a, int s, FILE *out, mcsa_error *error)
{
    analysis_pair *lag = malloc((size_t)a->pairs * sizeof *lag);
    if (!lag) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d lags", a->pairs);
    fprintf(out, "Steps later, s = %-9g%6s   %-19s   %-19s   %-19s   %s\n", a->density[s], "output",
            "pooled blocks anew", "old exact blocks", "old PDDP tokens", "mcsa");
    fprintf(out, "%-*s%6s", NAME, "", "drift");
    for (int r = 0; r < ANALYSIS_REUSES; r++) fputs("    kept rel L2  +res.", out);
    fputs("   rel L2\n", out);
    int count = analysis_by_lag(a, lag);
    for (int i = 0, next = 0; i < count; i++) {
        if (lag[i].step < next && i != count - 1) continue; /* the JSON has all */
        next = lag[i].step + (lag[i].step + 3) / 4;
        lag_row(&lag[i], s, out);
    }
    fputs(
        "\noutput drift: |O_t - O_a| / |O_t|. +res.: rel L2 with dense - sparse of the earlier step added, which is how "
        "far that\nresidual drifted; under old PDDP tokens it is what MC-Sparse with --tail off misses. mcsa: what it "
        "misses as it comes.\n\n",
        out);
    free(lag);
    return MCSA_OK;
}

static void layer_table(const analysis *a, int s, FILE *out)
{
    char first[64];
    snprintf(first, sizeof first, "Layers, s = %g", a->density[s]);
    fprintf(out, "%-*s   %-12s   %-12s   %-12s   %-6s   %s\n%-*s", NAME, first, "pooled", "PDDP tokens", "own keys",
            "reused", "mcsa", NAME, "");
    for (int i = 0; i < 3; i++) fputs("    kept rel L2", out);
    fputs("    +res.   rel L2\n", out);
    for (int i = 0; i < a->series; i++) {
        const analysis_layer *layer = &a->layer[i];
        const analysis_tally *tallies[] = { &layer->pooled[s], &layer->tokens[s], &layer->own[s] };
        int length = fprintf(out, "layer %d, branch %d", layer->layer, layer->branch);
        fprintf(out, "%*s", NAME - length, "");
        for (int k = 0; k < 3; k++) fprintf(out, "   %5.3f %6.4f", tallies[k]->recall, tallies[k]->rel_l2);
        if (layer->reused[s].calls)
            fprintf(out, "   %6.4f   %6.4f", layer->reused[s].rel_l2, layer->mc_sparse[s].rel_l2);
        fputc('\n', out);
    }
    fputs(
        "\nreused: PDDP tokens and residual of an earlier step, mean over all pairs of captured steps. mcsa: as it comes, "
        "with\nclusters and means, over the same.\n\n",
        out);
}

static void rival_table(const analyze_findings *f, FILE *out)
{
    const analysis *a = &f->measured;
    headings(a, "Methods", " kept rel L2  +res.", out);
    for (int i = 0; i < f->rivals; i++) {
        const analysis_rival *r = &f->rival[i];
        if (r->density == 0) fprintf(out, "%-*s", NAME, r->method->name);
        fprintf(out, "  %c%5.3f %6.4f %6.4f", mark(r->executed, a->density[r->density]), r->made.recall, r->made.rel_l2,
                r->compensated.rel_l2);
        if (r->density == a->densities - 1) fputc('\n', out);
    }
    fputs("\nThe first step of each layer dense, the later ones by the method; means over those. kept: by exact "
          "attention, without\na tail of means. +res.: rel L2 with dense - sparse of the first step added; that of "
          "bsa+group is MC-Sparse's\nwith --tail off.\n\n",
          out);
}

mcsa_status analyze_tables(const analyze_findings *f, FILE *out, mcsa_error *error)
{
    const analysis *a = &f->measured;
    fprintf(out, "%s\n\n", f->title);
    oracle_table(a, out);
    split_table(a, out);
    waste_table(a, out);
    const int s = f->advised ? f->advice.density : a->densities / 2;
    if (a->pairs) TRY(lag_table(a, s, out, error));
    if (a->series > 1) layer_table(a, s, out);
    if (f->rivals) rival_table(f, out);
    if (!f->advised) return MCSA_OK;
    char *sentence = analyze_sentence(f);
    if (!sentence) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the recommendation");
    options_wrap(sentence, 0, out);
    free(sentence);
    return MCSA_OK;
}
