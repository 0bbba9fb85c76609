/* limits.h - what the CUDA kernels take, said in sentences.  Plain C: asks neither a driver nor a GPU. */
#ifndef MCSA_CUDA_LIMITS_H
#define MCSA_CUDA_LIMITS_H

#include "core/backend.h"

mcsa_status mcsa_cuda_limit_options(const mcsa_backend_options *options, mcsa_error *error);
mcsa_status mcsa_cuda_limit_call(const mcsa_qkv *x, mcsa_error *error);

#endif
