/* bench.h - timing that can be trusted on a shared machine.
 *
 * All cases of a table are run in turn, round after round, so that whatever else the machine does hits them alike; the
 * table quotes medians over the rounds and the spread between the quartiles.  A case is timed only after its answer was
 * found right. */
#ifndef MCSA_BENCH_BENCH_H
#define MCSA_BENCH_BENCH_H

#include "base/status.h"

#include <cjson/cJSON.h>
#include <stdio.h>

enum { BENCH_CASES = 192, BENCH_FIGURES = 16, BENCH_COLUMNS = 16, BENCH_REPEATS_MAX = 1000 };

/* A row is timed (run), or measures itself when run (run and stage), or is a stage that the latest run of a case above
 * measured (stage), or the difference of two cases above, round by round (whole and part). */
typedef struct bench_case {
    char label[48];
    void (*run)(void *context);
    void *context;
    const double *stage; /* seconds */
    int whole, part;
    int base;                     /* the case whose time it is compared with */
    int tokens, threads;          /* 0: those of the title */
    double operations;            /* floating-point operations that the answer needs; 0: not counted */
    double peak;                  /* operations per second; 0: unknown */
    double density;               /* s: pairs computed over all pairs; 1 for dense */
    int wrong;                    /* the gate failed: not timed */
    char missing[96];             /* why there is nothing to time, or "" */
    double median_s, spread;      /* spread: (third - first quartile) / median */
    double values[BENCH_COLUMNS]; /* of the table's columns; NaN: none */
} bench_case;

/* A number of each row that is not its time. */
typedef struct bench_column {
    const char *key;     /* in JSON */
    const char *heading; /* NULL: in JSON only */
    int percent;         /* of a share, when printed */
} bench_column;

/* A number that is no time: "variance in groups / in file order", 0.61. */
typedef struct bench_figure {
    char name[80];
    double value;
} bench_figure;

typedef struct bench_table {
    const char *title;
    const char
        *share; /* heading of a last column with the share of the base's time; NULL: speed-up, and that times s */
    const bench_column *columns; /* in place of those behind the spread; ended by a NULL key; or NULL */
    double peak;                 /* of new cases */
    int count, figure_count;
    bench_case cases[BENCH_CASES];
    bench_figure figures[BENCH_FIGURES];
} bench_table;

/* The new last case: its base is case 0, its peak the table's, its density 1, and the rest zero. */
bench_case *bench_add(bench_table *table, const char *label);

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void bench_figure_add(bench_table *table, double value, const char *format, ...);

/* Times every case that is not wrong: one warm-up each, then `repeats` rounds. */
mcsa_status bench_run(bench_table *table, int repeats, mcsa_error *error);

/* Sorts `seconds` [count] and fills median and spread; quartiles between two values are interpolated. */
void bench_summarise(bench_case *one, double *seconds, int count);

/* Time of the base over the time of `one`; 0 when either was not timed. */
double bench_speedup(const bench_table *table, const bench_case *one);

/* Columns: median, spread, and those of the table, or else GFLOP/s, share of peak, and what bench_table.share says. */
void bench_print(const bench_table *table, FILE *out);
cJSON *bench_json(const bench_table *table); /* NULL without memory */

#endif
