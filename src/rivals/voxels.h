/* voxels.h - tokens of a video in the order of boxes of it. */
#ifndef RIVALS_VOXELS_H
#define RIVALS_VOXELS_H

#include <stdint.h>

/* order [frames rows columns]: whole boxes of box[0] frames, box[1] rows and box[2] columns one after another, raster
 * order within and among them; then what is left: the last frames, the last rows of the others, the last columns of
 * those rows, each in raster order. */
void rival_voxel_order(const int grid[3], const int box[3], int32_t *order);

#endif
