/* draw.h - random numbers of the methods: splitmix64 by counter, so that a draw is named by its seed and place and
 * needs no state. */
#ifndef RIVALS_DRAW_H
#define RIVALS_DRAW_H

#include <stdint.h>

static inline uint64_t rival_draw(uint64_t seed, uint64_t counter)
{
    uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* One of 0 .. n - 1, each as likely as the next to one in 2^32 / n. */
static inline int rival_draw_below(uint64_t seed, uint64_t counter, int n)
{
    return (int)((rival_draw(seed, counter) >> 32) * (uint64_t)n >> 32);
}

#endif
