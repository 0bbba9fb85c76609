/* expand.cu - bitmaps of kept keys to ascending lists.
 *
 * One warp per group walks its bitmap 32 words, 2048 keys, at a time; the next words are loaded meanwhile:
 *
 *     lane: one word, its bits counted  ->  prefix sum over the warp  ->  lane: the places of its bits to shared
 * memory, 16 bits each  ->  warp: shared memory to the list, coalesced
 *
 * Shared memory has 2 spare places after every 64, so that words of 64 set bits do not all start in one bank. */
#include "kernels.h"

enum { EXPAND_WARPS = 4, EXPAND_KEYS = 2048 /* of a warp at a time */ };

typedef struct expand_job {
    const uint64_t *kept; /* [rows, words] */
    int32_t *keys;        /* [rows, pitch] */
    int64_t rows, words, pitch;
    int K;
} expand_job;

static __device__ __forceinline__ int expand_spread(int i)
{
    return i + i / 64 * 2;
}

static __global__ void __launch_bounds__(EXPAND_WARPS * 32) expand_kernel(const expand_job job)
{
    __shared__ uint16_t places[EXPAND_WARPS][EXPAND_KEYS / 64 * 66];
    const int lane = threadIdx.x % 32;
    const int64_t row = blockIdx.x * (int64_t)EXPAND_WARPS + threadIdx.x / 32;
    if (row >= job.rows) return;
    const uint64_t *kept = job.kept + row * job.words;
    int32_t *keys = job.keys + row * job.pitch; /* moves on with what is found */
    uint16_t *place = places[threadIdx.x / 32];

    uint64_t next = lane < job.words ? kept[lane] : 0;
    for (int64_t first = 0; first < job.words; first += 32) {
        uint64_t bits = next;
        next = first + 32 + lane < job.words ? kept[first + 32 + lane] : 0;
        int count = __popcll(bits), end = count;
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(0xffffffff, end, step);
            if (lane >= step) end += left;
        }
        int to = end - count, found = __shfl_sync(0xffffffff, end, 31);
        for (uint32_t half = (uint32_t)bits; half; half &= half - 1)
            place[expand_spread(to++)] = (uint16_t)(lane * 64 + __ffs(half) - 1);
        for (uint32_t half = (uint32_t)(bits >> 32); half; half &= half - 1)
            place[expand_spread(to++)] = (uint16_t)(lane * 64 + __ffs(half) + 31);
        __syncwarp();
        for (int i = lane; i < found; i += 32) keys[i] = (int)(first * 64) + place[expand_spread(i)];
        keys += found;
        __syncwarp();
    }
    for (int64_t i = job.K + lane; i < job.pitch; i += 32) job.keys[row * job.pitch + i] = -1;
}

cudaError_t mcsa_cuda_expand(const mcsa_selection *selection, const mcsa_cuda_lists *lists, cudaStream_t stream)
{
    expand_job job = { selection->kept,  lists->rows,  (int64_t)selection->H * selection->G,
                       selection->words, lists->pitch, selection->K };
    expand_kernel<<<(unsigned)((job.rows + EXPAND_WARPS - 1) / EXPAND_WARPS), EXPAND_WARPS * 32, 0, stream>>>(job);
    return cudaGetLastError();
}
