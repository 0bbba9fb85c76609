/* softmax.cuh - online softmax on the accumulator fragments of one warpgroup (layout: wgmma.cuh).
 *
 * A thread sees two rows of the tile, r and r + 8, a quarter of their columns each; the quad of lanes sees all.  Scores
 * are scaled and turned to base 2 in the one multiply-add before exp2.  The scaled maximum is rounded once and used by
 * every term alike, so its rounding cancels between numerator and denominator.  Sums stay per thread until the end. */
#ifndef MCSA_CUDA_SOFTMAX_CUH
#define MCSA_CUDA_SOFTMAX_CUH

#include "wgmma.cuh"

#include <math_constants.h>

typedef struct softmax_rows {
    float base[2]; /* scaled maximum so far, base 2 */
    float sum[2];  /* of this thread's exponentials, relative to base */
} softmax_rows;

static __device__ __forceinline__ float softmax_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Probabilities are raised by 2^11 where they are rounded to FP16: otherwise those below 2^-14 would lose bits. */
template <typename T> static __device__ __forceinline__ constexpr float softmax_lift(void)
{
    return wgmma_type<T>::bf16 ? 0.0f : 11.0f;
}

/* Scores of columns >= `columns` become -infinity. */
template <int R> static __device__ __forceinline__ void softmax_mask(float (&s)[R], int columns)
{
    int first = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < R; i++)
        if (8 * (i / 4) + i % 2 + first >= columns) s[i] = -CUDART_INF_F;
}

/* Scores become exponentials.  `shrink` gets what earlier exponentials have to be multiplied by; FIRST: there are none.
 * A row of nothing but -infinity so far keeps zeros. */
template <typename T, int FIRST, int R>
static __device__ __forceinline__ void softmax_step(float (&s)[R], softmax_rows *rows, float (&shrink)[2], float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(s[2 * i], s[2 * i + 1]);
#pragma unroll
        for (int j = 1; j < R / 4; j++) top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));

        float base = top * scale;
        if (!FIRST) base = fmaxf(base, rows->base[i]);
        float origin = (base == -CUDART_INF_F ? 0.0f : base) - softmax_lift<T>();
        if (!FIRST) shrink[i] = softmax_exp2(rows->base[i] - softmax_lift<T>() - origin);
        rows->base[i] = base;

        float sum = 0;
#pragma unroll
        for (int j = 0; j < R / 4; j++) {
            float x = softmax_exp2(fmaf(s[4 * j + 2 * i], scale, -origin));
            float y = softmax_exp2(fmaf(s[4 * j + 2 * i + 1], scale, -origin));
            s[4 * j + 2 * i] = x;
            s[4 * j + 2 * i + 1] = y;
            sum += x + y;
        }
        rows->sum[i] = FIRST ? sum : fmaf(rows->sum[i], shrink[i], sum);
    }
}

/* Exponentials as A operands: the four registers of 16 columns in a row. */
template <typename T, int R>
static __device__ __forceinline__ void softmax_pack(uint32_t (&p)[R / 2], const float (&s)[R])
{
#pragma unroll
    for (int i = 0; i < R / 2; i++) p[i] = wgmma_pack<T>(s[2 * i], s[2 * i + 1]);
}

template <int R> static __device__ __forceinline__ void softmax_shrink(float (&o)[R], const float (&shrink)[2])
{
#pragma unroll
    for (int i = 0; i < R; i++) o[i] *= shrink[i / 2 % 2];
}

/* Completes the sums over the quad. */
static __device__ __forceinline__ void softmax_finish(softmax_rows *rows)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        rows->sum[i] += __shfl_xor_sync(0xffffffff, rows->sum[i], 1);
        rows->sum[i] += __shfl_xor_sync(0xffffffff, rows->sum[i], 2);
    }
}

/* Natural log of the softmax denominator of row i, after softmax_finish. */
template <typename T> static __device__ __forceinline__ float softmax_lse(const softmax_rows *rows, int i)
{
    return (rows->base[i] - softmax_lift<T>() + log2f(rows->sum[i])) * CUDART_LN2_F;
}

#endif
