/* simd_avx2.h - the SIMD vocabulary that tile_kernels.h is written in: 8 lanes, 16 registers. */
#ifndef MCSA_CPU_SIMD_AVX2_H
#define MCSA_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define SIMD static inline __attribute__((always_inline))

typedef __m256 vf;

/* A panel holds 6 x 2 accumulators, 2 columns of B and one broadcast of A: 15 of 16 registers. */
enum { VL = 8, PANEL_ROWS = 6, PANEL_VECS = 2 };

/* clang-format off */
SIMD vf v_load(const float *p) { return _mm256_loadu_ps(p); }
SIMD vf v_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
SIMD void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
SIMD vf v_set(float x) { return _mm256_set1_ps(x); }
SIMD vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
SIMD vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
SIMD vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
SIMD vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
/* x where either is NaN */
SIMD vf v_max(vf a, vf x) { return _mm256_max_ps(a, x); }
SIMD float v_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
/* clang-format on */
/* 0 where x is -inf, else x */
SIMD vf v_finite_max(vf x)
{
    return _mm256_and_ps(x, _mm256_cmp_ps(x, _mm256_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ));
}

/* 2^x: relative error below 2e-7, exact at integers, 0 below 2^-126 (no subnormals), NaN for NaN.  Above 2^127 the
 * exponent is held there: softmax never goes above 2^0.  Polynomial as in simd_avx512.h. */
SIMD vf v_exp2(vf x)
{
    vf tiny = _mm256_cmp_ps(x, v_set(-126.0f), _CMP_LT_OQ);
    x = _mm256_max_ps(v_set(-126.0f), x);
    vf n = _mm256_round_ps(_mm256_min_ps(v_set(127.0f), x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vf f = _mm256_sub_ps(x, n);
    vf p = v_set(0x1.5bba12p-10f);
    p = v_fma(p, f, v_set(0x1.3cea88p-7f));
    p = v_fma(p, f, v_set(0x1.c6b752p-5f));
    p = v_fma(p, f, v_set(0x1.ebf9bcp-3f));
    p = v_fma(p, f, v_set(0x1.62e42ap-1f));
    p = v_fma(p, f, v_set(1.0f));
    __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

/* There is no bf16 arithmetic at this level: tile_kernels.h names these and is only asked for float words. */
#define dot_pairs(a, b, acc) v_fma(a, b, acc)
#define pack_pairs(low, high) v_add(low, high)
#define low_of_pairs(x) (x)
#define high_of_pairs(x) (x)

/* Transposes 8 x 8 words held in rows. */
SIMD void v_transpose(vf r[8])
{
    vf t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        vf low = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20), high = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
        r[i] = low;
        r[i + 4] = high;
    }
}

#endif
