/* 2_run.c - a whole denoising run: the schedule names each step, the caller only says where it is, and the statistics
 * tell what was saved.  A fake transformer of two layers stands where yours would call mcsa_attend. */
#include <mcsa.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 20, LAYERS = 2, BRANCHES = 2, H = 2, N = 512, D = 64 };

int main(void)
{
    char error[256];
    mcsa_run *run;
    mcsa_config config = { .steps = STEPS, .layers = LAYERS, .branches = BRANCHES, .schedule = "ramp", .group = 64 };
    if (mcsa_run_create(&run, &config, error, sizeof error)) return puts(error), 1;

    /* One fused projection, [N, q k v, H, D]: the three tensors are views into it, and nothing is copied. */
    float *qkv = calloc((size_t)N * 3 * H * D, sizeof *qkv), *out = calloc((size_t)N * H * D, sizeof *out);
    if (!qkv || !out) return 1;
    int64_t row = 3 * H * D;
    mcsa_tensor q = { qkv, MCSA_F32, { H, N, D }, { D, row, 1 } }, k = q, v = q;
    mcsa_tensor o = { out, MCSA_F32, { H, N, D }, { D, H * D, 1 } }; /* [N, H, D]: ready for the next projection */
    k.data = qkv + H * D;
    v.data = qkv + 2 * H * D;
    for (int64_t i = 0; i < N * row; i++) qkv[i] = (float)rand() / (float)RAND_MAX - 0.5f;

    for (int step = 0; step < STEPS; step++) {
        printf("%c", "DA."[mcsa_run_action(run, (mcsa_site){ .step = step })]);
        for (int branch = 0; branch < BRANCHES; branch++)
            for (int layer = 0; layer < LAYERS; layer++) {
                if (mcsa_attend(run, (mcsa_site){ step, layer, branch }, &q, &k, &v, &o))
                    return puts(mcsa_run_error(run)), 1;
                for (int64_t i = 0; i < N * row; i++) qkv[i] *= 0.999f; /* what a denoising step would do */
            }
    }

    mcsa_stats stats = { 0 };
    mcsa_run_stats(run, &stats);
    printf("  D dense, A anchor, . reuse\n");
    printf("calls: %lld dense, %lld anchor, %lld reuse, %lld fallback\n", (long long)stats.dense,
           (long long)stats.anchor, (long long)stats.reuse, (long long)stats.fallback);
    printf("query-key pairs: %.0f %% of dense attention over the run, %.1f %% in the reuse steps\n",
           100 * stats.density_run, 100 * stats.density_executed);
    printf("cache: %lld kB of groups and keys, %lld kB of residuals\n", (long long)stats.selection_bytes / 1000,
           (long long)stats.residual_bytes / 1000);
    free(qkv);
    free(out);
    mcsa_run_free(run);
    return stats.fallback != 0;
}
