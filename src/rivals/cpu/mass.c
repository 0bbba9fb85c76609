/* mass.c - attention that each part of the queries gives to each part of the keys: the masses of single keys that
 * METHOD.md (2) ranks, summed per part. */
#include "cpu.h"

#include <string.h>

#include <omp.h>

/* to [K] += masses of keys [rows] in the order of the parts. */
static void add_parts(const float *mass, const rival_partition *keys, int h, float *to)
{
    const int32_t *first = keys->first + (int64_t)h * (keys->P + 1);
    for (int k = 0; k < keys->P; k++) {
        float sum = 0;
        for (int j = first[k]; j < first[k + 1]; j++) sum += mass[j - first[0]];
        to[k] += sum;
    }
}

mcsa_status rival_cpu_mass(void *state, const mcsa_qkv *x, const rival_partition *queries, const rival_partition *keys,
                           const float *lse, float *mass, mcsa_error *error)
{
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, x->dims.dtype);
    TRY(rival_cpu_reserve(cpu, x->dims.D, x->dims.M, error));
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)queries->H * queries->P; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / queries->P), rows;
        const int32_t *part = rival_part(queries, h, (int)(task % queries->P), &rows);
        const int32_t *first = keys->first + (int64_t)h * (keys->P + 1);
        mcsa_rows listed =
            mcsa_head_rows(x->k, h, keys->order + (int64_t)h * keys->N + first[0], 0, first[keys->P] - first[0]);
        float *to = mass + task * keys->P;
        memset(to, 0, sizeof *to * (size_t)keys->P);
        for (int i = 0; i < rows; i += MCSA_DENSE_TILE) {
            int count = rows - i < MCSA_DENSE_TILE ? rows - i : MCSA_DENSE_TILE;
            mcsa_rows some = mcsa_head_rows(x->q, h, part + i, 0, count);
            mcsa_tile_load(tile, kernels, &some);
            for (int l = 0; l < count; l++) tile->lse[l] = lse[(int64_t)h * x->dims.N + part[i + l]];
            mcsa_tile_mass(tile, &listed, x->scale, tile->lse);
            add_parts(tile->mass, keys, h, to);
        }
    }
    return MCSA_OK;
}
