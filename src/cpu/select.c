/* select.c - exact selection over (head, group): the K keys of largest attention mass.
 *
 * At once with dense attention: a tile attends to all keys, keeps its probabilities while they fit a cache, and sums
 * them up per key when its row LSE is known.  Apart: attention left the row LSE, and the scores are computed once more.
 * One group's masses live in one thread's scratch: no [G, N] array exists. */
#include "base/tensor.h"
#include "cpu.h"
#include "kth.h"

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
        keep(tile->mass, s->N, s->K, s->kept + task * s->words);
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
        keep(tile->mass, s->N, s->K, s->kept + task * s->words);
    }
    return again / 2;
}
