/* analyze_sentence.c - the recommendation in plain words, with the numbers that led to it. */
#include "analyze_report.h"

#include <stdarg.h>
#include <stdlib.h>

/* Text that grows by printf; NULL text once it is out of memory. */
typedef struct words {
    char *text;
    size_t length;
} words;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
say(words *w, const char *format, ...)
{
    char piece[600];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    if (!w->text || length < 0) return;
    if (length >= (int)sizeof piece) length = (int)sizeof piece - 1;
    char *grown = realloc(w->text, w->length + (size_t)length + 1);
    if (!grown) {
        free(w->text);
        w->text = NULL;
        return;
    }
    w->text = grown;
    for (int i = 0; i <= length; i++) grown[w->length + (size_t)i] = piece[i];
    w->length += (size_t)length;
}

/* "list:3,5,8" */
static void say_schedule(words *w, const analyze_findings *f)
{
    const char *between = "list:";
    for (int t = 0; t < f->wish.steps; t++) {
        if (f->advice.actions[t] != MCSA_ANCHOR) continue;
        say(w, "%s%d", between, t);
        between = ",";
    }
}

/* Steps that a reuse may be away from an anchor at `from` before it misses more than the tolerance. */
static int reach(const analyze_findings *f, int from)
{
    int lag = 0;
    while (from + lag + 1 < f->wish.steps &&
           analysis_expected_error(&f->measured, f->advice.density, from, from + lag + 1) <= f->wish.tolerance)
        lag++;
    return lag;
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static void say_others(words *w, const analyze_findings *f)
{
    const analysis_advice *advice = &f->advice;
    for (int s = 0; s < f->measured.densities; s++) {
        if (s == advice->density) continue;
        const analysis_outlook *o = &advice->outlook[s];
        say(w, " Density %g would need %d anchor%s and cost %.2f of dense attention.", f->measured.density[s],
            o->anchors, plural(o->anchors), o->cost);
    }
    say(w, " The default schedule ramp at density %g would cost %.2f and miss %.3f on average, %.3f at worst.",
        f->measured.density[advice->density], advice->ramp.cost, advice->ramp.mean, advice->ramp.worst);
}

static void say_why(words *w, const analyze_findings *f)
{
    const analysis *a = &f->measured;
    const int s = f->advice.density, first = a->pair[0].anchor, last = a->pair[a->pairs - 1].anchor;
    const int early = reach(f, first), late = reach(f, last);
    say(w,
        " Why: with %.3g of the keys, single tokens of PDDP groups keep %.3f of the attention mass and blocks by "
        "pooled scores %.3f; an anchor at step %d serves %d step%s within %.3g, one at step %d serves %d.",
        a->density[s], a->selector[ANALYSIS_PDDP_TOKENS][s].recall, a->selector[ANALYSIS_POOLED][s].recall, first,
        early, plural(early), f->wish.tolerance, last, late);
}

static void say_advice(words *w, const analyze_findings *f)
{
    const analysis_advice *advice = &f->advice;
    const analysis_outlook *o = &advice->outlook[advice->density];
    say(w, "Recommendation for %d steps at %d tokens: --density %g --group %d --schedule ", f->wish.steps,
        f->measured.N, f->measured.density[advice->density], advice->group);
    say_schedule(w, f);
    say(w,
        ". Expect %d of the steps to reuse their anchor and to miss %.3f of the attention output on average and %.3f at "
        "worst (relative L2), for %.2f of the query-key pairs of dense attention: attention up to %.1f times as fast.",
        o->reuse, o->mean, o->worst, o->cost, 1 / o->cost);
    say_why(w, f);
    say_others(w, f);
    say(w,
        " The numbers are for groups of 128, with means of what is not kept and the residual; a fresh selection of "
        "single keys by groups of 64 is %.1f dB nearer to dense attention, by groups of 256 %.1f dB farther.",
        advice->group_db[0] - advice->group_db[1], advice->group_db[1] - advice->group_db[2]);
}

static void say_refusal(words *w, const analyze_findings *f)
{
    const analysis_outlook *o = &f->advice.outlook[f->advice.density];
    say(w,
        "Recommendation: dense attention. No density measured keeps what reuse misses within %.3g (relative L2) for "
        "less than %.2f of the query-key pairs of dense attention (at density %g, with %d anchor%s in %d steps); a "
        "larger --tolerance lets anchors be farther apart.",
        f->wish.tolerance, o->cost, f->measured.density[f->advice.density], o->anchors,
        plural(o->anchors), f->wish.steps);
    say_others(w, f);
}

char *analyze_sentence(const analyze_findings *f)
{
    words w = { calloc(1, 1), 0 };
    if (f->advice.worthwhile)
        say_advice(&w, f);
    else
        say_refusal(&w, f);
    return w.text;
}
