/* error.c - what it costs a query when a part of the keys is replaced by its mean: the log of
 * sum_j |exp(a_j) v_j - exp(c) w|^2.
 *
 * With p = exp(a - m), r = exp(c - m), m the largest exponent of the part, and t = p - r the term of a key is
 *
 *     |p v - r w|^2 = |p (v - w) + t w|^2 = p^2 |v - w|^2 + t (2 p <v - w, w> + t |w|^2)
 *
 * whose numbers per key do not depend on the query.  The textbook expansion p^2 |v|^2 - 2 p r <v, w> + r^2 |w|^2 costs
 * the same, but loses everything below 1e-7 of |v|^2 to cancellation, where parts of alike keys are. */
#include "strips.h"

#include "cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

enum {
    PARTS = 32, /* of one task: with 128 queries a tenth of a millisecond or more */
    STRIPS = MCSA_DENSE_TILE / MCSA_STRIP,
    AHEAD = 8,    /* rows */
    DOT_LANES = 8 /* partial sums of a dot product: a fixed order that is not one chain */
};

/* The call, and what the queries have in common. */
typedef struct costs {
    const mcsa_qkv *x;
    const rival_partition *keys;
    const float *key, *value; /* [H, K, D] */
    float *gap, *along;       /* [H, N] in the keys' order: |v - w|^2 and 2 <v - w, w> */
    float *squares;           /* [H, K] |w|^2 */
} costs;

/* One part for the queries of one strip. */
typedef struct sums {
    float error[MCSA_STRIP]; /* relative to exp(2 max), max in the strip */
    float mean[MCSA_STRIP];  /* r */
} sums;

static float dot(const float *a, const float *b, int D)
{
    float lanes[DOT_LANES] = { 0 }, sum = 0;
    int d = 0;
    for (; d + DOT_LANES <= D; d += DOT_LANES)
        for (int l = 0; l < DOT_LANES; l++) lanes[l] += a[d + l] * b[d + l];
    for (; d < D; d++) lanes[d % DOT_LANES] += a[d] * b[d];
    for (int l = 0; l < DOT_LANES; l++) sum += lanes[l];
    return sum;
}

/* Fills gap, along and squares of part k of head h. */
static void measure_part(const costs *c, const mcsa_kernels *kernels, int h, int k)
{
    const mcsa_tensor *v = c->x->v;
    int D = c->x->dims.D, count;
    const int32_t *rows = rival_part(c->keys, h, k, &count);
    int64_t part = (int64_t)h * c->keys->P + k;
    const int32_t *first = c->keys->first + (int64_t)h * (c->keys->P + 1);
    const float *w = c->value + part * D;
    float gap[MCSA_MAX_DIM];
    int left = first[c->keys->P] - first[k]; /* in this part and the next ones */
    c->squares[part] = dot(w, w, D);
    for (int j = 0; j < count; j++) {
        int64_t at = rows + j - c->keys->order;
        if (j + AHEAD < left) rival_prefetch(v, h, rows + j + AHEAD, 1);
        kernels->load_row(mcsa_tensor_row(v, h, rows[j]), v->dtype, v->stride[2], D, gap);
        for (int d = 0; d < D; d++) gap[d] -= w[d];
        c->gap[at] = dot(gap, gap, D);
        c->along[at] = 2 * dot(gap, w, D);
    }
}

/* mean_score [STRIPS][count, STRIP] of the tile's queries and the means of parts first .. first + count. */
static void score_means(mcsa_tile *tile, const costs *c, int h, int first, int count, float *mean_score)
{
    mcsa_rows means = rival_float_rows(c->key + ((int64_t)h * c->keys->P + first) * tile->D, NULL, count, tile->D);
    tile->kernels->stage_keys(&means, tile->staged, tile->keys);
    for (int i = 0; i < tile->count; i += MCSA_STRIP) {
        int lanes = mcsa_strip_lanes(tile, i);
        tile->kernels->scores(tile->keys, rival_strip_queries(tile, i), count, tile->D, lanes, tile->scores);
        for (int k = 0; k < count; k++)
            memcpy(mean_score + ((int64_t)i / MCSA_STRIP * PARTS + k) * MCSA_STRIP, tile->scores + (int64_t)k * lanes,
                   sizeof *mean_score * (size_t)lanes);
    }
}

/* The mean alone: its exponent is the largest so far. */
static void begin_part(const float *mean_score, int lanes, float scale2, mcsa_strip *strip, sums *to)
{
    for (int l = 0; l < lanes; l++) {
        strip->max[l] = mean_score[l] * scale2;
        strip->sum[l] = to->error[l] = 0;
        to->mean[l] = 1;
    }
}

/* Adds keys whose p are probabilities [count, lanes].  gap, along: [count] */
static void add_keys(const float *restrict p, const float *restrict gap, const float *restrict along, int count,
                     int lanes, float squares, const float *restrict alpha, sums *restrict to)
{
    for (int l = 0; l < lanes; l++) {
        to->mean[l] *= alpha[l];
        to->error[l] *= alpha[l] * alpha[l];
    }
    for (int j = 0; j < count; j++, p += lanes)
        for (int l = 0; l < lanes; l++) {
            float t = p[l] - to->mean[l];
            to->error[l] += p[l] * p[l] * gap[j] + t * (p[l] * along[j] + t * squares);
        }
}

/* Part k of head h for all queries of the tile -> out [count, K] at column k. */
static void part_error(mcsa_tile *tile, const costs *c, int h, int k, const float *mean_score, float *out)
{
    const mcsa_kernels *kernel = tile->kernels;
    sums part[STRIPS];
    int count, D = tile->D;
    const int32_t *rows = rival_part(c->keys, h, k, &count);
    int64_t at = rows - c->keys->order;
    float scale2 = c->x->scale * RIVAL_LOG2_E, squares = c->squares[(int64_t)h * c->keys->P + k];
    for (int i = 0; i < tile->count; i += MCSA_STRIP)
        begin_part(mean_score + (int64_t)i * PARTS, mcsa_strip_lanes(tile, i), scale2, &tile->strips[i / MCSA_STRIP],
                   &part[i / MCSA_STRIP]);
    for (int j = 0; j < count; j += MCSA_KEY_BLOCK) {
        int block = count - j < MCSA_KEY_BLOCK ? count - j : MCSA_KEY_BLOCK;
        mcsa_rows keys = mcsa_head_rows(c->x->k, h, rows + j, 0, block);
        kernel->stage_keys(&keys, tile->staged, tile->keys);
        for (int i = 0; i < tile->count; i += MCSA_STRIP) {
            mcsa_strip *strip = &tile->strips[i / MCSA_STRIP];
            int lanes = mcsa_strip_lanes(tile, i);
            kernel->scores(tile->keys, rival_strip_queries(tile, i), block, D, lanes, tile->scores);
            kernel->softmax(tile->scores, block, lanes, scale2, strip, tile->probabilities);
            add_keys((const float *)(const void *)tile->probabilities, c->gap + at + j, c->along + at + j, block, lanes,
                     squares, strip->alpha, &part[i / MCSA_STRIP]);
        }
    }
    for (int i = 0; i < tile->count; i++) {
        float error = count ? part[i / MCSA_STRIP].error[i % MCSA_STRIP] : 0;
        float max = tile->strips[i / MCSA_STRIP].max[i % MCSA_STRIP];
        out[(int64_t)i * c->keys->P + k] = error <= 0 ? -INFINITY : logf(error) + 2 * RIVAL_LN_2 * max;
    }
}

/* Parts first .. first + count of head h for all queries [Q, D]. */
static void block_error(mcsa_tile *tile, const costs *c, int h, int first, int count, const mcsa_rows *query,
                        float *out)
{
    float mean_score[STRIPS * PARTS * MCSA_STRIP];
    for (int q = 0; q < query->count; q += MCSA_DENSE_TILE) {
        mcsa_rows some = *query;
        some.first = q;
        some.count = query->count - q < MCSA_DENSE_TILE ? query->count - q : MCSA_DENSE_TILE;
        mcsa_tile_load(tile, tile->kernels, &some);
        score_means(tile, c, h, first, count, mean_score);
        for (int k = 0; k < count; k++)
            part_error(tile, c, h, first + k, mean_score + (int64_t)k * MCSA_STRIP, out + (int64_t)q * c->keys->P);
    }
}

mcsa_status rival_cpu_error(void *state, const mcsa_qkv *x, int Q, const float *query, const rival_partition *keys,
                            const float *key, const float *value, float *out, mcsa_error *error)
{
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = &cpu->kernels.f32; /* queries are means, in FP32 */
    int D = x->dims.D, P = keys->P, blocks = (P + PARTS - 1) / PARTS;
    int64_t rows = (int64_t)keys->H * keys->N, parts = (int64_t)keys->H * P;
    TRY(rival_cpu_reserve(cpu, D, 1, error));
    float *memory = malloc(sizeof *memory * (size_t)(2 * rows + parts));
    if (!memory) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the values of %lld keys", (long long)rows);
    costs c = { x, keys, key, value, memory, memory + rows, memory + 2 * rows };
#pragma omp parallel for schedule(dynamic, 16) num_threads(cpu->threads)
    for (int64_t part = 0; part < parts; part++) measure_part(&c, kernels, (int)(part / P), (int)(part % P));
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)keys->H * blocks; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / blocks), first = (int)(task % blocks) * PARTS;
        mcsa_rows queries = rival_float_rows(query + (int64_t)h * Q * D, NULL, Q, D);
        tile->kernels = kernels;
        block_error(tile, &c, h, first, P - first < PARTS ? P - first : PARTS, &queries, out + (int64_t)h * Q * P);
    }
    free(memory);
    return MCSA_OK;
}
