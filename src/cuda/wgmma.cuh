/* wgmma.cuh - the warpgroup matrix multiply, D[64, N] += A[64, 16] B[16, N], FP32 sums of BF16 or FP16 products.
 *
 * Tiles in shared memory are slabs of 64 columns; a slab is rows x 128 bytes, contiguous, starting on 1024 bytes, and
 * the 16-byte chunk c of row r lies at r 128 + ((c xor r mod 8) 16): the 128-byte swizzle, as TMA writes it.
 *
 *   rows of the tile are M or N of the multiply, columns its K ("K-major": Q and K):
 *       descriptor(slab + row 128, 0); 16 columns further is + 32 bytes, the next slab + rows 128 bytes.
 *   rows of the tile are K of the multiply, columns its N ("transposed": V as B):
 *       descriptor(slab, bytes from slab to slab); 16 rows further is + 2048 bytes.
 *
 * Accumulators d[N / 2]: thread t of the warpgroup, lane = t mod 32, holds in d[4j], d[4j + 1] row
 * 16 (t / 32) + lane / 4, columns 8j + 2 (lane mod 4) + {0, 1}; in d[4j + 2], d[4j + 3] the same of row + 8.  A from
 * registers has that layout too: the four registers of 16 columns are pairs packed from d[8s], d[8s + 2], d[8s + 4],
 * d[8s + 6] and their neighbours.
 *
 * Order: wgmma_fence, multiplies, wgmma_commit, wgmma_wait<groups left in flight>, then wgmma_hold on whatever the
 * finished multiplies wrote, so that the compiler moves no use of it above the wait. */
#ifndef MCSA_CUDA_WGMMA_CUH
#define MCSA_CUDA_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* Start, leading offset and stride (1024 bytes: from 8 rows to the next 8) in units of 16 bytes; bit 62 names the
 * 128-byte swizzle.  Moving the start by b bytes adds b / 16. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared, uint32_t leading_bytes)
{
    uint32_t low = ((shared & 0x3FFFF) >> 4) | (((leading_bytes & 0x3FFFF) >> 4) << 16);
    return (uint64_t)0x40000040u << 32 | low;
}

static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int GROUPS> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

template <int R> static __device__ __forceinline__ void wgmma_hold(float (&d)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* The element type's letters in an instruction, and two floats rounded to a packed pair (x in the low half). */
template <typename T> struct wgmma_type;
template <> struct wgmma_type<__nv_bfloat16> {
    enum { bf16 = 1 };
};
template <> struct wgmma_type<__half> {
    enum { bf16 = 0 };
};

template <typename T> static __device__ __forceinline__ uint32_t wgmma_pack(float x, float y)
{
    uint32_t packed;
    if constexpr (wgmma_type<T>::bf16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(y), "f"(x));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(y), "f"(x));
    return packed;
}

/* Operand lists of the accumulator: names in the instruction and C lvalues, by eights. */
#define WGMMA_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_NAMES_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_NAMES_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_NAMES_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_NAMES_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_NAMES_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_EIGHT(i) \
    "+f"(d[8 * i + 0]), "+f"(d[8 * i + 1]), "+f"(d[8 * i + 2]), "+f"(d[8 * i + 3]), \
        "+f"(d[8 * i + 4]), "+f"(d[8 * i + 5]), "+f"(d[8 * i + 6]), "+f"(d[8 * i + 7])
#define WGMMA_NAMES_OF_32 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3
#define WGMMA_VALUES_OF_32 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3)
#define WGMMA_NAMES_OF_48 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3 ", " WGMMA_NAMES_4 ", " \
    WGMMA_NAMES_5
#define WGMMA_VALUES_OF_48 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3), WGMMA_EIGHT(4), WGMMA_EIGHT(5)
#define WGMMA_NAMES_OF_64 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3 ", " WGMMA_NAMES_4 ", " \
    WGMMA_NAMES_5 ", " WGMMA_NAMES_6 ", " WGMMA_NAMES_7
#define WGMMA_VALUES_OF_64 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3), WGMMA_EIGHT(4), WGMMA_EIGHT(5), \
    WGMMA_EIGHT(6), WGMMA_EIGHT(7)
#define WGMMA_NAMES_OF_80 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3 ", " WGMMA_NAMES_4 ", " \
    WGMMA_NAMES_5 ", " WGMMA_NAMES_6 ", " WGMMA_NAMES_7 ", " WGMMA_NAMES_8 ", " WGMMA_NAMES_9
#define WGMMA_VALUES_OF_80 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3), WGMMA_EIGHT(4), WGMMA_EIGHT(5), \
    WGMMA_EIGHT(6), WGMMA_EIGHT(7), WGMMA_EIGHT(8), WGMMA_EIGHT(9)
#define WGMMA_NAMES_OF_88 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3 ", " WGMMA_NAMES_4 ", " \
    WGMMA_NAMES_5 ", " WGMMA_NAMES_6 ", " WGMMA_NAMES_7 ", " WGMMA_NAMES_8 ", " WGMMA_NAMES_9 ", " \
    WGMMA_NAMES_10
#define WGMMA_VALUES_OF_88 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3), WGMMA_EIGHT(4), WGMMA_EIGHT(5), \
    WGMMA_EIGHT(6), WGMMA_EIGHT(7), WGMMA_EIGHT(8), WGMMA_EIGHT(9), WGMMA_EIGHT(10)
#define WGMMA_NAMES_OF_96 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3 ", " WGMMA_NAMES_4 ", " \
    WGMMA_NAMES_5 ", " WGMMA_NAMES_6 ", " WGMMA_NAMES_7 ", " WGMMA_NAMES_8 ", " WGMMA_NAMES_9 ", " \
    WGMMA_NAMES_10 ", " WGMMA_NAMES_11
#define WGMMA_VALUES_OF_96 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3), WGMMA_EIGHT(4), WGMMA_EIGHT(5), \
    WGMMA_EIGHT(6), WGMMA_EIGHT(7), WGMMA_EIGHT(8), WGMMA_EIGHT(9), WGMMA_EIGHT(10), WGMMA_EIGHT(11)
#define WGMMA_NAMES_OF_128 \
    WGMMA_NAMES_0 ", " WGMMA_NAMES_1 ", " WGMMA_NAMES_2 ", " WGMMA_NAMES_3 ", " WGMMA_NAMES_4 ", " \
    WGMMA_NAMES_5 ", " WGMMA_NAMES_6 ", " WGMMA_NAMES_7 ", " WGMMA_NAMES_8 ", " WGMMA_NAMES_9 ", " \
    WGMMA_NAMES_10 ", " WGMMA_NAMES_11 ", " WGMMA_NAMES_12 ", " WGMMA_NAMES_13 ", " WGMMA_NAMES_14 ", " \
    WGMMA_NAMES_15
#define WGMMA_VALUES_OF_128 \
    WGMMA_EIGHT(0), WGMMA_EIGHT(1), WGMMA_EIGHT(2), WGMMA_EIGHT(3), WGMMA_EIGHT(4), WGMMA_EIGHT(5), \
    WGMMA_EIGHT(6), WGMMA_EIGHT(7), WGMMA_EIGHT(8), WGMMA_EIGHT(9), WGMMA_EIGHT(10), WGMMA_EIGHT(11), \
    WGMMA_EIGHT(12), WGMMA_EIGHT(13), WGMMA_EIGHT(14), WGMMA_EIGHT(15)

/* wgmma_ss<T, TB>(d, a, b, accumulate): A and B by descriptor; TB 1: B is transposed.
 * wgmma_rs<T, TB>(d, a, b, accumulate): A from registers.
 * N is twice the length of d; accumulate 0: d is overwritten.  X0 to X6 number the operands after the accumulator. */
#define WGMMA_SS(N, R, TYPE, X0, X1, X2, X3) \
    asm volatile("{\n" \
                 ".reg .pred p;\n" \
                 "setp.ne.b32 p, %" #X2 ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_OF_##R \
                 "}, %" #X0 ", %" #X1 ", p, 1, 1, 0, %" #X3 ";\n" \
                 "}" \
                 : WGMMA_VALUES_OF_##R \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(TB))

#define WGMMA_RS(N, R, TYPE, X0, X1, X2, X3, X4, X5, X6) \
    asm volatile("{\n" \
                 ".reg .pred p;\n" \
                 "setp.ne.b32 p, %" #X5 ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_OF_##R \
                 "}, {%" #X0 ", %" #X1 ", %" #X2 ", %" #X3 "}, %" #X4 ", p, 1, 1, %" #X6 ";\n" \
                 "}" \
                 : WGMMA_VALUES_OF_##R \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TB))

#define WGMMA_DEFINE(N, R, X0, X1, X2, X3, X4, X5, X6) \
    template <typename T, int TB> \
    static __device__ __forceinline__ void wgmma_ss(float (&d)[R], uint64_t a, uint64_t b, int accumulate) \
    { \
        if constexpr (wgmma_type<T>::bf16) \
            WGMMA_SS(N, R, "bf16", X0, X1, X2, X3); \
        else \
            WGMMA_SS(N, R, "f16", X0, X1, X2, X3); \
    } \
    template <typename T, int TB> \
    static __device__ __forceinline__ void wgmma_rs(float (&d)[R], const uint32_t *a, uint64_t b, int accumulate) \
    { \
        if constexpr (wgmma_type<T>::bf16) \
            WGMMA_RS(N, R, "bf16", X0, X1, X2, X3, X4, X5, X6); \
        else \
            WGMMA_RS(N, R, "f16", X0, X1, X2, X3, X4, X5, X6); \
    }

WGMMA_DEFINE(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_DEFINE(96, 48, 48, 49, 50, 51, 52, 53, 54)
WGMMA_DEFINE(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA_DEFINE(160, 80, 80, 81, 82, 83, 84, 85, 86)
WGMMA_DEFINE(176, 88, 88, 89, 90, 91, 92, 93, 94)
WGMMA_DEFINE(192, 96, 96, 97, 98, 99, 100, 101, 102)
WGMMA_DEFINE(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef WGMMA_DEFINE
#undef WGMMA_SS
#undef WGMMA_RS

#endif
