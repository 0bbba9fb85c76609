/* means.c - see means.h. */
#include "means.h"

#include "base/tensor.h"

void mcsa_mean_row(const mcsa_kernels *kernels, const mcsa_tensor *t, int h, const int32_t *index, int count,
                   void *mean)
{
    float row[MCSA_MAX_DIM], sum[MCSA_MAX_DIM] = { 0 };
    int D = (int)t->shape[2];
    for (int i = 0; i < count; i++) {
        kernels->load_row(mcsa_tensor_row(t, h, index[i]), t->dtype, t->stride[2], D, row);
        for (int d = 0; d < D; d++) sum[d] += row[d];
    }
    for (int d = 0; d < D; d++) sum[d] /= (float)count;
    kernels->store_row(sum, D, t->dtype, 1, mean);
}
