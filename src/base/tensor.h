/* tensor.h - borrowed views: checks, made once at the public wall, and parts. */
#ifndef MCSA_BASE_TENSOR_H
#define MCSA_BASE_TENSOR_H

#include "status.h"

static inline size_t mcsa_dtype_bytes(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 ? 4 : 2;
}

/* Refuses NULL, unknown dtypes, shapes below 1, strides below 1 or overlapping, and extents beyond int64. */
mcsa_status mcsa_tensor_check(const mcsa_tensor *tensor, const char *name, mcsa_error *error);

/* Whether the byte ranges spanned by a and b meet. */
int mcsa_tensor_overlap(const mcsa_tensor *a, const mcsa_tensor *b);

/* Counts NaN and infinite elements; *h, *n, *d get the place of the first. */
int64_t mcsa_tensor_nonfinite(const mcsa_tensor *tensor, int64_t place[3]);

/* Row n of head h. */
static inline void *mcsa_tensor_row(const mcsa_tensor *tensor, int64_t h, int64_t n)
{
    return (char *)tensor->data +
           (int64_t)mcsa_dtype_bytes(tensor->dtype) * (h * tensor->stride[0] + n * tensor->stride[1]);
}

/* Head h alone. */
static inline mcsa_tensor mcsa_tensor_head(const mcsa_tensor *tensor, int64_t h)
{
    mcsa_tensor head = *tensor;
    head.data = mcsa_tensor_row(tensor, h, 0);
    head.shape[0] = 1;
    return head;
}

#endif
