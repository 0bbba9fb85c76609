/* means.h - the mean of some rows of a head, as all backends round it: FP32 sums in the order of the list, divided by
 * the count, rounded to the dtype of the tensor. */
#ifndef MCSA_CPU_MEANS_H
#define MCSA_CPU_MEANS_H

#include "core/plan.h"
#include "kernels.h"

/* mean [D], elements side by side, of rows index[0 .. count) of head h; count > 0 */
void mcsa_mean_row(const mcsa_kernels *kernels, const mcsa_tensor *t, int h, const int32_t *index, int count,
                   void *mean);

#endif
