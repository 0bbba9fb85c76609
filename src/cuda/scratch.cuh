/* scratch.cuh - the arrays of a launcher, one behind the other in the caller's scratch. */
#ifndef MCSA_CUDA_SCRATCH_CUH
#define MCSA_CUDA_SCRATCH_CUH

#include <stddef.h>

/* The next `bytes` bytes at a multiple of 256; NULL with `scratch` NULL, which only measures.  *used moves on. */
static inline void *scratch_take(void *scratch, size_t *used, size_t bytes)
{
    size_t at = *used;
    *used = at + (bytes + 255) / 256 * 256;
    return scratch ? (char *)scratch + at : NULL;
}

#endif
