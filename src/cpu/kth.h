/* kth.h - the threshold of a top-K, by radix select on 32-bit keys.
 *
 * Whoever takes every key above the threshold, and of the keys equal to it the first `ties` in index order, has taken
 * exactly K, and the same K everywhere: on equal keys the lower index wins. */
#ifndef MCSA_CPU_KTH_H
#define MCSA_CPU_KTH_H

#include <stdint.h>
#include <string.h>

typedef struct mcsa_kth {
    uint32_t threshold;
    int ties;
} mcsa_kth;

/* keys: [n], 1 <= K <= n */
mcsa_kth mcsa_kth_largest(const uint32_t *keys, int n, int K);

/* Maps floats to unsigned integers of the same order, NaN at the ends by sign. */
static inline uint32_t mcsa_ordered(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#endif
