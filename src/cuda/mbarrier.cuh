/* mbarrier.cuh - barriers in shared memory (mbarrier), barriers by number (bar), and the register hand-over between
 * warpgroups.  One instruction, one function.
 *
 * An mbarrier completes a phase when its count of arrivals and its pending bytes are both used up.  wait(bar, parity)
 * returns once the phase of that parity has completed: a consumer starts with parity 0; a producer of free slots starts
 * with parity 1, which holds at once on a fresh barrier. */
#ifndef MCSA_CUDA_MBARRIER_CUH
#define MCSA_CUDA_MBARRIER_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ __forceinline__ void mbarrier_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}

/* Makes inits visible to the copy engine and to the other blocks of the cluster; a block or cluster barrier follows. */
static __device__ __forceinline__ void mbarrier_fence_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}

/* Where `shared` of this block lies in block `rank` of the cluster. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t shared, uint32_t rank)
{
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
    return address;
}

/* Arrives on a barrier of any block of the cluster, `bar` from cluster_address.  Release at the default scope: it says
 * that reads have completed and publishes no writes.  (At cluster scope it would cost a fence of the whole GPU.) */
static __device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives once and announces `bytes` that copies will complete. */
static __device__ __forceinline__ void mbarrier_expect_tx(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ int mbarrier_try_wait(uint64_t *bar, uint32_t parity)
{
    int done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
    return done;
}

static __device__ __forceinline__ void mbarrier_wait(uint64_t *bar, uint32_t parity)
{
    while (!mbarrier_try_wait(bar, parity)) {
    }
}

/* The same, for barriers that threads of another block of the cluster arrive on. */
static __device__ __forceinline__ void mbarrier_wait_cluster(uint64_t *bar, uint32_t parity)
{
    int done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(shared_address(bar)), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Barrier `id` (1 to 15; 0 is __syncthreads) among `threads` threads, of which some sync and some only arrive. */
static __device__ __forceinline__ void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* One thread of a converged warp. */
static __device__ __forceinline__ int elect_one(void)
{
    int elected;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.b32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(elected));
    return elected;
}

/* Orders ordinary writes to shared memory before reads by wgmma and the copy engine. */
static __device__ __forceinline__ void fence_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Registers per thread of the calling warpgroup from here on: a multiple of 8.  All its warps call it. */
template <int REGISTERS> static __device__ __forceinline__ void registers_release(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void registers_claim(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif
