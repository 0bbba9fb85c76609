/* methods_gate.c - see methods_gate.h.
 *
 * With u = 2^-24, and the unit of rounding of the tensors u_out: a logit of K keys moves by at most ds = (D + 8) u
 * scale sum|q k|, and an element of the softmax over them by (2 ds + 4 K u + u_p) max|v| + u_out |out|, u_p being what
 * the weights are rounded to: the bound of docs/NUMERICS.md, which check_row of problem.c takes too.  The tail's logits
 * carry the log of a weight, its exponentials are those of a GPU, off by 2^-22, and merging weighs both parts by exp of
 * differences of their LSE.  A GPU holds the FP32 numbers of a tail as two 16-bit ones, off by 2^-16, and rounds its
 * weights as it does those of kept keys; a CPU does neither.  MC-Sparse has means of its dtype in the softmax of the
 * keys, which rounds less than two that are merged.  These bounds hold however roundings fall out; rows of
 * 16-bit numbers must also be within 4 u_out of the size of what was rounded, as in problem.c. */
#include "methods_gate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define U 0x1p-24
#define EXP 0x1p-22
#define SPLIT 0x1p-16     /* of a float held as two 16-bit numbers */
#define U_RESIDUAL 0x1p-8 /* BF16 */

/* The softmax of a query over some keys, virtual or not: out, how far it may be off, and the same of its LSE. */
typedef struct softmax {
    double out[BENCH_ANSWER_DIM], bound[BENCH_ANSWER_DIM], lse, lse_bound;
} softmax;

/* One sampled query and scratch of its own. */
typedef struct query {
    const bench_clip *clip;
    const bench_moment *at;
    const rival_choice *choice; /* NULL: dense */
    int head, host_head, row, part;
    int32_t *key;  /* [N] kept rows */
    double *logit; /* [max(N, parts of the keys)] */
} query;

static double unit_of(const bench_clip *clip)
{
    return bench_unit(clip->out.dtype);
}

static double split_of(const bench_clip *clip)
{
    return clip->out.dtype == MCSA_F32 ? 0 : SPLIT;
}

static double norm_of(const double *x, int64_t D)
{
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += x[d] * x[d];
    return sqrt(sum);
}

static int list_keys(const query *q)
{
    const int N = (int)q->clip->out.shape[1];
    int listed = 0;
    for (int j = 0; !q->choice && j < N; j++) q->key[listed++] = j;
    for (int k = 0; q->choice && k < q->choice->map.K; k++) {
        int count;
        if (!rival_map_has(&q->choice->map, q->head, q->part, k)) continue;
        const int32_t *rows = rival_part(&q->choice->keys, q->head, k, &count);
        memcpy(q->key + listed, rows, sizeof *rows * (size_t)count);
        listed += count;
    }
    return listed;
}

/* Over the kept keys, before rounding to the tensors' dtype.  Returns 0 where there are none. */
static int attend_keys(const query *q, softmax *s)
{
    const mcsa_tensor *keys = &q->at->k, *values = &q->at->v;
    const int64_t D = keys->shape[2];
    const int count = list_keys(q);
    const double scale = (double)q->clip->scale, u_p = keys->dtype == MCSA_F32 ? 0 : unit_of(q->clip);
    double max = -INFINITY, size = 0, sum = 0, most = 0;
    if (!count) return 0;
    for (int j = 0; j < count; j++) {
        double dot = 0, absolute = 0;
        for (int64_t d = 0; d < D; d++) {
            const double x =
                bench_element(&q->at->q, q->host_head, q->row, d) * bench_element(keys, q->host_head, q->key[j], d);
            dot += x;
            absolute += fabs(x);
            most = fmax(most, fabs(bench_element(values, q->host_head, q->key[j], d)));
        }
        q->logit[j] = scale * dot;
        max = fmax(max, q->logit[j]);
        size = fmax(size, scale * absolute);
    }
    for (int j = 0; j < count; j++) sum += q->logit[j] = exp(q->logit[j] - max);
    memset(s, 0, sizeof *s);
    for (int j = 0; j < count; j++)
        for (int64_t d = 0; d < D; d++)
            s->out[d] += q->logit[j] / sum * bench_element(values, q->host_head, q->key[j], d);
    const double ds = (double)(D + 8) * U * size;
    for (int64_t d = 0; d < D; d++) s->bound[d] = (2 * ds + 4 * count * U + u_p) * most;
    s->lse = max + log(sum);
    s->lse_bound = ds + 4 * count * U + 8 * U * (fabs(s->lse) + 2);
    return 1;
}

/* s->out += slope^T q */
static void add_slope(const query *q, softmax *s)
{
    const int64_t D = q->clip->out.shape[2];
    const float *slope = q->choice->tail.slope + (int64_t)q->head * D * D;
    for (int64_t d = 0; d < D; d++) {
        double products = 0;
        for (int64_t e = 0; e < D; e++) {
            const double x = bench_element(&q->at->q, q->host_head, q->row, e) * (double)slope[e * D + d];
            s->out[d] += x;
            products += fabs(x);
        }
        s->bound[d] += ((double)(D + 3) * U + split_of(q->clip)) * products;
    }
}

/* Lists the virtual keys of what was not kept, with their logits.  *reach gets the largest move of a logit, *most the
 * largest value.  Returns how many there are. */
static int list_tail(const query *q, double *reach, double *most)
{
    const rival_tail *tail = &q->choice->tail;
    const int64_t D = q->clip->out.shape[2], first = (int64_t)q->head * q->choice->map.K;
    const double scale = (double)q->clip->scale;
    int count = 0;
    *reach = *most = 0;
    for (int k = 0; k < q->choice->map.K; k++) {
        const double weight = (double)tail->weight[first + k];
        double dot = 0, absolute = 0;
        if (rival_map_has(&q->choice->map, q->head, q->part, k) || !(weight > 0)) continue;
        for (int64_t d = 0; d < D; d++) {
            const double x = bench_element(&q->at->q, q->host_head, q->row, d) * (double)tail->key[(first + k) * D + d];
            dot += x;
            absolute += fabs(x);
            *most = fmax(*most, fabs((double)tail->value[(first + k) * D + d]));
        }
        const double logit = scale * dot + log(weight), exact = (double)(D + 8) * U + split_of(q->clip);
        *reach = fmax(*reach, exact * scale * absolute + U * (2 * fabs(logit) + 8));
        q->logit[count] = logit;
        q->key[count++] = k;
    }
    return count;
}

/* Over those.  Returns 0 where there are none. */
static int attend_tail(const query *q, softmax *s)
{
    const int64_t D = q->clip->out.shape[2];
    const float *value = q->choice->tail.value + (int64_t)q->head * q->choice->map.K * D;
    const double u_p = q->clip->out.dtype == MCSA_F32 ? 0 : unit_of(q->clip);
    double reach, most, max = -INFINITY, sum = 0;
    const int count = list_tail(q, &reach, &most);
    if (!count) return 0;
    for (int j = 0; j < count; j++) max = fmax(max, q->logit[j]);
    for (int j = 0; j < count; j++) sum += q->logit[j] = exp(q->logit[j] - max);
    memset(s, 0, sizeof *s);
    for (int j = 0; j < count; j++)
        for (int64_t d = 0; d < D; d++) s->out[d] += q->logit[j] / sum * (double)value[(int64_t)q->key[j] * D + d];
    s->lse = max + log(sum);
    s->lse_bound = reach + (count / 64 + 3) * EXP + (count + 8) * U + 4 * U * (fabs(s->lse) + 8);
    const double moved = expm1(2 * s->lse_bound) + (count + 8) * U + u_p + split_of(q->clip);
    for (int64_t d = 0; d < D; d++) s->bound[d] = moved * most;
    if (q->choice->tail.slope) add_slope(q, s);
    return 1;
}

/* A row of no part, or whose part has neither keys nor a tail, has no right answer. */
static void answer_row(const query *q, bench_answer *answer)
{
    const int64_t D = q->clip->out.shape[2];
    const double u_out = unit_of(q->clip);
    softmax kept, tail;
    *answer = (bench_answer){ .size = NAN };
    if (q->part < 0) return;
    int exact = attend_keys(q, &kept), rest = q->choice && q->choice->tail.key && attend_tail(q, &tail);
    if (!exact && !rest) return;
    if (!exact) {
        kept = tail;
        rest = 0;
    }
    for (int64_t d = 0; d < D; d++) kept.bound[d] += u_out * fabs(kept.out[d]);
    answer->size = norm_of(kept.out, D);
    if (rest) {
        const double top = fmax(kept.lse, tail.lse), x = exp(kept.lse - top), y = exp(tail.lse - top);
        const double off = expm1(kept.lse_bound + tail.lse_bound + 4 * U * (fabs(top) + 4)) + EXP + 4 * U;
        for (int64_t d = 0; d < D; d++) {
            const double apart = fabs(kept.out[d] - tail.out[d]);
            kept.out[d] = (x * kept.out[d] + y * tail.out[d]) / (x + y);
            kept.bound[d] = (x * kept.bound[d] + y * tail.bound[d]) / (x + y) + off * apart;
            kept.bound[d] += u_out * (fabs(kept.out[d]) + kept.bound[d]);
        }
        answer->size += norm_of(tail.out, D) * y / (x + y) + norm_of(kept.out, D);
    }
    memcpy(answer->out, kept.out, sizeof answer->out);
    memcpy(answer->bound, kept.bound, sizeof answer->bound);
}

/* The part of the queries that a row is in, or -1. */
static int part_of(const rival_partition *queries, int h, int row)
{
    for (int part = 0; part < queries->P; part++) {
        int count;
        const int32_t *rows = rival_part(queries, h, part, &count);
        for (int i = 0; i < count; i++)
            if (rows[i] == row) return part;
    }
    return -1;
}

mcsa_status bench_answers(bench_answer *answer, const bench_clip *clip, int step, const rival_choice *choice,
                          mcsa_error *error)
{
    int32_t index[BENCH_CLIP_ROWS];
    const int samples = bench_clip_sample(clip, index), N = (int)clip->out.shape[1];
    const size_t terms = (size_t)(choice && choice->map.K > N ? choice->map.K : N);
    double *logit = malloc((sizeof *logit + sizeof(int32_t)) * terms * (size_t)samples);
    if (!logit) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d rows of %zu keys in double", samples, terms);
    int32_t *key = (int32_t *)(void *)(logit + terms * (size_t)samples);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < samples; i++) {
        query q = { .clip = clip,
                    .at = &clip->host[step],
                    .choice = choice,
                    .head = bench_clip_head(clip, i),
                    .host_head = bench_clip_host_head(clip, i),
                    .row = index[i],
                    .key = key + terms * (size_t)i,
                    .logit = logit + terms * (size_t)i };
        if (choice) q.part = part_of(&choice->queries, q.head, q.row);
        answer_row(&q, &answer[i]);
    }
    free(logit);
    return MCSA_OK;
}

void bench_answer_compensate(bench_answer *now, const bench_answer *dense, const bench_answer *sparse,
                             const bench_clip *clip)
{
    const int64_t D = clip->out.shape[2];
    const double u_out = unit_of(clip);
    double missed[BENCH_ANSWER_DIM];
    for (int64_t d = 0; d < D; d++) {
        const double off = dense->bound[d] + sparse->bound[d];
        missed[d] = dense->out[d] - sparse->out[d];
        now->out[d] += missed[d];
        now->bound[d] += off + U_RESIDUAL * (fabs(missed[d]) + off);
        now->bound[d] += u_out * (fabs(now->out[d]) + now->bound[d]);
    }
    now->size += dense->size + sparse->size + U_RESIDUAL / u_out * norm_of(missed, D) + norm_of(now->out, D);
}

double bench_answers_used(const bench_answer *answer, const float *rows, const bench_clip *clip)
{
    int32_t index[BENCH_CLIP_ROWS];
    const int samples = bench_clip_sample(clip, index);
    const int64_t D = clip->out.shape[2];
    double worst = 0;
    for (int i = 0; i < samples; i++) {
        double off[BENCH_ANSWER_DIM];
        for (int64_t d = 0; d < D; d++) {
            off[d] = (double)rows[i * D + d] - answer[i].out[d];
            worst = bench_worse(worst, fabs(off[d]) / (answer[i].bound[d] + 0x1p-25));
        }
        worst =
            bench_worse(worst, clip->out.dtype == MCSA_F32 ? answer[i].size * 0
                                                           : norm_of(off, D) / (4 * unit_of(clip) * answer[i].size));
    }
    return worst;
}
