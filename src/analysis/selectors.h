/* selectors.h - the ways to choose keys that are set against each other: how queries are grouped, whether keys are kept
 * one by one or in blocks, and whether the scores are exact attention mass or those of means. */
#ifndef ANALYSIS_SELECTORS_H
#define ANALYSIS_SELECTORS_H

#include "core/backend.h"
#include "head.h"

enum {
    ANALYSIS_DENSITIES = 8, /* at most, in one analysis */
    ANALYSIS_BLOCK = 64     /* consecutive keys of a block: one word of a bitmap */
};

typedef enum analysis_selector {
    ANALYSIS_POOLED, /* consecutive queries, blocks of keys by the product of means: vanilla BSA */
    ANALYSIS_BLOCKS, /* the same blocks by exact mass: the block oracle */
    ANALYSIS_TOKENS, /* consecutive queries, single keys by exact mass: the token oracle with shared queries */
    ANALYSIS_PDDP_BLOCKS,
    ANALYSIS_PDDP_TOKENS, /* what MC-Sparse keeps at an anchor, without a tail */
    ANALYSIS_KMEANS_BLOCKS,
    ANALYSIS_KMEANS_TOKENS,
    ANALYSIS_PDDP_64,
    ANALYSIS_PDDP_256,
    ANALYSIS_SELECTORS
} analysis_selector;

typedef enum analysis_grouping { ANALYSIS_CONSECUTIVE, ANALYSIS_PDDP, ANALYSIS_KMEANS } analysis_grouping;

typedef struct analysis_rule {
    const char *name;    /* "exact-blocks", as the report calls it */
    const char *meaning; /* for people */
    analysis_grouping grouping;
    int group; /* queries of a group; their mean for k-means */
    int unit;  /* keys that are kept together */
    int pooled;
} analysis_rule;

extern const analysis_rule analysis_rules[ANALYSIS_SELECTORS];

/* What one selector keeps of one head, at every density. */
typedef struct analysis_choice {
    rival_partition queries;
    rival_map map[ANALYSIS_DENSITIES];
    double alignment;                    /* executed over nominal pairs */
    double executed[ANALYSIS_DENSITIES]; /* pairs over N N, alignment counted: few keys cannot be cut finely */
} analysis_choice;

void analysis_choice_free(analysis_choice *choice);

/* What choosing needs, for heads of one shape. */
typedef struct analysis_chooser {
    const analysis_machine *machine;
    int densities;
    double density[ANALYSIS_DENSITIES]; /* ascending */
    int N;
    rival_partition blocks, tokens; /* of the keys */
    mcsa_memory memory;
    void *group_state[3]; /* of the CPU's backend, for groups of 64, 128 and 256 */
    mcsa_selection order; /* of the last grouping */
    float *mass;          /* [P, N] of the last grouping */
    float *score;         /* [P, N / ANALYSIS_BLOCK] */
    size_t mass_room, score_room;
} analysis_chooser;

mcsa_status analysis_chooser_open(analysis_chooser *c, const analysis_machine *machine, int densities,
                                  const double *density, const mcsa_config *config, mcsa_error *error);
/* For heads of N rows. */
mcsa_status analysis_chooser_fit(analysis_chooser *c, int N, mcsa_error *error);
void analysis_chooser_close(analysis_chooser *c);

/* What every selector keeps; the denominators of dense attention lie in head->lse. */
mcsa_status analysis_choose(analysis_chooser *c, analysis_head *head, analysis_choice choices[ANALYSIS_SELECTORS],
                            mcsa_error *error);

/* Single keys that a density comes to, as METHOD.md counts: K of N. */
int analysis_keys_kept(int N, double density);

/* The partition of the keys that a selector's maps are over. */
const rival_partition *analysis_keys(const analysis_chooser *c, analysis_selector s);

#endif
