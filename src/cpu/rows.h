/* rows.h - reading and writing rows of a view in any dtype and stride.  Static inline, so that each instruction set's
 * file gets a copy compiled with its own flags. */
#ifndef MCSA_CPU_ROWS_H
#define MCSA_CPU_ROWS_H

#include "base/half.h"
#include "kernels.h"

static inline const void *row_at(const mcsa_rows *rows, int r)
{
    int64_t row = rows->index ? rows->index[r] : rows->first + r;
    size_t bytes = rows->dtype == MCSA_F32 ? 4 : 2;
    return (const char *)rows->data + (int64_t)bytes * row * rows->row_stride;
}

static inline void load_row(const void *src, mcsa_dtype dtype, int64_t step, int D, float *row /* [D] */)
{
    if (dtype == MCSA_F32) {
        const float *x = src;
        if (step == 1)
            memcpy(row, x, sizeof *row * (size_t)D);
        else
            for (int d = 0; d < D; d++) row[d] = x[d * step];
    } else if (dtype == MCSA_BF16) {
        const uint16_t *x = src;
        if (step == 1)
            for (int d = 0; d < D; d++) row[d] = mcsa_from_bf16(x[d]);
        else
            for (int d = 0; d < D; d++) row[d] = mcsa_from_bf16(x[d * step]);
    } else {
        const uint16_t *x = src;
        for (int d = 0; d < D; d++) row[d] = mcsa_from_f16(x[d * step]);
    }
}

static inline void store_row(const float *row /* [D] */, int D, mcsa_dtype dtype, int64_t step, void *dst)
{
    if (dtype == MCSA_F32) {
        float *y = dst;
        if (step == 1)
            memcpy(y, row, sizeof *row * (size_t)D);
        else
            for (int d = 0; d < D; d++) y[d * step] = row[d];
    } else if (dtype == MCSA_BF16) {
        uint16_t *y = dst;
        if (step == 1)
            for (int d = 0; d < D; d++) y[d] = mcsa_to_bf16(row[d]);
        else
            for (int d = 0; d < D; d++) y[d * step] = mcsa_to_bf16(row[d]);
    } else {
        uint16_t *y = dst;
        for (int d = 0; d < D; d++) y[d * step] = mcsa_to_f16(row[d]);
    }
}

#endif
