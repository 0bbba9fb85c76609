/* simd_avx512.h - the SIMD vocabulary that tile_kernels.h is written in: 16 lanes, 32 registers. */
#ifndef MCSA_CPU_SIMD_AVX512_H
#define MCSA_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define SIMD static inline __attribute__((always_inline))

typedef __m512 vf;

/* A panel holds 6 x 4 accumulators, 4 columns of B and one broadcast of A: 29 of 32 registers.  Per depth step that is
 * 10 loads for 24 multiplies, under the 2 loads a cycle that Zen 4, Zen 5 and Golden Cove sustain. */
enum { VL = 16, PANEL_ROWS = 6, PANEL_VECS = 4 };

/* clang-format off */
SIMD vf v_load(const float *p) { return _mm512_loadu_ps(p); }
SIMD vf v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
SIMD void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
SIMD vf v_set(float x) { return _mm512_set1_ps(x); }
SIMD vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
SIMD vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
SIMD vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
SIMD vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* x where either is NaN */
SIMD vf v_max(vf a, vf x) { return _mm512_max_ps(a, x); }
SIMD float v_sum(vf x) { return _mm512_reduce_add_ps(x); }
/* clang-format on */
/* 0 where x is -inf, else x */
SIMD vf v_finite_max(vf x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ), x);
}

/* 2^x: relative error below 2e-7 on all of float (checked over every float in [-0.5, 0.5]), exact at integers, 0 below
 * 2^-149, NaN for NaN.  The polynomial is minimax for 2^f with the constant held at 1. */
SIMD vf v_exp2(vf x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* -inf - round(-inf) would be NaN */
    vf n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf f = _mm512_sub_ps(x, n);
    vf p = v_set(0x1.5bba12p-10f);
    p = v_fma(p, f, v_set(0x1.3cea88p-7f));
    p = v_fma(p, f, v_set(0x1.c6b752p-5f));
    p = v_fma(p, f, v_set(0x1.ebf9bcp-3f));
    p = v_fma(p, f, v_set(0x1.62e42ap-1f));
    p = v_fma(p, f, v_set(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* acc += a.low * b.low + a.high * b.high, products exact, sums in float */
SIMD vf dot_pairs(vf a, vf b, vf acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

/* lane i: bf16(low_i) | bf16(high_i) << 16 */
SIMD vf pack_pairs(vf low, vf high)
{
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(high, low)));
}

SIMD vf low_of_pairs(vf x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16));
}

SIMD vf high_of_pairs(vf x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000u)));
}

/* Transposes 16 x 16 words held in rows. */
SIMD void v_transpose(vf r[16])
{
    vf t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    }
    for (int i = 0; i < 4; i++) { /* 128-bit quarters: rows i, i+4, i+8, i+12 hold columns 4q + i in quarter q */
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif
