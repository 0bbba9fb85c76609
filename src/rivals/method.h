/* method.h - the interface behind `--method NAME`: how one method chooses what to compute.
 *
 * run.c knows the schedule and executes choices; a method only makes them.  At REUSE steps (and at ANCHOR steps of
 * methods that need none) it is asked to `choose`; at every dense step it may `observe` q, k, v and the row LSE. */
#ifndef RIVALS_METHOD_H
#define RIVALS_METHOD_H

#include "kernels.h"

/* What a method is opened with, one per run. */
typedef struct rival_setup {
    const rival_kernels *kernels;
    void *backend;   /* state of the kernels */
    mcsa_run *dense; /* computes the dense calls; its backend groups queries */
    int layers, branches;
    int grid[3];    /* frames, rows, columns of tokens; N is their product, or all are 0: unknown */
    double density; /* executed query-key pairs that each call may take, over H N N */
    int threads;    /* of the host */
    uint64_t seed;  /* of random starts and sampled rows */
} rival_setup;

typedef struct rival_call {
    mcsa_site at;
    const mcsa_qkv *x;
    float *lse; /* [H, N] the backend's memory; observe: of dense attention now; choose: room for attend's */
    int anchor; /* observe: the schedule's anchor, not just a dense step */
} rival_call;

/* What is to be computed: exact attention over the kept parts, and the tail when there is one. */
typedef struct rival_choice {
    rival_partition queries, keys;
    rival_map map;
    rival_tail tail; /* key NULL: none */
} rival_choice;

void rival_choice_free(rival_choice *choice);

typedef struct rival_method {
    const char *name;
    const char *summary; /* one line for --help and docs */
    int anchors;         /* 1: uses the schedule's later anchors; 0: only its dense warm-up */
    int grid;            /* 1: needs the grid of tokens */
    int residual;        /* 1: always with the residual of the last anchor */
    mcsa_status (*open)(void **state, const rival_setup *setup, mcsa_error *error);
    void (*close)(void *state);
    /* Dense attention was just computed.  NULL: nothing is learned there. */
    mcsa_status (*observe)(void *state, const rival_call *call, mcsa_error *error);
    /* *choice stays the method's and is valid until its next call. */
    mcsa_status (*choose)(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error);
    /* Bytes kept from call to call for their content.  NULL: none. */
    int64_t (*held)(const void *state);
} rival_method;

/* All methods, ended by NULL; "mc-sparse" is not among them: mcsa_run is that. */
extern const rival_method *const rival_methods[];
const rival_method *rival_method_find(const char *name);

#endif
