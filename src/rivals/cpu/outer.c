/* outer.c - the D x D product of centred keys and values over all rows: the first-order part of a tail.
 *
 * It is the kernel `accumulate` with keys for probabilities: 64 columns of k - mean as lanes, values as they lie.  In
 * FP32 for every dtype, since k - mean has no room for another rounding. */
#include "strips.h"

#include "cpu.h"

#include <string.h>

#include <omp.h>

/* 64 columns of the keys of one head. */
typedef struct columns {
    int h, first, count, lanes;
} columns;

/* lanes [rows, lanes] = those columns of k - mean; lanes past the last column are zeros. */
static void centre_keys(const mcsa_kernels *kernels, const mcsa_tensor *k, const columns *c, const int32_t *rows,
                        int count, const float *mean /* [D] */, float *lanes)
{
    int64_t skip = (int64_t)mcsa_dtype_bytes(k->dtype) * c->first * k->stride[2];
    memset(lanes, 0, sizeof *lanes * (size_t)count * (size_t)c->lanes);
    for (int j = 0; j < count; j++, lanes += c->lanes) {
        kernels->load_row((const char *)mcsa_tensor_row(k, c->h, rows[j]) + skip, k->dtype, k->stride[2], c->count,
                          lanes);
        for (int i = 0; i < c->count; i++) lanes[i] -= mean[c->first + i];
    }
}

/* product [D, lanes] = sum over all rows of v^T (k - mean), in the order of the parts. */
static void multiply(mcsa_tile *tile, const mcsa_qkv *x, const rival_partition *keys, const float *mean,
                     const columns *c, float *product)
{
    const mcsa_kernels *kernels = tile->kernels;
    const int32_t *end = keys->order + (int64_t)c->h * keys->N + keys->first[(int64_t)(c->h + 1) * (keys->P + 1) - 1];
    float one[MCSA_STRIP];
    for (int l = 0; l < MCSA_STRIP; l++) one[l] = 1;
    memset(product, 0, sizeof *product * (size_t)x->dims.D * (size_t)c->lanes);
    for (int k = 0; k < keys->P; k++) {
        int rows;
        const int32_t *part = rival_part(keys, c->h, k, &rows);
        const float *part_mean = mean + ((int64_t)c->h * keys->P + k) * x->dims.D;
        for (int j = 0; j < rows; j += MCSA_KEY_BLOCK) {
            int count = rows - j < MCSA_KEY_BLOCK ? rows - j : MCSA_KEY_BLOCK, next = (int)(end - part) - j - count;
            mcsa_rows values = mcsa_head_rows(x->v, c->h, part + j, 0, count);
            kernels->stage_values(&values, tile->values);
            centre_keys(kernels, x->k, c, part + j, count, part_mean, (float *)(void *)tile->probabilities);
            if (next > count) next = count; /* as many as while this product takes */
            rival_prefetch(x->k, c->h, part + j + count, next);
            rival_prefetch(x->v, c->h, part + j + count, next);
            kernels->accumulate(tile->values, tile->probabilities, count, x->dims.D, c->lanes, one, product);
        }
    }
}

mcsa_status rival_cpu_outer(void *state, const mcsa_qkv *x, const rival_partition *keys, const float *mean,
                            float *outer, mcsa_error *error)
{
    rival_cpu *cpu = state;
    int D = x->dims.D, strips = (D + MCSA_STRIP - 1) / MCSA_STRIP;
    TRY(rival_cpu_reserve(cpu, D, 1, error));
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)keys->H * strips; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        columns c = { (int)(task / strips), (int)(task % strips) * MCSA_STRIP, 0, 0 };
        c.count = D - c.first < MCSA_STRIP ? D - c.first : MCSA_STRIP;
        c.lanes = mcsa_lanes(c.count);
        tile->kernels = &cpu->kernels.f32;
        multiply(tile, x, keys, mean, &c, tile->output);
        float *to = outer + (int64_t)c.h * D * D + (int64_t)c.first * D;
        for (int i = 0; i < c.count; i++)
            for (int d = 0; d < D; d++) to[(int64_t)i * D + d] = tile->output[(int64_t)d * c.lanes + i];
    }
    return MCSA_OK;
}
