/* pisa.c - PISA, piecewise sparse attention (arXiv 2602.01077): the blocks with the highest scores of means exactly,
 * the others by their sums, with one first-order term for all of them.
 *
 * Blocks of 64.  A block that is not kept adds, for each query, its rows at the score of its mean key, and every such
 * row adds scale q H / N, where H sums (k - mean)^T v over all blocks, kept ones included.  The tail is merged by its
 * log-sum-exp, so the weight of the first-order term cannot go stale when the maximum grows, as it does in the public
 * kernel.  The covariance prior of the public code (use_bias, for images only) is left out. */
#include "blocks.h"
#include "budget.h"
#include "pooled.h"

enum { PISA_BLOCK = 64 };

static mcsa_status first_order(rival_pooled *p, const mcsa_qkv *x, mcsa_error *error)
{
    TRY(p->setup.kernels->outer(p->setup.backend, x, &p->choice.keys, p->key, p->slope, error));
    float factor = x->scale / (float)x->dims.N;
    for (int64_t i = 0; i < (int64_t)x->dims.H * x->dims.D * x->dims.D; i++) p->slope[i] *= factor;
    p->choice.tail.slope = p->slope;
    return MCSA_OK;
}

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    rival_pooled *p = state;
    TRY(rival_pooled_begin(p, call->x, PISA_BLOCK, PISA_BLOCK, error));
    TRY(rival_pooled_score(p, call->x, call->x->scale, error));
    double share = rival_target_share(&p->choice, p->setup.density);
    TRY(rival_choice_keep_top(&p->choice, p->score, share, p->setup.threads, error));
    TRY(rival_pooled_tail(p, call->x, error));
    TRY(first_order(p, call->x, error));
    *choice = &p->choice;
    return MCSA_OK;
}

const rival_method rival_pisa = {
    .name = "pisa",
    .summary = "top blocks of 64 by their means; the others to first order",
    .open = rival_pooled_open,
    .close = rival_pooled_close,
    .choose = choose,
};
