/* voxels.c - see voxels.h. */
#include "voxels.h"

/* The tokens of one box, from first (inclusive) to past (exclusive).  Returns the place behind them. */
static int32_t *put_box(const int grid[3], const int first[3], const int past[3], int32_t *order)
{
    for (int f = first[0]; f < past[0]; f++)
        for (int r = first[1]; r < past[1]; r++)
            for (int c = first[2]; c < past[2]; c++) *order++ = (f * grid[1] + r) * grid[2] + c;
    return order;
}

void rival_voxel_order(const int grid[3], const int box[3], int32_t *order)
{
    int whole[3]; /* what boxes cover */
    for (int i = 0; i < 3; i++) whole[i] = grid[i] / box[i] * box[i];
    int F = whole[0], R = whole[1], C = whole[2];
    for (int f = 0; f < F; f += box[0])
        for (int r = 0; r < R; r += box[1])
            for (int c = 0; c < C; c += box[2])
                order =
                    put_box(grid, (const int[]){ f, r, c }, (const int[]){ f + box[0], r + box[1], c + box[2] }, order);
    order = put_box(grid, (const int[]){ F, 0, 0 }, grid, order);
    order = put_box(grid, (const int[]){ 0, R, 0 }, (const int[]){ F, grid[1], grid[2] }, order);
    put_box(grid, (const int[]){ 0, 0, C }, (const int[]){ F, R, grid[2] }, order);
}
