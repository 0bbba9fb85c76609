/* budget.c - see budget.h. */
#include "budget.h"

static double all_pairs(const rival_choice *choice)
{
    double rows = 0;
    for (int q = 0; q < choice->queries.P; q++) rows += rival_padded_rows(choice, q);
    return rows * choice->keys.N * choice->keys.H;
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
