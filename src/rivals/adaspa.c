/* adaspa.c - AdaSpa (arXiv 2502.21079): blocks ranked by their exact mass at a few search steps, here the anchors, and
 * kept until the next; heads that the kept blocks already explain well get less of the budget.
 *
 * INFERRED: the size of blocks, the distance between the two levels of density, and that the row LSE is that of the
 * search step's own dense call, where AdaSpa takes the one before. */
#include "budget.h"
#include "ladder.h"

#include <stdlib.h>
#include <string.h>

static const double LESS = 0.25; /* of the density, in heads whose recall is above the mean */

static mcsa_status open_adaspa(void **state, const rival_setup *setup, mcsa_error *error)
{
    return rival_rung_open(state, setup, rival_group_consecutive, RIVAL_BLOCK_KEYS, error);
}

/* Mass that the kept parts of head h hold, of the N that all parts hold.  mass: [Q, K] */
static double recall(const rival_map *map, int h, int N, const float *mass)
{
    double kept = 0;
    for (int q = 0; q < map->Q; q++)
        for (int k = 0; k < map->K; k++)
            if (rival_map_has(map, h, q, k)) kept += (double)mass[(int64_t)q * map->K + k];
    return kept / N;
}

/* density [H] in two levels whose mean is `share`: lower where recalled is above its mean. */
static void spread(int H, double share, const double *recalled, double *density)
{
    double mean = 0;
    int above = 0;
    for (int h = 0; h < H; h++) mean += recalled[h] / H;
    for (int h = 0; h < H; h++) above += recalled[h] > mean;
    int below = H - above; /* rounding may put all on one side: then there is one level */
    double less = LESS * share, more = below ? less * above / below : 0;
    if (more > 1 - share) {
        more = 1 - share;
        less = more * below / above;
    }
    for (int h = 0; h < H; h++)
        density[h] = !above || !below ? share : recalled[h] > mean ? share - less : share + more;
}

/* mass: [H, Q, K], recalled and density: [H] */
static mcsa_status keep_by_level(const rival_rung *rung, rival_choice *choice, const float *mass, double *recalled,
                                 double *density, mcsa_error *error)
{
    const rival_map *map = &choice->map;
    int64_t head = (int64_t)map->Q * map->K;
    double share = rival_target_share(choice, rung->setup.density);
    TRY(rival_choice_keep_top(choice, mass, share, rung->setup.threads, error));
    for (int h = 0; h < map->H; h++) recalled[h] = recall(map, h, choice->queries.N, mass + h * head);
    spread(map->H, share, recalled, density);
    memset(map->kept, 0, sizeof *map->kept * (size_t)map->H * (size_t)map->Q * (size_t)map->words);
    for (int h = 0; h < map->H; h++)
        TRY(rival_choice_keep_head(choice, h, mass + h * head, density[h], rung->setup.threads, error));
    return MCSA_OK;
}

static mcsa_status observe(void *state, const rival_call *call, mcsa_error *error)
{
    rival_rung *rung = state;
    rival_kept *kept;
    if (!call->anchor) return MCSA_OK;
    TRY(rival_rung_begin(rung, call, &kept, error));
    const rival_map *map = &kept->choice.map;
    size_t H = (size_t)map->H, pairs = (size_t)map->Q * (size_t)map->K;
    float *mass = malloc(sizeof *mass * H * pairs);
    double *levels = malloc(sizeof *levels * 2 * H);
    mcsa_status status = MCSA_OK;
    if (!mass || !levels)
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for masses of %zu pairs of blocks in %zu heads", pairs, H);
    for (size_t h = 0; status == MCSA_OK && h < H; h++)
        status = rival_rung_mass(rung, call, &kept->choice, (int)h, mass + h * pairs, error);
    if (status == MCSA_OK) status = keep_by_level(rung, &kept->choice, mass, levels, levels + H, error);
    if (status == MCSA_OK) kept->step = call->at.step;
    free(mass);
    free(levels);
    return status;
}

const rival_method rival_adaspa = {
    .name = "adaspa",
    .summary = "bsa+reuse with two levels of density over the heads",
    .anchors = 1,
    .open = open_adaspa,
    .close = rival_rung_close,
    .observe = observe,
    .choose = rival_rung_choose,
    .held = rival_rung_held,
};
