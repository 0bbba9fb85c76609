/* tma.cuh - tiles between device memory and swizzled shared memory by the bulk tensor copy engine (TMA).
 *
 * A [H, N, D] tensor of 2-byte numbers is described to the engine as [H, D / 64, N, 64], so that one copy brings rows
 * x slabs x 64: the layout that wgmma reads (wgmma.cuh): slabs of 64 columns, each rows x 128 bytes, swizzled by 128
 * bytes.  Rows past N arrive as zeros. */
#ifndef MCSA_CUDA_TMA_CUH
#define MCSA_CUDA_TMA_CUH

#include "mbarrier.cuh"
#include "mcsa.h"

#include <cuda.h>
#include <cuda_runtime.h>

/* What L2 should do with the lines that a copy touches. */
#define TMA_EVICT_NORMAL 0x1000000000000000ull
#define TMA_EVICT_FIRST 0x12F0000000000000ull
#define TMA_EVICT_LAST 0x14F0000000000000ull

/* Describes `tensor` for copies of `rows` rows (at most 256) and `slabs` slabs of 64 columns.  Strides along H and N
 * are multiples of 16 bytes. */
static inline cudaError_t tma_describe(CUtensorMap *map, const mcsa_tensor *tensor, int rows, int slabs)
{
    typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                        CUtensorMapFloatOOBfill);
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) return error;
    if (found != cudaDriverEntryPointSuccess || entry == NULL) return cudaErrorNotSupported;

    /* A dimension of extent 1 may carry any stride, 0 too; the engine wants a multiple of 16. */
    cuuint64_t row = tensor->shape[1] > 1 ? (cuuint64_t)tensor->stride[1] * 2 : 256;
    cuuint64_t head = tensor->shape[0] > 1 ? (cuuint64_t)tensor->stride[0] * 2 : 256;
    cuuint64_t extent[4] = { 64, (cuuint64_t)tensor->shape[1], (cuuint64_t)tensor->shape[2] / 64,
                             (cuuint64_t)tensor->shape[0] };
    cuuint64_t stride[3] = { row, 128, head }; /* bytes */
    cuuint32_t box[4] = { 64, (cuuint32_t)rows, (cuuint32_t)slabs, 1 };
    cuuint32_t step[4] = { 1, 1, 1, 1 };
    CUtensorMapDataType type =
        tensor->dtype == MCSA_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    CUresult result = ((encode_function)entry)(map, type, 4, tensor->data, extent, stride, box, step,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static __device__ __forceinline__ void tma_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

/* Rows from `row`, slabs from `slab` of head `head` to `shared`; completes on `bar`. */
static __device__ __forceinline__ void tma_load(void *shared, const CUtensorMap *map, uint64_t *bar, int row, int slab,
                                                int head, uint64_t evict)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
                 "l"((uint64_t)map), "r"(shared_address(bar)), "r"(0), "r"(row), "r"(slab), "r"(head), "l"(evict)
                 : "memory");
}

/* The same into every block of the cluster whose bit of `ranks` is set, at the same place, completing on the barrier at
 * the same place. */
static __device__ __forceinline__ void tma_load_multicast(void *shared, const CUtensorMap *map, uint64_t *bar, int row,
                                                          int slab, int head, uint16_t ranks, uint64_t evict)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(
                     shared_address(shared)),
                 "l"((uint64_t)map), "r"(shared_address(bar)), "r"(0), "r"(row), "r"(slab), "r"(head), "h"(ranks),
                 "l"(evict)
                 : "memory");
}

#endif
