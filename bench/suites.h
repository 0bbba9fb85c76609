/* suites.h - the tables of `mcsa bench`. */
#ifndef MCSA_BENCH_SUITES_H
#define MCSA_BENCH_SUITES_H

#include "bench.h"
#include "dit/wan.h"
#include "problem.h"

enum { BENCH_DENSITIES = 8 };

/* Of the tables about grouping: centres of the queries, and steps of the schedule whose anchors group. */
enum { BENCH_CLUSTERS = 64, BENCH_RAMP_STEPS = 40 };

/* A model of a published shape, with random weights, and the latent of its usual clip. */
typedef struct bench_model_shape {
    const char *name;
    dit_wan_config config;
    int frames, height, width;
} bench_model_shape;

extern const bench_model_shape bench_model_shapes[]; /* ends with a NULL name */

typedef struct bench_plan {
    bench_shape shape;
    float densities[BENCH_DENSITIES];
    int density_count, repeats;
    int ffn;                       /* inner channels of the feed-forward layers: gemm */
    const char *model;             /* directory, or NULL: model, scaling */
    const bench_model_shape *made; /* instead of a directory, or NULL: model */
    int steps;                     /* to run for real besides, or 0: model on a GPU */
    mcsa_device device;            /* attend, select, group, model, methods */
    mcsa_tail tail;                /* model, scaling; the others have rows of both */
    int frames, height, width;     /* of the model's clip */
    const char *methods;           /* names with commas between, or NULL for all: methods */
} bench_plan;

/* What groups keep in the tables of attention: see attend.c. */
typedef struct bench_pattern {
    const char *name;
    mcsa_tail tail;
    int run; /* of neighbours among the kept keys */
} bench_pattern;

enum { BENCH_PATTERNS = 3 };
extern const bench_pattern bench_patterns[BENCH_PATTERNS];

/* Dense attention, and token-sparse attention at each density by every pattern. */
mcsa_status bench_attend(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* Selection at the first density: the mass pass and top-K apart, clusters of keys and selection by them, against dense
 * attention. */
mcsa_status bench_select(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* Fast PDDP and clusters of keys at half, once and twice the tokens, against dense attention, and what Fast PDDP does
 * to the variance. */
mcsa_status bench_group(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* A reuse step at the first density with every form of the residual, and what it costs beside the tiles; with means. */
mcsa_status bench_reuse(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* The linear layers of a block of heads x dim channels, BF16 and F32. */
mcsa_status bench_gemm(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* A dense, an anchor and a reuse step of a model by stage, and the peak of resident memory. */
mcsa_status bench_model(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* A sparse call of every method, at each density, against dense attention, and a run of 40 steps of it. */
mcsa_status bench_methods(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* The first three on a GPU: attend with cuDNN beside it and whole anchor layers by their parts, select with grouping.
 */
mcsa_status bench_attend_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error);
mcsa_status bench_select_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error);
mcsa_status bench_group_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* Calls of group per step over a ramp of BENCH_RAMP_STEPS. */
double bench_groupings_per_step(void);

/* A model on a GPU, with what a schedule then costs. */
mcsa_status bench_model_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error);

/* Attention, and the model's steps when there is one, over threads and over tokens. */
mcsa_status bench_scaling(const bench_plan *plan, bench_table *table, mcsa_error *error);

#endif
