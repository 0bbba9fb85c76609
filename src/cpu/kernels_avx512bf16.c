/* kernels_avx512bf16.c - the AVX-512 tables: float words for F32 and F16 tensors, bf16 pairs for BF16 tensors. */
#include "simd_avx512.h"

#define MCSA_PANEL_VECS 4

#include <string.h>

#include "tile_kernels.h"

static void scores_f32(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float *out)
{
    scores_of(0, keys, queries, count, D, lanes, out);
}

static void scores_bf16(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float *out)
{
    scores_of(1, keys, queries, count, D, lanes, out);
}

static void softmax_f32(const float *score, int count, int lanes, float scale2, mcsa_strip *strip,
                        uint32_t *probabilities)
{
    softmax_of(0, score, count, lanes, scale2, strip, probabilities);
}

static void softmax_bf16(const float *score, int count, int lanes, float scale2, mcsa_strip *strip,
                         uint32_t *probabilities)
{
    softmax_of(1, score, count, lanes, scale2, strip, probabilities);
}

static void accumulate_f32(const uint32_t *values, const uint32_t *probabilities, int count, int D, int lanes,
                           const float *alpha, float *output)
{
    accumulate_of(0, values, probabilities, count, D, lanes, alpha, output);
}

static void accumulate_bf16(const uint32_t *values, const uint32_t *probabilities, int count, int D, int lanes,
                            const float *alpha, float *output)
{
    accumulate_of(1, values, probabilities, count, D, lanes, alpha, output);
}

static void mass_f32(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float scale2,
                     const float *minus_lse2, float *partial)
{
    mass_of(0, keys, queries, count, D, lanes, scale2, minus_lse2, partial);
}

static void mass_bf16(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float scale2,
                      const float *minus_lse2, float *partial)
{
    mass_of(1, keys, queries, count, D, lanes, scale2, minus_lse2, partial);
}

static void weigh_f32(const uint32_t *probabilities, int count, int lanes, const float *max, const float *minus_lse2,
                      float *partial)
{
    weigh_of(0, probabilities, count, lanes, max, minus_lse2, partial);
}

static void weigh_bf16(const uint32_t *probabilities, int count, int lanes, const float *max, const float *minus_lse2,
                       float *partial)
{
    weigh_of(1, probabilities, count, lanes, max, minus_lse2, partial);
}

static void mass_sum(const float *partial, int count, float *mass)
{
    mass_sum_of(partial, count, mass);
}

static void finish(const float *output, int D, int lanes, const float *sum, int count, float *rows)
{
    finish_of(output, D, lanes, sum, count, rows);
}

static void stage_f32(const mcsa_rows *rows, uint32_t *staged)
{
    stage_float(rows, staged);
}

static void pack_queries_f32(const mcsa_rows *rows, int lanes, uint32_t *queries, uint32_t *scratch)
{
    stage_float(rows, scratch);
    size_t used = (size_t)rows->count * (size_t)rows->D;
    memset(scratch + used, 0, sizeof *scratch * ((size_t)lanes * (size_t)rows->D - used));
    transpose(scratch, lanes, rows->D, queries);
}

static void stage_keys_f32(const mcsa_rows *rows, uint32_t *staged, const uint32_t **keys)
{
    stage_keys_float(rows, staged, keys);
}

/* Copies rows [count, words], an odd D padded with a zero. */
static void copy_words(const mcsa_rows *rows, uint32_t *staged)
{
    int D = rows->D, words = (D + 1) / 2;
    for (int r = 0; r < rows->count; r++, staged += words) {
        const uint16_t *x = row_at(rows, r);
        uint16_t *w = (uint16_t *)staged;
        if (rows->column_stride == 1 && D % 32 == 0)
            for (int d = 0; d < D; d += 32) _mm512_storeu_si512(w + d, _mm512_loadu_si512(x + d));
        else
            for (int d = 0; d < D; d++) w[d] = x[d * rows->column_stride];
        if (D & 1) w[D] = 0;
    }
}

/* bf16 rows of even D are words where they lie (words need no alignment: panels read them by memcpy). */
static void stage_keys_bf16(const mcsa_rows *rows, uint32_t *staged, const uint32_t **keys)
{
    int direct = rows->column_stride == 1 && rows->D % 2 == 0, words = (rows->D + 1) / 2;
    if (!direct) copy_words(rows, staged);
    for (int r = 0; r < rows->count; r++) keys[r] = direct ? row_at(rows, r) : staged + (ptrdiff_t)r * words;
}

static void pack_queries_bf16(const mcsa_rows *rows, int lanes, uint32_t *queries, uint32_t *scratch)
{
    int words = (rows->D + 1) / 2;
    copy_words(rows, scratch);
    memset(scratch + rows->count * words, 0, sizeof *scratch * (size_t)(lanes - rows->count) * (size_t)words);
    transpose(scratch, lanes, words, queries);
}

/* 32 columns of two rows become 32 words in two permutations of the row pair. */
static void stage_values_bf16(const mcsa_rows *rows, uint32_t *values)
{
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    int D = rows->D;
    int64_t step = rows->column_stride;
    for (int r = 0; r < rows->count; r += 2, values += D) {
        const uint16_t *low = row_at(rows, r), *high = r + 1 < rows->count ? row_at(rows, r + 1) : NULL;
        int d = 0;
        if (step == 1 && high)
            for (; d + 32 <= D; d += 32) {
                __m512i a = _mm512_loadu_si512(low + d), b = _mm512_loadu_si512(high + d);
                _mm512_storeu_si512(values + d, _mm512_permutex2var_epi16(a, first, b));
                _mm512_storeu_si512(values + d + 16, _mm512_permutex2var_epi16(a, second, b));
            }
        for (; d < D; d++) values[d] = low[d * step] | (high ? (uint32_t)high[d * step] << 16 : 0);
    }
}

static double pddp_pass(const mcsa_rows *rows, const float *direction, float shift, float *y, float *projection)
{
    return pddp_pass_of(rows, direction, shift, y, projection);
}

static void sum_rows(const mcsa_rows *rows, float *sum)
{
    sum_rows_of(rows, sum);
}

static int64_t peak_f32(int64_t rounds)
{
    return peak_of(0, rounds);
}

static int64_t peak_bf16(int64_t rounds)
{
    return peak_of(1, rounds);
}

void mcsa_kernels_avx512bf16(mcsa_kernels *f32, mcsa_kernels *bf16)
{
    *f32 = (mcsa_kernels){
        .word_elements = 1,
        .pack_queries = pack_queries_f32,
        .stage_keys = stage_keys_f32,
        .stage_values = stage_f32,
        .scores = scores_f32,
        .softmax = softmax_f32,
        .accumulate = accumulate_f32,
        .mass = mass_f32,
        .weigh = weigh_f32,
        .mass_sum = mass_sum,
        .finish = finish,
        .residual_encode = residual_encode,
        .residual_add = residual_add,
        .load_row = load_row,
        .store_row = store_row,
        .pddp_pass = pddp_pass,
        .sum_rows = sum_rows,
        .peak = peak_f32,
    };
    *bf16 = *f32;
    bf16->word_elements = 2;
    bf16->pack_queries = pack_queries_bf16;
    bf16->stage_keys = stage_keys_bf16;
    bf16->stage_values = stage_values_bf16;
    bf16->scores = scores_bf16;
    bf16->softmax = softmax_bf16;
    bf16->accumulate = accumulate_bf16;
    bf16->mass = mass_bf16;
    bf16->weigh = weigh_bf16;
    bf16->peak = peak_bf16;
}
