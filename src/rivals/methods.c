/* methods.c - all methods by name. */
#include "method.h"

#include <stdlib.h>
#include <string.h>

extern const rival_method rival_bsa, rival_bsa_reuse, rival_bsa_token, rival_bsa_group;
extern const rival_method rival_adaspa, rival_wa_rs, rival_svg;
extern const rival_method rival_svg2, rival_svg_ear, rival_kmeans_token, rival_kmeans_block, rival_pddp_block;
extern const rival_method rival_pisa, rival_sol, rival_sparge, rival_xattn, rival_chipmunk;

const rival_method *const rival_methods[] = {
    &rival_bsa, &rival_bsa_reuse, &rival_bsa_token, &rival_bsa_group, &rival_adaspa, &rival_wa_rs, &rival_svg,
    &rival_svg2, &rival_svg_ear, &rival_kmeans_token, &rival_kmeans_block, &rival_pddp_block,
    &rival_pisa, &rival_sol, &rival_sparge, &rival_xattn, &rival_chipmunk,
    NULL,
};

const rival_method *rival_method_find(const char *name)
{
    for (const rival_method *const *m = rival_methods; *m; m++)
        if (strcmp((*m)->name, name) == 0) return *m;
    return NULL;
}

void rival_choice_free(rival_choice *choice)
{
    rival_partition_free(&choice->queries);
    rival_partition_free(&choice->keys);
    rival_map_free(&choice->map);
    free(choice->tail.key);
    free(choice->tail.value);
    free(choice->tail.weight);
    free(choice->tail.slope);
    *choice = (rival_choice){ 0 };
}
