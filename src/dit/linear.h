/* linear.h - y = x W^T + b, optionally through GELU (tanh form), by oneDNN's matmul.
 *
 * A layer's weights are put once, when it is made, into the blocked order that oneDNN picks (the same for
 * every number of rows, see linear.c).  An engine owns the oneDNN stream and the primitives, one for each
 * (layer shape, rows) in use: a second apply of the same shape allocates nothing.  An engine and its layers
 * belong to one thread at a time. */
#ifndef MCSA_DIT_LINEAR_H
#define MCSA_DIT_LINEAR_H

#include "base/status.h"

typedef struct dit_linear_engine dit_linear_engine;
typedef struct dit_linear dit_linear;

mcsa_status dit_linear_engine_create(dit_linear_engine **out, mcsa_error *error);
void dit_linear_engine_free(dit_linear_engine *engine);

/* Wall seconds spent in dit_linear_apply. */
double dit_linear_engine_seconds(const dit_linear_engine *engine);

/* Whether this machine multiplies BF16 natively; without it oneDNN's BF16 matmul is slower than its F32. */
int dit_linear_has_bf16(void);

typedef struct dit_linear_shape {
    int64_t in, out;
    mcsa_dtype src; /* MCSA_F32 or MCSA_BF16: of x and of the weights; accumulation is F32 */
    mcsa_dtype dst; /* of y */
    int gelu;
} dit_linear_shape;

/* weight: [out, in]; bias: [out]; both are copied. */
mcsa_status dit_linear_create(dit_linear **out, dit_linear_engine *engine, const dit_linear_shape *shape,
                              const float *weight, const float *bias, mcsa_error *error);
void dit_linear_free(dit_linear *layer);

/* x: [rows, in] of src; y: [rows, out] of dst; they do not overlap. */
mcsa_status dit_linear_apply(dit_linear *layer, const void *x, void *y, int64_t rows, mcsa_error *error);

#endif
