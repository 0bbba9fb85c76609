/* means.c - see means.h. */
#include "means.h"

void mcsa_mean_row(const mcsa_kernels *kernels, const mcsa_rows *rows, void *mean)
{
    float sum[MCSA_MAX_DIM] = { 0 };
    kernels->sum_rows(rows, sum);
    for (int d = 0; d < rows->D; d++) sum[d] /= (float)rows->count;
    kernels->store_row(sum, rows->D, rows->dtype, 1, mean);
}
