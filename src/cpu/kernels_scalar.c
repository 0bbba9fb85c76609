/* kernels_scalar.c - the table in plain C: what every other level is judged by, and what runs where nothing else does.
 * Layouts are those of kernels.h with float words. */
#include "kernels.h"
#include "residual.h"
#include "rows.h"

#include <math.h>

static float as_float(uint32_t word)
{
    float f;
    memcpy(&f, &word, sizeof f);
    return f;
}

static uint32_t as_word(float f)
{
    uint32_t word;
    memcpy(&word, &f, sizeof word);
    return word;
}

static void pack_queries(const mcsa_rows *rows, int lanes, uint32_t *queries, uint32_t *scratch)
{
    float *row = (float *)scratch;
    for (int i = 0; i < lanes; i++) {
        if (i < rows->count)
            load_row(row_at(rows, i), rows->dtype, rows->column_stride, rows->D, row);
        else
            memset(row, 0, sizeof *row * (size_t)rows->D);
        for (int d = 0; d < rows->D; d++) queries[d * lanes + i] = as_word(row[d]);
    }
}

static void stage_rows(const mcsa_rows *rows, uint32_t *staged)
{
    for (int r = 0; r < rows->count; r++)
        load_row(row_at(rows, r), rows->dtype, rows->column_stride, rows->D,
                 (float *)staged + (size_t)r * (size_t)rows->D);
}

static void stage_keys(const mcsa_rows *rows, uint32_t *staged, const uint32_t **keys)
{
    stage_rows(rows, staged);
    for (int r = 0; r < rows->count; r++) keys[r] = staged + (size_t)r * (size_t)rows->D;
}

static void scores(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float *out)
{
    for (int j = 0; j < count; j++)
        for (int i = 0; i < lanes; i++) {
            float s = 0;
            for (int d = 0; d < D; d++) s += as_float(keys[j][d]) * as_float(queries[d * lanes + i]);
            out[j * lanes + i] = s;
        }
}

static void softmax(const float *score, int count, int lanes, float scale2, mcsa_strip *strip, uint32_t *probabilities)
{
    for (int i = 0; i < lanes; i++) {
        float max = strip->max[i], sum = 0;
        for (int j = 0; j < count; j++)
            if (!(score[j * lanes + i] * scale2 <= max)) max = score[j * lanes + i] * scale2;
        float from = max == -INFINITY ? 0 : max; /* all scores -inf: no -inf - -inf */
        strip->alpha[i] = exp2f(strip->max[i] - from);
        strip->max[i] = max;
        for (int j = 0; j < count; j++) {
            float p = exp2f(score[j * lanes + i] * scale2 - from);
            sum += p;
            probabilities[j * lanes + i] = as_word(p);
        }
        strip->sum[i] = strip->sum[i] * strip->alpha[i] + sum;
    }
}

static void accumulate(const uint32_t *values, const uint32_t *probabilities, int count, int D, int lanes,
                       const float *alpha, float *output)
{
    for (int d = 0; d < D; d++)
        for (int i = 0; i < lanes; i++) {
            float o = output[d * lanes + i] * alpha[i];
            for (int j = 0; j < count; j++) o += as_float(values[j * D + d]) * as_float(probabilities[j * lanes + i]);
            output[d * lanes + i] = o;
        }
}

/* mass_j = sum_i A_ij, A_ij = exp(s_ij - lse_i): METHOD.md (2) */
static void mass(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float scale2,
                 const float *minus_lse2, float *partial)
{
    for (int j = 0; j < count; j++)
        for (int i = 0; i < lanes; i++) {
            float s = 0;
            for (int d = 0; d < D; d++) s += as_float(keys[j][d]) * as_float(queries[d * lanes + i]);
            partial[j * MCSA_LANES + i % MCSA_LANES] += exp2f(s * scale2 + minus_lse2[i]);
        }
}

static void weigh(const uint32_t *probabilities, int count, int lanes, const float *max, const float *minus_lse2,
                  float *partial)
{
    for (int i = 0; i < lanes; i++) {
        float factor = exp2f((max[i] == -INFINITY ? 0 : max[i]) + minus_lse2[i]);
        for (int j = 0; j < count; j++)
            partial[j * MCSA_LANES + i % MCSA_LANES] += as_float(probabilities[j * lanes + i]) * factor;
    }
}

static void mass_sum(const float *partial, int count, float *mass)
{
    for (int j = 0; j < count; j++) {
        float sum = 0;
        for (int i = 0; i < MCSA_LANES; i++) sum += partial[j * MCSA_LANES + i];
        mass[j] = sum;
    }
}

static void finish(const float *output, int D, int lanes, const float *sum, int count, float *rows)
{
    for (int i = 0; i < count; i++)
        for (int d = 0; d < D; d++) rows[i * D + d] = output[d * lanes + i] / sum[i];
}

static double pddp_pass(const mcsa_rows *rows, const float *direction, float shift, float *y, float *projection)
{
    float x[MCSA_MAX_DIM];
    double total = 0;
    for (int r = 0; r < rows->count; r++) {
        float t = 0;
        load_row(row_at(rows, r), rows->dtype, rows->column_stride, rows->D, x);
        for (int d = 0; d < rows->D; d++) t += x[d] * direction[d];
        if (projection) projection[r] = t;
        total += (double)(t - shift);
        for (int d = 0; y && d < rows->D; d++) y[d] += (t - shift) * x[d];
    }
    return total;
}

static void sum_rows(const mcsa_rows *rows, float *sum)
{
    float x[MCSA_MAX_DIM];
    for (int r = 0; r < rows->count; r++) {
        load_row(row_at(rows, r), rows->dtype, rows->column_stride, rows->D, x);
        for (int d = 0; d < rows->D; d++) sum[d] += x[d];
    }
}

static int64_t peak(int64_t rounds)
{
    volatile float sink;
    float acc[8] = { 0 };
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < 8; c++) acc[c] = acc[c] * 0.5f + 1.0f;
    for (int c = 0; c < 8; c++) sink = acc[c];
    (void)sink;
    return rounds * 8 * 2;
}

void mcsa_kernels_scalar(mcsa_kernels *f32)
{
    *f32 = (mcsa_kernels){
        .word_elements = 1,
        .pack_queries = pack_queries,
        .stage_keys = stage_keys,
        .stage_values = stage_rows,
        .scores = scores,
        .softmax = softmax,
        .accumulate = accumulate,
        .mass = mass,
        .weigh = weigh,
        .mass_sum = mass_sum,
        .finish = finish,
        .residual_encode = residual_encode,
        .residual_add = residual_add,
        .load_row = load_row,
        .store_row = store_row,
        .pddp_pass = pddp_pass,
        .sum_rows = sum_rows,
        .peak = peak,
    };
}
