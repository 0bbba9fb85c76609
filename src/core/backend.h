/* backend.h - the seam between what is computed and how: the verbs of the method on one kind of hardware.
 *
 * Arguments are checked at the public wall; below it only memory and a GPU can fail.  `reserve` makes all scratch that
 * calls of these dims need, so the verbs allocate nothing.  A verb that a GPU refuses makes the following ones do
 * nothing until `outcome` has told. */
#ifndef MCSA_CORE_BACKEND_H
#define MCSA_CORE_BACKEND_H

#include "base/status.h"
#include "plan.h"

/* What a backend is opened with. */
typedef struct mcsa_backend_options {
    mcsa_memory *memory; /* where selections, residuals and scratch lie; an empty allocator becomes the backend's own */
    int threads;
    int C; /* queries per group */
    mcsa_isa isa;
    mcsa_residual residual;
    int check_finite;
    int device_index;
    void *stream;
    mcsa_error *error; /* gets the sentence of a failed open that is not MCSA_ENOMEM */
} mcsa_backend_options;

/* Where attend_tokens reads the residual, or writes it at an anchor. */
typedef struct mcsa_residual_rows {
    mcsa_residual form;
    void *rows; /* [H, N] in group order */
    int record; /* 1: out holds the dense output; store out - sparse.  0: write sparse + residual to out */
} mcsa_residual_rows;

typedef struct mcsa_backend {
    const char *name;
    const char *version; /* MCSA_VERSION, equal in all parts, since they share these structs */
    mcsa_status (*gpu_read)(mcsa_gpu *gpu, int index, mcsa_error *error); /* NULL for the CPU */
    mcsa_status (*open)(void **state, const mcsa_backend_options *options);
    void (*close)(void *state);
    /* Whether the verbs take tensors of this dtype, shape, alignment and place. */
    mcsa_status (*supports)(const void *state, const mcsa_qkv *x, mcsa_error *error);
    /* K rows that a group attends to and P clusters of keys, as in mcsa_selection; both 0 when only attend_dense
     * follows. */
    mcsa_status (*reserve)(void *state, const mcsa_dims *dims, int K, int P);
    int64_t (*scratch_bytes)(const void *state);
    int64_t (*residual_bytes)(mcsa_residual form, const mcsa_dims *dims);

    /* out = softmax(q k^T scale) v;  lse: [H, N] natural log, or NULL */
    void (*attend_dense)(void *state, const mcsa_qkv *x, float *lse);
    /* q -> selection->order */
    void (*group)(void *state, const mcsa_qkv *x, mcsa_selection *selection);
    /* k -> selection->members and first; P > 0 */
    void (*cluster)(void *state, const mcsa_qkv *x, mcsa_selection *selection);
    /* q, k, lse, order, clusters -> selection->kept */
    void (*select)(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *selection);
    /* attend_dense and select at once, from order and clusters: out and selection->kept.  Returns the query-key pairs
     * beyond those of attend_dense, half a pair for scores alone.  NULL: this backend attends, then selects. */
    double (*attend_select)(void *state, const mcsa_qkv *x, mcsa_selection *selection);
    /* sparse attention of every group over its kept keys, and over the means of the clusters that it does not keep as
     * they are now.  Returns the query-key pairs computed, padding included; a mean counts as a key. */
    int64_t (*attend_tokens)(void *state, const mcsa_qkv *x, const mcsa_selection *selection,
                             const mcsa_residual_rows *residual);

    /* The first failure since the last call, with its sentence, or MCSA_OK. */
    mcsa_status (*outcome)(void *state, mcsa_error *error);
    /* The stage clock: the seconds since the last lap are added to *stage, at once or when settled; NULL starts it. */
    void (*lap)(void *state, double *stage);
    void (*settle)(void *state);
} mcsa_backend;

/* The CPU backend at most at `isa`. */
extern const mcsa_backend mcsa_backend_cpu;

/* That of the CPU, or the one in libmcsa_cuda, loaded when first asked for.  MCSA_EUNSUPPORTED says why it cannot be.
 */
mcsa_status mcsa_backend_find(const mcsa_backend **backend, mcsa_device device, mcsa_error *error);

#endif
