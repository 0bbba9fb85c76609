/* nearest.c - see nearest.h. */
#include "nearest.h"

#include <math.h>

/* The largest score of each row so far, and whose it is. */
typedef struct nearest {
    float score[MCSA_STRIP];
    int32_t label[MCSA_STRIP];
} nearest;

float mcsa_half_square(const mcsa_kernels *kernels, const void *centre, mcsa_dtype dtype, int D)
{
    float row[MCSA_MAX_DIM];
    double squares = 0;
    kernels->load_row(centre, dtype, 1, D, row);
    for (int d = 0; d < D; d++) squares += (double)row[d] * (double)row[d];
    return (float)(squares / 2);
}

/* scores [count, lanes] of centres first .. first + count.  Masks instead of a choice, which gcc 12 does not vectorise:
 * it was as long as the product itself. */
static void take_nearest(const float *restrict scores, const float *restrict half, int first, int count, int lanes,
                         float *restrict top, int32_t *restrict label)
{
    for (int j = 0; j < count; j++, scores += lanes) {
        int32_t centre = first + j;
        float shift = half[j];
        for (int i = 0; i < lanes; i++) {
            float score = scores[i] - shift, before = top[i];
            int32_t better = -(int32_t)(score > before);
            label[i] = (centre & better) | (label[i] & ~better);
            top[i] = score > before ? score : before;
        }
    }
}

void mcsa_tile_nearest(mcsa_tile *tile, const mcsa_rows *centres, const float *half, int32_t *label)
{
    const mcsa_kernels *kernels = tile->kernels;
    nearest best[MCSA_DENSE_TILE / MCSA_STRIP];
    for (int s = 0; s < MCSA_DENSE_TILE / MCSA_STRIP; s++)
        for (int l = 0; l < MCSA_STRIP; l++) {
            best[s].score[l] = -INFINITY;
            best[s].label[l] = 0;
        }
    for (int j = 0; j < centres->count; j += MCSA_KEY_BLOCK) {
        mcsa_rows block = *centres;
        block.first += j;
        block.count = centres->count - j < MCSA_KEY_BLOCK ? centres->count - j : MCSA_KEY_BLOCK;
        kernels->stage_keys(&block, tile->staged, tile->keys);
        for (int i = 0; i < tile->count; i += MCSA_STRIP) {
            nearest *strip = &best[i / MCSA_STRIP];
            int lanes = mcsa_strip_lanes(tile, i);
            kernels->scores(tile->keys, tile->queries + (ptrdiff_t)i * tile->D, block.count, tile->D, lanes,
                            tile->scores);
            take_nearest(tile->scores, half + j, j, block.count, lanes, strip->score, strip->label);
        }
    }
    for (int i = 0; i < tile->count; i++) label[i] = best[i / MCSA_STRIP].label[i % MCSA_STRIP];
}
