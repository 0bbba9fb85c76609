/* selectors.c - see selectors.h. */
#include "selectors.h"

#include "cpu/features.h"
#include "rivals/kmeans.h"
#include "rivals/ranking.h"

#include <math.h>
#include <stdlib.h>

#include <omp.h>

/* Blocks of 128 queries and 64 keys are those of the rival bsa. */
const analysis_rule analysis_rules[ANALYSIS_SELECTORS] = {
    [ANALYSIS_POOLED] = { "pooled-blocks", "blocks by pooled scores", ANALYSIS_CONSECUTIVE, 128, ANALYSIS_BLOCK, 1 },
    [ANALYSIS_BLOCKS] = { "exact-blocks", "block oracle", ANALYSIS_CONSECUTIVE, 128, ANALYSIS_BLOCK, 0 },
    [ANALYSIS_TOKENS] = { "exact-tokens", "token oracle", ANALYSIS_CONSECUTIVE, 128, 1, 0 },
    [ANALYSIS_PDDP_BLOCKS] = { "pddp-blocks", "PDDP, blocks", ANALYSIS_PDDP, 128, ANALYSIS_BLOCK, 0 },
    [ANALYSIS_PDDP_TOKENS] = { "pddp-tokens", "PDDP, tokens", ANALYSIS_PDDP, 128, 1, 0 },
    [ANALYSIS_KMEANS_BLOCKS] = { "kmeans-blocks", "k-means, blocks", ANALYSIS_KMEANS, 128, ANALYSIS_BLOCK, 0 },
    [ANALYSIS_KMEANS_TOKENS] = { "kmeans-tokens", "k-means, tokens", ANALYSIS_KMEANS, 128, 1, 0 },
    [ANALYSIS_PDDP_64] = { "pddp64-tokens", "PDDP of 64, tokens", ANALYSIS_PDDP, 64, 1, 0 },
    [ANALYSIS_PDDP_256] = { "pddp256-tokens", "PDDP of 256, tokens", ANALYSIS_PDDP, 256, 1, 0 },
};

static const int pddp_groups[3] = { 64, 128, 256 };

void analysis_choice_free(analysis_choice *choice)
{
    rival_partition_free(&choice->queries);
    for (int s = 0; s < ANALYSIS_DENSITIES; s++) rival_map_free(&choice->map[s]);
    *choice = (analysis_choice){ 0 };
}

const rival_partition *analysis_keys(const analysis_chooser *c, analysis_selector s)
{
    return analysis_rules[s].unit == 1 ? &c->tokens : &c->blocks;
}

mcsa_status analysis_chooser_open(analysis_chooser *c, const analysis_machine *machine, int densities,
                                  const double *density, const mcsa_config *config, mcsa_error *error)
{
    const mcsa_isa isa = config->isa == MCSA_ISA_AUTO ? mcsa_cpu_isa() : config->isa;
    *c = (analysis_chooser){ .machine = machine,
                             .densities = densities,
                             .memory = mcsa_memory_from(&(mcsa_allocator){ 0 }) };
    for (int s = 0; s < densities; s++) c->density[s] = density[s];
    for (int i = 0; i < 3; i++) {
        mcsa_backend_options options = { .memory = &c->memory,
                                         .threads = machine->threads,
                                         .C = pddp_groups[i],
                                         .isa = isa,
                                         .residual = MCSA_RESIDUAL_OFF,
                                         .error = error };
        mcsa_status status = mcsa_backend_cpu.open(&c->group_state[i], &options);
        if (status != MCSA_OK) {
            analysis_chooser_close(c);
            return mcsa_fail(error, status, "no memory to group queries with %d threads", machine->threads);
        }
    }
    return MCSA_OK;
}

void analysis_chooser_close(analysis_chooser *c)
{
    for (int i = 0; i < 3; i++)
        if (c->group_state[i]) mcsa_backend_cpu.close(c->group_state[i]);
    if (c->order.order) mcsa_block_release(&c->memory, &c->order.memory);
    rival_partition_free(&c->blocks);
    rival_partition_free(&c->tokens);
    free(c->mass);
    free(c->score);
    *c = (analysis_chooser){ 0 };
}

mcsa_status analysis_chooser_fit(analysis_chooser *c, int N, mcsa_error *error)
{
    if (c->N == N) return MCSA_OK;
    TRY(rival_partition_blocks(&c->blocks, 1, N, ANALYSIS_BLOCK, NULL, error));
    TRY(rival_partition_blocks(&c->tokens, 1, N, 1, NULL, error));
    if (mcsa_block_reserve(&c->memory, &c->order.memory, sizeof *c->order.order * (size_t)N))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the order of %d queries", N);
    c->order.order = c->order.memory.data;
    c->N = N;
    return MCSA_OK;
}

static mcsa_status grow(float **array, size_t *room, size_t wanted, mcsa_error *error)
{
    if (*room >= wanted) return MCSA_OK;
    float *grown = realloc(*array, sizeof **array * wanted);
    if (!grown) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu masses", wanted);
    *array = grown;
    *room = wanted;
    return MCSA_OK;
}

/* On the CPU, whatever the backend: a GPU groups by 128 alone. */
static mcsa_status group_pddp(analysis_chooser *c, const analysis_head *head, int C, rival_partition *queries,
                              mcsa_error *error)
{
    void *state = c->group_state[C == 64 ? 0 : C == 128 ? 1 : 2];
    mcsa_qkv x = head->x;
    x.q = &head->host[0];
    x.k = &head->host[1];
    x.v = &head->host[2];
    c->order.H = 1;
    c->order.N = head->N;
    c->order.C = C;
    c->order.G = (head->N + C - 1) / C;
    if (mcsa_backend_cpu.reserve(state, &x.dims, 0, 0) != MCSA_OK)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory to group %d queries", head->N);
    mcsa_backend_cpu.group(state, &x, &c->order);
    return rival_partition_blocks(queries, 1, head->N, C, c->order.order, error);
}

/* Clusters of 128 queries on average, 50 iterations as at the start of SVG2.  Empty ones stay: they keep nothing. */
static mcsa_status group_kmeans(const analysis_head *head, int C, rival_partition *queries, mcsa_error *error)
{
    rival_kmeans k = { 0 };
    const rival_points points = { head->machine->kernels, head->machine->backend, &head->q };
    mcsa_status status = rival_kmeans_start(&k, &points, (head->N + C - 1) / C, 0, error);
    if (status == MCSA_OK) status = rival_kmeans_iterate(&k, &points, 50, NULL, error);
    if (status == MCSA_OK) {
        *queries = k.parts; /* ownership moves */
        k.parts = (rival_partition){ 0 };
    }
    rival_kmeans_free(&k);
    return status;
}

static mcsa_status group(analysis_chooser *c, const analysis_head *head, const analysis_rule *rule,
                         rival_partition *queries, mcsa_error *error)
{
    switch (rule->grouping) {
    case ANALYSIS_CONSECUTIVE: return rival_partition_blocks(queries, 1, head->N, rule->group, NULL, error);
    case ANALYSIS_PDDP: return group_pddp(c, head, rule->group, queries, error);
    case ANALYSIS_KMEANS: return group_kmeans(head, rule->group, queries, error);
    }
    return MCSA_OK;
}

static mcsa_status copy_partition(rival_partition *to, const rival_partition *from, mcsa_error *error)
{
    TRY(rival_partition_reserve(to, from->H, from->N, from->P, error));
    for (int64_t i = 0; i < (int64_t)from->H * from->N; i++) to->order[i] = from->order[i];
    for (int64_t i = 0; i < (int64_t)from->H * (from->P + 1); i++) to->first[i] = from->first[i];
    return MCSA_OK;
}

/* score [P, blocks] from mass [P, N], summed in ascending order */
static void sum_blocks(analysis_chooser *c, int P)
{
    const int blocks = c->blocks.P, N = c->N;
#pragma omp parallel for schedule(static) num_threads(c->machine->threads)
    for (int g = 0; g < P; g++)
        for (int b = 0; b < blocks; b++) {
            float sum = 0;
            int end = (b + 1) * ANALYSIS_BLOCK < N ? (b + 1) * ANALYSIS_BLOCK : N;
            for (int j = b * ANALYSIS_BLOCK; j < end; j++) sum += c->mass[(int64_t)g * N + j];
            c->score[(int64_t)g * blocks + b] = sum;
        }
}

/* score [P, blocks]: scale times the product of the means of queries and keys; the scale changes no order */
static mcsa_status pool_scores(analysis_chooser *c, const analysis_head *head, const rival_partition *queries,
                               mcsa_error *error)
{
    const analysis_machine *m = c->machine;
    const int P = queries->P, blocks = c->blocks.P, D = head->D;
    float *mean = malloc(sizeof *mean * ((size_t)P + (size_t)blocks) * (size_t)D), *key = mean + (int64_t)P * D;
    if (!mean) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the means of %d blocks", P + blocks);
    mcsa_status status = m->kernels->pool(m->backend, &head->q, queries, mean, error);
    if (status == MCSA_OK) status = m->kernels->pool(m->backend, &head->k, &c->blocks, key, error);
#pragma omp parallel for schedule(static) num_threads(m->threads)
    for (int64_t i = 0; i < (status == MCSA_OK ? (int64_t)P * blocks : 0); i++) {
        const float *q = mean + i / blocks * D, *k = key + i % blocks * D;
        float sum = 0;
        for (int d = 0; d < D; d++) sum += q[d] * k[d];
        c->score[i] = sum;
    }
    free(mean);
    return status;
}

int analysis_keys_kept(int N, double density)
{
    int K = (int)floor(density * N + 0.5);
    return K < 1 ? 1 : K < N ? K : N;
}

/* Keys or blocks that each group keeps so that all together execute the density: groups whose size is no multiple of
 * the tile keep fewer. */
static int budget(const analysis_chooser *c, const analysis_choice *choice, int unit, int group, double density)
{
    double share = density / choice->alignment;
    return unit == 1 ? analysis_keys_kept(c->N, share) : rival_row_budget(group, c->blocks.P, share);
}

/* Executed over nominal pairs when every group keeps the same number of keys.  Equal groups count as aligned: only
 * their last one may be ragged. */
static double alignment_of(const rival_partition *queries, analysis_grouping grouping)
{
    double padded = 0;
    if (grouping != ANALYSIS_KMEANS) return 1;
    for (int g = 0; g < queries->P; g++)
        padded += (rival_part_size(queries, 0, g) + RIVAL_TILE - 1) / RIVAL_TILE * RIVAL_TILE;
    return padded / queries->N;
}

/* Maps of all densities from score [P, units]. */
static mcsa_status keep(const analysis_chooser *c, const float *score, int unit, analysis_choice *choice,
                        mcsa_error *error)
{
    const int P = choice->queries.P, threads = c->machine->threads, units = unit == 1 ? c->N : c->blocks.P;
    uint32_t *key = malloc(sizeof *key * (size_t)units * (size_t)threads);
    if (!key) return mcsa_fail(error, MCSA_ENOMEM, "no memory to rank %d keys in %d threads", units, threads);
    mcsa_status status = MCSA_OK;
    for (int s = 0; status == MCSA_OK && s < c->densities; s++) {
        rival_map *map = &choice->map[s];
        status = rival_map_reserve(map, 1, P, units, error);
        if (status != MCSA_OK) break;
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int g = 0; g < P; g++)
            rival_keep_top(score + (int64_t)g * units, units, budget(c, choice, unit, g, c->density[s]),
                           key + (int64_t)omp_get_thread_num() * units, rival_map_row(map, 0, g));
    }
    free(key);
    return status;
}

static void count_pairs(const analysis_chooser *c, analysis_choice *choice, const rival_partition *keys)
{
    for (int s = 0; s < c->densities; s++)
        choice->executed[s] = rival_map_pairs(&choice->map[s], &choice->queries, keys).nominal * choice->alignment /
                              ((double)c->N * c->N);
}

static int same_groups(const analysis_rule *a, const analysis_rule *b)
{
    return a->grouping == b->grouping && a->group == b->group;
}

static mcsa_status choose_one(analysis_chooser *c, analysis_head *head, analysis_choice *choices, int s,
                              const analysis_rule **grouped, mcsa_error *error)
{
    const analysis_machine *m = c->machine;
    const analysis_rule *rule = &analysis_rules[s];
    analysis_choice *choice = &choices[s];
    if (s > 0 && same_groups(rule, &analysis_rules[s - 1]))
        TRY(copy_partition(&choice->queries, &choices[s - 1].queries, error));
    else
        TRY(group(c, head, rule, &choice->queries, error));
    const int P = choice->queries.P;
    choice->alignment = alignment_of(&choice->queries, rule->grouping);
    TRY(grow(&c->mass, &c->mass_room, (size_t)P * (size_t)c->N, error));
    TRY(grow(&c->score, &c->score_room, (size_t)P * (size_t)c->blocks.P, error));
    if (!rule->pooled && (!*grouped || !same_groups(rule, *grouped))) {
        TRY(m->kernels->mass(m->backend, &head->x, &choice->queries, &c->tokens, head->lse, c->mass, error));
        *grouped = rule;
    }
    if (rule->unit == 1) return keep(c, c->mass, 1, choice, error);
    if (rule->pooled)
        TRY(pool_scores(c, head, &choice->queries, error));
    else
        sum_blocks(c, P);
    return keep(c, c->score, ANALYSIS_BLOCK, choice, error);
}

mcsa_status analysis_choose(analysis_chooser *c, analysis_head *head, analysis_choice choices[ANALYSIS_SELECTORS],
                            mcsa_error *error)
{
    const analysis_rule *grouped = NULL; /* whose masses are in c->mass */
    for (int s = 0; s < ANALYSIS_SELECTORS; s++) {
        analysis_choice_free(&choices[s]);
        TRY(choose_one(c, head, choices, s, &grouped, error));
        count_pairs(c, &choices[s], analysis_keys(c, (analysis_selector)s));
    }
    return MCSA_OK;
}
