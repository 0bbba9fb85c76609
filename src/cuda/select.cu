/* select.cu - kept keys, or kept clusters of keys, of every group: masses of a few heads at a time into scratch, then
 * the K largest of each row, or the ranks of its clusters.
 *
 * The masses of all heads at once would be 7 GB at H = 40, N = 75,600.  A mass kernel gives each multiprocessor one
 * block of two groups at a time, so a launch runs as whole waves of them; the number of heads in a chunk is the one
 * within BUDGET that leaves the fewest idle (4 heads there: 1184 blocks, 8.97 waves).
 *
 * For clusters the keys of a chunk are copied first so that those of a cluster lie side by side, and their masses too:
 * reading the masses in the order of the members instead would fetch 32 bytes for each 4. */
#include "cuda/kernels.h"
#include "cuda/scratch.cuh"

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

/* Heads [head, head + heads) of a call of select. */
struct chunk {
    const mcsa_qkv *x;
    const float *lse;
    const mcsa_selection *selection;
    int head, heads;
    int64_t rows, pitch; /* rows: heads G */
};

/* Scratch of a chunk; the last two where clusters are kept. */
struct parts {
    float *mass;  /* [heads, G, pitch] */
    void *keys;   /* [heads, N, D] in the order of the clusters */
    float *worth; /* [heads, G, P] */
};

/* Places the parts; with `scratch` NULL it only measures. */
size_t carve(const chunking &c, const mcsa_dims *dims, int P, void *scratch, parts *to)
{
    size_t used = 0, heads = (size_t)c.heads;
    to->mass = (float *)scratch_take(scratch, &used, heads * c.head_masses * sizeof(float));
    if (P == 0) return used;
    to->keys = scratch_take(scratch, &used, heads * dims->N * dims->D * sizeof(uint16_t));
    to->worth = (float *)scratch_take(scratch, &used, heads * c.G * P * sizeof(float));
    return used;
}

uint64_t *kept_of(const chunk &c)
{
    const mcsa_selection *s = c.selection;
    return s->kept + (int64_t)c.head * s->G * s->words;
}

cudaError_t keep_keys(const chunk &c, const parts &scratch, cudaStream_t stream)
{
    const mcsa_selection *s = c.selection;
    mcsa_cuda_mass_job mass = { c.x, c.lse, s->order, c.head, c.heads, scratch.mass, c.pitch };
    cudaError_t error = mcsa_cuda_mass(&mass, stream);
    if (error != cudaSuccess) return error;
    mcsa_cuda_top_job top = { scratch.mass, c.rows, c.pitch, s->N, s->K, kept_of(c) };
    return mcsa_cuda_top(&top, stream);
}

/* Masses of the keys as they lie in their copy. */
cudaError_t mass_by_cluster(const chunk &c, const parts &scratch, cudaStream_t stream)
{
    int64_t N = c.x->dims.N, D = c.x->dims.D, before = c.head * N;
    mcsa_tensor q = *c.x->q, k = { scratch.keys, c.x->dims.dtype, { c.heads, N, D }, { N * D, D, 1 } };
    q.data = (uint16_t *)q.data + c.head * q.stride[0];
    q.shape[0] = c.heads;
    mcsa_qkv x = *c.x;
    x.q = &q;
    x.k = &k;
    x.dims.H = c.heads;
    mcsa_cuda_mass_job mass = { &x, c.lse + before, c.selection->order + before, 0, c.heads, scratch.mass, c.pitch };
    return mcsa_cuda_mass(&mass, stream);
}

cudaError_t keep_clusters(const chunk &c, const parts &scratch, cudaStream_t stream)
{
    const mcsa_selection *s = c.selection;
    mcsa_cuda_collect_job collect = { c.x->k, s->members, c.head, c.heads, scratch.keys };
    cudaError_t error = mcsa_cuda_collect(&collect, stream);
    if (error == cudaSuccess) error = mass_by_cluster(c, scratch, stream);
    if (error != cudaSuccess) return error;
    const int32_t *first = s->first + (int64_t)c.head * (s->P + 1);
    mcsa_cuda_fold_job fold = { scratch.mass, c.pitch, first, c.rows, s->G, s->P, scratch.worth };
    error = mcsa_cuda_fold(&fold, stream);
    if (error != cudaSuccess) return error;
    mcsa_cuda_rank_job rank = { scratch.worth, first, c.rows, s->G, s->P, s->K, kept_of(c) };
    return mcsa_cuda_rank(&rank, stream);
}

} // namespace

extern "C" size_t mcsa_cuda_select_bytes(const mcsa_dims *dims, int P)
{
    parts memory;
    return carve(chunks_of(dims->H, dims->N), dims, P, NULL, &memory);
}

extern "C" cudaError_t mcsa_cuda_select(const mcsa_qkv *x, const float *lse, const mcsa_selection *selection,
                                        void *scratch, cudaStream_t stream)
{
    const mcsa_selection *s = selection;
    chunking all = chunks_of(s->H, s->N);
    parts memory = {};
    carve(all, &x->dims, s->P, scratch, &memory);
    for (int head = 0; head < s->H; head += all.heads) {
        int heads = s->H - head < all.heads ? s->H - head : all.heads;
        chunk c = { x, lse, s, head, heads, (int64_t)heads * s->G, all.pitch };
        cudaError_t error = s->P ? keep_clusters(c, memory, stream) : keep_keys(c, memory, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
