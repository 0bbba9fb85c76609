/* wa_rs.c - WA-RS of DiTFastAttn: a window around the diagonal, and the residual full - window of the last anchor.
 *
 * Each block of queries keeps the blocks of keys nearest to it; near the ends the window is moved inward rather than
 * cut (INFERRED), so that every row executes the same share.  The window is over the flat sequence of tokens, as
 * public. */
#include "blocks.h"
#include "budget.h"

#include <stdlib.h>

enum { WINDOW_QUERIES = 128, WINDOW_KEYS = 64 }; /* INFERRED, as in bsa.c */

typedef struct wa_rs {
    rival_setup setup;
    rival_choice choice;
} wa_rs;

static mcsa_status open_wa_rs(void **state, const rival_setup *setup, mcsa_error *error)
{
    wa_rs *w = calloc(1, sizeof *w);
    if (!w) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the state of a method");
    w->setup = *setup;
    *state = w;
    return MCSA_OK;
}

static void close_wa_rs(void *state)
{
    wa_rs *w = state;
    rival_choice_free(&w->choice);
    free(w);
}

/* nearness [Q, K]: minus the distance between the middles of two blocks, in half rows; exact below 2^23 tokens. */
static void fill_nearness(const rival_choice *choice, float *nearness)
{
    const int32_t *queries = choice->queries.first, *keys = choice->keys.first;
    for (int q = 0; q < choice->queries.P; q++)
        for (int k = 0; k < choice->keys.P; k++)
            *nearness++ = -(float)abs(queries[q] + queries[q + 1] - keys[k] - keys[k + 1]);
}

static mcsa_status choose(void *state, const rival_call *call, const rival_choice **out, mcsa_error *error)
{
    wa_rs *w = state;
    rival_choice *choice = &w->choice;
    TRY(rival_choice_blocks(choice, &call->x->dims, WINDOW_QUERIES, WINDOW_KEYS, error));
    float *nearness = malloc(sizeof *nearness * (size_t)choice->queries.P * (size_t)choice->keys.P);
    if (!nearness)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the distances of %d x %d blocks", choice->queries.P,
                         choice->keys.P);
    fill_nearness(choice, nearness);
    double share = rival_target_share(choice, w->setup.density);
    mcsa_status status = MCSA_OK;
    for (int h = 0; status == MCSA_OK && h < call->x->dims.H; h++)
        status = rival_choice_keep_head(choice, h, nearness, share, w->setup.threads, error);
    free(nearness);
    *out = choice;
    return status;
}

const rival_method rival_wa_rs = {
    .name = "wa-rs",
    .summary = "a window around the diagonal, and what it missed at the last anchor",
    .anchors = 1,
    .residual = 1,
    .open = open_wa_rs,
    .close = close_wa_rs,
    .choose = choose,
};
