/* 1_attend.c - one layer, two steps: an anchor computes dense attention and remembers where its mass was, and a reuse
 * step attends to a tenth of the keys with inputs that have moved on a little.  How far is the quick answer off? */
#include <mcsa.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { H = 2, N = 1024, D = 64, TOPICS = 16 };

static float q[H * N * D], k[H * N * D], v[H * N * D], dense[H * N * D], sparse[H * N * D]; /* [H, N, D] */

static float uniform(void)
{
    return (float)rand() / (float)RAND_MAX - 0.5f;
}

/* Tokens of one topic look alike, as patches of one object do; `drift` moves them all, as a denoising step does. */
static void scene(float *x, unsigned seed, float drift)
{
    float topic[TOPICS][D];
    srand(seed);
    for (int t = 0; t < TOPICS; t++)
        for (int d = 0; d < D; d++) topic[t][d] = 4.0f * uniform();
    for (int i = 0; i < H * N; i++)
        for (int d = 0; d < D; d++) x[i * D + d] = topic[i % TOPICS][d] + uniform() + drift * uniform();
}

static mcsa_tensor view(float *data)
{
    return (mcsa_tensor){ data, MCSA_F32, { H, N, D }, { N * D, D, 1 } };
}

int main(void)
{
    char error[256];
    mcsa_run *run;
    mcsa_config config = { .steps = 2, .layers = 1, .density = 0.10f, .schedule = "list:0" };
    if (mcsa_run_create(&run, &config, error, sizeof error)) return puts(error), 1;

    mcsa_tensor tq = view(q), tk = view(k), tv = view(v), tdense = view(dense), tsparse = view(sparse);
    for (int step = 0; step < 2; step++) {
        scene(q, 1, 0.1f * (float)step);
        scene(k, 1, 0.1f * (float)step);
        scene(v, 2, 0.1f * (float)step);
        if (mcsa_attend(run, (mcsa_site){ .step = step }, &tq, &tk, &tv, &tsparse)) return puts(mcsa_run_error(run)), 1;
    }
    if (mcsa_attend_dense(run, &tq, &tk, &tv, &tdense, NULL)) return puts(mcsa_run_error(run)), 1;

    double off = 0, norm = 0;
    for (int i = 0; i < H * N * D; i++) {
        off += pow(sparse[i] - dense[i], 2);
        norm += pow(dense[i], 2);
    }
    mcsa_stats stats = { 0 };
    mcsa_run_stats(run, &stats);
    printf("%.1f %% of the query-key pairs, relative error %.4f\n", 100 * stats.density_executed, sqrt(off / norm));
    mcsa_run_free(run);
    return off > 0.01 * norm; /* an error over 10 % would mean that the method did not work here */
}
