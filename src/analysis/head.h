/* head.h - one head of a captured call where the backend computes, and exact attention of it over any choice of parts.
 *
 * Heads are taken one at a time, so that memory does not grow with their number: at 75,600 tokens the masses of one
 * head are 179 MB. */
#ifndef ANALYSIS_HEAD_H
#define ANALYSIS_HEAD_H

#include "rivals/kernels.h"

/* A captured call: contiguous tensors [H, N, D] of the host, alike in shape and dtype, unaligned perhaps. */
typedef struct analysis_call {
    mcsa_site at;
    mcsa_tensor q, k, v;
    float scale; /* of the scores */
} analysis_call;

/* What computes. */
typedef struct analysis_machine {
    const rival_kernels *kernels;
    void *backend; /* state of the kernels */
    int threads;   /* of the host */
} analysis_machine;

typedef struct analysis_head {
    const analysis_machine *machine;
    int N, D;
    mcsa_tensor host[3];      /* q, k, v [1, N, D] */
    mcsa_tensor q, k, v, out; /* [1, N, D] the backend's memory */
    mcsa_qkv x;               /* of these */
    float *lse;               /* [N] of the last attend, the backend's memory */
    int32_t *every;           /* [N] 0, 1, 2, ... */
    rival_partition whole;    /* all rows in order, as blocks of 128 */
    rival_map all;            /* each of them attends to all keys */
} analysis_head;

/* Makes room for a head of N rows like those of `call`; what was there is released. */
mcsa_status analysis_head_open(analysis_head *head, const analysis_machine *machine, const analysis_call *call,
                               mcsa_error *error);
void analysis_head_close(analysis_head *head);

/* Takes head h of the call. */
mcsa_status analysis_head_load(analysis_head *head, const analysis_call *call, int h, mcsa_error *error);

/* Row n of a contiguous tensor [1, N, D] of the host as floats, exactly: row [D]. */
void analysis_row(const mcsa_tensor *t, int64_t n, float *row);

/* Exact attention over the kept parts: out [N, D], lse [N] natural log of what was kept. */
mcsa_status analysis_head_attend(analysis_head *head, const rival_partition *queries, const rival_partition *keys,
                                 const rival_map *map, float *out, float *lse, mcsa_error *error);

/* The same over all keys; leaves the denominators in head->lse for masses. */
mcsa_status analysis_head_dense(analysis_head *head, float *out, float *lse, mcsa_error *error);

#endif
