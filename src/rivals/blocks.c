/* blocks.c - see blocks.h. */
#include "blocks.h"

#include "ranking.h"

#include <stdlib.h>

#include <omp.h>

static mcsa_status reserve(rival_partition *p, const mcsa_dims *dims, int size, mcsa_error *error)
{
    int first = dims->N < size ? dims->N : size;
    if (p->H == dims->H && p->N == dims->N && p->P > 0 && rival_part_size(p, 0, 0) == first) return MCSA_OK;
    return rival_partition_blocks(p, dims->H, dims->N, size, NULL, error);
}

mcsa_status rival_choice_blocks(rival_choice *choice, const mcsa_dims *dims, int queries, int keys, mcsa_error *error)
{
    TRY(reserve(&choice->queries, dims, queries, error));
    TRY(reserve(&choice->keys, dims, keys, error));
    return rival_map_reserve(&choice->map, dims->H, choice->queries.P, choice->keys.P, error);
}

static int budget(const rival_choice *choice, int q, double density)
{
    int N = choice->keys.N;
    if (choice->keys.P != N) return rival_row_budget(q, choice->keys.P, density);
    int kept = (int)(density * N + 0.5);
    return kept < 1 ? 1 : kept > N ? N : kept;
}

/* The first `rows` rows of the map from (h, 0). */
static mcsa_status keep_rows(rival_choice *choice, int h, int64_t rows, const float *score, double density, int threads,
                             mcsa_error *error)
{
    const rival_map *map = &choice->map;
    uint32_t *keys = malloc(sizeof *keys * (size_t)threads * (size_t)map->K);
    if (!keys) return mcsa_fail(error, MCSA_ENOMEM, "no memory to rank %d parts in %d threads", map->K, threads);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < rows; row++)
        rival_keep_top(score + row * map->K, map->K, budget(choice, (int)(row % map->Q), density),
                       keys + (int64_t)omp_get_thread_num() * map->K, rival_map_row(map, h, 0) + row * map->words);
    free(keys);
    return MCSA_OK;
}

mcsa_status rival_choice_keep_top(rival_choice *choice, const float *score, double density, int threads,
                                  mcsa_error *error)
{
    return keep_rows(choice, 0, (int64_t)choice->map.H * choice->map.Q, score, density, threads, error);
}

mcsa_status rival_choice_keep_head(rival_choice *choice, int h, const float *score, double density, int threads,
                                   mcsa_error *error)
{
    return keep_rows(choice, h, choice->map.Q, score, density, threads, error);
}
