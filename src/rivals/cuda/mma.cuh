/* mma.cuh - the matrix multiply of one warp, D[16, 8] += A[16, 16] B[16, 8], FP32 sums of 16-bit products, and operands
 * that hold floats as two 16-bit numbers.
 *
 * Lane l has rows l / 4 and l / 4 + 8.  Accumulators d[4]: columns 2 (l mod 4) + {0, 1} of the first row, then of the
 * second.  A in four registers of two numbers: first and second row of columns 2 (l mod 4) + {0, 1}, then the same of
 * columns + 8.  Two accumulators of neighbouring columns packed to 16 bits are one A. */
#ifndef RIVALS_CUDA_MMA_CUH
#define RIVALS_CUDA_MMA_CUH

#include "rows.cuh"

static __device__ __forceinline__ void mma_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t *b, __nv_bfloat16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void mma_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t *b, __half)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two B of 16 neighbouring rows of shared memory, `pitch` numbers apart.  Rows are columns of B (keys of scores): 16
 * columns, steps of 16 along the row. */
template <typename T> static __device__ __forceinline__ void mma_load(uint32_t (&b)[4], const T *rows, int pitch)
{
    const int lane = threadIdx.x % 32;
    const T *from = rows + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}

/* The same where rows are rows of B (keys of values). */
template <typename T>
static __device__ __forceinline__ void mma_load_transposed(uint32_t (&b)[4], const T *rows, int pitch)
{
    const int lane = threadIdx.x % 32;
    const T *from = rows + lane % 16 * pitch + lane / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(from)));
}

template <typename T> static __device__ __forceinline__ uint32_t mma_pack(float x, float y)
{
    T both[2];
    row_round(both, x);
    row_round(both + 1, y);
    return *(const uint32_t *)both;
}

/* x as the sum of two 16-bit numbers: what two BF16 leave is below 2^-16 of x. */
template <typename T> static __device__ __forceinline__ void mma_split(T *high, T *low, float x)
{
    row_round(high, x);
    row_round(low, x - row_float(*high));
}

#endif
