/* residual.h - the forms in which a residual row is cached.  Static inline for the same reason as rows.h.
 *
 *     bf16   D x uint16
 *     int8   float scale, D x int8         scale = max|x| / 127
 *     int4   float scale, D/2 x two nibbles (even d low), value + 8      scale = max|x| / 7
 *
 * Rounding is to nearest even: adding 1.5 * 2^23 leaves the integer in the low mantissa bits. */
#ifndef MCSA_CPU_RESIDUAL_H
#define MCSA_CPU_RESIDUAL_H

#include "base/half.h"
#include "mcsa.h"

static inline size_t residual_row_bytes(mcsa_residual form, int D)
{
    switch (form) {
    case MCSA_RESIDUAL_INT8: return ((size_t)D + 7) / 4 * 4;
    case MCSA_RESIDUAL_INT4: return (((size_t)D + 1) / 2 + 7) / 4 * 4;
    case MCSA_RESIDUAL_OFF: return 0;
    default: return 2 * (size_t)D;
    }
}

static inline int32_t round_to_int(float x)
{
    float shifted = x + 0x1.8p23f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return bits - 0x4b400000;
}

/* Largest |row| over `steps`, and its inverse times steps (0 for an all-zero row). */
static inline float residual_scale(const float *row, int D, float steps, float *inverse)
{
    float largest = 0;
    for (int d = 0; d < D; d++) {
        float a = row[d] < 0 ? -row[d] : row[d];
        largest = a > largest ? a : largest;
    }
    *inverse = largest > 0x1p-100f ? steps / largest : 0;
    return largest / steps;
}

static inline void residual_encode(mcsa_residual form, const float *row, int D, void *code)
{
    float inverse;
    if (form == MCSA_RESIDUAL_BF16) {
        uint16_t *y = code;
        for (int d = 0; d < D; d++) y[d] = mcsa_to_bf16(row[d]);
    } else if (form == MCSA_RESIDUAL_INT8) {
        float scale = residual_scale(row, D, 127, &inverse);
        int8_t *y = (int8_t *)code + sizeof scale;
        memcpy(code, &scale, sizeof scale);
        for (int d = 0; d < D; d++) y[d] = (int8_t)round_to_int(row[d] * inverse);
    } else if (form == MCSA_RESIDUAL_INT4) {
        float scale = residual_scale(row, D, 7, &inverse);
        uint8_t *y = (uint8_t *)code + sizeof scale;
        memcpy(code, &scale, sizeof scale);
        for (int d = 0; d < D; d += 2) {
            int32_t low = round_to_int(row[d] * inverse) + 8;
            int32_t high = d + 1 < D ? round_to_int(row[d + 1] * inverse) + 8 : 8;
            y[d / 2] = (uint8_t)((low & 15) | ((high & 15) << 4));
        }
    }
}

static inline void residual_add(mcsa_residual form, const void *code, int D, float *row)
{
    float scale;
    if (form == MCSA_RESIDUAL_BF16) {
        const uint16_t *x = code;
        for (int d = 0; d < D; d++) row[d] += mcsa_from_bf16(x[d]);
    } else if (form == MCSA_RESIDUAL_INT8) {
        const int8_t *x = (const int8_t *)code + sizeof scale;
        memcpy(&scale, code, sizeof scale);
        for (int d = 0; d < D; d++) row[d] += scale * (float)x[d];
    } else if (form == MCSA_RESIDUAL_INT4) {
        const uint8_t *x = (const uint8_t *)code + sizeof scale;
        memcpy(&scale, code, sizeof scale);
        for (int d = 0; d + 1 < D; d += 2) {
            row[d] += scale * (float)((x[d / 2] & 15) - 8);
            row[d + 1] += scale * (float)((x[d / 2] >> 4) - 8);
        }
        if (D & 1) row[D - 1] += scale * (float)((x[D / 2] & 15) - 8);
    }
}

#endif
