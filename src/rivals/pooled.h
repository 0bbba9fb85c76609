/* pooled.h - what methods that judge blocks of keys by mean query and mean key share: the means, their scores, and the
 * tail made of them. */
#ifndef RIVALS_POOLED_H
#define RIVALS_POOLED_H

#include "method.h"

/* State of one method, reused by all its calls.  H heads, Q blocks of queries, K of keys: those of choice.map. */
typedef struct rival_pooled {
    rival_setup setup;
    rival_choice choice;        /* its tail, where there is one, lies in the arrays below */
    mcsa_dims dims;             /* that the arrays have room for */
    float *query, *key, *value; /* [H, Q, D], [H, K, D], [H, K, D] means of blocks */
    float *weight;              /* [H, K] rows of each block of keys */
    float *slope;               /* [H, D, D] */
    float *score;               /* [H, Q, K] */
} rival_pooled;

mcsa_status rival_pooled_open(void **state, const rival_setup *setup, mcsa_error *error);
void rival_pooled_close(void *state);

/* Blocks of consecutive rows, an empty map, no tail, and room for all arrays.  The sizes are the same in all calls. */
mcsa_status rival_pooled_begin(rival_pooled *p, const mcsa_qkv *x, int query_size, int key_size, mcsa_error *error);

/* query and key, and score = scale query . key, summed in FP32. */
mcsa_status rival_pooled_score(rival_pooled *p, const mcsa_qkv *x, float scale, mcsa_error *error);

/* Blocks that are not kept come in as one virtual key each: mean key, mean value and number of rows. */
mcsa_status rival_pooled_tail(rival_pooled *p, const mcsa_qkv *x, mcsa_error *error);

#endif
