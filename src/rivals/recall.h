/* recall.h - the attention that sparse calls keep, of sampled queries: for query i the sum of A_ij over the keys j that
 * it attends to one by one, where A_ij = softmax_j(scale q_i . k_j) is exact with the q and k of that very call.  Means
 * and virtual keys, which stand for many, do not count; keeping every key is 1. */
#ifndef RIVALS_RECALL_H
#define RIVALS_RECALL_H

#include "method.h"

enum {
    RIVAL_RECALL_QUERIES = 32, /* of each head, evenly spread; all where there are fewer */
    RIVAL_RECALL_STEPS = 8     /* of the sparse steps of a layer, likewise */
};

typedef struct rival_recall rival_recall;

/* For calls of `run`, and of a rival_run whose dense calls it computes.  It borrows the run.  *out is NULL after a
 * failure. */
mcsa_status rival_recall_open(rival_recall **out, mcsa_run *run, mcsa_error *error);
void rival_recall_close(rival_recall *recall); /* NULL is fine */

/* Whether sparse step number i of n is among those to look at, all of them where n is small. */
int rival_recall_samples(int i, int n);

/* A call that computed `choice`.  Of x only q, k, v and out need be there, all as the call had them. */
mcsa_status rival_recall_add(rival_recall *recall, const mcsa_qkv *x, const rival_choice *choice, mcsa_error *error);

/* A call that mcsa_attend computed last at that site, with MC-Sparse's choice; nothing where it became an anchor. */
mcsa_status rival_recall_add_reuse(rival_recall *recall, mcsa_site at, const mcsa_qkv *x, mcsa_error *error);

typedef struct rival_recalled {
    double mean; /* over all queries of all heads and calls; NaN before the first */
    int64_t queries;
    double seconds; /* wall time of looking, the backend idle before it */
} rival_recalled;

rival_recalled rival_recall_read(const rival_recall *recall);

#endif
