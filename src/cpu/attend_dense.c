/* attend_dense.c - dense attention with row LSE: tiles of 128 queries over (head, tile), each against all keys.  Tiles
 * share nothing, so the bits do not depend on who computes them. */
#include "cpu.h"

#include "base/tensor.h"

#include <string.h>

#include <omp.h>

void mcsa_cpu_attend_dense(void *state, const mcsa_qkv *x, float *lse)
{
    mcsa_cpu *cpu = state;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
    int N = x->dims.N, M = x->dims.M, tiles = (N + MCSA_DENSE_TILE - 1) / MCSA_DENSE_TILE;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)x->dims.H * tiles; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / tiles), first = (int)(task % tiles) * MCSA_DENSE_TILE;
        int count = N - first < MCSA_DENSE_TILE ? N - first : MCSA_DENSE_TILE;
        mcsa_rows queries = mcsa_head_rows(x->q, h, NULL, first, count);
        mcsa_rows keys = mcsa_head_rows(x->k, h, NULL, 0, M), values = mcsa_head_rows(x->v, h, NULL, 0, M);
        mcsa_tile_load(tile, kernels, &queries);
        mcsa_tile_attend(tile, &keys, &values, x->scale, 0);
        for (int i = 0; i < count; i++)
            kernels->store_row(tile->rows + (ptrdiff_t)i * x->dims.D, x->dims.D, x->dims.dtype, x->out->stride[2],
                               mcsa_tensor_row(x->out, h, first + i));
        if (lse) memcpy(lse + (int64_t)h * N + first, tile->lse, sizeof *lse * (size_t)count);
    }
}
