/* clusters.c - see clusters.h.
 *
 * SVG2's paper takes 100 and 500 clusters, its released scripts 300 and 1000 for 75,600 tokens and 200 and 1000 for
 * 32,760: 164 to 252 queries and 33 to 76 keys each.  Shorter clips get clusters of 128 queries and 28 keys, which
 * makes about 100 and 500 of 13,824 tokens, and longer ones at most 400 and 1000, the most that any of the scripts
 * takes: INFERRED.  Finer clusters serve fidelity and cost k-means and, with SVG-EAR, a longer tail.  On calls of the
 * shipped model at 4,096 tokens, one of each layer, and an executed density of 0.10 outputs are off in relative L2 by
 *
 *     queries, keys each   252, 76   252, 32   160, 32   128, 28   128, 16   64, 32   128, 8
 *     svg2                    0.64      0.54      0.50      0.49      0.45     0.46     0.39
 *     svg-ear                 0.33      0.24      0.21      0.18      0.14     0.16     0.10
 */
#include "clusters.h"

#include "draw.h"
#include "scores.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include <omp.h>

enum {
    QUERIES_EACH = 128,
    QUERY_CLUSTERS = 400,
    KEYS_EACH = 28,
    KEY_CLUSTERS = 1000,
    FIRST_ITERATIONS = 50,
    STEP_ITERATIONS = 2
};

static int clusters_of(int N, int each, int most)
{
    int P = (N + each / 2) / each;
    return P < 2 ? 2 : P > most ? most : P;
}

int rival_query_clusters(int N)
{
    return clusters_of(N, QUERIES_EACH, QUERY_CLUSTERS);
}

int rival_key_clusters(int N)
{
    return clusters_of(N, KEYS_EACH, KEY_CLUSTERS);
}

mcsa_status rival_clusters_open(rival_clusters *c, const rival_setup *setup, mcsa_error *error)
{
    size_t pairs = (size_t)setup->layers * (size_t)setup->branches;
    c->setup = *setup;
    c->pairs = calloc(pairs, sizeof *c->pairs);
    return c->pairs ? MCSA_OK : mcsa_fail(error, MCSA_ENOMEM, "no memory for the clusters of %zu layers", pairs);
}

void rival_clusters_close(rival_clusters *c)
{
    for (int i = 0; c->pairs && i < c->setup.layers * c->setup.branches; i++) {
        rival_kmeans_free(&c->pairs[i].queries);
        rival_kmeans_free(&c->pairs[i].keys);
    }
    free(c->pairs);
}

static int64_t centre_bytes(const rival_kmeans *k)
{
    return (int64_t)sizeof *k->centre * k->H * k->P * k->D;
}

int64_t rival_clusters_held(const void *state)
{
    const rival_clusters *c = state;
    int64_t bytes = 0;
    for (int i = 0; i < c->setup.layers * c->setup.branches; i++)
        bytes += centre_bytes(&c->pairs[i].queries) + centre_bytes(&c->pairs[i].keys);
    return bytes;
}

static rival_cluster_pair *pair_of(const rival_clusters *c, const rival_call *call)
{
    return &c->pairs[(int64_t)call->at.layer * c->setup.branches + call->at.branch];
}

/* Whether the clusters belong to this run and shape: a step before theirs is of another run. */
static int serves(const rival_cluster_pair *pair, const rival_call *call)
{
    const mcsa_dims *dims = &call->x->dims;
    const rival_kmeans *q = &pair->queries;
    return q->centre && q->H == dims->H && q->N == dims->N && q->D == dims->D && pair->step <= call->at.step;
}

static mcsa_status start(rival_clusters *c, const rival_call *call, rival_cluster_pair *pair, mcsa_error *error)
{
    const rival_setup *setup = &c->setup;
    const rival_points q = { setup->kernels, setup->backend, call->x->q };
    const rival_points k = { setup->kernels, setup->backend, call->x->k };
    uint64_t place = 2 * ((uint64_t)call->at.layer * (uint64_t)setup->branches + (uint64_t)call->at.branch);
    int N = call->x->dims.N;
    pair->step = INT_MAX; /* until all of this is done they serve nobody */
    TRY(rival_kmeans_start(&pair->queries, &q, rival_query_clusters(N), rival_draw(setup->seed, place), error));
    TRY(rival_kmeans_start(&pair->keys, &k, rival_key_clusters(N), rival_draw(setup->seed, place + 1), error));
    TRY(rival_kmeans_iterate(&pair->queries, &q, FIRST_ITERATIONS, NULL, error));
    TRY(rival_kmeans_iterate(&pair->keys, &k, FIRST_ITERATIONS, NULL, error));
    pair->step = call->at.step;
    return MCSA_OK;
}

mcsa_status rival_clusters_observe(rival_clusters *c, const rival_call *call, mcsa_error *error)
{
    rival_cluster_pair *pair = pair_of(c, call);
    return call->anchor && !serves(pair, call) ? start(c, call, pair, error) : MCSA_OK;
}

mcsa_status rival_clusters_follow(rival_clusters *c, const rival_call *call, const rival_cluster_pair **out,
                                  mcsa_error *error)
{
    rival_cluster_pair *pair = pair_of(c, call);
    const rival_points q = { c->setup.kernels, c->setup.backend, call->x->q };
    const rival_points k = { c->setup.kernels, c->setup.backend, call->x->k };
    *out = pair;
    if (!serves(pair, call)) return start(c, call, pair, error);
    TRY(rival_kmeans_iterate(&pair->queries, &q, STEP_ITERATIONS, NULL, error));
    TRY(rival_kmeans_iterate(&pair->keys, &k, STEP_ITERATIONS, NULL, error));
    pair->step = call->at.step;
    return MCSA_OK;
}

void rival_expected_free(rival_expected *e)
{
    free(e->score);
    free(e->share);
    free(e->rank);
    free(e->reach);
    *e = (rival_expected){ 0 };
}

static mcsa_status reserve(rival_expected *e, int H, int Q, int K, mcsa_error *error)
{
    size_t rows = (size_t)H * (size_t)Q, pairs = rows * (size_t)K;
    if (e->H == H && e->Q == Q && e->K == K) return MCSA_OK;
    rival_expected_free(e);
    e->score = malloc(sizeof *e->score * pairs);
    e->share = malloc(sizeof *e->share * pairs);
    e->rank = malloc(sizeof *e->rank * pairs);
    e->reach = malloc(sizeof *e->reach * (pairs + rows));
    if (!e->score || !e->share || !e->rank || !e->reach) {
        rival_expected_free(e);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory to rank %d x %d clusters in %d heads", Q, K, H);
    }
    e->H = H;
    e->Q = Q;
    e->K = K;
    return MCSA_OK;
}

/* share [K] by cluster = n_k exp(score_k) over its sum; 0 for an empty cluster */
static void weigh(const float *score, const rival_partition *keys, int h, int K, float *share)
{
    float max = -INFINITY;
    double sum = 0;
    for (int k = 0; k < K; k++)
        if (rival_part_size(keys, h, k) > 0 && score[k] > max) max = score[k];
    for (int k = 0; k < K; k++) {
        int size = rival_part_size(keys, h, k);
        share[k] = size ? (float)size * expf(score[k] - max) : 0;
        sum += (double)share[k];
    }
    for (int k = 0; k < K; k++) share[k] = (float)((double)share[k] / sum);
}

/* From the row's scores its rank, share and reach.  by_cluster: [K] scratch. */
static void rank_row(const rival_expected *e, const rival_partition *keys, int64_t row, float *by_cluster)
{
    int h = (int)(row / e->Q), K = e->K;
    float *share = e->share + row * K;
    int32_t *rank = e->rank + row * K, *reach = e->reach + row * (K + 1);
    weigh(e->score + row * K, keys, h, K, by_cluster);
    rival_rank(by_cluster, K, rank);
    reach[0] = 0;
    for (int r = 0; r < K; r++) {
        share[r] = by_cluster[rank[r]];
        reach[r + 1] = reach[r] + rival_part_size(keys, h, rank[r]);
    }
}

mcsa_status rival_expected_rank(rival_expected *e, const rival_cluster_pair *pair, float scale, int threads,
                                mcsa_error *error)
{
    const rival_kmeans *q = &pair->queries, *k = &pair->keys;
    const rival_means means = { q->H, q->P, k->P, q->D, q->centre, k->centre };
    TRY(reserve(e, q->H, q->P, k->P, error));
    TRY(rival_score_means(&means, scale, threads, e->score, error));
    float *scratch = malloc(sizeof *scratch * (size_t)threads * (size_t)k->P);
    if (!scratch) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d shares in %d threads", k->P, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < (int64_t)e->H * e->Q; row++)
        rank_row(e, &k->parts, row, scratch + (int64_t)omp_get_thread_num() * k->P);
    free(scratch);
    return MCSA_OK;
}

int rival_least_ranks(int row, int K, double least, double x)
{
    double whole = floor(least * K);
    return x < 0 ? rival_row_budget(row, K, (1 + x) * whole / K) : (int)whole;
}

double rival_top_p_knob(rival_pairs_at pairs, void *user, double density, const mcsa_dims *dims)
{
    const double all = 1.01; /* shares are float: their sum may pass 1 by roundings */
    return density < 1 ? rival_knob(pairs, user, -1, all, density * dims->H * dims->N * (double)dims->N) : all;
}

int32_t rival_route_keys(const rival_route *route, int budget, int sure, uint64_t *kept)
{
    int32_t remaining = route->reach[budget] - route->reach[sure], routed = 0;
    for (int r = 0; kept && r < sure; r++) kept[route->rank[r] / 64] |= (uint64_t)1 << (route->rank[r] % 64);
    for (int c = 0; c < route->K && routed < remaining; c++) {
        int k = route->costly[c], place = route->place[k];
        if (place < sure) continue;
        routed += route->reach[place + 1] - route->reach[place];
        if (kept) kept[k / 64] |= (uint64_t)1 << (k % 64);
    }
    return route->reach[sure] + routed;
}
