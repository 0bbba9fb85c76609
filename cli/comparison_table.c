/* comparison_table.c - cells are made as text first, so that both styles print the same numbers. */
#include "comparison_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 13, CELL_BYTES = 80 };

typedef char table_row[COLUMNS][CELL_BYTES];

static const char *const headings[COLUMNS] = {
    "run",    "s asked",   "s done",   "s of run",    "PSNR dB",   "min..max",      "SSIM",
    "rel L2", "denoise s", "speed-up", "attention x", "cache MiB", "calls d/a/r/f",
};

static const char explanation[] =
    "s is the share of query-key pairs: asked for, done by reuse calls, and over all calls of the run with "
    "the cost of anchors. PSNR, SSIM and relative L2 are means over the clips, against dense from the same "
    "noise. Seconds and speed-ups over dense are medians. Calls are dense, anchor, reuse and fallback.";

#define CELL(column, ...) snprintf(row[column], CELL_BYTES, __VA_ARGS__)

static void fidelity_cells(table_row row, const run_summary *s)
{
    const clip_numbers *t = &s->typical;
    CELL(1, "%.3f", t->density_requested);
    CELL(2, "%.3f", t->density_executed);
    CELL(4, "%.2f", t->psnr_db);
    CELL(5, "%.1f..%.1f", s->psnr_low, s->psnr_high);
    CELL(6, "%.4f", t->ssim);
    CELL(7, "%.4f", t->rel_l2);
    CELL(11, "%.1f", (t->selection_bytes + t->residual_bytes) / (1024.0 * 1024.0));
}

static mcsa_status fill_row(table_row row, const comparison *c, const plan *p, int run, mcsa_error *error)
{
    run_summary s;
    TRY(comparison_summary(c, p, run, &s, error));
    for (int column = 0; column < COLUMNS; column++) CELL(column, "-");
    CELL(0, "%.*s", CELL_BYTES - 1, p->run[run].name);
    if (!s.clips) return MCSA_OK;
    const clip_numbers *t = &s.typical;
    if (run > 0) fidelity_cells(row, &s); /* the first row is what the others are measured against */
    CELL(3, "%.3f", t->density_run);
    CELL(8, "%.2f", t->denoise_s);
    CELL(9, "%.2f", t->denoise_speedup);
    CELL(10, "%.2f", t->attention_speedup);
    CELL(12, "%.0f/%.0f/%.0f/%.0f", t->dense, t->anchor, t->reuse, t->fallback);
    return MCSA_OK;
}

/* rows: [count], headings first */
static void print_plain(table_row *rows, int count, FILE *out)
{
    int widths[COLUMNS] = { 0 };
    for (int r = 0; r < count; r++)
        for (int column = 0; column < COLUMNS; column++) {
            int width = (int)strlen(rows[r][column]);
            if (width > widths[column]) widths[column] = width;
        }
    for (int r = 0; r < count; r++) {
        fprintf(out, "%-*s", widths[0], rows[r][0]);
        for (int column = 1; column < COLUMNS; column++)
            fprintf(out, "  %*s", widths[column], rows[r][column]);
        fputc('\n', out);
    }
}

static void print_markdown(table_row *rows, int count, FILE *out)
{
    for (int r = 0; r < count; r++) {
        for (int column = 0; column < COLUMNS; column++) fprintf(out, "| %s ", rows[r][column]);
        fputs("|\n", out);
        if (r > 0) continue;
        fputs("| --- ", out);
        for (int column = 1; column < COLUMNS; column++) fputs("| ---: ", out);
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
        fprintf(out, "%s\n\n", caption);
        if (style == TABLE_PLAIN)
            print_plain(rows, p->runs + 1, out);
        else
            print_markdown(rows, p->runs + 1, out);
        fputc('\n', out);
        if (style == TABLE_PLAIN)
            options_wrap(explanation, 0, out);
        else
            fprintf(out, "%s\n", explanation);
    }
    free(rows);
    return status;
}
