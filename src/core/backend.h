/* backend.h - the seam between what is computed and how: the four verbs of the method on one kind of hardware.
 *
 * Arguments are checked at the public wall; below it nothing can be wrong except memory.  `reserve` makes all scratch
 * that calls of these dims need, so the verbs allocate nothing. */
#ifndef MCSA_CORE_BACKEND_H
#define MCSA_CORE_BACKEND_H

#include "base/status.h"
#include "plan.h"

/* What a backend is opened with. */
typedef struct mcsa_backend_options {
    mcsa_memory *memory;
    int threads;
    int C; /* queries per group */
    mcsa_isa isa;
} mcsa_backend_options;

/* Where attend_tokens reads the residual, or writes it at an anchor. */
typedef struct mcsa_residual_rows {
    mcsa_residual form;
    void *rows; /* [H, N] in group order */
    int record; /* 1: out holds the dense output; store out - sparse.  0: write sparse + residual to out */
} mcsa_residual_rows;

typedef struct mcsa_backend {
    const char *name;
    mcsa_status (*open)(void **state, const mcsa_backend_options *options);
    void (*close)(void *state);
    mcsa_status (*reserve)(void *state, const mcsa_dims *dims);
    int64_t (*scratch_bytes)(const void *state);
    int64_t (*residual_bytes)(mcsa_residual form, const mcsa_dims *dims);

    /* out = softmax(q k^T scale) v;  lse: [H, N] natural log, or NULL */
    void (*attend_dense)(void *state, const mcsa_qkv *x, float *lse);
    /* q -> selection->order */
    void (*group)(void *state, const mcsa_qkv *x, mcsa_selection *selection);
    /* q, k, lse, order -> selection->kept */
    void (*select)(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *selection);
    /* sparse attention of every group over its kept keys.  Returns the query-key pairs computed, padding included. */
    int64_t (*attend_tokens)(void *state, const mcsa_qkv *x, const mcsa_selection *selection,
                             const mcsa_residual_rows *residual);
} mcsa_backend;

/* The CPU backend at most at `isa`. */
extern const mcsa_backend mcsa_backend_cpu;

#endif
