/* group_rows.cuh - tiles of rows of q in shared memory, as wgmma.cuh wants them, and how they are filled and read.
 *
 * A tile of R rows is D / 64 slabs of R x 128 bytes; row r has its 16-byte chunk c in slab c / 8, at place
 * c % 8 ^ r % 8.  Eight neighbouring rows of one chunk, or the eight chunks of one row, meet no bank twice. */
#ifndef MCSA_CUDA_GROUP_ROWS_CUH
#define MCSA_CUDA_GROUP_ROWS_CUH

#include "group.cuh"
#include "mbarrier.cuh"
#include "wgmma.cuh"

/* Bytes from the tile's first row to chunk c of row r. */
template <int R> static __device__ __forceinline__ uint32_t rows_offset(int r, int c)
{
    return (uint32_t)(c / 8 * (R * 128) + r * 128 + ((c % 8 ^ r % 8) << 4));
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

/* All but the last PENDING commits of this thread have landed, and the tensor cores may see them after a barrier. */
template <int PENDING> static __device__ __forceinline__ void rows_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    fence_async_shared();
}

/* The A operand [16 rows, 16 columns] of rows_multiply: lane l names chunk l / 16 of row l % 16. */
static __device__ __forceinline__ void rows_load(uint32_t (&x)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

/* c [16, 8] += a [16, 16] b [16, 8] */
template <typename T>
static __device__ __forceinline__ void rows_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (wgmma_type<T>::bf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename T> static __device__ __forceinline__ float2 rows_pair(uint32_t word)
{
    if constexpr (wgmma_type<T>::bf16)
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & ~0xffffu));
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
}

/* The 8 elements of a chunk. */
template <typename T> static __device__ __forceinline__ void rows_unpack(float (&to)[8], uint4 chunk)
{
    const uint32_t word[4] = { chunk.x, chunk.y, chunk.z, chunk.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = rows_pair<T>(word[i]);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}

#endif
