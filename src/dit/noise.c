/* noise.c - standard normal numbers, the same bits on every machine: a seed stands for one clip.
 *
 * Number pair i comes from the counters 2 i and 2 i + 1 of splitmix64 by Box-Muller.  Logarithm, sine and
 * cosine are evaluated here by series in double from +, -, *, / and sqrt alone, which IEEE 754 rounds the
 * same way everywhere; a C library's log and cos differ in the last bit between versions.  This holds as long
 * as a * b + c is not contracted to one rounding: -std=c11 forbids it in gcc, the pragma in clang.  Both
 * series stop at terms below 2^-54, so the float result is right to one rounding. */
#include "generate.h"

#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

static uint64_t splitmix64(uint64_t seed, uint64_t counter)
{
    uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* log u for u in (0, 1]: u = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)). */
static double series_log(double u)
{
    uint64_t bits;
    memcpy(&bits, &u, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k; /* |s| < 0.172: s^22 is below 2^-55 */
    return exponent * 0.6931471805599453 + 2 * s * sum;
}

/* sin x for |x| <= pi / 4, or cos x from first = 0. */
static double series_wave(double x, int first)
{
    double square = x * x, sum = 1;
    for (int k = first + 16; k > first; k -= 2) sum = 1 - sum * square / (k * (k - 1.0));
    return first ? x * sum : sum;
}

/* cos and sin of a turn / 2^53 of 2 pi, by the nearest quarter turn. */
static void wave(uint64_t turn, double *cosine, double *sine)
{
    const int64_t quarter = (int64_t)1 << 51;
    int64_t quarters = ((int64_t)turn + quarter / 2) / quarter, rest = (int64_t)turn - quarters * quarter;
    double x = (double)rest * (6.283185307179586 / 9007199254740992.0);
    double c = series_wave(x, 0), s = series_wave(x, 1);
    const int swapped = quarters & 1, below = quarters & 2;
    *cosine = swapped ? -s : c;
    *sine = swapped ? c : s;
    if (below) {
        *cosine = -*cosine;
        *sine = -*sine;
    }
}

void dit_noise(uint64_t seed, float *noise, int64_t count)
{
    for (int64_t i = 0; i < count; i += 2) {
        /* u is at the middle of one of 2^52 cells, so it is never 0 or 1. */
        double u = ((double)(splitmix64(seed, (uint64_t)i) >> 12) + 0.5) * (1.0 / 4503599627370496.0);
        double radius = sqrt(-2 * series_log(u)), cosine, sine;
        wave(splitmix64(seed, (uint64_t)i + 1) >> 11, &cosine, &sine);
        noise[i] = (float)(radius * cosine);
        if (i + 1 < count) noise[i + 1] = (float)(radius * sine);
    }
}
