/* analyze_table.c - the findings as tables for people. */
#include "analyze_report.h"

#include "options.h"

#include <math.h>
#include <stdlib.h>

enum { NAME = 26 };

static void head_row(const analysis *a, const char *first, FILE *out)
{
    fprintf(out, "%-*s", NAME, first);
    for (int s = 0; s < a->densities; s++) fprintf(out, "   s = %-5g          ", a->density[s]);
    fputc('\n', out);
}

/* executed: [densities] to mark what is half a point off, or NULL */
static void tally_row(const analysis *a, const char *name, const analysis_tally *tallies, const double *executed,
                      FILE *out)
{
    fprintf(out, "%-*s", NAME, name);
    for (int s = 0; s < a->densities; s++)
        fprintf(out, "  %c%5.3f %6.4f %5.1f", executed && fabs(executed[s] - a->density[s]) > 0.005 ? '*' : ' ',
                tallies[s].recall, tallies[s].rel_l2, tallies[s].psnr_db);
    fputc('\n', out);
}

static void oracle_table(const analysis *a, FILE *out)
{
    head_row(a, "What is kept", out);
    fprintf(out, "%-*s", NAME, "");
    for (int s = 0; s < a->densities; s++) fprintf(out, "   %5s %6s %5s", "kept", "rel L2", "dB");
    fputc('\n', out);
    for (int k = 0; k < ANALYSIS_SELECTORS; k++) {
        char name[64];
        if (a->alignment[k] > 1.005)
            snprintf(name, sizeof name, "%s (x%.2f)", analysis_rules[k].meaning, a->alignment[k]);
        else
            snprintf(name, sizeof name, "%s", analysis_rules[k].meaning);
        tally_row(a, name, a->selector[k], a->executed[k], out);
    }
    tally_row(a, "own keys of each query", a->per_query, NULL, out);
    fputs("\nkept: attention mass; rel L2 and PSNR: of the attention output against dense, peak its range. Means over "
          "calls.\n*: computes another share of the pairs than s, by more than half a point: there are too few keys to "
          "cut.\n",
          out);
    fprintf(out,
            "Own keys: %d queries of each head. (x1.20): pairs executed over pairs meant; s counts the former.\n\n",
            a->sample);
}

static void share_row(const analysis *a, const char *name, const double *shares, FILE *out)
{
    fprintf(out, "%-*s", NAME, name);
    for (int s = 0; s < a->densities; s++) fprintf(out, "   %12.4f       ", shares[s]);
    fputc('\n', out);
}

static void split_table(const analysis *a, FILE *out)
{
    double part[4][ANALYSIS_DENSITIES];
    static const char *const names[] = { "selection", "binding of keys", "binding of queries", "discarded tail" };
    for (int s = 0; s < a->densities; s++) {
        analysis_split split = analysis_split_at(a, s);
        part[0][s] = split.selection;
        part[1][s] = split.key_binding;
        part[2][s] = split.query_binding;
        part[3][s] = split.tail;
    }
    head_row(a, "Where pooled blocks lose", out);
    for (int i = 0; i < 4; i++) share_row(a, names[i], part[i], out);
    fputs(
        "\nParts of the relative L2 of blocks by pooled scores: to the block oracle, from there to the token oracle,\n"
        "from there to own keys, and what those miss.\n\n",
        out);
}

static void waste_table(const analysis *a, FILE *out)
{
    static const char *const names[ANALYSIS_SHARED] = { "pairs, block oracle", "pairs, token oracle",
                                                        "pairs, PDDP tokens" };
    double share[ANALYSIS_DENSITIES];
    head_row(a, "What binding wastes", out);
    for (int s = 0; s < a->densities; s++) share[s] = 1 - a->key_binding[s].wanted / a->key_binding[s].kept;
    share_row(a, "keys in blocks", share, out);
    for (int k = 0; k < ANALYSIS_SHARED; k++) {
        for (int s = 0; s < a->densities; s++)
            share[s] = 1 - a->query_binding[s][k].wanted / a->query_binding[s][k].kept;
        share_row(a, names[k], share, out);
    }
    fputs("\nKeys of kept blocks that the group would not keep one by one, and query-key pairs that the query itself\n"
          "would not keep, at the same density.\n\n",
          out);
}

static mcsa_status lag_table(const analysis *a, int s, FILE *out, mcsa_error *error)
{
    analysis_pair *lag = malloc((size_t)a->pairs * sizeof *lag);
    if (!lag) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d lags", a->pairs);
    fprintf(out, "Steps later, s = %-8g %8s   %-21s   %-21s   %-21s\n", a->density[s], "output", "pooled blocks anew",
            "old exact blocks", "old PDDP tokens");
    fprintf(out, "%-*s%6s", NAME, "", "drift");
    for (int r = 0; r < ANALYSIS_REUSES; r++) fprintf(out, "   %5s %6s %8s", "kept", "rel L2", "+ resid.");
    fputc('\n', out);
    int count = analysis_by_lag(a, lag);
    for (int i = 0; i < count; i++) {
        fprintf(out, "%4d%-*s%6.4f", lag[i].step, NAME - 4, "", lag[i].output.rel_l2);
        for (int r = 0; r < ANALYSIS_REUSES; r++) {
            const analysis_tally *t = lag[i].reuse[s][r];
            fprintf(out, "   %5.3f %6.4f %8.4f", t[0].recall, t[0].rel_l2, t[1].rel_l2);
        }
        fputc('\n', out);
    }
    fputs(
        "\noutput drift: |O_t - O_a| / |O_t|. + resid.: with dense - sparse of the earlier step added, so its rel L2 is "
        "how far\nthat residual drifted; under old PDDP tokens it is what MC-Sparse misses.\n\n",
        out);
    free(lag);
    return MCSA_OK;
}

static void rival_table(const analyze_findings *f, FILE *out)
{
    fprintf(out, "%-*s%8s %9s   %5s %6s %8s\n", NAME, "Methods, after a dense step", "s asked", "executed", "kept",
            "rel L2", "+ resid.");
    for (int i = 0; i < f->rivals; i++) {
        const analysis_rival *r = &f->rival[i];
        fprintf(out, "%-*s%9.3f %9.3f   %5.3f %6.4f %8.4f\n", NAME, r->method->name, f->measured.density[r->density],
                r->executed, r->made.recall, r->made.rel_l2, r->compensated.rel_l2);
    }
    fputs("\nEach series: its first step dense, the later ones by the method; means over those. kept: by exact "
          "attention,\nwithout a tail of means.\n\n",
          out);
}

mcsa_status analyze_tables(const analyze_findings *f, FILE *out, mcsa_error *error)
{
    const analysis *a = &f->measured;
    fprintf(out, "%s\n\n", f->title);
    oracle_table(a, out);
    split_table(a, out);
    waste_table(a, out);
    if (a->pairs) TRY(lag_table(a, f->advised ? f->advice.density : a->densities / 2, out, error));
    if (f->rivals) rival_table(f, out);
    if (!f->advised) return MCSA_OK;
    char *sentence = analyze_sentence(f);
    if (!sentence) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the recommendation");
    options_wrap(sentence, 0, out);
    free(sentence);
    return MCSA_OK;
}
