/* nearest.h - which of many centres is nearest to each row of a tile: the inner loop of k-means. */
#ifndef MCSA_CPU_NEAREST_H
#define MCSA_CPU_NEAREST_H

#include "tile.h"

/* label [tile->count]: for each row x that the tile holds, at most MCSA_DENSE_TILE, the centre c with the largest
 * x . c - |c|^2 / 2, which is -1/2 of the distance without |x|^2; of equal ones the first.  A row with NaN, which is no
 * nearer to one than to another, gets 0.  centres: [P, D] of the rows' dtype; half: [P] |c|^2 / 2.
 *
 * The scores of strips of 64 rows against blocks of centres are reduced at once: the distances are never stored. */
void mcsa_tile_nearest(mcsa_tile *tile, const mcsa_rows *centres, const float *half, int32_t *label);

/* |c|^2 / 2 of a centre as it is stored, its D elements side by side. */
float mcsa_half_square(const mcsa_kernels *kernels, const void *centre, mcsa_dtype dtype, int D);

#endif
