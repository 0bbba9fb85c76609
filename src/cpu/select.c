/* select.c - exact selection over (head, group): the K keys of largest attention mass, or the clusters of largest mass
 * per key that leave room for the means of all others.
 *
 * At once with dense attention: a tile attends to all keys, keeps its probabilities while they fit a cache, and sums
 * them up per key when its row LSE is known.  Apart: attention left the row LSE, and the scores are computed once more.
 * One group's masses live in one thread's scratch: no [G, N] array exists. */
#include "base/tensor.h"
#include "cpu.h"
#include "kth.h"

#include <string.h>

#include <omp.h>

/* Sets the bits of the K largest masses.  Masses are not negative, so their bits order as integers; of a NaN only the
 * place in the order is unspecified. */
static void keep(const float *mass, int N, int K, uint64_t *bits)
{
    const uint32_t *key = (const uint32_t *)(const void *)mass;
    mcsa_kth kth = mcsa_kth_largest(key, N, K);
    for (int j = 0; j < N; j += 64, bits++) {
        *bits = 0;
        for (int b = 0; b < 64 && j + b < N; b++) {
            int tie = key[j + b] == kth.threshold && kth.ties > 0;
            kth.ties -= tie;
            *bits |= (uint64_t)(key[j + b] > kth.threshold || tie) << b;
        }
    }
}

/* Restores the heap rank [count] of which only the root may be smaller than a child. */
static void sift(uint64_t *rank, int count, int root)
{
    uint64_t moved = rank[root];
    for (int child; (child = 2 * root + 1) < count; root = child) {
        child += child + 1 < count && rank[child + 1] > rank[child];
        if (rank[child] <= moved) break;
        rank[root] = rank[child];
    }
    rank[root] = moved;
}

/* rank: worth above, then what puts the lower of equal ones first; returns how many clusters have keys. */
static int rank_clusters(const float *mass, const mcsa_selection *s, int h, uint64_t *rank)
{
    int ranked = 0;
    for (int p = 0; p < s->P; p++) {
        int count;
        const int32_t *keys = mcsa_cluster(s, h, p, &count);
        if (!count) continue;
        float sum = 0, worth;
        uint32_t bits;
        for (int i = 0; i < count; i++) sum += mass[keys[i]];
        worth = sum / (float)count;
        memcpy(&bits, &worth, sizeof bits);
        rank[ranked++] = (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)p);
    }
    for (int root = ranked / 2; root-- > 0;) sift(rank, ranked, root);
    return ranked;
}

/* Sets the bits of the clusters worth most, as far as they fit into K rows: a cluster that is not kept takes one. */
static void keep_clusters(const float *mass, const mcsa_selection *s, int h, uint64_t *rank, uint64_t *bits)
{
    int left = rank_clusters(mass, s, h, rank), rows = left;
    memset(bits, 0, sizeof *bits * (size_t)s->words);
    while (left > 0) {
        int p = (int)(UINT32_MAX - (uint32_t)rank[0]), count;
        (void)mcsa_cluster(s, h, p, &count);
        if (rows + count - 1 <= s->K) {
            rows += count - 1;
            bits[p / 64] |= (uint64_t)1 << (p % 64);
        }
        rank[0] = rank[--left];
        sift(rank, left, 0);
    }
}

/* kept of (head, group) `task`, from the masses in the tile of this thread. */
static void choose(const mcsa_cpu *cpu, const mcsa_selection *s, int64_t task)
{
    int thread = omp_get_thread_num();
    const float *mass = cpu->tiles[thread].mass;
    uint64_t *bits = s->kept + task * s->words;
    if (s->P)
        keep_clusters(mass, s, (int)(task / s->G), cpu->clusters.rank + (int64_t)thread * s->P, bits);
    else
        keep(mass, s->N, s->K, bits);
}

void mcsa_cpu_select(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *s)
{
    mcsa_cpu *cpu = state;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)s->H * s->G; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / s->G), g = (int)(task % s->G), count = mcsa_group_size(s, g);
        const int32_t *order = s->order + (int64_t)h * s->N + (int64_t)g * s->C;
        mcsa_rows queries = mcsa_head_rows(x->q, h, order, 0, count), keys = mcsa_head_rows(x->k, h, NULL, 0, s->N);
        mcsa_tile_load(tile, kernels, &queries);
        for (int i = 0; i < count; i++) tile->lse[i] = lse[(int64_t)h * s->N + order[i]];
        mcsa_tile_mass(tile, &keys, x->scale, tile->lse);
        choose(cpu, s, task);
    }
}

double mcsa_cpu_attend_select(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    mcsa_cpu *cpu = state;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
    double again = 0; /* whole numbers, so any order of adding gives the same sum */
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads) reduction(+ : again)
    for (int64_t task = 0; task < (int64_t)s->H * s->G; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / s->G), g = (int)(task % s->G), count = mcsa_group_size(s, g);
        const int32_t *order = s->order + (int64_t)h * s->N + (int64_t)g * s->C;
        mcsa_rows queries = mcsa_head_rows(x->q, h, order, 0, count), keys = mcsa_head_rows(x->k, h, NULL, 0, s->N),
                  values = mcsa_head_rows(x->v, h, NULL, 0, s->N);
        mcsa_tile_load(tile, kernels, &queries);
        int trail = mcsa_tile_trail_fits(tile, s->N);
        mcsa_tile_attend(tile, &keys, &values, x->scale, trail);
        for (int i = 0; i < count; i++)
            kernels->store_row(tile->rows + (ptrdiff_t)i * x->dims.D, x->dims.D, x->dims.dtype, x->out->stride[2],
                               mcsa_tensor_row(x->out, h, order[i]));
        if (trail) {
            mcsa_tile_trail_mass(tile, s->N);
        } else {
            mcsa_tile_mass(tile, &keys, x->scale, tile->lse);
            again += (double)count * s->N;
        }
        choose(cpu, s, task);
    }
    return again / 2;
}
