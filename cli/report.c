/* report.c - the one place that knows the keys of report.json and the rows of the table. */
#include "report.h"

#include "staged.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Six decimals: a density of 0.1f should read 0.1, and no clock is better than a microsecond.  JSON has no
 * infinity. */
static void add_number(cJSON *object, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, round(value * 1e6) / 1e6);
    else
        cJSON_AddNullToObject(object, key);
}

static double other_seconds(const rendition *r)
{
    return fmax(0.0, r->denoise_s - r->cost.attention_s - r->linear_s);
}

static void add_measurements(cJSON *root, const rendition *made)
{
    const attention_cost *cost = &made->cost;
    add_number(root, "density_requested", cost->density_requested);
    add_number(root, "density_nominal", cost->density_nominal);
    add_number(root, "density_executed", cost->density_executed);
    add_number(root, "density_tail", cost->density_tail);
    add_number(root, "density_run", cost->density_run);
    cJSON *anchors = cJSON_AddArrayToObject(root, "anchors");
    for (int i = 0; i < made->anchor_count; i++)
        cJSON_AddItemToArray(anchors, cJSON_CreateNumber(made->anchors[i]));

    cJSON *calls = cJSON_AddObjectToObject(root, "calls");
    cJSON_AddNumberToObject(calls, "dense", (double)cost->dense);
    cJSON_AddNumberToObject(calls, "anchor", (double)cost->anchor);
    cJSON_AddNumberToObject(calls, "reuse", (double)cost->reuse);
    cJSON_AddNumberToObject(calls, "fallback", (double)cost->fallback);

    cJSON *time = cJSON_AddObjectToObject(root, "time_s");
    add_number(time, "denoise", made->denoise_s);
    add_number(time, "attention", cost->attention_s);
    add_number(time, "dense", cost->dense_s);
    add_number(time, "grouping", cost->grouping_s);
    add_number(time, "selection", cost->selection_s);
    add_number(time, "sparse", cost->sparse_s);
    add_number(time, "linear", made->linear_s);
    add_number(time, "other", other_seconds(made));

    cJSON *bytes = cJSON_AddObjectToObject(root, "cache_bytes");
    cJSON_AddNumberToObject(bytes, "selection", (double)cost->selection_bytes);
    cJSON_AddNumberToObject(bytes, "residual", (double)cost->residual_bytes);
    cJSON_AddNumberToObject(bytes, "held", (double)cost->held_bytes);
}

static void add_comparison(cJSON *root, const report *r)
{
    cJSON *fidelity = cJSON_AddObjectToObject(root, "fidelity");
    add_number(fidelity, "psnr_db", r->fidelity.psnr_db);
    add_number(fidelity, "ssim", r->fidelity.ssim);
    add_number(fidelity, "rel_l2", r->fidelity.rel_l2);
    cJSON *speedup = cJSON_AddObjectToObject(root, "speedup");
    add_number(speedup, "denoise", r->dense->denoise_s / r->made->denoise_s);
    add_number(speedup, "attention", r->dense->cost.attention_s / r->made->cost.attention_s);
}

char *report_json(const report *r)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "method", r->method);
    if (r->tail)
        cJSON_AddStringToObject(root, "tail", r->tail);
    else
        cJSON_AddNullToObject(root, "tail");
    cJSON_AddStringToObject(root, "backend", r->backend);
    cJSON_AddStringToObject(root, "isa", r->isa);
    cJSON_AddNumberToObject(root, "threads", r->threads);
    cJSON_AddNumberToObject(root, "steps", r->steps);
    cJSON_AddNumberToObject(root, "tokens", (double)r->tokens);
    cJSON_AddNumberToObject(root, "heads", r->heads);
    cJSON_AddNumberToObject(root, "head_dim", r->head_dim);
    cJSON_AddNumberToObject(root, "layers", r->layers);
    add_measurements(root, r->made);
    if (r->dense) add_comparison(root, r);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

mcsa_status report_write(const report *r, const char *path, mcsa_error *error)
{
    staged file;
    FILE *stream = NULL;
    TRY(staged_name(&file, path, error));
    char *text = report_json(r);
    if (!text) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the report");
    mcsa_status status = staged_open(&file, &stream, error);
    if (status == MCSA_OK) {
        fprintf(stream, "%s\n", text);
        status = staged_close(&file, stream, MCSA_OK, error);
    }
    free(text);
    return status;
}

/* "denoise       21.40 s     13.10 s     1.63 x", with one column and no ratio when there is no baseline. */
static void time_row(FILE *out, const char *name, const double *dense, double made)
{
    fprintf(out, "%-18s", name);
    if (dense)
        fprintf(out, "%10.2f s %10.2f s %10.2f x\n", *dense, made, *dense / made);
    else
        fprintf(out, "%10.2f s\n", made);
}

static void bytes_text(int64_t bytes, char *text, size_t size)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024.0 && unit < 4; unit++) value /= 1024.0;
    snprintf(text, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void density_rows(const report *r, FILE *out)
{
    const attention_cost *cost = &r->made->cost;
    const int means = r->tail && strcmp(r->tail, "means") == 0;
    fprintf(out, "%-18s%10.3f asked; sparse calls %.3f kept%s, %.3f executed", "density",
            cost->density_requested, cost->density_nominal, means ? ", means included" : "",
            cost->density_executed);
    if (cost->density_tail > 0) fprintf(out, " and %.3f of a pooled tail", cost->density_tail);
    fprintf(out, "; %.3f over the whole run\n", cost->density_run);
}

static void cache_row(const attention_cost *cost, FILE *out)
{
    char selection[40], residual[40], held[40];
    bytes_text(cost->selection_bytes, selection, sizeof selection);
    bytes_text(cost->residual_bytes, residual, sizeof residual);
    bytes_text(cost->held_bytes, held, sizeof held);
    fprintf(out, "%-18s%10s held between steps", "cache", held);
    if (cost->selection_bytes) fprintf(out, ": %s selection, %s residual", selection, residual);
    fputc('\n', out);
}

static void method_rows(const report *r, FILE *out)
{
    const rendition *made = r->made;
    const attention_cost *cost = &made->cost;
    fputc('\n', out);
    density_rows(r, out);
    cache_row(cost, out);
    fprintf(out, "%-18s%10.2f s dense, %.2f s grouping, %.2f s selection, %.2f s sparse\n", "attention is",
            cost->dense_s, cost->grouping_s, cost->selection_s, cost->sparse_s);
    fprintf(out, "%-18s%10lld dense, %lld anchor, %lld sparse, %lld fallback\n", "calls",
            (long long)cost->dense, (long long)cost->anchor, (long long)cost->reuse,
            (long long)cost->fallback);
    fprintf(out, "%-18s", "anchors at steps");
    for (int i = 0; i < made->anchor_count; i++) fprintf(out, "%s%d", i ? ", " : "    ", made->anchors[i]);
    fputs(made->anchor_count ? "\n" : "    none\n", out);
}

void report_table(const report *r, FILE *out)
{
    const rendition *made = r->made, *dense = r->dense;
    fprintf(out, "%lld tokens, %d layers, %d heads of %d, %d steps; %s, %s, %d thread%s\n\n",
            (long long)r->tokens, r->layers, r->heads, r->head_dim, r->steps, r->backend, r->isa, r->threads,
            r->threads == 1 ? "" : "s");
    if (dense)
        fprintf(out, "%-18s%10s   %10s   %10s\n", "", "dense", r->method, "speed-up");
    else
        fprintf(out, "%-18s%10s\n", "", r->method);
    double dense_other = dense ? other_seconds(dense) : 0.0;
    time_row(out, "denoise", dense ? &dense->denoise_s : NULL, made->denoise_s);
    time_row(out, "  attention", dense ? &dense->cost.attention_s : NULL, made->cost.attention_s);
    time_row(out, "  linear layers", dense ? &dense->linear_s : NULL, made->linear_s);
    time_row(out, "  other", dense ? &dense_other : NULL, other_seconds(made));
    if (dense) {
        fputc('\n', out);
        if (isinf(r->fidelity.psnr_db))
            fprintf(out, "%-18s%10s (identical)\n", "PSNR", "inf");
        else
            fprintf(out, "%-18s%10.2f dB against dense\n", "PSNR", r->fidelity.psnr_db);
        fprintf(out, "%-18s%10.4f\n", "SSIM", r->fidelity.ssim);
        fprintf(out, "%-18s%10.4f\n", "relative L2", r->fidelity.rel_l2);
    }
    if (strcmp(r->method, "dense") != 0) method_rows(r, out);
}
