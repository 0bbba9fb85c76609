/* fragment.cuh - between the accumulator fragments of a warpgroup (wgmma.cuh) and rows in device memory.
 *
 * A quad of lanes holds two rows of the tile; of every 8 columns a lane has 2.  Packed to 16 bits that is one word per
 * 8 columns, and a 4 x 4 transpose of words among the quad turns 4 of them, of 32 columns, into 8 neighbouring columns
 * a lane: 16 bytes, and 64 bytes in a row for the quad. */
#ifndef MCSA_CUDA_FRAGMENT_CUH
#define MCSA_CUDA_FRAGMENT_CUH

#include "wgmma.cuh"

/* w[k] of lane q becomes w[q] of lane k, lanes counted in the quad. */
static __device__ __forceinline__ void fragment_transpose(uint32_t (&w)[4])
{
    int lane = threadIdx.x % 4;
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (!(i & bit)) {
                int high = lane & bit;
                uint32_t got = __shfl_xor_sync(0xffffffff, high ? w[i] : w[i | bit], bit);
                if (high)
                    w[i] = got;
                else
                    w[i | bit] = got;
            }
}

template <typename T> static __device__ __forceinline__ void fragment_unpack(float (&x)[2], uint32_t packed)
{
    if constexpr (wgmma_type<T>::bf16) {
        x[0] = __uint_as_float(packed << 16);
        x[1] = __uint_as_float(packed & 0xffff0000u);
    } else {
        float2 both = __half22float2(*(const __half2 *)&packed);
        x[0] = both.x;
        x[1] = both.y;
    }
}

/* Row half `i` (0: r, 1: r + 8) of the fragment times `factor`, to `row` (NULL: not stored).  All lanes of a
 * quad have the same row. */
template <typename T, int R>
static __device__ __forceinline__ void fragment_store(T *row, const float (&d)[R], int i, float factor)
{
#pragma unroll
    for (int c = 0; c < R / 16; c++) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = 4 * (4 * c + j) + 2 * i;
            w[j] = wgmma_pack<T>(d[at] * factor, d[at + 1] * factor);
        }
        fragment_transpose(w);
        if (row) *(uint4 *)(row + 32 * c + 8 * (threadIdx.x % 4)) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

/* This lane's 16-byte pieces of a row of 2-byte numbers; zeros where it is NULL. */
template <int PIECES> static __device__ __forceinline__ void fragment_load(uint4 (&pieces)[PIECES], const void *row)
{
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        pieces[c] = make_uint4(0, 0, 0, 0);
        if (row) pieces[c] = __ldcs((const uint4 *)row + 4 * c + threadIdx.x % 4);
    }
}

/* d = d factor + the row that fragment_load brought, in row half `i`. */
template <typename T, int R>
static __device__ __forceinline__ void fragment_add(float (&d)[R], const uint4 (&pieces)[R / 16], int i, float factor)
{
#pragma unroll
    for (int c = 0; c < R / 16; c++) {
        uint32_t w[4] = { pieces[c].x, pieces[c].y, pieces[c].z, pieces[c].w };
        fragment_transpose(w);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = 4 * (4 * c + j) + 2 * i;
            float x[2];
            fragment_unpack<T>(x, w[j]);
            d[at] = fmaf(d[at], factor, x[0]);
            d[at + 1] = fmaf(d[at + 1], factor, x[1]);
        }
    }
}

#endif
