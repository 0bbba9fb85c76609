/* bsa.c - vanilla block-sparse attention: blocks of keys ranked by the score of mean query and mean key, anew at every
 * step.  Blocks of 128 queries and 64 keys are INFERRED: the paper says that they are "typically aligned with the
 * tile". */
#include "blocks.h"
#include "budget.h"
#include "pooled.h"

enum { BSA_QUERIES = 128, BSA_KEYS = 64 };

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    rival_pooled *p = state;
    TRY(rival_pooled_begin(p, call->x, BSA_QUERIES, BSA_KEYS, error));
    TRY(rival_pooled_score(p, call->x, call->x->scale, error));
    double share = rival_target_share(&p->choice, p->setup.density);
    TRY(rival_choice_keep_top(&p->choice, p->score, share, p->setup.threads, error));
    *choice = &p->choice;
    return MCSA_OK;
}

const rival_method rival_bsa = {
    .name = "bsa",
    .summary = "blocks ranked by mean query and mean key, chosen at every step",
    .open = rival_pooled_open,
    .close = rival_pooled_close,
    .choose = choose,
};
