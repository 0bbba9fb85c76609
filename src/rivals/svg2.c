/* svg2.c - SVG2, semantic-aware permutation (arXiv 2505.18875): queries and keys are clustered apart by k-means, and
 * each cluster of queries attends to the clusters of keys that hold the first p of the attention which the centroids
 * expect.
 *
 * Its p is the knob that meets the density asked, one value for all heads and rows of a call, so that how attention is
 * shared out over them stays SVG2's. */
#include "clusters.h"

#include <stdlib.h>

typedef struct svg2 {
    rival_clusters clusters;
    rival_expected expected;
    rival_choice choice; /* the partitions belong to the clusters */
} svg2;

static void close_svg2(void *state)
{
    svg2 *s = state;
    rival_clusters_close(&s->clusters);
    rival_expected_free(&s->expected);
    rival_map_free(&s->choice.map);
    free(s);
}

static mcsa_status open_svg2(void **state, const rival_setup *setup, mcsa_error *error)
{
    svg2 *s = calloc(1, sizeof *s);
    if (!s) return mcsa_fail(error, MCSA_ENOMEM, "no memory for svg2");
    mcsa_status status = rival_clusters_open(&s->clusters, setup, error);
    if (status != MCSA_OK) {
        close_svg2(s);
        return status;
    }
    *state = s;
    return MCSA_OK;
}

static mcsa_status observe_svg2(void *state, const rival_call *call, mcsa_error *error)
{
    return rival_clusters_observe(&((svg2 *)state)->clusters, call, error);
}

/* Ranks that a row keeps at the knob x. */
static int kept_ranks(const svg2 *s, int64_t row, double x)
{
    const rival_expected *e = &s->expected;
    int least = rival_least_ranks((int)row, e->K, RIVAL_LEAST_SHARE, x);
    return rival_prefix(e->share + row * e->K, e->K, RIVAL_BOUNDARY_EXCLUSIVE, x < 0 ? 0 : x, least);
}

static double pairs_at(void *user, double x)
{
    const svg2 *s = user;
    const rival_expected *e = &s->expected;
    double pairs = 0; /* whole numbers below 2^53: exact in any order */
#pragma omp parallel for schedule(static) num_threads(s->clusters.setup.threads) reduction(+ : pairs)
    for (int64_t row = 0; row < (int64_t)e->H * e->Q; row++) {
        int size = rival_part_size(&s->choice.queries, (int)(row / e->Q), (int)(row % e->Q));
        pairs += (double)rival_tile_rows(size) * e->reach[row * (e->K + 1) + kept_ranks(s, row, x)];
    }
    return pairs;
}

static mcsa_status choose_svg2(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    svg2 *s = state;
    const rival_setup *setup = &s->clusters.setup;
    const rival_expected *e = &s->expected;
    const rival_cluster_pair *pair;
    TRY(rival_clusters_follow(&s->clusters, call, &pair, error));
    TRY(rival_expected_rank(&s->expected, pair, call->x->scale, setup->threads, error));
    s->choice.queries = pair->queries.parts;
    s->choice.keys = pair->keys.parts;
    TRY(rival_map_reserve(&s->choice.map, e->H, e->Q, e->K, error));
    double x = rival_top_p_knob(pairs_at, s, setup->density, &call->x->dims);
    for (int64_t row = 0; row < (int64_t)e->H * e->Q; row++) {
        int kept = kept_ranks(s, row, x);
        for (int r = 0; r < kept; r++)
            rival_map_keep(&s->choice.map, (int)(row / e->Q), (int)(row % e->Q), e->rank[row * e->K + r]);
    }
    *choice = &s->choice;
    return MCSA_OK;
}

const rival_method rival_svg2 = {
    .name = "svg2",
    .summary = "k-means clusters of queries and of keys, top-p over centroids (SVG2)",
    .open = open_svg2,
    .close = close_svg2,
    .observe = observe_svg2,
    .choose = choose_svg2,
    .held = rival_clusters_held,
};
