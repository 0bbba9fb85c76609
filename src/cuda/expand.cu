/* expand.cu - bitmaps of kept keys to ascending lists.
 *
 * One block of threads per group.  Each of 8 warps takes 32 words, 2048 keys, at a time; a round of the block is 16,384
 * keys, and the number of keys found before a round is carried from round to round:
 *
 *     lane: one word, its bits counted       warp: prefix sum       barrier       warps before: their totals
 *     lane: its bits' positions to shared memory, 16 bits each      warp: shared memory to the list, coalesced */
#include "kernels.h"

enum { EXPAND_WARPS = 8, EXPAND_KEYS = 2048 /* of a warp in a round */ };

typedef struct expand_job {
    const uint64_t *kept; /* [rows, words] */
    int32_t *keys;        /* [rows, pitch] */
    int64_t words, pitch;
    int K;
} expand_job;

static __global__ void __launch_bounds__(EXPAND_WARPS * 32) expand_kernel(const expand_job job)
{
    __shared__ uint16_t place[EXPAND_WARPS][EXPAND_KEYS];
    __shared__ int total[2][EXPAND_WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint64_t *kept = job.kept + blockIdx.x * job.words;
    int32_t *keys = job.keys + blockIdx.x * job.pitch;
    int before = 0; /* keys of the rounds so far */

    for (int64_t first = 0, round = 0; first < job.words; first += EXPAND_WARPS * 32, round ^= 1) {
        int64_t word = first + threadIdx.x;
        uint64_t bits = word < job.words ? kept[word] : 0;
        int count = __popcll(bits), end = count;
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(0xffffffff, end, step);
            if (lane >= step) end += left;
        }
        if (lane == 31) total[round][warp] = end;
        for (int to = end - count; bits; bits &= bits - 1)
            place[warp][to++] = (uint16_t)(lane * 64 + __ffsll(bits) - 1);
        int found = __shfl_sync(0xffffffff, end, 31);
        __syncthreads();

        int at = before;
        for (int w = 0; w < EXPAND_WARPS; w++) {
            if (w < warp) at += total[round][w];
            before += total[round][w];
        }
        int base = (int)((first + warp * 32) * 64);
        for (int i = lane; i < found; i += 32) keys[at + i] = base + place[warp][i];
        __syncwarp();
    }
    for (int64_t i = job.K + threadIdx.x; i < job.pitch; i += EXPAND_WARPS * 32) keys[i] = -1;
}

cudaError_t mcsa_cuda_expand(const mcsa_selection *selection, int32_t *keys, cudaStream_t stream)
{
    int64_t pitch = ((int64_t)selection->K + MCSA_CUDA_KEY_BLOCK - 1) / MCSA_CUDA_KEY_BLOCK * MCSA_CUDA_KEY_BLOCK;
    expand_job job = { selection->kept, keys, selection->words, pitch, selection->K };
    expand_kernel<<<(unsigned)(selection->H * selection->G), EXPAND_WARPS * 32, 0, stream>>>(job);
    return cudaGetLastError();
}
