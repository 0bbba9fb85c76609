/* kernels_avx2.c - the AVX2 + FMA table: float words for every dtype. */
#include "simd_avx2.h"

#define MCSA_PANEL_VECS 2

#include "tile_kernels.h"

static void scores(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float *out)
{
    scores_of(0, keys, queries, count, D, lanes, out);
}

static void softmax(const float *score, int count, int lanes, float scale2, mcsa_strip *strip, uint32_t *probabilities)
{
    softmax_of(0, score, count, lanes, scale2, strip, probabilities);
}

static void accumulate(const uint32_t *values, const uint32_t *probabilities, int count, int D, int lanes,
                       const float *alpha, float *output)
{
    accumulate_of(0, values, probabilities, count, D, lanes, alpha, output);
}

static void mass(const uint32_t *const *keys, const uint32_t *queries, int count, int D, int lanes, float scale2,
                 const float *minus_lse2, float *partial)
{
    mass_of(0, keys, queries, count, D, lanes, scale2, minus_lse2, partial);
}

static void weigh(const uint32_t *probabilities, int count, int lanes, const float *max, const float *minus_lse2,
                  float *partial)
{
    weigh_of(0, probabilities, count, lanes, max, minus_lse2, partial);
}

static void mass_sum(const float *partial, int count, float *mass)
{
    mass_sum_of(partial, count, mass);
}

static void finish(const float *output, int D, int lanes, const float *sum, int count, float *rows)
{
    finish_of(output, D, lanes, sum, count, rows);
}

static void stage(const mcsa_rows *rows, uint32_t *staged)
{
    stage_float(rows, staged);
}

static void stage_keys(const mcsa_rows *rows, uint32_t *staged, const uint32_t **keys)
{
    stage_keys_float(rows, staged, keys);
}

static void pack_queries(const mcsa_rows *rows, int lanes, uint32_t *queries, uint32_t *scratch)
{
    stage_float(rows, scratch);
    size_t used = (size_t)rows->count * (size_t)rows->D;
    memset(scratch + used, 0, sizeof *scratch * ((size_t)lanes * (size_t)rows->D - used));
    transpose(scratch, lanes, rows->D, queries);
}

static double pddp_pass(const mcsa_rows *rows, const float *direction, float shift, float *y, float *projection)
{
    return pddp_pass_of(rows, direction, shift, y, projection);
}

static void sum_rows(const mcsa_rows *rows, float *sum)
{
    sum_rows_of(rows, sum);
}

static int64_t peak(int64_t rounds)
{
    return peak_of(0, rounds);
}

void mcsa_kernels_avx2(mcsa_kernels *f32)
{
    *f32 = (mcsa_kernels){
        .word_elements = 1,
        .pack_queries = pack_queries,
        .stage_keys = stage_keys,
        .stage_values = stage,
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
