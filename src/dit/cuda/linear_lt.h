/* linear_lt.h - the linear layers of dit/linear.h on a GPU, by cuBLASLt: y = x W^T + b, optionally through GELU (tanh
 * form), bias and GELU in the product's epilogue.
 *
 * BF16 layers multiply BF16 with FP32 sums and keep their bias in BF16, as cuBLASLt wants it.  F32 layers multiply FP32
 * without TF32.  The algorithm of a (shape, rows) is the first that cuBLASLt's heuristics give, asked once and kept; it
 * may split sums over its workspace but adds the parts in a fixed order. */
#ifndef MCSA_DIT_CUDA_LINEAR_LT_H
#define MCSA_DIT_CUDA_LINEAR_LT_H

#include "dit/linear.h"
#include "stage_clock.h"

typedef struct lt_engine lt_engine;

/* Work goes to `stream` of the current device, which is the current one in all calls below. */
mcsa_status lt_engine_create(lt_engine **out, cudaStream_t stream, mcsa_error *error);
void lt_engine_free(lt_engine *engine);
stage_clock *lt_engine_clock(lt_engine *engine); /* of all layers */

/* weight: host [out, in]; bias: host [out] */
mcsa_status lt_linear_create(dit_linear **out, lt_engine *engine, const dit_linear_shape *shape, const float *weight,
                             const float *bias, mcsa_error *error);
mcsa_status lt_linear_random(dit_linear **out, lt_engine *engine, const dit_linear_shape *shape, uint64_t seed,
                             mcsa_error *error);
void lt_linear_free(dit_linear *layer);

mcsa_status lt_linear_apply(dit_linear *layer, const void *x, void *y, int64_t rows, mcsa_error *error);

#endif
