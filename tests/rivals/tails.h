/* tails.h - what the tests of methods with a tail share: attention over the kept blocks and one virtual key for each
 * other block, once more in double from q, k, v, and the bound on its error. */
#ifndef MCSA_TESTS_RIVALS_TAILS_H
#define MCSA_TESTS_RIVALS_TAILS_H

#include "clustered.h"

/* Ceiling on relative L2 over a call, recorded from good runs (1.4e-6) with a factor of two to spare. */
#define TAIL_CEILING 3e-6

/* One head.  size, outer_size: sums of absolute values, for the bound. */
typedef struct tail_head {
    int N, D, K;
    const double *q, *k, *v;    /* [N, D] */
    double *key, *value, *size; /* [K, D] means of k, v and |k| */
    double *outer, *outer_size; /* [D, D] sum of (k - mean)^T v */
    double scale;
} tail_head;

static inline void tail_head_means(tail_head *t, const rival_partition *keys, int h)
{
    for (int part = 0; part < t->K; part++) {
        int count;
        const int32_t *rows = rival_part(keys, h, part, &count);
        double *key = t->key + part * t->D, *value = t->value + part * t->D, *size = t->size + part * t->D;
        for (int i = 0; i < count; i++)
            for (int d = 0; d < t->D; d++) {
                int64_t at = (int64_t)rows[i] * t->D + d;
                key[d] += t->k[at] / count;
                size[d] += fabs(t->k[at]) / count;
                value[d] += t->v[at] / count;
            }
    }
}

static inline void tail_head_outer(tail_head *t, const rival_partition *keys, int h)
{
    for (int part = 0; part < t->K; part++) {
        int count;
        const int32_t *rows = rival_part(keys, h, part, &count);
        for (int i = 0; i < count; i++)
            for (int a = 0; a < t->D; a++)
                for (int b = 0; b < t->D; b++) {
                    double apart = t->k[(int64_t)rows[i] * t->D + a] - t->key[part * t->D + a];
                    double product = apart * t->v[(int64_t)rows[i] * t->D + b];
                    t->outer[a * t->D + b] += product;
                    t->outer_size[a * t->D + b] += fabs(product);
                }
    }
}

static inline tail_head tail_head_make(const double *const qkv[3], const mcsa_qkv *x, const rival_partition *keys,
                                       int h)
{
    int64_t N = x->dims.N, D = x->dims.D, at = h * N * D;
    tail_head t = { .N = (int)N, .D = (int)D, .K = keys->P, .scale = (double)x->scale };
    t.q = qkv[0] + at;
    t.k = qkv[1] + at;
    t.v = qkv[2] + at;
    size_t means = sizeof(double) * (size_t)keys->P * (size_t)D, square = sizeof(double) * (size_t)(D * D);
    t.key = test_alloc(means);
    t.value = test_alloc(means);
    t.size = test_alloc(means);
    t.outer = test_alloc(square);
    t.outer_size = test_alloc(square);
    tail_head_means(&t, keys, h);
    tail_head_outer(&t, keys, h);
    return t;
}

static inline void tail_head_free(tail_head *t)
{
    free(t->key);
    free(t->value);
    free(t->size);
    free(t->outer);
    free(t->outer_size);
}

/* One term of the softmax of a row: a key, or a virtual one. */
typedef struct tail_term {
    double logit;
    const double *value;
    int is_virtual;
} tail_term;

/* terms: [N + K].  *most gets the largest scale sum |q k|. */
static inline int tail_terms(const tail_head *t, const rival_choice *choice, const int place[3] /* h, part, row */,
                             tail_term *terms, double *most)
{
    const double *q = t->q + (int64_t)place[2] * t->D;
    int listed = 0;
    *most = 0;
    for (int part = 0; part < t->K; part++) {
        int count, kept = rival_map_has(&choice->map, place[0], place[1], part);
        const int32_t *rows = rival_part(&choice->keys, place[0], part, &count);
        for (int i = 0; i < (kept ? count : 1); i++) {
            const double *k = kept ? t->k + (int64_t)rows[i] * t->D : t->key + part * t->D;
            double dot = 0, size = 0;
            for (int d = 0; d < t->D; d++) {
                dot += q[d] * k[d];
                size += fabs(q[d]) * (kept ? fabs(k[d]) : t->size[part * t->D + d]);
            }
            *most = fmax(*most, t->scale * size);
            const double *value = kept ? t->v + (int64_t)rows[i] * t->D : t->value + part * t->D;
            terms[listed++] = (tail_term){ t->scale * dot + (kept ? 0 : log(count)), value, !kept };
        }
    }
    return listed;
}

/* out [D] of a row, with the first-order term where the choice has a slope.  Returns the bound on an element:
 *
 * A logit is off by most ((D + 8) u) for its dot product, as in test_row_bounds, and 65 u most more where a mean of up
 * to 64 rows takes part.  A weight meets exp2 once per block of keys and twice in the merge, whose log-sum-exps are off
 * by 8 u (most + log N + 1).  Mean values are off by 65 u, and the first-order term by (N + D + 8) u of its absolute
 * sum: one sum over all rows, one over D. */
static inline double tail_row(const tail_head *t, const rival_choice *choice, const int place[3], tail_term *terms,
                              double *out, int *led_by_tail)
{
    double most, max = -INFINITY, sum = 0, rest = 0, most_v = 0, most_slope = 0;
    int listed = tail_terms(t, choice, place, terms, &most);
    const double *q = t->q + (int64_t)place[2] * t->D;
    for (int i = 0; i < listed; i++) {
        if (terms[i].logit > max) *led_by_tail = terms[i].is_virtual;
        max = fmax(max, terms[i].logit);
    }
    memset(out, 0, sizeof *out * (size_t)t->D);
    for (int i = 0; i < listed; i++) {
        double weight = exp(terms[i].logit - max);
        sum += weight;
        rest += terms[i].is_virtual ? weight : 0;
        for (int d = 0; d < t->D; d++) {
            out[d] += weight * terms[i].value[d];
            most_v = fmax(most_v, fabs(terms[i].value[d]));
        }
    }
    for (int d = 0; d < t->D; d++) {
        double slope = 0, size = 0;
        for (int a = 0; a < t->D && choice->tail.slope; a++) {
            slope += t->scale / t->N * q[a] * t->outer[a * t->D + d];
            size += t->scale / t->N * fabs(q[a]) * t->outer_size[a * t->D + d];
        }
        out[d] = (out[d] + rest * slope) / sum;
        most_slope = fmax(most_slope, size);
    }
    double ds = most * (t->D + 73) * U_F32 + (listed / MCSA_KEY_BLOCK + 5) * (U_EXP2 + 2 * U_F32) +
                8 * U_F32 * (most + log(t->N) + 1);
    double moved = fmin(expm1(2 * ds) + 2 * (listed + 4) * U_F32, 2);
    return moved * (most_v + most_slope) + 65 * U_F32 * most_v + (t->N + t->D + 8) * U_F32 * most_slope;
}

/* x->out, in F32, against the choice that made it.  Returns how many rows have their largest logit in the tail. */
static inline int tail_judge(test_worst *w, const test_call *c, const mcsa_qkv *x, const rival_choice *choice)
{
    double *qkv[3] = { test_doubles(&c->q.view), test_doubles(&c->k.view), test_doubles(&c->v.view) };
    tail_term *terms = test_alloc(sizeof *terms * (size_t)(c->N + choice->keys.P));
    double *out = test_alloc(sizeof *out * (size_t)c->D);
    int led = 0;
    for (int h = 0; h < c->H; h++) {
        tail_head t = tail_head_make((const double *const[]){ qkv[0], qkv[1], qkv[2] }, x, &choice->keys, h);
        for (int part = 0; part < choice->queries.P; part++) {
            int count, led_by_tail = 0;
            const int32_t *rows = rival_part(&choice->queries, h, part, &count);
            for (int i = 0; i < count; i++) {
                double bound = tail_row(&t, choice, (const int[]){ h, part, rows[i] }, terms, out, &led_by_tail);
                led += led_by_tail;
                for (int d = 0; d < c->D; d++)
                    test_judge(w, test_get(&c->out.view, h, rows[i], d), out[d], bound + U_F32 * (fabs(out[d]) + bound),
                               h, rows[i], d);
            }
        }
        tail_head_free(&t);
    }
    for (int i = 0; i < 3; i++) free(qkv[i]);
    free(terms);
    free(out);
    return led;
}

/* Rows of each block of 64 take the key of its first row. */
static inline void tail_flatten_keys(const mcsa_tensor *k)
{
    for (int64_t h = 0; h < k->shape[0]; h++)
        for (int64_t n = 0; n < k->shape[1]; n++)
            for (int64_t d = 0; d < k->shape[2]; d++) test_set(k, h, n, d, test_get(k, h, n / 64 * 64, d));
}

/* Keys constant per block: out is dense attention, whatever was kept.  The dense reference's bound lacks the means and
 * the merge; the one of tail_row has them, so dense is judged with that. */
static inline void tail_judge_dense(test_worst *w, const test_call *c, const mcsa_qkv *x, const rival_choice *choice)
{
    test_rounding rounding = test_rounding_of(MCSA_ISA_SCALAR, MCSA_F32);
    test_reference dense = test_reference_make(c, (double)x->scale, NULL, &rounding);
    double *qkv[3] = { test_doubles(&c->q.view), test_doubles(&c->k.view), test_doubles(&c->v.view) };
    tail_term *terms = test_alloc(sizeof *terms * (size_t)(c->N + choice->keys.P));
    double *out = test_alloc(sizeof *out * (size_t)c->D);
    for (int h = 0; h < c->H; h++) {
        tail_head t = tail_head_make((const double *const[]){ qkv[0], qkv[1], qkv[2] }, x, &choice->keys, h);
        for (int n = 0; n < c->N; n++) {
            int led;
            int64_t row = (int64_t)h * c->N + n;
            double bound = tail_row(&t, choice, (const int[]){ h, n / 64, n }, terms, out, &led);
            for (int d = 0; d < c->D; d++)
                test_judge(w, test_get(&c->out.view, h, n, d), dense.out[row * c->D + d], bound + dense.out_bound[row],
                           h, n, d);
        }
        tail_head_free(&t);
    }
    for (int i = 0; i < 3; i++) free(qkv[i]);
    free(terms);
    free(out);
    test_reference_free(&dense);
}

/* Every seventh query becomes 16 times the mean key of a random block, so that it looks elsewhere than the mean of its
 * own block does. */
static inline void tail_turn_queries(const mcsa_tensor *q, const mcsa_tensor *k, uint64_t seed)
{
    for (int64_t h = 0; h < q->shape[0]; h++)
        for (int64_t n = 0; n < q->shape[1]; n += 7) {
            int64_t block = test_below(&seed, (int)((k->shape[1] + 63) / 64));
            for (int64_t d = 0; d < q->shape[2]; d++) {
                double sum = 0;
                for (int64_t j = block * 64; j < block * 64 + 64 && j < k->shape[1]; j++) sum += test_get(k, h, j, d);
                test_set(q, h, n, d, sum / 4);
            }
        }
}

/* Whether everything kept in row (h, q) is at least as good as everything dropped, up to the bound on both. */
static inline void assert_keeps_best(const rival_map *map, int h, int q, const double *score, const double *bound)
{
    int worst = -1, best = -1;
    for (int k = 0; k < map->K; k++) {
        int kept = rival_map_has(map, h, q, k);
        if (kept && (worst < 0 || score[k] < score[worst])) worst = k;
        if (!kept && (best < 0 || score[k] > score[best])) best = k;
    }
    if (worst < 0) fail_msg("head %d row %d keeps nothing", h, q);
    if (best >= 0 && !(score[worst] + bound[worst] >= score[best] - bound[best]))
        fail_msg("head %d row %d keeps part %d of score %.9g, not part %d of %.9g", h, q, worst, score[worst], best,
                 score[best]);
}

#endif
