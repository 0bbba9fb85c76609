/* random_weights.h - weights for measuring a model without its checkpoint: number i of a seed, the same on every
 * device. */
#ifndef MCSA_DIT_RANDOM_WEIGHTS_H
#define MCSA_DIT_RANDOM_WEIGHTS_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DIT_ANYWHERE __host__ __device__
#else
#define DIT_ANYWHERE
#endif

/* splitmix64's number `i`, as one of 2^24 floats spread evenly over [-1, 1). */
DIT_ANYWHERE static inline float dit_random_unit(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (float)((int32_t)(z >> 40) - (1 << 23)) * 0x1p-23f;
}

/* Half the width of the weights of a layer with `in` inputs: their variance is 1 / in, so that a layer keeps the size
 * of what it reads.  Biases are the numbers after the weights, as wide. */
static inline float dit_random_spread(int64_t in)
{
    return sqrtf(3.0f / (float)in);
}

#endif
