/* bench.h - timing that can be trusted on a shared machine.
 *
 * All cases of a table are run in turn, round after round, so that whatever else the machine does hits them alike; the
 * table quotes medians over the rounds and the spread between the quartiles.  A case is timed only after its answer was
 * found right. */
#ifndef MCSA_BENCH_BENCH_H
#define MCSA_BENCH_BENCH_H

#include "core/backend.h"

#include <cjson/cJSON.h>
#include <stdio.h>

enum { BENCH_CASES = 32, BENCH_REPEATS_MAX = 1000 };

typedef struct bench_case {
    char label[40];
    void (*run)(void *context);
    void *context;
    double operations;       /* floating-point operations that the answer needs */
    double density;          /* s: pairs computed over all pairs; 1 for dense */
    int wrong;               /* the gate failed: not timed */
    double median_s, spread; /* spread: (third - first quartile) / median */
} bench_case;

typedef struct bench_table {
    const char *title;
    double peak; /* operations per second, for the last column but two; 0: unknown */
    int count;
    bench_case cases[BENCH_CASES];
} bench_table;

/* The new last case, zeroed but for its label. */
bench_case *bench_add(bench_table *table, const char *label);

/* Times every case that is not wrong: one warm-up each, then `repeats` rounds. */
mcsa_status bench_run(bench_table *table, int repeats, mcsa_error *error);

/* Columns: median, spread, GFLOP/s, share of peak, speed-up over the first case, and that times s (1: ideal). */
void bench_print(const bench_table *table, FILE *out);
cJSON *bench_json(const bench_table *table); /* NULL without memory */

/* One attention problem with normally distributed q, k, v, and the backend's state to run it on. */
typedef struct bench_problem {
    mcsa_qkv x;
    mcsa_tensor q, k, v, out; /* [H, N, D] */
    mcsa_memory memory;
    mcsa_block block; /* of the tensors and lse */
    float *lse;       /* [H, N] */
    void *state;
} bench_problem;

typedef struct bench_shape {
    int heads, tokens, dim, group, threads;
    mcsa_dtype dtype;
    mcsa_isa isa;
} bench_shape;

mcsa_status bench_problem_open(bench_problem *problem, const bench_shape *shape, mcsa_error *error);
void bench_problem_close(bench_problem *problem);

/* Compares sampled rows of out with attention in double over the kept keys (all when kept is NULL), by the bound of
 * docs/NUMERICS.md.  Returns the largest share of the bound that was used; above 1 is wrong. */
double bench_check_rows(const bench_problem *problem, const mcsa_selection *selection);

#endif
