/* per_query.c - see per_query.h. */
#include "per_query.h"

#include "cpu/kernels.h"
#include "rivals/ranking.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

const analysis_selector analysis_shared[ANALYSIS_SHARED] = { ANALYSIS_BLOCKS, ANALYSIS_TOKENS, ANALYSIS_PDDP_TOKENS };

enum { STRIP = 1024 /* scores that stay in the first cache while D rows of keys pass */ };

/* One sampled query. */
typedef struct asked {
    double power, error[ANALYSIS_DENSITIES], kept[ANALYSIS_DENSITIES];
    analysis_waste shared[ANALYSIS_DENSITIES][ANALYSIS_SHARED];
} asked;

typedef struct question {
    const analysis_chooser *c;
    const analysis_head *head;
    const analysis_choice *choices;
    int words;      /* of a bitmap of single keys */
    float *keys;    /* [D, N] transposed */
    float *values;  /* [N, D] */
    int32_t *group; /* [ANALYSIS_SHARED, N] */
    float *score;   /* [threads, N] */
    uint32_t *key;  /* [threads, N] for ranking */
    uint64_t *own;  /* [threads, words] */
    asked *rows;    /* [sample] */
} question;

static mcsa_status open_question(question *ask, int sample, mcsa_error *error)
{
    const size_t N = (size_t)ask->head->N, D = (size_t)ask->head->D, threads = (size_t)ask->c->machine->threads;
    float row[MCSA_MAX_DIM];
    ask->words = (int)((N + 63) / 64);
    ask->keys = malloc(sizeof *ask->keys * N * D);
    ask->values = malloc(sizeof *ask->values * N * D);
    ask->group = malloc(sizeof *ask->group * N * ANALYSIS_SHARED);
    ask->score = malloc(sizeof *ask->score * N * threads);
    ask->key = malloc(sizeof *ask->key * N * threads);
    ask->own = malloc(sizeof *ask->own * (size_t)ask->words * threads);
    ask->rows = calloc((size_t)sample, sizeof *ask->rows);
    if (!ask->keys || !ask->values || !ask->group || !ask->score || !ask->key || !ask->own || !ask->rows)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory to ask %d of %zu queries", sample, N);
    for (size_t n = 0; n < N; n++) {
        analysis_row(&ask->head->host[1], (int64_t)n, row);
        for (size_t d = 0; d < D; d++) ask->keys[d * N + n] = row[d];
        analysis_row(&ask->head->host[2], (int64_t)n, ask->values + n * D);
    }
    for (int i = 0; i < ANALYSIS_SHARED; i++)
        analysis_groups_of(&ask->choices[analysis_shared[i]].queries, ask->group + (size_t)i * N);
    return MCSA_OK;
}

static void close_question(question *ask)
{
    free(ask->keys);
    free(ask->values);
    free(ask->group);
    free(ask->score);
    free(ask->key);
    free(ask->own);
    free(ask->rows);
}

/* score [N] becomes the attention of query i. */
static void attention_of(const question *ask, int i, float *score)
{
    const int N = ask->head->N, D = ask->head->D;
    float q[MCSA_MAX_DIM], most = -INFINITY;
    analysis_row(&ask->head->host[0], i, q);
    for (int first = 0; first < N; first += STRIP) {
        int count = N - first < STRIP ? N - first : STRIP;
        float *strip = score + first;
        for (int j = 0; j < count; j++) strip[j] = 0;
        for (int d = 0; d < D; d++) {
            const float *row = ask->keys + (int64_t)d * N + first, weight = q[d] * ask->head->x.scale;
            for (int j = 0; j < count; j++) strip[j] += weight * row[j];
        }
        for (int j = 0; j < count; j++) most = fmaxf(most, strip[j]);
    }
    double sum = 0;
    for (int j = 0; j < N; j++) {
        score[j] = expf(score[j] - most);
        sum += (double)score[j];
    }
    for (int j = 0; j < N; j++) score[j] = (float)((double)score[j] / sum);
}

/* Output [D] over the keys in `own`, or all of them when NULL; returns their attention. */
static double output_of(const question *ask, const float *attention, const uint64_t *own, double *out)
{
    const int N = ask->head->N, D = ask->head->D;
    double kept = 0;
    for (int d = 0; d < D; d++) out[d] = 0;
    for (int j = 0; j < N; j++) {
        if (own && !(own[j / 64] >> (j % 64) & 1)) continue;
        const float *value = ask->values + (int64_t)j * D;
        for (int d = 0; d < D; d++) out[d] += (double)attention[j] * (double)value[d];
        kept += (double)attention[j];
    }
    for (int d = 0; d < D; d++) out[d] /= kept;
    return kept;
}

static void answer(const question *ask, int i, asked *row)
{
    const analysis_chooser *c = ask->c;
    const int N = ask->head->N, D = ask->head->D, thread = omp_get_thread_num();
    float *attention = ask->score + (int64_t)thread * N;
    uint64_t *own = ask->own + (int64_t)thread * ask->words;
    double dense[MCSA_MAX_DIM], out[MCSA_MAX_DIM];
    attention_of(ask, i, attention);
    output_of(ask, attention, NULL, dense);
    for (int d = 0; d < D; d++) row->power += dense[d] * dense[d];
    for (int s = 0; s < c->densities; s++) {
        memset(own, 0, sizeof *own * (size_t)ask->words);
        rival_keep_top(attention, N, analysis_keys_kept(N, c->density[s]), ask->key + (int64_t)thread * N, own);
        row->kept[s] = output_of(ask, attention, own, out);
        for (int d = 0; d < D; d++) row->error[s] += (out[d] - dense[d]) * (out[d] - dense[d]);
        for (int k = 0; k < ANALYSIS_SHARED; k++) {
            const rival_map *map = &ask->choices[analysis_shared[k]].map[s];
            row->shared[s][k] = analysis_overlap(rival_map_row(map, 0, ask->group[(int64_t)k * N + i]),
                                                 analysis_rules[analysis_shared[k]].unit, own, N);
        }
    }
}

/* Rows in their order, so that sums do not depend on threads. */
static void add_answers(analysis_per_query *out, const question *ask, int sample)
{
    for (int r = 0; r < sample; r++)
        for (int s = 0; s < ask->c->densities; s++) {
            const asked *row = &ask->rows[r];
            out->sums[s].power += row->power;
            out->sums[s].error += row->error[s];
            out->sums[s].kept += row->kept[s];
            out->sums[s].rows++;
            out->sums[s].numbers += ask->head->D;
            for (int k = 0; k < ANALYSIS_SHARED; k++) {
                out->shared[s][k].kept += row->shared[s][k].kept;
                out->shared[s][k].wanted += row->shared[s][k].wanted;
            }
        }
}

mcsa_status analysis_ask_queries(analysis_per_query *out, const analysis_chooser *c, const analysis_head *head,
                                 const analysis_choice choices[ANALYSIS_SELECTORS], int sample, mcsa_error *error)
{
    question ask = { .c = c, .head = head, .choices = choices };
    if (sample > head->N) sample = head->N;
    mcsa_status status = open_question(&ask, sample, error);
    if (status == MCSA_OK) {
#pragma omp parallel for schedule(static) num_threads(c->machine->threads)
        for (int r = 0; r < sample; r++)
            answer(&ask, (int)(((int64_t)2 * r + 1) * head->N / (2 * (int64_t)sample)), &ask.rows[r]);
        add_answers(out, &ask, sample);
    }
    close_question(&ask);
    return status;
}
