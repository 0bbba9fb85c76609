/* attention_run.h - whoever computes the attention of one clip: MC-Sparse, dense attention or another method,
 * by name, and what it cost. */
#ifndef MCSA_CLI_ATTENTION_RUN_H
#define MCSA_CLI_ATTENTION_RUN_H

#include "attention.h"
#include "dit/wan.h"
#include "rivals/recall.h"
#include "rivals/rival.h"

typedef struct attention_order {
    const attention_settings *settings; /* settled */
    int steps, layers, branches;
    int grid[3]; /* frames, rows, columns of tokens */
    int threads; /* 0: all */
    mcsa_isa isa;
    mcsa_device device;
    uint64_t seed; /* of what another method draws */
    int recall;    /* 1: measured, in a sample of the sparse calls */
} attention_order;

typedef struct attention_run {
    mcsa_run *run;        /* owned by `rival` where there is one; cross-attention goes here */
    rival_run *rival;     /* NULL with MC-Sparse and dense attention */
    rival_recall *recall; /* NULL: not measured */
    mcsa_error error;     /* of measuring recall; "" while that goes well */
    dit_attention self;
    double density; /* asked */
    int steps;
    int tokens, rows; /* of a self-attention call, and its queries in whole groups on a GPU */
} attention_run;

/* Errors: those of mcsa_run_create and rival_run_create.  On failure nothing is held. */
mcsa_status attention_run_open(attention_run *out, const attention_order *order, mcsa_error *error);
void attention_run_close(attention_run *r);

/* What the transformer is to call for self-attention; NULL: r->run.  Valid while r stays where it is. */
const dit_attention *attention_run_self(const attention_run *r);

/* As mcsa_run_action: an anchor that a method makes no use of is none. */
int attention_run_action(const attention_run *r, mcsa_site at);

/* Densities are shares of all query-key pairs.  Seconds are wall seconds; on a GPU those of
 * MC-Sparse and of dense calls are the GPU's own. */
typedef struct attention_cost {
    int64_t dense, anchor, reuse, fallback; /* calls of self-attention; reuse: any method's sparse ones */
    double density_requested;
    double density_nominal;  /* of sparse calls, on true sizes; with tail means at most, by a few keys */
    double density_executed; /* of sparse calls, with the padding of tiles of queries */
    double density_tail;     /* of sparse calls of other methods, pairs with a virtual key that stands for
                                many; the means of mc-sparse are in the two above */
    double density_run;      /* executed and tail over all calls */
    double attention_s;      /* self- and cross-attention; the stages below are parts of it */
    double dense_s, grouping_s, selection_s, /* grouping_s: of queries, and of keys for means */
        sparse_s;                            /* selection_s: all that another method does to choose */
    int64_t selection_bytes, residual_bytes; /* 0 for other methods, which do not tell them apart */
    int64_t held_bytes;                      /* between steps */
    double recall;   /* as rivals/recall.h defines it; INFINITY: not measured, or no sparse call */
    double recall_s; /* of measuring it, not part of attention_s */
} attention_cost;

mcsa_status attention_run_cost(const attention_run *r, attention_cost *cost);

#endif
