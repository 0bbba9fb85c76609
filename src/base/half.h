/* half.h - bit-exact conversions between float and the 16-bit formats.
 *
 * To bf16: round to nearest, ties to even; a NaN keeps its sign and becomes quiet.  From bf16: exact.
 * fp16 covers subnormals, infinity and NaN both ways. */
#ifndef MCSA_BASE_HALF_H
#define MCSA_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float mcsa_from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t mcsa_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

static inline float mcsa_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu, bits;
    if (exponent == 31)
        bits = sign | 0x7f800000u | (mantissa << 13);
    else if (exponent)
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    else { /* zero or subnormal: mantissa * 2^-24 is exact in float */
        float f = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &f, sizeof bits);
        bits |= sign;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint16_t mcsa_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (bits < 0x38800000u) { /* below 2^-14: adding 0.5 puts the unit of rounding at 2^-24 */
        float a;
        memcpy(&a, &bits, sizeof a);
        a += 0.5f;
        memcpy(&bits, &a, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);
    return (uint16_t)(sign | ((bits - 0x38000000u) >> 13));
}

#endif
