/* gpu.h - whether a GPU can run the kernels, and if not, what is missing. */
#ifndef MCSA_CUDA_GPU_H
#define MCSA_CUDA_GPU_H

#include "base/status.h"

/* Fills what can be found out; MCSA_EUNSUPPORTED with a sentence when the kernels cannot run there. */
mcsa_status mcsa_cuda_gpu_read(mcsa_gpu *gpu, int index, mcsa_error *error);

#endif
