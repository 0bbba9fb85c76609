/* attend.c - exact attention of every part of the queries over the keys of its kept parts: the tile of dense attention
 * with a shorter list of keys.  With all parts kept and keys in ascending order the bits are those of dense attention.
 */
#include "cpu.h"

#include <math.h>
#include <string.h>

#include <omp.h>

/* Rows of the kept parts in the order of the parts; returns how many. */
static int list_keys(const rival_partition *keys, int h, const rival_map *map, int q, int32_t *list)
{
    const uint64_t *row = rival_map_row(map, h, q);
    int listed = 0;
    for (int64_t w = 0; w < map->words; w++)
        for (uint64_t left = row[w]; left; left &= left - 1) {
            int count;
            const int32_t *rows = rival_part(keys, h, (int)(w * 64) + __builtin_ctzll(left), &count);
            memcpy(list + listed, rows, sizeof *list * (size_t)count);
            listed += count;
        }
    return listed;
}

/* Rows without a key: 0, with nothing in their denominators. */
static void clear_rows(mcsa_tile *tile, int count, int D)
{
    memset(tile->rows, 0, sizeof *tile->rows * (size_t)count * (size_t)D);
    for (int i = 0; i < count; i++) tile->lse[i] = -INFINITY;
}

static void attend_rows(mcsa_tile *tile, const mcsa_kernels *kernels, const mcsa_qkv *x, int h, mcsa_rows queries,
                        int listed)
{
    int D = x->dims.D;
    mcsa_rows keys = mcsa_head_rows(x->k, h, tile->kept, 0, listed),
              values = mcsa_head_rows(x->v, h, tile->kept, 0, listed);
    if (listed) {
        mcsa_tile_load(tile, kernels, &queries);
        mcsa_tile_attend(tile, &keys, &values, x->scale, 0);
    } else {
        clear_rows(tile, queries.count, D);
    }
    for (int i = 0; i < queries.count; i++)
        kernels->store_row(tile->rows + (ptrdiff_t)i * D, D, x->dims.dtype, x->out->stride[2],
                           mcsa_tensor_row(x->out, h, queries.index[i]));
}

mcsa_status rival_cpu_attend(void *state, const mcsa_qkv *x, const rival_partition *queries,
                             const rival_partition *keys, const rival_map *map, float *lse, mcsa_error *error)
{
    rival_cpu *cpu = state;
    const mcsa_kernels *kernels = rival_cpu_kernels(cpu, x->dims.dtype);
    TRY(rival_cpu_reserve(cpu, x->dims.D, x->dims.M, error));
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)map->H * map->Q; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / map->Q), q = (int)(task % map->Q), rows;
        const int32_t *part = rival_part(queries, h, q, &rows);
        int listed = rows ? list_keys(keys, h, map, q, tile->kept) : 0;
        for (int first = 0; first < rows; first += MCSA_DENSE_TILE) {
            int count = rows - first < MCSA_DENSE_TILE ? rows - first : MCSA_DENSE_TILE;
            attend_rows(tile, kernels, x, h, mcsa_head_rows(x->q, h, part + first, 0, count), listed);
            for (int i = 0; lse && i < count; i++) lse[(int64_t)h * x->dims.N + part[first + i]] = tile->lse[i];
        }
    }
    return MCSA_OK;
}
