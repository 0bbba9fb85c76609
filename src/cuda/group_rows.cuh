/* group_rows.cuh - rows of q in shared memory, and the tensor-core steps that read them.
 *
 * Row r lies at r * 2 D bytes; its 16-byte chunk c at place c ^ (r % 8), so that 8 neighbouring rows of one chunk meet
 * no bank twice. */
#ifndef MCSA_CUDA_GROUP_ROWS_CUH
#define MCSA_CUDA_GROUP_ROWS_CUH

#include "group.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ uint32_t rows_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes, or 16 zero bytes where `valid` is 0. */
static __device__ __forceinline__ void rows_copy_16(uint32_t shared, const void *source, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void rows_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void rows_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Byte offset of chunk c of row r. */
template <int D> static __device__ __forceinline__ uint32_t rows_offset(int r, int c)
{
    return (uint32_t)(r * (2 * D) + ((c ^ (r & 7)) << 4));
}

/* Four 8x8 tiles, each transposed: lane l gets elements (2 (l % 4), l / 4) and the one below of each. */
static __device__ __forceinline__ void rows_load_transposed(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* c [16, 8] += a [16, 16] b [16, 8] */
static __device__ __forceinline__ void rows_multiply(__nv_bfloat16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void rows_multiply(__half, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t rows_ones(__nv_bfloat16)
{
    return 0x3f803f80u;
}

static __device__ __forceinline__ uint32_t rows_ones(__half)
{
    return 0x3c003c00u;
}

static __device__ __forceinline__ float2 rows_pair(__nv_bfloat16, uint32_t word)
{
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

static __device__ __forceinline__ float2 rows_pair(__half, uint32_t word)
{
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
}

/* x (8 elements) . v [8], added to two chains */
template <typename T> static __device__ __forceinline__ float2 rows_dot_8(uint4 x, const float (&v)[8], float2 sum)
{
    const uint32_t word[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = rows_pair(T(), word[i]);
        sum.x = fmaf(pair.x, v[2 * i], sum.x);
        sum.y = fmaf(pair.y, v[2 * i + 1], sum.y);
    }
    return sum;
}

#endif
