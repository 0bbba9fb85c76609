/* strips.h - the strips of a loaded tile, for verbs that walk them with the kernels themselves (see cpu/tile.h), and
 * the rows that go into them. */
#ifndef RIVALS_CPU_STRIPS_H
#define RIVALS_CPU_STRIPS_H

#include "base/tensor.h"
#include "cpu/tile.h"

static const float RIVAL_LOG2_E = 0x1.715476p+0f, RIVAL_LN_2 = 0x1.62e430p-1f;

/* Packed queries of the strip that begins at query `at`. */
static inline uint32_t *rival_strip_queries(const mcsa_tile *tile, int at)
{
    return tile->queries + (int64_t)at * tile->D;
}

/* Its output [D, lanes]. */
static inline float *rival_strip_output(const mcsa_tile *tile, int at)
{
    return tile->output + (int64_t)at * tile->D;
}

/* Rows index[0 .. count), or the first `count`, of an array [.., D]. */
static inline mcsa_rows rival_float_rows(const float *array, const int32_t *index, int count, int D)
{
    return (mcsa_rows){ array, MCSA_F32, D, 1, index, 0, count, D };
}

/* Asks for rows of a tensor that are read soon.  Those of a part lie anywhere: waiting for one after the other was half
 * the time of verbs that do little with each. */
static inline void rival_prefetch(const mcsa_tensor *t, int h, const int32_t *rows, int count)
{
    int64_t bytes = (int64_t)mcsa_dtype_bytes(t->dtype) * t->shape[2] * t->stride[2];
    for (int r = 0; r < count; r++)
        for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char *)mcsa_tensor_row(t, h, rows[r]) + b);
}

#endif
