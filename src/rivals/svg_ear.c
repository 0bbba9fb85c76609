/* svg_ear.c - SVG-EAR, error-aware routing (arXiv 2603.08982) on the clusters of SVG2: which clusters of keys are
 * computed exactly is decided by what replacing each by its centroid would cost, and the others take part as that
 * centroid.
 *
 * A row's budget of keys is what SVG2 would keep at p.  The first ranks by expected attention are computed in any case;
 * the rest of the budget goes to the clusters of largest error per pair.  p is the knob that meets the density asked.
 */
#include "clusters.h"

#include <math.h>
#include <stdlib.h>

typedef struct svg_ear {
    rival_clusters clusters;
    rival_expected expected;
    rival_choice choice; /* the partitions and the keys of the tail belong to the clusters */
    int H, Q, K, D;      /* that there is room for in: */
    float *cost;         /* [H, Q, K] log of the error per pair of replacing a cluster of keys by its centroid */
    int32_t *costly;     /* [H, Q, K] clusters by descending cost */
    int32_t *place;      /* [H, Q, K] of each cluster in the rank by expected attention */
} svg_ear;

static void release(svg_ear *s)
{
    free(s->cost);
    free(s->costly);
    free(s->place);
    free(s->choice.tail.value);
    free(s->choice.tail.weight);
    s->cost = s->choice.tail.value = s->choice.tail.weight = NULL;
    s->costly = s->place = NULL;
    s->K = 0;
}

static void close_ear(void *state)
{
    svg_ear *s = state;
    rival_clusters_close(&s->clusters);
    rival_expected_free(&s->expected);
    rival_map_free(&s->choice.map);
    release(s);
    free(s);
}

static mcsa_status open_ear(void **state, const rival_setup *setup, mcsa_error *error)
{
    svg_ear *s = calloc(1, sizeof *s);
    if (!s) return mcsa_fail(error, MCSA_ENOMEM, "no memory for svg-ear");
    mcsa_status status = rival_clusters_open(&s->clusters, setup, error);
    if (status != MCSA_OK) {
        close_ear(s);
        return status;
    }
    *state = s;
    return MCSA_OK;
}

static mcsa_status reserve(svg_ear *s, const rival_cluster_pair *pair, mcsa_error *error)
{
    int H = pair->keys.H, Q = pair->queries.P, K = pair->keys.P, D = pair->keys.D;
    size_t pairs = (size_t)H * (size_t)Q * (size_t)K, keys = (size_t)H * (size_t)K;
    if (s->H == H && s->Q == Q && s->K == K && s->D == D) return MCSA_OK;
    release(s);
    s->cost = malloc(sizeof *s->cost * pairs);
    s->costly = malloc(sizeof *s->costly * pairs);
    s->place = malloc(sizeof *s->place * pairs);
    s->choice.tail.value = malloc(sizeof(float) * keys * (size_t)D);
    s->choice.tail.weight = malloc(sizeof(float) * keys);
    if (!s->cost || !s->costly || !s->place || !s->choice.tail.value || !s->choice.tail.weight) {
        release(s);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory to route %d x %d clusters in %d heads", Q, K, H);
    }
    s->H = H;
    s->Q = Q;
    s->K = K;
    s->D = D;
    return MCSA_OK;
}

static mcsa_status observe_ear(void *state, const rival_call *call, mcsa_error *error)
{
    return rival_clusters_observe(&((svg_ear *)state)->clusters, call, error);
}

/* The centroids that stand for clusters which are not computed: mean key, mean value, number of members. */
static mcsa_status make_tail(svg_ear *s, const rival_call *call, const rival_cluster_pair *pair, mcsa_error *error)
{
    const rival_setup *setup = &s->clusters.setup;
    s->choice.tail.key = pair->keys.centre;
    for (int h = 0; h < s->H; h++)
        for (int k = 0; k < s->K; k++)
            s->choice.tail.weight[h * s->K + k] = (float)rival_part_size(&pair->keys.parts, h, k);
    return setup->kernels->pool(setup->backend, call->x->v, &pair->keys.parts, s->choice.tail.value, error);
}

/* The size of a row's own cluster is a factor of all its areas and changes no rank.  The floor of 1e-8 under the error
 * in the public code is relative to exp(2 max) here as there, far below what float sums leave: no error at all ranks
 * last. */
static void rank_costs(svg_ear *s)
{
    const rival_expected *e = &s->expected;
#pragma omp parallel for schedule(static) num_threads(s->clusters.setup.threads)
    for (int64_t row = 0; row < (int64_t)s->H * s->Q; row++) {
        float *cost = s->cost + row * s->K;
        const int32_t *rank = e->rank + row * s->K;
        for (int k = 0; k < s->K; k++) {
            int size = rival_part_size(&s->choice.keys, (int)(row / s->Q), k);
            cost[k] = size ? cost[k] - logf((float)size) : -INFINITY;
        }
        for (int r = 0; r < s->K; r++) s->place[row * s->K + rank[r]] = r;
        rival_rank(cost, s->K, s->costly + row * s->K);
    }
}

/* Keys that a row computes at the knob x; adds their bits to kept unless that is NULL.  The budget is at least twice
 * the ranks that are sure, as in the public code. */
static int32_t route_row(const svg_ear *s, int64_t row, double x, uint64_t *kept)
{
    const rival_expected *e = &s->expected;
    int K = s->K;
    int sure = rival_least_ranks((int)row, K, RIVAL_LEAST_SHARE, x);
    int least = rival_least_ranks((int)row, K, 2 * RIVAL_LEAST_SHARE, x);
    int budget = rival_prefix(e->share + row * K, K, RIVAL_BOUNDARY_EXCLUSIVE, x < 0 ? 0 : x, least);
    rival_route route = { K, e->reach + row * (K + 1), e->rank + row * K, s->place + row * K, s->costly + row * K };
    return rival_route_keys(&route, budget, sure > 1 ? sure : 1, kept);
}

static double pairs_at(void *user, double x)
{
    const svg_ear *s = user;
    double pairs = 0; /* whole numbers below 2^53: exact in any order */
#pragma omp parallel for schedule(static) num_threads(s->clusters.setup.threads) reduction(+ : pairs)
    for (int64_t row = 0; row < (int64_t)s->H * s->Q; row++) {
        int size = rival_part_size(&s->choice.queries, (int)(row / s->Q), (int)(row % s->Q));
        if (size > 0) pairs += (double)rival_tile_rows(size) * route_row(s, row, x, NULL);
    }
    return pairs;
}

static mcsa_status choose_ear(void *state, const rival_call *call, const rival_choice **choice, mcsa_error *error)
{
    svg_ear *s = state;
    const rival_setup *setup = &s->clusters.setup;
    const rival_cluster_pair *pair;
    TRY(rival_clusters_follow(&s->clusters, call, &pair, error));
    TRY(rival_expected_rank(&s->expected, pair, call->x->scale, setup->threads, error));
    TRY(reserve(s, pair, error));
    TRY(make_tail(s, call, pair, error));
    s->choice.queries = pair->queries.parts;
    s->choice.keys = pair->keys.parts;
    TRY(setup->kernels->error(setup->backend, call->x, s->Q, pair->queries.centre, &s->choice.keys, s->choice.tail.key,
                              s->choice.tail.value, s->cost, error));
    rank_costs(s);
    TRY(rival_map_reserve(&s->choice.map, s->H, s->Q, s->K, error));
    double x = rival_top_p_knob(pairs_at, s, setup->density, &call->x->dims);
#pragma omp parallel for schedule(static) num_threads(setup->threads)
    for (int64_t row = 0; row < (int64_t)s->H * s->Q; row++)
        route_row(s, row, x, s->choice.map.kept + row * s->choice.map.words);
    *choice = &s->choice;
    return MCSA_OK;
}

const rival_method rival_svg_ear = {
    .name = "svg-ear",
    .summary = "clusters of SVG2 routed by the error of leaving them out, the rest as centroids (SVG-EAR)",
    .open = open_ear,
    .close = close_ear,
    .observe = observe_ear,
    .choose = choose_ear,
    .held = rival_clusters_held,
};
