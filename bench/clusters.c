/* clusters.c - see clusters.h.
 *
 * The gate of k-means.  With J(l, c) the sum of squared distances of keys to the centre of their label, a round gives
 * J(l', c') <= J(l, c') <= J(l, c) for c' the means of l and l' the nearest of c', so the last labels scatter about
 * their means no more than the first ones do.  In between centres are rounded to the dtype of the keys, which adds
 * (u_out + N u)^2 of all squares at most, and FP32 scores take a centre for the nearest that is farther by at most
 * 4 (D + 2) u |k| |c|.  The first labels are made here once more in double; a key whose two nearest centres are as near
 * as that may have the other one there, which moves J by at most (|k| + |mean|)^2. */
#include "clusters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define U 0x1p-24
enum { ROUNDS = 3 /* from the first assignment to the last of an anchor */ };

double bench_cluster_operations(const mcsa_selection *s, int D)
{
    return 2.0 * (ROUNDS + 1) * s->H * D * (double)s->N * s->P;
}

void bench_cluster_mean(const mcsa_tensor *t, int h, const int32_t *keys, int count, float *mean)
{
    for (int64_t d = 0; d < t->shape[2]; d++) {
        float sum = 0;
        for (int i = 0; i < count; i++) sum += (float)bench_element(t, h, keys[i], d);
        mean[d] = bench_rounded(sum / (float)count, t->dtype);
    }
}

int bench_is_partition(const mcsa_selection *s)
{
    int good = 1;
    char *seen = malloc((size_t)s->N);
    for (int h = 0; seen && good && h < s->H; h++) {
        const int32_t *first = s->first + (int64_t)h * (s->P + 1);
        good = first[0] == 0 && first[s->P] == s->N;
        for (int p = 0; p < s->P; p++) good &= first[p] <= first[p + 1];
        memset(seen, 0, (size_t)s->N);
        for (int p = 0; good && p < s->P; p++) {
            int count;
            const int32_t *key = bench_cluster(s, h, p, &count);
            for (int i = 0; i < count && good; i++) {
                good = key[i] >= 0 && key[i] < s->N && (i == 0 || key[i] > key[i - 1]);
                if (good) seen[key[i]] = 1;
            }
        }
        good = good && !memchr(seen, 0, (size_t)s->N);
    }
    free(seen);
    return good && seen;
}

int bench_clusters_make(const bench_problem *p, mcsa_selection *s)
{
    if (!s->P) return 1;
    mcsa_backend_cpu.cluster(p->state, &p->x, s);
    return bench_is_partition(s);
}

/* One head's keys, and its labels twice. */
typedef struct labelled {
    int N, D, P;
    double *key;    /* [N, D] */
    double *centre; /* [D, P] the first ones */
    double *half;   /* [P] half their squared lengths */
    double *sum;    /* [P, D] scratch */
    int32_t *first; /* [N] the nearest first centre */
    int32_t *label; /* [N] the one judged */
    double squares; /* of all keys */
    double largest; /* squared length of a key */
    int64_t near_ties;
} labelled;

static int labelled_open(labelled *l, const bench_problem *p, const mcsa_selection *s, int h)
{
    const size_t N = (size_t)s->N, D = (size_t)p->x.dims.D, P = (size_t)s->P;
    *l = (labelled){ .N = s->N, .D = p->x.dims.D, .P = s->P };
    l->key = malloc(sizeof(double) * (N * D + 2 * P * D + P) + 2 * sizeof(int32_t) * N);
    if (!l->key) return 0;
    l->centre = l->key + N * D;
    l->half = l->centre + P * D;
    l->sum = l->half + P;
    l->first = (int32_t *)(void *)(l->sum + P * D);
    l->label = l->first + N;
    for (int j = 0; j < l->N; j++) {
        double square = 0;
        for (int d = 0; d < l->D; d++) {
            double x = l->key[(int64_t)j * l->D + d] = bench_element(&p->k, h, j, d);
            square += x * x;
        }
        l->squares += square;
        l->largest = fmax(l->largest, square);
    }
    for (int c = 0; c < l->P; c++) {
        const double *from = l->key + (2 * (int64_t)c + 1) * l->N / (2 * (int64_t)l->P) * l->D;
        int count;
        const int32_t *member = bench_cluster(s, h, c, &count);
        for (int i = 0; i < count; i++) l->label[member[i]] = c;
        l->half[c] = 0;
        for (int d = 0; d < l->D; d++) {
            l->centre[(int64_t)d * l->P + c] = from[d];
            l->half[c] += from[d] * from[d] / 2;
        }
    }
    return 1;
}

/* How much farther than the nearest a centre may be that FP32 scores take for it, of products x . c - |c|^2 / 2. */
static double reach_of(const labelled *l)
{
    return 2 * (l->D + 2) * U * 1.5 * l->largest;
}

/* score: [P], scratch.  Whether two centres are as good as equally near. */
static int label_first(const labelled *l, int j, double *score)
{
    int best = 0;
    double second = -INFINITY;
    for (int c = 0; c < l->P; c++) score[c] = -l->half[c];
    for (int d = 0; d < l->D; d++) {
        const double x = l->key[(int64_t)j * l->D + d], *centre = l->centre + (int64_t)d * l->P;
        for (int c = 0; c < l->P; c++) score[c] += x * centre[c];
    }
    for (int c = 1; c < l->P; c++) {
        if (score[c] > score[best]) {
            second = score[best];
            best = c;
        } else if (score[c] > second) {
            second = score[c];
        }
    }
    l->first[j] = best;
    return score[best] - second <= reach_of(l);
}

static int label_all(labelled *l)
{
    int64_t near_ties = 0;
    int good = 1;
#pragma omp parallel reduction(+ : near_ties) reduction(&& : good)
    {
        double *score = malloc(sizeof *score * (size_t)l->P);
        good = score != NULL;
#pragma omp for schedule(static)
        for (int j = 0; j < l->N; j++)
            if (score) near_ties += label_first(l, j, score);
        free(score);
    }
    l->near_ties = near_ties;
    return good;
}

/* Squared distances to the mean of all keys with the same label: all squares less n |mean|^2. */
static double scatter(const labelled *l, const int32_t *label)
{
    double within = l->squares;
    int32_t *count = calloc((size_t)l->P, sizeof *count);
    if (!count) return NAN;
    memset(l->sum, 0, sizeof *l->sum * (size_t)l->P * (size_t)l->D);
    for (int j = 0; j < l->N; j++) {
        count[label[j]]++;
        for (int d = 0; d < l->D; d++) l->sum[(int64_t)label[j] * l->D + d] += l->key[(int64_t)j * l->D + d];
    }
    for (int c = 0; c < l->P; c++)
        for (int d = 0; d < l->D && count[c]; d++) {
            const double sum = l->sum[(int64_t)c * l->D + d];
            within -= sum * sum / count[c];
        }
    free(count);
    return within;
}

static int is_tight(labelled *l, mcsa_dtype dtype)
{
    const double centre = bench_unit(dtype) + l->N * U;
    if (!label_all(l)) return 0;
    const double slack =
        ROUNDS * (centre * centre * l->squares + 2 * reach_of(l) * l->N) + 4 * l->largest * (double)l->near_ties;
    return scatter(l, l->label) <= scatter(l, l->first) + slack;
}

int bench_clusters_are_tight(const bench_problem *p, const mcsa_selection *s)
{
    int good = 1;
    for (int sample = 0; good && sample < 2; sample++) {
        labelled l;
        good = labelled_open(&l, p, s, sample * (s->H - 1)) && is_tight(&l, p->x.dims.dtype);
        free(l.key);
    }
    return good;
}

/* Rows of a group that keeps no cluster: one for each that has keys. */
static int fewest_rows(const mcsa_selection *s, int h)
{
    int rows = 0, count;
    for (int p = 0; p < s->P; p++) {
        (void)bench_cluster(s, h, p, &count);
        rows += count > 0;
    }
    return rows;
}

void bench_clusters_keep(mcsa_selection *s)
{
    uint64_t seed = 11;
    memset(s->kept, 0, sizeof *s->kept * (size_t)(s->H * (int64_t)s->G * s->words));
    for (int64_t row = 0; row < (int64_t)s->H * s->G; row++) {
        const int h = (int)(row / s->G);
        int rows = fewest_rows(s, h), count;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        for (int i = 0; i < s->P; i++) {
            const int p = (int)(((seed >> 33) + (uint64_t)i) % (uint64_t)s->P);
            (void)bench_cluster(s, h, p, &count);
            if (!count || rows + count - 1 > s->K) continue;
            rows += count - 1;
            s->kept[row * s->words + p / 64] |= UINT64_C(1) << (p % 64);
        }
    }
}

/* A cluster that is left out must not have fitted when its turn came, whatever near ties stood before it. */
int bench_keeps_what_fits(const mcsa_selection *s, int h, int g, const double *worth, double slack)
{
    const int64_t row = (int64_t)h * s->G + g;
    const int fewest = fewest_rows(s, h);
    int rows = fewest, count;
    for (int p = 0; p < 64 * (int)s->words; p++) {
        if (!bench_kept(s, row, p)) continue;
        if (p >= s->P) return 0;
        (void)bench_cluster(s, h, p, &count);
        if (!count) return 0;
        rows += count - 1;
    }
    if (rows > s->K) return 0;
    for (int p = 0; p < s->P; p++) {
        int before = fewest, own;
        (void)bench_cluster(s, h, p, &own);
        if (!own || bench_kept(s, row, p)) continue;
        for (int r = 0; r < s->P; r++) {
            (void)bench_cluster(s, h, r, &count);
            if (bench_kept(s, row, r) && worth[r] >= worth[p] * (1 - slack)) before += count - 1;
        }
        if (before + own - 1 <= s->K) return 0;
    }
    return 1;
}
