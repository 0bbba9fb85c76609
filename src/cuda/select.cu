/* select.cu - kept keys of every group: masses of a few heads at a time into scratch, and the K largest of each row.
 *
 * The masses of all heads at once would be 7 GB at H = 40, N = 75,600.  A mass kernel gives each multiprocessor one
 * block of two groups at a time, so a launch runs as whole waves of them; the number of heads in a chunk is the one
 * within BUDGET that leaves the fewest idle (4 heads there: 1184 blocks, 8.97 waves). */
#include "cuda/kernels.h"

namespace
{

const int64_t BUDGET = (int64_t)5 << 28; /* 1.25 GiB of masses, or one head if that is more */
const int64_t MULTIPROCESSORS = 132;     /* of an H200; another number costs speed only */

struct chunking {
    int G, heads;        /* heads of a chunk */
    int64_t pitch;       /* of a row of masses */
    int64_t head_masses; /* elements */
};

chunking chunks_of(int H, int N)
{
    chunking c;
    c.G = (N + MCSA_CUDA_C - 1) / MCSA_CUDA_C;
    c.pitch = (int64_t)c.G * MCSA_CUDA_C;
    c.head_masses = c.G * c.pitch;
    c.heads = 1;
    int64_t blocks = (c.G + 1) / 2, fewest = INT64_MAX;
    for (int heads = 1; heads <= H && (heads == 1 || heads * c.head_masses * 4 <= BUDGET); heads++) {
        int64_t full = (heads * blocks + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
        int64_t rest = (H % heads * blocks + MULTIPROCESSORS - 1) / MULTIPROCESSORS;
        int64_t waves = H / heads * full + rest;
        if (waves <= fewest) {
            fewest = waves;
            c.heads = heads;
        }
    }
    return c;
}

} // namespace

extern "C" size_t mcsa_cuda_select_bytes(const mcsa_dims *dims)
{
    chunking c = chunks_of(dims->H, dims->N);
    return (size_t)(c.heads * c.head_masses) * sizeof(float);
}

extern "C" cudaError_t mcsa_cuda_select(const mcsa_qkv *x, const float *lse, const mcsa_selection *selection,
                                        void *scratch, cudaStream_t stream)
{
    const mcsa_selection *s = selection;
    chunking c = chunks_of(s->H, s->N);
    for (int head = 0; head < s->H; head += c.heads) {
        int heads = s->H - head < c.heads ? s->H - head : c.heads;
        mcsa_cuda_mass_job mass = { x, lse, s->order, head, heads, (float *)scratch, c.pitch };
        cudaError_t error = mcsa_cuda_mass(&mass, stream);
        if (error != cudaSuccess) return error;
        mcsa_cuda_top_job top = {
            (const float *)scratch, (int64_t)heads * c.G, c.pitch, s->N, s->K, s->kept + (int64_t)head * c.G * s->words
        };
        error = mcsa_cuda_top(&top, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
