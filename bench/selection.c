/* selection.c - groups and kept keys to benchmark on, and the gates of grouping and selection; see problem.h. */
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int bench_selection_keys(int tokens, float density)
{
    int K = (int)(density * (float)tokens + 0.5f);
    return K < 1 ? 1 : K;
}

mcsa_status bench_selection_open(mcsa_selection *s, mcsa_memory *memory, const bench_shape *shape, float density,
                                 mcsa_error *error)
{
    int N = shape->tokens, G = (N + shape->group - 1) / shape->group, K = bench_selection_keys(N, density);
    *s = (mcsa_selection){
        .H = shape->heads, .N = N, .C = shape->group, .G = G, .K = K, .words = ((int64_t)N + 63) / 64
    };
    size_t order = (sizeof *s->order * (size_t)s->H * (size_t)N + 63) / 64 * 64;
    size_t kept = sizeof *s->kept * (size_t)s->H * (size_t)G * (size_t)s->words;
    if (mcsa_block_reserve(memory, &s->memory, order + kept))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a selection of %zu bytes", order + kept);
    s->order = s->memory.data;
    s->kept = (uint64_t *)(void *)((char *)s->memory.data + order);
    return MCSA_OK;
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

/* A mass is a sum of C exponentials of scores that are off by at most D units of 2^-24 of about 8. */
int bench_keeps_the_heaviest(const bench_problem *p, const mcsa_selection *s, double rounding)
{
    double *mass = malloc(2 * sizeof *mass * (size_t)s->N);
    int good = mass != NULL;
    for (int sample = 0; good && sample < 2; sample++) {
        int h = sample % s->H, g = sample * (s->G - 1), kept = 0;
        const uint64_t *bits = s->kept + ((int64_t)h * s->G + g) * s->words;
        double lightest = INFINITY, heaviest = 0;
        exact_mass(p, s, h, g, mass, mass + s->N);
        for (int j = 0; j < s->N; j++) {
            int in = (int)(bits[j / 64] >> (j % 64) & 1);
            kept += in;
            if (in && mass[j] < lightest) lightest = mass[j];
            if (!in && mass[j] > heaviest) heaviest = mass[j];
        }
        good = kept == s->K && lightest >= heaviest * (1 - 16 * p->x.dims.D * 0x1p-24 - 2 * rounding);
    }
    free(mass);
    return good;
}
