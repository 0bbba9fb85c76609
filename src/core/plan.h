/* plan.h - the nouns that cross the stages: what an anchor chooses (selection) and what a (layer, branch) caches
 * (plan). */
#ifndef MCSA_CORE_PLAN_H
#define MCSA_CORE_PLAN_H

#include "base/memory.h"
#include "mcsa.h"

/* Sizes of one attention call. */
typedef struct mcsa_dims {
    int H, N, M, D; /* heads, queries, keys (M = N in self-attention), head dimension */
    mcsa_dtype dtype;
} mcsa_dims;

/* One attention call.  Tensors are [H, N, D] and [H, M, D] views, checked. */
typedef struct mcsa_qkv {
    const mcsa_tensor *q, *k, *v, *out;
    mcsa_dims dims;
    float scale;
} mcsa_qkv;

enum { MCSA_MAX_CLUSTERS = 8192 }; /* of a head's keys: a GPU ranks those of a group on chip */

/* Groups of similar queries and what each group attends to: K keys, chosen one by one (P = 0); or at most K rows, the
 * keys of the clusters that it keeps and the means of all others (P > 0). */
typedef struct mcsa_selection {
    int H, N, C, G, K;
    int P;             /* clusters of keys per head, or 0 */
    int64_t words;     /* of one group's bitmap: ceil(N / 64), or ceil(P / 64) */
    int32_t *order;    /* [H, N] queries; group g of a head is order[g C .. min((g + 1) C, N)) */
    int32_t *members;  /* [H, N] keys; cluster p of a head is members[first[p] .. first[p + 1]), ascending; maybe empty */
    int32_t *first;    /* [H, P + 1] */
    uint64_t *kept;    /* [H, G, words] bit j: key j, or cluster p, is kept; exactly K keys per group when P = 0 */
    int64_t number;    /* identifies this choice among all of the run; 0: none */
    mcsa_block memory; /* of the four arrays; members and first are NULL when P = 0 */
} mcsa_selection;

/* What one (layer, branch) remembers between steps. */
typedef struct mcsa_plan {
    mcsa_dims dims;
    int step;            /* of the anchor; -1: none */
    int64_t selection;   /* number of the choice that the residual was recorded with */
    mcsa_selection own;  /* used by this branch, and by followers when the branch leads */
    int follows;         /* 1: the choice is that of branch 0 of the layer */
    mcsa_block residual; /* [H, N] rows in group order, residual_row_bytes each */
} mcsa_plan;

/* Queries of group g. */
static inline int mcsa_group_size(const mcsa_selection *s, int g)
{
    int left = s->N - g * s->C;
    return left < s->C ? left : s->C;
}

#endif
