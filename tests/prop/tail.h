/* tail.h - attention of a reuse step with means, once more in double, from the clusters and kept bits that a run holds:
 * each group attends to the keys of its kept clusters and to the means of all others.
 *
 * Means are restated bit for bit (FP32 sums in member order, one division, one rounding to the dtype), so they enter as
 * data and need no bound. */
#ifndef MCSA_TESTS_PROP_TAIL_H
#define MCSA_TESTS_PROP_TAIL_H

#include "test.h"

static inline const int32_t *tail_members(const mcsa_selection *s, int h, int p, int *count)
{
    const int32_t *first = s->first + (int64_t)h * (s->P + 1) + p;
    *count = first[1] - first[0];
    return s->members + (int64_t)h * s->N + first[0];
}

static inline double tail_stored(float x, mcsa_dtype dtype)
{
    if (dtype == MCSA_F32) return (double)x;
    return (double)(dtype == MCSA_BF16 ? mcsa_from_bf16(mcsa_to_bf16(x)) : mcsa_from_f16(mcsa_to_f16(x)));
}

/* mean [P, D] of the rows t [N, D] of head h; NaN for an empty cluster */
static inline void tail_means(const mcsa_selection *s, int h, const double *t, int D, mcsa_dtype dtype, double *mean)
{
    for (int p = 0; p < s->P; p++) {
        int count;
        const int32_t *members = tail_members(s, h, p, &count);
        for (int d = 0; d < D; d++) {
            float sum = 0;
            for (int i = 0; i < count; i++) sum += (float)t[(int64_t)members[i] * D + d];
            mean[p * D + d] = count ? tail_stored(sum / (float)count, dtype) : (double)NAN;
        }
    }
}

/* One term of a softmax. */
typedef struct tail_term {
    const double *k, *v; /* [D] */
    int size;            /* keys that it stands for */
} tail_term;

/* terms: [N].  What group g of head h attends to; returns how many. */
static inline int tail_terms(const mcsa_selection *s, int h, int g, const double *const rows[4] /* k, v, means */,
                             int D, tail_term *terms)
{
    int listed = 0;
    for (int p = 0; p < s->P; p++) {
        int count, kept = test_is_kept(s, h, g, p);
        const int32_t *members = tail_members(s, h, p, &count);
        for (int i = 0; kept && i < count; i++)
            terms[listed++] = (tail_term){ rows[0] + (int64_t)members[i] * D, rows[1] + (int64_t)members[i] * D, 1 };
        if (!kept && count) terms[listed++] = (tail_term){ rows[2] + p * D, rows[3] + p * D, count };
    }
    return listed;
}

/* out [D] of query q; returns the bound on an element before it is rounded, as test_row_bounds has it with two
 * differences: a logit is larger by log n, with 9 u of both instead of 8 u (its own product, log2 n and their sum round
 * as well), and there is a block of keys more, since keys and means are in blocks of their own. */
static inline double tail_row(const double *q, const tail_term *terms, int listed, int D, double scale,
                              const test_rounding *rounding, double *out)
{
    double max = -INFINITY, most = 0, most_size = 0, most_v = 0, sum = 0;
    double *logit = test_alloc(sizeof *logit * (size_t)listed);
    for (int i = 0; i < listed; i++) {
        double dot = 0, size = 0;
        for (int d = 0; d < D; d++) {
            dot += q[d] * terms[i].k[d];
            size += fabs(q[d] * terms[i].k[d]);
            most_v = fmax(most_v, fabs(terms[i].v[d]));
        }
        logit[i] = scale * dot + log(terms[i].size);
        max = fmax(max, logit[i]);
        most = fmax(most, scale * size);
        most_size = fmax(most_size, log(terms[i].size));
    }
    memset(out, 0, sizeof *out * (size_t)D);
    for (int i = 0; i < listed; i++) {
        double p = exp(logit[i] - max);
        sum += p;
        for (int d = 0; d < D; d++) out[d] += p * terms[i].v[d];
    }
    for (int d = 0; d < D; d++) out[d] /= sum;
    free(logit);
    double blocks = (double)(listed / MCSA_KEY_BLOCK + 2);
    double ds = most * D * U_F32 + 9 * U_F32 * (most + most_size) + (blocks + 2) * (U_EXP2 + 2 * U_F32);
    double moved = expm1(2 * ds) + 2 * (listed + 4) * U_F32 + rounding->probability * (1 + 2 * ds);
    return fmin(moved, 2) * most_v;
}

/* out and out_bound of every `stride`-th place of the order; the rest is zero. */
static inline test_reference tail_reference(const test_call *c, const mcsa_selection *s, double scale,
                                            const test_rounding *rounding, int stride)
{
    size_t count = (size_t)c->H * (size_t)c->N, means = sizeof(double) * (size_t)s->P * (size_t)c->D;
    test_reference r = { test_alloc(sizeof(double) * count * (size_t)c->D), NULL, test_alloc(sizeof(double) * count),
                         NULL };
    double *q = test_doubles(&c->q.view), *k = test_doubles(&c->k.view), *v = test_doubles(&c->v.view);
    double *key = test_alloc(means), *value = test_alloc(means);
    tail_term *terms = test_alloc(sizeof *terms * (size_t)c->N);
    for (int h = 0; h < c->H; h++) {
        int64_t at = (int64_t)h * c->N;
        const double *const rows[4] = { k + at * c->D, v + at * c->D, key, value };
        tail_means(s, h, rows[0], c->D, c->dtype, key);
        tail_means(s, h, rows[1], c->D, c->dtype, value);
        for (int i = 0; i < c->N; i += stride) {
            int64_t n = at + s->order[at + i];
            int listed = tail_terms(s, h, i / s->C, rows, c->D, terms);
            r.out_bound[n] = tail_row(q + n * c->D, terms, listed, c->D, scale, rounding, r.out + n * c->D);
        }
    }
    free(q);
    free(k);
    free(v);
    free(key);
    free(value);
    free(terms);
    return r;
}

#endif
