/* comparison_table.c - cells are made as text first, so that both styles print the same numbers.  A column
 * that says nothing in any row is left out. */
#include "comparison_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES = 80 };

/* clang-format off */
enum {
    RUN, ASKED, NOMINAL, DONE, ALIGNMENT, WHOLE_RUN, PSNR, OVER_CLIPS, OVER_SEEDS, SSIM, REL_L2, RECALL,
    DENOISE, SPEEDUP, ATTENTION, ATTENTION_SPEEDUP, HELD, CALLS, COLUMNS
};

static const char *const headings[COLUMNS] = {
    "run", "s asked", "s nominal", "s done", "align.", "s of run", "PSNR dB", "min..max", "over seeds",
    "SSIM", "rel L2", "recall", "denoise s", "speed-up", "attention s", "attention x", "held MiB", "calls d/a/r/f",
};
/* clang-format on */

typedef char table_row[COLUMNS][CELL_BYTES];

static const char explanation[] =
    "s is the share of query-key pairs: asked for, kept by sparse calls, done by them with the padding of "
    "tiles (align. is done over kept), and over all calls of the run with the cost of anchors. A ! marks "
    "a run that is more than half a point from the density asked. PSNR, SSIM and relative L2 are means "
    "over the clips, against dense from the same noise; min..max is over clips, over seeds is of the "
    "means of each seed, with their standard deviation. Recall, where --recall measured it, is the exact "
    "attention on keys that sparse calls attend to one by one. Seconds and speed-ups over dense are medians. "
    "Held is what is kept between steps. Calls are dense, anchor, reuse (any method's sparse ones) and "
    "fallback.";

#define CELL(column, ...) snprintf(row[column], CELL_BYTES, __VA_ARGS__)

/* Of a method, not of dense attention itself.  What an older report does not tell stays "-". */
static void density_cells(table_row row, const run_summary *s)
{
    const clip_numbers *t = &s->typical;
    CELL(ASKED, "%.3f", t->density_requested);
    if (isfinite(t->density_nominal)) CELL(NOMINAL, "%.3f", t->density_nominal);
    CELL(DONE, "%.3f%s", t->density_executed, s->density_missed ? " !" : "");
    if (isfinite(t->density_nominal) && t->density_nominal > 0)
        CELL(ALIGNMENT, "%.2f", t->density_executed / t->density_nominal);
    CELL(HELD, "%.1f",
         (isfinite(t->held_bytes) ? t->held_bytes : t->selection_bytes + t->residual_bytes) /
             (1024.0 * 1024.0));
}

static void fidelity_cells(table_row row, const run_summary *s)
{
    const clip_numbers *t = &s->typical;
    CELL(PSNR, "%.2f", t->psnr_db);
    CELL(OVER_CLIPS, "%.1f..%.1f", s->psnr_low, s->psnr_high);
    if (s->seeds > 1) CELL(OVER_SEEDS, "%.1f..%.1f ±%.2f", s->seed_low, s->seed_high, s->seed_deviation);
    CELL(SSIM, "%.4f", t->ssim);
    CELL(REL_L2, "%.4f", t->rel_l2);
    if (isfinite(t->recall)) CELL(RECALL, "%.4f", t->recall);
}

static mcsa_status fill_row(table_row row, const comparison *c, const plan *p, int run, mcsa_error *error)
{
    run_summary s;
    TRY(comparison_summary(c, p, run, &s, error));
    for (int column = 0; column < COLUMNS; column++) CELL(column, "-");
    CELL(RUN, "%.*s", CELL_BYTES - 1, p->run[run].name);
    if (!s.clips) return MCSA_OK;
    const clip_numbers *t = &s.typical;
    if (run > 0) { /* the first row is what the others are measured against */
        density_cells(row, &s);
        fidelity_cells(row, &s);
    }
    CELL(WHOLE_RUN, "%.3f", t->density_run);
    CELL(DENOISE, "%.2f", t->denoise_s);
    CELL(SPEEDUP, "%.2f", t->denoise_speedup);
    CELL(ATTENTION, "%.2f", t->attention_s);
    CELL(ATTENTION_SPEEDUP, "%.2f", t->attention_speedup);
    CELL(CALLS, "%.0f/%.0f/%.0f/%.0f", t->dense, t->anchor, t->reuse, t->fallback);
    return MCSA_OK;
}

/* Characters, of which UTF-8 takes one byte that is no continuation each. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* The widest cell of each column; 0 for one that says nothing in any run.  rows: [count], headings first */
static void measure(table_row *rows, int count, int widths[COLUMNS])
{
    for (int column = 0; column < COLUMNS; column++) {
        int says = 0, widest = width_of(rows[0][column]);
        for (int r = 1; r < count; r++) {
            int width = width_of(rows[r][column]);
            if (width > widest) widest = width;
            says |= strcmp(rows[r][column], "-") != 0;
        }
        widths[column] = says ? widest : 0;
    }
}

static void print_plain(table_row *rows, int count, const int widths[COLUMNS], FILE *out)
{
    for (int r = 0; r < count; r++) {
        fprintf(out, "%s%*s", rows[r][RUN], widths[RUN] - width_of(rows[r][RUN]), "");
        for (int column = RUN + 1; column < COLUMNS; column++)
            if (widths[column])
                fprintf(out, "  %*s%s", widths[column] - width_of(rows[r][column]), "", rows[r][column]);
        fputc('\n', out);
    }
}

static void print_markdown(table_row *rows, int count, const int widths[COLUMNS], FILE *out)
{
    for (int r = 0; r < count; r++) {
        for (int column = 0; column < COLUMNS; column++)
            if (widths[column]) fprintf(out, "| %s ", rows[r][column]);
        fputs("|\n", out);
        if (r > 0) continue;
        fputs("| --- ", out);
        for (int column = RUN + 1; column < COLUMNS; column++)
            if (widths[column]) fputs("| ---: ", out);
        fputs("|\n", out);
    }
}

mcsa_status comparison_table(const comparison *c, const plan *p, const char *caption, table_style style,
                             FILE *out, mcsa_error *error)
{
    table_row *rows = malloc((size_t)(p->runs + 1) * sizeof *rows);
    if (!rows) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a table of %d rows", p->runs);
    mcsa_status status = MCSA_OK;
    for (int column = 0; column < COLUMNS; column++)
        snprintf(rows[0][column], CELL_BYTES, "%s", headings[column]);
    for (int run = 0; status == MCSA_OK && run < p->runs; run++)
        status = fill_row(rows[run + 1], c, p, run, error);
    if (status == MCSA_OK) {
        int widths[COLUMNS];
        measure(rows, p->runs + 1, widths);
        fprintf(out, "%s\n\n", caption);
        if (style == TABLE_PLAIN)
            print_plain(rows, p->runs + 1, widths, out);
        else
            print_markdown(rows, p->runs + 1, widths, out);
        fputc('\n', out);
        if (style == TABLE_PLAIN)
            options_wrap(explanation, 0, out);
        else
            fprintf(out, "%s\n", explanation);
    }
    free(rows);
    return status;
}
