/* suites.h - the tables of `mcsa bench`. */
#ifndef MCSA_BENCH_SUITES_H
#define MCSA_BENCH_SUITES_H

#include "bench.h"

typedef struct bench_plan {
    bench_shape shape;
    float densities[8];
    int density_count, repeats;
} bench_plan;

/* Dense attention, and token-sparse attention at each density with clustered and with scattered kept keys. */
mcsa_status bench_attend(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* The parts of an anchor beside dense attention: grouping, selection, recording the residual; and a reuse step. */
mcsa_status bench_anchor(const bench_plan *plan, bench_table *table, mcsa_error *error);

#endif
