/* patches.h - between a latent [channels, frames, height, width] and rows of patches, one a token: tokens in
 * the order frame, row, column. */
#ifndef MCSA_DIT_PATCHES_H
#define MCSA_DIT_PATCHES_H

#include <stdint.h>

typedef struct dit_patches {
    int patch[3]; /* frames, rows, columns of a patch */
    int grid[3];  /* patches along frames, height, width */
    int channels;
} dit_patches;

/* rows: [N, channels, patch[0], patch[1], patch[2]], the order of a convolution's weights. */
void dit_patches_gather(const dit_patches *p, const float *latent, float *rows);

/* rows: [N, patch[0], patch[1], patch[2], channels]: Wan's output has the channel fastest, unlike its
 * input. */
void dit_patches_scatter(const dit_patches *p, const float *rows, float *latent);

#endif
