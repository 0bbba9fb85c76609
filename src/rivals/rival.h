/* rival.h - other methods of sparse attention, run like an mcsa_run: the same schedule, dense kernel and noise, so that
 * only the method differs. */
#ifndef RIVALS_RIVAL_H
#define RIVALS_RIVAL_H

#include "base/status.h"
#include "method.h"

typedef struct rival_config {
    mcsa_config attention; /* steps, layers, branches, density, schedule or actions, threads, isa, device, stream */
    const char *method;    /* a name of rival_methods */
    int residual;          /* 1: add the residual dense - sparse of the last anchor to the method's output */
    int grid[3];           /* frames, rows, columns of tokens; 0: unknown */
    uint64_t seed;
} rival_config;

typedef struct rival_run rival_run;

/* Errors: those of mcsa_run_create, and MCSA_EINVAL for an unknown method or one that needs the grid. */
mcsa_status rival_run_create(rival_run **out, const rival_config *config, mcsa_error *error);
void rival_run_free(rival_run *run);

/* As mcsa_attend.  `error` gets the sentence. */
mcsa_status rival_attend(rival_run *run, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                         const mcsa_tensor *out);
const char *rival_run_error(const rival_run *run);

/* What will be computed there: MCSA_DENSE, MCSA_ANCHOR where a dense call teaches the method or its residual, or
 * MCSA_REUSE for all that the method computes.  -1 when out of range. */
int rival_run_action(const rival_run *run, mcsa_site at);

/* The run that computes the dense calls; cross-attention goes there too. */
mcsa_run *rival_run_dense(rival_run *run);

/* What the latest call computed, or an anchor beside its dense output for the residual: the method's, valid until the
 * next call.  NULL before the first. */
const rival_choice *rival_run_choice(const rival_run *run);

typedef struct rival_stats {
    int64_t dense, anchor, sparse; /* calls; anchor: dense calls whose residual or choice later calls use */
    double density_nominal;        /* query-key pairs of sparse calls over H N N, true sizes */
    double density_executed;       /* the same with each part of the queries padded to RIVAL_TILE; tails not counted */
    double density_tail;           /* query times virtual keys of tails, over H N N */
    double density_run; /* executed and tail over all calls; a dense call counts 1, and what its residual took */
    double attention_s, dense_s, choose_s, attend_s; /* wall time with the backend idle at the ends */
    int64_t held_bytes;                              /* of residuals and of what the method keeps between steps */
} rival_stats;

void rival_run_stats(const rival_run *run, rival_stats *stats);

#endif
