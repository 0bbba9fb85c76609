/* budget.c - see budget.h. */
#include "budget.h"

static double all_pairs(const rival_choice *choice)
{
    const rival_partition *queries = &choice->queries;
    double rows = 0;
    for (int h = 0; h < queries->H; h++)
        for (int q = 0; q < queries->P; q++) rows += rival_tile_rows(rival_part_size(queries, h, q));
    return rows * choice->keys.N;
}

double rival_target_pairs(const rival_choice *choice, double density)
{
    double N = choice->keys.N;
    return density >= 1 ? all_pairs(choice) : density * N * N * choice->keys.H;
}

double rival_target_share(const rival_choice *choice, double density)
{
    return rival_target_pairs(choice, density) / all_pairs(choice);
}
