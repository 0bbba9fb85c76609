/* ladder.h - the steps between block-sparse attention and MC-Sparse (table 3 of the paper): at an anchor the queries
 * are cut into groups, the exact attention of each group over parts of the keys is measured, and the parts with most of
 * it are kept until the next anchor. */
#ifndef RIVALS_LADDER_H
#define RIVALS_LADDER_H

#include "blocks.h"

typedef struct rival_rung rival_rung;

/* Cuts the queries of a call into groups. */
typedef mcsa_status (*rival_group_queries)(rival_rung *rung, const rival_call *call, rival_partition *queries,
                                           mcsa_error *error);

/* What one (layer, branch) keeps between anchors. */
typedef struct rival_kept {
    rival_choice choice;
    mcsa_dims dims;
    int step; /* of the anchor; -1: none */
} rival_kept;

/* State of one method; the first member of whatever else a method holds. */
struct rival_rung {
    rival_setup setup;
    rival_group_queries group;
    int key_rows;     /* of a part of the keys: 64 are a block, 1 a token */
    rival_kept *kept; /* [layers, branches] */
};

/* Rows of a block of queries and of keys.  INFERRED, as in bsa.c. */
enum { RIVAL_BLOCK_QUERIES = 128, RIVAL_BLOCK_KEYS = 64 };

mcsa_status rival_rung_init(rival_rung *rung, const rival_setup *setup, rival_group_queries group, int key_rows,
                            mcsa_error *error);
void rival_rung_release(rival_rung *rung);

/* The same for a method whose state is a rung alone. */
mcsa_status rival_rung_open(void **state, const rival_setup *setup, rival_group_queries group, int key_rows,
                            mcsa_error *error);
void rival_rung_close(void *state);

/* The observe and choose of a rival_method whose state begins with a rung. */
mcsa_status rival_rung_observe(void *state, const rival_call *call, mcsa_error *error);
mcsa_status rival_rung_choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error);

/* Its held: the order of the queries and the map of every (layer, branch), as MC-Sparse counts its own. */
int64_t rival_rung_held(const void *state);

/* For methods that keep parts by a rule of their own: what (layer, branch) holds, cut into groups and parts, with an
 * empty map; it serves later calls when its step has been set. */
mcsa_status rival_rung_begin(rival_rung *rung, const rival_call *call, rival_kept **kept, mcsa_error *error);

/* Fills the map of what rival_rung_begin made with the parts of largest mass, at this share of the keys, for later
 * calls. */
mcsa_status rival_rung_keep(const rival_rung *rung, const rival_call *call, rival_kept *kept, double share,
                            mcsa_error *error);

/* mass [Q, K] of head h, by kernels->mass. */
mcsa_status rival_rung_mass(const rival_rung *rung, const rival_call *call, const rival_choice *choice, int h,
                            float *mass, mcsa_error *error);

/* Groups of 128 consecutive queries, and MC-Sparse's: Fast PDDP, by the backend of the dense run. */
mcsa_status rival_group_consecutive(rival_rung *rung, const rival_call *call, rival_partition *queries,
                                    mcsa_error *error);
mcsa_status rival_group_pddp(rival_rung *rung, const rival_call *call, rival_partition *queries, mcsa_error *error);

#endif
