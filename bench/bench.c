/* bench.c - see bench.h. */
#include "bench.h"

#include "base/clock.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bench_case *bench_add(bench_table *table, const char *label)
{
    bench_case *added = &table->cases[table->count++];
    memset(added, 0, sizeof *added);
    snprintf(added->label, sizeof added->label, "%s", label);
    added->peak = table->peak;
    added->density = 1;
    return added;
}

void bench_figure_add(bench_table *table, double value, const char *format, ...)
{
    bench_figure *figure = &table->figures[table->figure_count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(figure->name, sizeof figure->name, format, arguments);
    va_end(arguments);
    figure->value = value;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* sorted: [count] */
static double quantile(const double *sorted, int count, double share)
{
    double place = share * (count - 1);
    int below = (int)place, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

void bench_summarise(bench_case *one, double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, ascending);
    one->median_s = quantile(seconds, count, 0.5);
    one->spread = (quantile(seconds, count, 0.75) - quantile(seconds, count, 0.25)) / fabs(one->median_s);
}

/* round: the seconds of all cases so far */
static double measure(const bench_case *one, const double *round)
{
    double begin = mcsa_seconds();
    if (one->run) one->run(one->context);
    if (one->stage) return *one->stage;
    return one->run ? mcsa_seconds() - begin : round[one->whole] - round[one->part];
}

static int timed(const bench_case *one)
{
    return !one->wrong && !one->missing[0];
}

mcsa_status bench_run(bench_table *table, int repeats, mcsa_error *error)
{
    double *seconds = calloc((size_t)table->count * (size_t)repeats, sizeof *seconds); /* [cases, repeats] */
    double round[BENCH_CASES] = { 0 };
    if (!seconds) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d cases of %d times", table->count, repeats);
    for (int r = -1; r < repeats; r++)
        for (int c = 0; c < table->count; c++) {
            if (!timed(&table->cases[c])) continue;
            round[c] = measure(&table->cases[c], round);
            if (r >= 0) seconds[c * repeats + r] = round[c];
        }
    for (int c = 0; c < table->count; c++)
        if (timed(&table->cases[c])) bench_summarise(&table->cases[c], seconds + c * repeats, repeats);
    free(seconds);
    return MCSA_OK;
}

double bench_speedup(const bench_table *table, const bench_case *one)
{
    const bench_case *base = &table->cases[one->base];
    return !timed(one) || !timed(base) || one->median_s == 0 ? 0 : base->median_s / one->median_s;
}

static double share_of_base(const bench_table *table, const bench_case *one)
{
    const bench_case *base = &table->cases[one->base];
    return !timed(one) || !timed(base) || base->median_s == 0 ? 0 : one->median_s / base->median_s;
}

static void print_values(const bench_column *columns, const bench_case *one, FILE *out)
{
    for (int i = 0; columns[i].key; i++) {
        if (!columns[i].heading) continue;
        if (isnan(one->values[i]))
            fprintf(out, " %9s", "");
        else if (columns[i].percent)
            fprintf(out, " %8.2f%%", 100 * one->values[i]);
        else
            fprintf(out, " %9.3f", one->values[i]);
    }
    fprintf(out, "\n");
}

static void print_row(const bench_table *table, const bench_case *one, FILE *out)
{
    fprintf(out, "%-34s %10.3f %6.1f%%", one->label, 1e3 * one->median_s, 100 * one->spread);
    if (table->columns) {
        print_values(table->columns, one, out);
        return;
    }
    char rate[16] = "", peak[16] = "";
    if (one->operations > 0) {
        snprintf(rate, sizeof rate, "%.0f", 1e-9 * one->operations / one->median_s);
        if (one->peak > 0) snprintf(peak, sizeof peak, "%.1f%%", 100 * one->operations / one->median_s / one->peak);
    }
    fprintf(out, " %9s %7s", rate, peak);
    double speedup = bench_speedup(table, one);
    if (table->share)
        fprintf(out, " %9.2f%%\n", 100 * share_of_base(table, one));
    else
        fprintf(out, " %8.2fx %6.3f\n", speedup, speedup * one->density);
}

static void print_headings(const bench_table *table, FILE *out)
{
    fprintf(out, "%s\n%-34s %10s %7s", table->title, "", "median ms", "spread");
    for (const bench_column *column = table->columns; column && column->key; column++)
        if (column->heading) fprintf(out, " %9s", column->heading);
    if (table->columns)
        fprintf(out, "\n");
    else if (table->share)
        fprintf(out, " %9s %7s %10s\n", "GFLOP/s", "of peak", table->share);
    else
        fprintf(out, " %9s %7s %9s %6s\n", "GFLOP/s", "of peak", "speed-up", "x s");
}

void bench_print(const bench_table *table, FILE *out)
{
    print_headings(table, out);
    for (int c = 0; c < table->count; c++)
        if (table->cases[c].wrong)
            fprintf(out, "%-34s wrong answer, not timed\n", table->cases[c].label);
        else if (table->cases[c].missing[0])
            fprintf(out, "%-34s %s\n", table->cases[c].label, table->cases[c].missing);
        else
            print_row(table, &table->cases[c], out);
    for (int f = 0; f < table->figure_count; f++)
        fprintf(out, "%-70s %12.4g\n", table->figures[f].name, table->figures[f].value);
}

static void add_numbers(cJSON *row, const bench_table *table, const bench_case *one)
{
    cJSON_AddNumberToObject(row, "density", one->density);
    if (one->tokens) cJSON_AddNumberToObject(row, "tokens", one->tokens);
    if (one->threads) cJSON_AddNumberToObject(row, "threads", one->threads);
    if (one->missing[0]) cJSON_AddStringToObject(row, "missing", one->missing);
    if (!timed(one)) return;
    cJSON_AddNumberToObject(row, "median_ms", 1e3 * one->median_s);
    cJSON_AddNumberToObject(row, "spread", one->spread);
    if (one->operations > 0) {
        double rate = one->operations / one->median_s;
        cJSON_AddNumberToObject(row, "gflops", 1e-9 * rate);
        if (one->peak > 0) {
            cJSON_AddNumberToObject(row, "peak_gflops", 1e-9 * one->peak);
            cJSON_AddNumberToObject(row, "of_peak", rate / one->peak);
        }
    }
    for (int i = 0; table->columns && table->columns[i].key; i++)
        if (!isnan(one->values[i])) cJSON_AddNumberToObject(row, table->columns[i].key, one->values[i]);
    cJSON_AddStringToObject(row, "base", table->cases[one->base].label);
    cJSON_AddNumberToObject(row, "speedup", bench_speedup(table, one));
    cJSON_AddNumberToObject(row, "share", share_of_base(table, one));
}

cJSON *bench_json(const bench_table *table)
{
    cJSON *root = cJSON_CreateObject(), *rows = cJSON_AddArrayToObject(root, "rows");
    cJSON *figures = cJSON_AddObjectToObject(root, "figures");
    int complete = cJSON_AddStringToObject(root, "title", table->title) && rows && figures;
    for (int c = 0; c < table->count && complete; c++) {
        const bench_case *one = &table->cases[c];
        cJSON *row = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(rows, row)) break;
        complete = cJSON_AddStringToObject(row, "case", one->label) &&
                   (one->missing[0] || cJSON_AddBoolToObject(row, "correct", !one->wrong));
        add_numbers(row, table, one);
    }
    for (int f = 0; f < table->figure_count && complete; f++)
        complete = cJSON_AddNumberToObject(figures, table->figures[f].name, table->figures[f].value) != NULL;
    if (complete) return root;
    cJSON_Delete(root);
    return NULL;
}
