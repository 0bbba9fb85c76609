/* means.h - the mean of rows, as all backends round it: FP32 sums in the order of the list, divided by the count,
 * rounded to the dtype of the rows. */
#ifndef MCSA_CPU_MEANS_H
#define MCSA_CPU_MEANS_H

#include "kernels.h"

/* mean [D], elements side by side, of at least one row */
void mcsa_mean_row(const mcsa_kernels *kernels, const mcsa_rows *rows, void *mean);

#endif
