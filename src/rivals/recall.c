/* recall.c - see recall.h.  One head at a time comes to the host as floats, so that long clips fit.
 *
 * A score is one sum in FP32 over ascending columns and a share two sums in double over rows of keys in a fixed order,
 * so the bits do not depend on how many threads share the keys and queries. */
#include "recall.h"

#include "base/clock.h"
#include "base/tensor.h"
#include "core/cache.h"
#include "cpu/kernels.h"

#include <math.h>
#include <stdlib.h>

struct rival_recall {
    mcsa_run *run;
    const rival_kernels *kernels;
    void *backend;
    int N, D;              /* that there is room for */
    int32_t *index;        /* [N] ascending */
    int32_t *part;         /* [N] of the queries, that each is in; -1: in none */
    float *keys;           /* [N, D] of a head */
    float *weight;         /* [QUERIES, N] */
    rival_choice selected; /* MC-Sparse's selection */
    double sum, seconds;
    int64_t queries;
};

/* The sampled queries of a head. */
typedef struct sample {
    int count;
    int32_t index[RIVAL_RECALL_QUERIES];
    float rows[RIVAL_RECALL_QUERIES * MCSA_MAX_DIM];  /* [count, D] */
    float query[MCSA_MAX_DIM * RIVAL_RECALL_QUERIES]; /* [D, QUERIES], 0 past count */
    double share[RIVAL_RECALL_QUERIES];
} sample;

/* The middle of piece i where `of` is cut into `pieces`. */
static int middle(int i, int pieces, int of)
{
    return (int)((2 * (int64_t)i + 1) * of / (2 * (int64_t)pieces));
}

int rival_recall_samples(int i, int n)
{
    int pieces = n < RIVAL_RECALL_STEPS ? n : RIVAL_RECALL_STEPS;
    for (int p = 0; p < pieces; p++)
        if (middle(p, pieces, n) == i) return 1;
    return 0;
}

mcsa_status rival_recall_open(rival_recall **out, mcsa_run *run, mcsa_error *error)
{
    *out = NULL;
    rival_recall *recall = calloc(1, sizeof *recall);
    if (!recall) return mcsa_fail(error, MCSA_ENOMEM, "no memory to measure recall");
    recall->run = run;
    mcsa_status status = rival_kernels_find(&recall->kernels, run->config.device, error);
    if (status == MCSA_OK) status = recall->kernels->open(&recall->backend, &run->config, error);
    if (status == MCSA_OK)
        *out = recall;
    else
        rival_recall_close(recall);
    return status;
}

static void release(rival_recall *recall)
{
    free(recall->index);
    free(recall->part);
    free(recall->keys);
    free(recall->weight);
    recall->index = recall->part = NULL;
    recall->keys = recall->weight = NULL;
    recall->N = recall->D = 0;
}

void rival_recall_close(rival_recall *recall)
{
    if (!recall) return;
    release(recall);
    rival_choice_free(&recall->selected);
    if (recall->backend) recall->kernels->close(recall->backend);
    free(recall);
}

static mcsa_status reserve(rival_recall *recall, int N, int D, mcsa_error *error)
{
    if (recall->N == N && recall->D == D) return MCSA_OK;
    release(recall);
    recall->index = malloc(sizeof *recall->index * (size_t)N);
    recall->part = malloc(sizeof *recall->part * (size_t)N);
    recall->keys = malloc(sizeof *recall->keys * (size_t)N * (size_t)D);
    recall->weight = malloc(sizeof *recall->weight * (size_t)N * RIVAL_RECALL_QUERIES);
    if (!recall->index || !recall->part || !recall->keys || !recall->weight) {
        release(recall);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory to measure recall of %d keys, D = %d", N, D);
    }
    recall->N = N;
    recall->D = D;
    for (int n = 0; n < N; n++) recall->index[n] = n;
    return MCSA_OK;
}

/* Keys and sampled queries of head h. */
static mcsa_status read_head(rival_recall *recall, const mcsa_qkv *x, int h, sample *s, mcsa_error *error)
{
    const int N = x->dims.N, D = x->dims.D;
    const mcsa_tensor q = mcsa_tensor_head(x->q, h), k = mcsa_tensor_head(x->k, h);
    s->count = N < RIVAL_RECALL_QUERIES ? N : RIVAL_RECALL_QUERIES;
    for (int r = 0; r < s->count; r++) s->index[r] = middle(r, s->count, N);
    TRY(recall->kernels->read_rows(recall->backend, &q, s->index, s->count, s->rows, error));
    TRY(recall->kernels->read_rows(recall->backend, &k, recall->index, N, recall->keys, error));
    for (int d = 0; d < D; d++)
        for (int r = 0; r < RIVAL_RECALL_QUERIES; r++)
            s->query[d * RIVAL_RECALL_QUERIES + r] = r < s->count ? s->rows[r * D + d] : 0;
    return MCSA_OK;
}

/* dot [QUERIES] of all sampled queries with one key, side by side. */
static void dots_of(const float *query, const float *key, int D, float *dot)
{
    for (int r = 0; r < RIVAL_RECALL_QUERIES; r++) dot[r] = 0;
    for (int d = 0; d < D; d++, query += RIVAL_RECALL_QUERIES)
        for (int r = 0; r < RIVAL_RECALL_QUERIES; r++) dot[r] += query[r] * key[d];
}

static void find_parts(const rival_partition *queries, int h, int32_t *part)
{
    for (int n = 0; n < queries->N; n++) part[n] = -1;
    for (int p = 0; p < queries->P; p++) {
        int count;
        const int32_t *rows = rival_part(queries, h, p, &count);
        for (int i = 0; i < count; i++) part[rows[i]] = p;
    }
}

/* Of the keys of all parts that part q of the queries keeps. */
static double kept_weight(const rival_choice *choice, int h, int q, const float *weight)
{
    const uint64_t *row = rival_map_row(&choice->map, h, q);
    double kept = 0;
    for (int64_t w = 0; w < choice->map.words; w++)
        for (uint64_t left = row[w]; left; left &= left - 1) {
            int count;
            const int32_t *keys = rival_part(&choice->keys, h, (int)(w * 64) + __builtin_ctzll(left), &count);
            for (int i = 0; i < count; i++) kept += (double)weight[keys[i]];
        }
    return kept;
}

/* weight [N]: dot products, which become exponentials here.  A query of no part attends to nothing. */
static double share_of(const rival_choice *choice, int h, int q, double scale, float *weight)
{
    const int N = choice->queries.N;
    float most = weight[0];
    double all = 0;
    for (int j = 1; j < N; j++) most = weight[j] > most ? weight[j] : most;
    for (int j = 0; j < N; j++) {
        weight[j] = (float)exp(scale * ((double)weight[j] - (double)most));
        all += (double)weight[j];
    }
    return (q < 0 ? 0 : kept_weight(choice, h, q, weight)) / all;
}

static mcsa_status add_head(rival_recall *recall, const mcsa_qkv *x, const rival_choice *choice, int h,
                            mcsa_error *error)
{
    const int N = x->dims.N, D = x->dims.D, threads = recall->run->config.threads;
    sample s;
    TRY(read_head(recall, x, h, &s, error));
    find_parts(&choice->queries, h, recall->part);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int j = 0; j < N; j++) {
        float dot[RIVAL_RECALL_QUERIES];
        dots_of(s.query, recall->keys + (int64_t)j * D, D, dot);
        for (int r = 0; r < s.count; r++) recall->weight[(int64_t)r * N + j] = dot[r];
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int r = 0; r < s.count; r++)
        s.share[r] = share_of(choice, h, recall->part[s.index[r]], (double)x->scale, recall->weight + (int64_t)r * N);
    for (int r = 0; r < s.count; r++) recall->sum += s.share[r];
    recall->queries += s.count;
    return MCSA_OK;
}

/* Fills in dims and scale. */
static mcsa_status check(rival_recall *recall, mcsa_qkv *x, mcsa_error *error)
{
    mcsa_status status = mcsa_run_check(recall->run, x, 0);
    return status == MCSA_OK ? status : mcsa_fail(error, status, "%s", mcsa_run_error(recall->run));
}

static mcsa_status add_heads(rival_recall *recall, const mcsa_qkv *x, const rival_choice *choice, mcsa_error *error)
{
    TRY(reserve(recall, x->dims.N, x->dims.D, error));
    for (int h = 0; h < x->dims.H; h++) TRY(add_head(recall, x, choice, h, error));
    return MCSA_OK;
}

mcsa_status rival_recall_add(rival_recall *recall, const mcsa_qkv *x, const rival_choice *choice, mcsa_error *error)
{
    mcsa_qkv checked = *x;
    TRY(check(recall, &checked, error));
    TRY(recall->kernels->wait(recall->backend, error));
    const double begin = mcsa_seconds();
    TRY(add_heads(recall, &checked, choice, error));
    recall->seconds += mcsa_seconds() - begin;
    return MCSA_OK;
}

/* The selection, which lies where the run computes, as a choice: single keys or clusters are the parts. */
static mcsa_status read_selection(rival_recall *recall, const mcsa_selection *s, mcsa_error *error)
{
    const rival_kernels *kernels = recall->kernels;
    rival_choice *to = &recall->selected;
    const size_t rows = (size_t)s->H * (size_t)s->N, firsts = (size_t)s->H * ((size_t)s->P + 1);
    const size_t words = (size_t)s->H * (size_t)s->G * (size_t)s->words;
    TRY(rival_partition_blocks(&to->queries, s->H, s->N, s->C, NULL, error));
    TRY(kernels->read(recall->backend, s->order, sizeof *s->order * rows, to->queries.order, error));
    if (s->P) {
        TRY(rival_partition_reserve(&to->keys, s->H, s->N, s->P, error));
        TRY(kernels->read(recall->backend, s->members, sizeof *s->members * rows, to->keys.order, error));
        TRY(kernels->read(recall->backend, s->first, sizeof *s->first * firsts, to->keys.first, error));
    } else {
        TRY(rival_partition_blocks(&to->keys, s->H, s->N, 1, NULL, error));
    }
    TRY(rival_map_reserve(&to->map, s->H, s->G, s->P ? s->P : s->N, error));
    return kernels->read(recall->backend, s->kept, sizeof *s->kept * words, to->map.kept, error);
}

mcsa_status rival_recall_add_reuse(rival_recall *recall, mcsa_site at, const mcsa_qkv *x, mcsa_error *error)
{
    mcsa_qkv checked = *x;
    const mcsa_selection *selection = NULL;
    TRY(check(recall, &checked, error));
    /* A REUSE that found no anchor has made one at its own step. */
    if (mcsa_cache_find(recall->run, at, &checked.dims, &selection) != MCSA_MISS_NONE) return MCSA_OK;
    if (mcsa_cache_plan(recall->run, at.layer, at.branch)->step == at.step) return MCSA_OK;
    TRY(recall->kernels->wait(recall->backend, error));
    const double begin = mcsa_seconds();
    TRY(read_selection(recall, selection, error));
    TRY(add_heads(recall, &checked, &recall->selected, error));
    recall->seconds += mcsa_seconds() - begin;
    return MCSA_OK;
}

rival_recalled rival_recall_read(const rival_recall *recall)
{
    return (rival_recalled){ .mean = recall->queries ? recall->sum / (double)recall->queries : (double)NAN,
                             .queries = recall->queries,
                             .seconds = recall->seconds };
}
