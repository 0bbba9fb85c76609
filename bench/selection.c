/* selection.c - groups and kept keys to benchmark on, and the gates of grouping and selection; see problem.h. */
#include "clusters.h"
#include "core/cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int bench_selection_rows(int tokens, float density)
{
    int K = (int)(density * (float)tokens + 0.5f);
    return K < 1 ? 1 : K;
}

/* Lays the selection out in its block; with block NULL only measures. */
static size_t carve(mcsa_selection *s, void *block)
{
    mcsa_arena arena = { block, 0 };
    const size_t keys = (size_t)s->H * (size_t)s->N, firsts = (size_t)s->H * ((size_t)s->P + 1);
    s->order = mcsa_arena_take(&arena, sizeof *s->order * keys);
    s->members = s->P ? mcsa_arena_take(&arena, sizeof *s->members * keys) : NULL;
    s->first = s->P ? mcsa_arena_take(&arena, sizeof *s->first * firsts) : NULL;
    s->kept = mcsa_arena_take(&arena, sizeof *s->kept * (size_t)s->H * (size_t)s->G * (size_t)s->words);
    return arena.used;
}

mcsa_status bench_selection_open(mcsa_selection *s, mcsa_memory *memory, const bench_shape *shape, bench_budget budget,
                                 mcsa_error *error)
{
    int N = shape->tokens, G = (N + shape->group - 1) / shape->group, K = bench_selection_rows(N, budget.density);
    int P = budget.tail == MCSA_TAIL_MEANS ? mcsa_cache_clusters(K) : 0;
    *s = (mcsa_selection){
        .H = shape->heads, .N = N, .C = shape->group, .G = G, .K = K, .P = P, .words = ((int64_t)(P ? P : N) + 63) / 64
    };
    size_t bytes = carve(s, NULL);
    if (mcsa_block_reserve(memory, &s->memory, bytes))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a selection of %zu bytes", bytes);
    carve(s, s->memory.data);
    return MCSA_OK;
}

mcsa_status bench_problem_select(bench_problem *problem, mcsa_selection *s, const bench_shape *shape,
                                 bench_budget budget, mcsa_error *error)
{
    TRY(bench_selection_open(s, &problem->memory, shape, budget, error));
    if (mcsa_backend_cpu.reserve(problem->state, &problem->x.dims, s->K, s->P) == MCSA_OK) return MCSA_OK;
    return mcsa_fail(error, MCSA_ENOMEM, "no memory for scratch of %d clusters", s->P);
}

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

void bench_selection_shuffle(mcsa_selection *s, int run)
{
    int64_t groups = (int64_t)s->H * s->G;
    uint64_t seed = 7;
    for (int h = 0; h < s->H; h++) {
        int32_t *order = s->order + (int64_t)h * s->N;
        for (int i = 0; i < s->N; i++) { /* inside-out shuffle */
            int at = (int)(next(&seed) % (uint32_t)(i + 1));
            order[i] = order[at];
            order[at] = i;
        }
    }
    if (s->P) {
        bench_clusters_keep(s);
        return;
    }
    memset(s->kept, 0, sizeof *s->kept * (size_t)(groups * s->words));
    for (int64_t g = 0; g < groups; g++)
        for (int left = s->K; left > 0;) {
            int first = (int)(next(&seed) % (uint32_t)s->N) / run * run;
            for (int j = first; j < first + run && j < s->N && left > 0; j++) {
                uint64_t *word = &s->kept[g * s->words + j / 64], bit = UINT64_C(1) << (j % 64);
                left -= !(*word & bit);
                *word |= bit;
            }
        }
}

int bench_is_permutation(const mcsa_selection *s)
{
    int good = 1;
    char *seen = malloc((size_t)s->N);
    for (int h = 0; seen && h < s->H; h++) {
        memset(seen, 0, (size_t)s->N);
        for (int i = 0; i < s->N; i++) {
            int32_t query = s->order[(int64_t)h * s->N + i];
            if (query >= 0 && query < s->N) seen[query] = 1;
        }
        good &= !memchr(seen, 0, (size_t)s->N);
    }
    free(seen);
    return good && seen;
}

double bench_scatter(const bench_problem *p, const mcsa_selection *s, int ordered)
{
    const mcsa_dims *dims = &p->x.dims;
    double total = 0;
    for (int h = 0; h < s->H; h++)
        for (int g = 0; g < s->G; g++)
            for (int d = 0; d < dims->D; d++) {
                double sum = 0, squares = 0, count = mcsa_group_size(s, g);
                for (int i = 0; i < (int)count; i++) {
                    int64_t at = (int64_t)g * s->C + i;
                    double q = bench_element(&p->q, h, ordered ? s->order[(int64_t)h * dims->N + at] : at, d);
                    sum += q;
                    squares += q * q;
                }
                total += squares - sum * sum / count;
            }
    return total;
}

/* mass [N] of group g of head h, in double.  score: [N], scratch. */
static void exact_mass(const bench_problem *p, const mcsa_selection *s, int h, int g, double *mass, double *score)
{
    const mcsa_dims *dims = &p->x.dims;
    memset(mass, 0, sizeof *mass * (size_t)dims->N);
    for (int i = 0; i < mcsa_group_size(s, g); i++) {
        int query = s->order[(int64_t)h * dims->N + (int64_t)g * s->C + i];
        double max = -INFINITY, sum = 0;
#pragma omp parallel for reduction(max : max)
        for (int j = 0; j < dims->N; j++) {
            score[j] = 0;
            for (int d = 0; d < dims->D; d++)
                score[j] += bench_element(&p->q, h, query, d) * bench_element(&p->k, h, j, d);
            score[j] *= (double)p->x.scale;
            max = score[j] > max ? score[j] : max;
        }
#pragma omp parallel for reduction(+ : sum)
        for (int j = 0; j < dims->N; j++) sum += score[j] = exp(score[j] - max);
        for (int j = 0; j < dims->N; j++) mass[j] += score[j] / sum;
    }
}

static int keeps_heaviest_keys(const mcsa_selection *s, int h, int g, const double *mass, double slack)
{
    double lightest = INFINITY, heaviest = 0;
    int kept = 0;
    for (int j = 0; j < s->N; j++) {
        const int in = bench_kept(s, (int64_t)h * s->G + g, j);
        kept += in;
        if (in && mass[j] < lightest) lightest = mass[j];
        if (!in && mass[j] > heaviest) heaviest = mass[j];
    }
    return kept == s->K && lightest >= heaviest * (1 - slack);
}

/* worth: [P], scratch.  An FP32 sum of n masses is off by n units more. */
static int keeps_worthiest_clusters(const mcsa_selection *s, int h, int g, const double *mass, double *worth,
                                    double slack)
{
    int largest = 0;
    for (int p = 0; p < s->P; p++) {
        int count;
        const int32_t *key = bench_cluster(s, h, p, &count);
        worth[p] = 0;
        for (int i = 0; i < count; i++) worth[p] += mass[key[i]] / count;
        largest = count > largest ? count : largest;
    }
    return bench_keeps_what_fits(s, h, g, worth, slack + 2 * (largest + 1) * 0x1p-24);
}

/* A mass is a sum of C exponentials of scores that are off by at most D units of 2^-24 of about 8. */
int bench_keeps_the_heaviest(const bench_problem *p, const mcsa_selection *s, double rounding)
{
    const double slack = 16 * p->x.dims.D * 0x1p-24 + 2 * rounding;
    double *mass = malloc(2 * sizeof *mass * (size_t)s->N), *scratch = mass + s->N;
    int good = mass != NULL;
    for (int sample = 0; good && sample < 2; sample++) {
        int h = sample % s->H, g = sample * (s->G - 1);
        exact_mass(p, s, h, g, mass, scratch);
        good =
            s->P ? keeps_worthiest_clusters(s, h, g, mass, scratch, slack) : keeps_heaviest_keys(s, h, g, mass, slack);
    }
    free(mass);
    return good;
}
