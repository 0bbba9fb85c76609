/* gather.cuh - single rows from device memory to swizzled shared memory with cp.async.
 *
 * The tile is laid out as wgmma.cuh wants it.  Copies are of 16 bytes a lane; 8 lanes fill one 128-byte line of a slab,
 * so that the writes meet no bank twice.  TMA cannot take over: it needs 7 clocks for a box of one line. */
#ifndef MCSA_CUDA_GATHER_CUH
#define MCSA_CUDA_GATHER_CUH

#include "mbarrier.cuh"

/* 16 bytes. */
static __device__ __forceinline__ void gather_16(uint32_t shared, const void *source)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(source) : "memory");
}

/* 16 bytes, or 16 zero bytes where `valid` is 0; `source` must be an address all the same. */
static __device__ __forceinline__ void gather_16_or_zero(uint32_t shared, const void *source, int valid)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(source),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

/* 4 bytes, or 4 zero bytes. */
static __device__ __forceinline__ void gather_4_or_zero(uint32_t shared, const void *source, int valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(source), "r"(valid ? 4 : 0)
                 : "memory");
}

/* Arrives on `bar` when all copies that this thread has issued so far have landed; counts as one of the barrier's
 * arrivals. */
static __device__ __forceinline__ void gather_arrive(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
}

#endif
