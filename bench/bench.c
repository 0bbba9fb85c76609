/* bench.c - see bench.h. */
#include "bench.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

bench_case *bench_add(bench_table *table, const char *label)
{
    bench_case *added = &table->cases[table->count++];
    memset(added, 0, sizeof *added);
    snprintf(added->label, sizeof added->label, "%s", label);
    added->density = 1;
    return added;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

mcsa_status bench_run(bench_table *table, int repeats, mcsa_error *error)
{
    double *seconds = calloc((size_t)table->count * (size_t)repeats, sizeof *seconds); /* [cases, repeats] */
    if (!seconds) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d cases of %d times", table->count, repeats);
    for (int round = -1; round < repeats; round++)
        for (int c = 0; c < table->count; c++) {
            bench_case *one = &table->cases[c];
            if (one->wrong) continue;
            double begin = mcsa_seconds();
            one->run(one->context);
            if (round >= 0) seconds[c * repeats + round] = mcsa_seconds() - begin;
        }
    for (int c = 0; c < table->count; c++) {
        double *s = seconds + c * repeats;
        qsort(s, (size_t)repeats, sizeof *s, ascending);
        table->cases[c].median_s = s[repeats / 2];
        table->cases[c].spread = s[repeats / 2] > 0 ? (s[repeats * 3 / 4] - s[repeats / 4]) / s[repeats / 2] : 0;
    }
    free(seconds);
    return MCSA_OK;
}

void bench_print(const bench_table *table, FILE *out)
{
    fprintf(out, "%s\n%-28s %10s %7s %9s %7s %9s %6s\n", table->title, "", "median ms", "spread", "GFLOP/s", "of peak",
            "speed-up", "x s");
    for (int c = 0; c < table->count; c++) {
        const bench_case *one = &table->cases[c];
        if (one->wrong) {
            fprintf(out, "%-28s wrong answer, not timed\n", one->label);
            continue;
        }
        double rate = one->operations / one->median_s, speedup = table->cases[0].median_s / one->median_s;
        fprintf(out, "%-28s %10.3f %6.1f%% %9.0f", one->label, 1e3 * one->median_s, 100 * one->spread, 1e-9 * rate);
        if (table->peak > 0)
            fprintf(out, " %6.1f%%", 100 * rate / table->peak);
        else
            fprintf(out, " %7s", "");
        fprintf(out, " %8.2fx %6.3f\n", speedup, speedup * one->density);
    }
}

cJSON *bench_json(const bench_table *table)
{
    cJSON *root = cJSON_CreateObject(), *rows = cJSON_CreateArray();
    cJSON_AddStringToObject(root, "title", table->title);
    cJSON_AddNumberToObject(root, "peak_gflops", 1e-9 * table->peak);
    for (int c = 0; c < table->count; c++) {
        const bench_case *one = &table->cases[c];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "case", one->label);
        cJSON_AddBoolToObject(row, "correct", !one->wrong);
        cJSON_AddNumberToObject(row, "density", one->density);
        if (!one->wrong) {
            cJSON_AddNumberToObject(row, "median_ms", 1e3 * one->median_s);
            cJSON_AddNumberToObject(row, "spread", one->spread);
            cJSON_AddNumberToObject(row, "gflops", 1e-9 * one->operations / one->median_s);
            cJSON_AddNumberToObject(row, "speedup", table->cases[0].median_s / one->median_s);
        }
        if (!cJSON_AddItemToArray(rows, row)) cJSON_Delete(row);
    }
    if (cJSON_AddItemToObject(root, "rows", rows)) return root;
    cJSON_Delete(rows);
    cJSON_Delete(root);
    return NULL;
}
