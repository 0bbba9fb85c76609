/* backend_test.c - whole runs on the GPU against the same runs on the CPU's scalar path, through the public API:
 * dense, anchor and reuse steps, two branches that share groups and kept keys, with and without means of clusters.
 *
 * Groups, clusters and what is kept may differ where projections, distances or masses nearly tie, so the CPU run is
 * given those that the GPU chose (group_test, cluster_test and select_test judge the choice itself); then all outputs
 * must agree within the sum of both bounds.  With S and D the bounds of a sparse and a dense row and u the unit of the
 * dtype, a reuse step may be off by
 *
 *     S(t) + [ D(anchor) + u |o| + S(anchor) + 2^-8 |r| ] + u |out|          r = o - sparse, cached in bf16
 *
 * on each side.  A bound on the worst element hides a wrong key among hundreds, so relative L2 has a ceiling too: the
 * roundings of out, of o and of r, and of the weights of out, of o and of the anchor's sparse rows, are independent,
 * and each is at most u / sqrt(3) of its term in the mean, that of r 2^-8 / sqrt(3).  Twelve of them, six on each side,
 * stay below 2 of the largest u |out|, u |o| and 2^-8 |r|; one wrong key of 250 moves a row by 6 %. */
#include "check.h"
#include "core/cache.h"

enum { STEPS = 7, BRANCHES = 2, HEADS = 2, TOKENS = 1000 /* seven groups of 128 and one of 104 */ };

static const char schedule[] = "list:1,4";

/* What the GPU chose last, for the CPU. */
static mcsa_selection chosen;

static void group_as_gpu(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    (void)state;
    (void)x;
    memcpy(s->order, chosen.order, sizeof *s->order * (size_t)s->H * (size_t)s->N);
}

static void cluster_as_gpu(void *state, const mcsa_qkv *x, mcsa_selection *s)
{
    (void)state;
    (void)x;
    memcpy(s->members, chosen.members, sizeof *s->members * (size_t)s->H * (size_t)s->N);
    memcpy(s->first, chosen.first, sizeof *s->first * (size_t)s->H * ((size_t)s->P + 1));
}

static void select_as_gpu(void *state, const mcsa_qkv *x, const float *lse, mcsa_selection *s)
{
    (void)state;
    (void)x;
    (void)lse;
    memcpy(s->kept, chosen.kept, sizeof *s->kept * (size_t)s->H * (size_t)s->G * (size_t)s->words);
}

static mcsa_run *open_run(mcsa_config *config)
{
    char error[512] = "";
    mcsa_run *run = NULL;
    CHECK_TRUE(mcsa_run_create(&run, config, error, sizeof error) == MCSA_OK, "%s", error);
    if (!run) exit(1);
    return run;
}

static void free_choice(void)
{
    free(chosen.order);
    free(chosen.members);
    free(chosen.first);
    free(chosen.kept);
    chosen = (mcsa_selection){ 0 };
}

static void *download(const void *device, size_t bytes)
{
    void *host = check_alloc(bytes);
    CHECK_CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    return host;
}

static void check_permutation(const int32_t *list, int N, const char *what, int h)
{
    unsigned char *seen = check_alloc((size_t)N);
    int64_t wrong = 0;
    memset(seen, 0, (size_t)N);
    for (int i = 0; i < N; i++)
        if (list[i] < 0 || list[i] >= N || seen[list[i]]++) wrong++;
    CHECK_TRUE(wrong == 0, "%s of head %d are no permutation in %lld places", what, h, (long long)wrong);
    free(seen);
}

static void check_clusters(const mcsa_selection *s, int h)
{
    const int32_t *first = s->first + (int64_t)h * (s->P + 1), *members = s->members + (int64_t)h * s->N;
    int64_t wrong = 0;
    check_permutation(members, s->N, "members", h);
    for (int p = 0; p < s->P; p++) wrong += first[p] < 0 || first[p] > first[p + 1] || first[p + 1] > s->N;
    CHECK_TRUE(first[0] == 0 && first[s->P] == s->N && wrong == 0, "clusters of head %d end wrongly %lld times", h,
               (long long)wrong);
    for (int p = 0; wrong == 0 && p < s->P; p++)
        for (int i = first[p] + 1; i < first[p + 1]; i++) wrong += members[i - 1] >= members[i];
    CHECK_TRUE(wrong == 0, "members of head %d do not ascend in %lld places", h, (long long)wrong);
}

/* Rows that a group attends to: K keys, or at most K keys and means. */
static void check_kept(const mcsa_selection *s, int h, int g)
{
    const uint64_t *bits = s->kept + ((int64_t)h * s->G + g) * s->words;
    int rows = 0, beyond = 0, end = s->P ? s->P : s->N;
    for (int j = 0; j < s->words * 64; j++) {
        int bit = (int)(bits[j / 64] >> (j % 64) & 1);
        beyond += bit && j >= end;
        if (s->P && j < end) {
            const int32_t *first = s->first + (int64_t)h * (s->P + 1) + j;
            int size = first[1] - first[0];
            rows += bit ? size : size > 0;
        } else
            rows += bit;
    }
    CHECK_TRUE((s->P ? rows <= s->K : rows == s->K) && beyond == 0,
               "group %d of head %d has %d rows, and %d bits too far; K is %d", g, h, rows, beyond, s->K);
}

/* Downloads the choice of branch 0 and checks that it is one. */
static void take_choice(mcsa_run *run)
{
    const mcsa_selection *s = &mcsa_cache_plan(run, 0, 0)->own;
    size_t tokens = (size_t)s->H * (size_t)s->N;
    free_choice();
    CHECK_CUDA(cudaDeviceSynchronize());
    chosen = *s;
    chosen.order = download(s->order, sizeof *s->order * tokens);
    chosen.members = s->P ? download(s->members, sizeof *s->members * tokens) : NULL;
    chosen.first = s->P ? download(s->first, sizeof *s->first * (size_t)s->H * ((size_t)s->P + 1)) : NULL;
    chosen.kept = download(s->kept, sizeof *s->kept * (size_t)s->H * (size_t)s->G * (size_t)s->words);
    for (int h = 0; h < s->H; h++) {
        check_permutation(chosen.order + (int64_t)h * s->N, s->N, "queries", h);
        if (s->P) check_clusters(&chosen, h);
        for (int g = 0; g < s->G; g++) check_kept(&chosen, h, g);
    }
    if (check_failures) exit(1); /* the CPU must not read such a choice */
}

static double norm(const mcsa_tensor *t, int h, int64_t n)
{
    double sum = 0;
    for (int d = 0; d < t->shape[2]; d++) sum += check_get(t, h, n, d) * check_get(t, h, n, d);
    return sqrt(sum);
}

/* Bounds of a call's rows, all alike: scale |q| |k| bounds every sum of magnitudes.  A mean is no longer than the
 * longest key, but for its rounding, and its score starts from the log of at most N keys. */
typedef struct call_bounds {
    double dense, sparse;
} call_bounds;

static call_bounds bounds_of(const check_call *c, int K, int P)
{
    double most_q = 0, most_k = 0, most_v = 0;
    for (int h = 0; h < c->H; h++) {
        for (int n = 0; n < c->N; n++) most_q = fmax(most_q, norm(&c->q.host, h, n));
        for (int m = 0; m < c->M; m++) {
            most_k = fmax(most_k, norm(&c->k.host, h, m));
            for (int d = 0; d < c->D; d++) most_v = fmax(most_v, fabs(check_get(&c->v.host, h, m, d)));
        }
    }
    check_row row;
    call_bounds b;
    check_bounds(&row, (double)c->x.scale * most_q * most_k, c->M, c->D, most_v, c->dtype, 0);
    b.dense = row.out_bound;
    double most = (double)c->x.scale * most_q * most_k, u = check_unit(c->dtype);
    if (P) most = most * (1 + u) + log((double)c->N);
    check_bounds(&row, most, K, c->D, P ? most_v * (1 + u) : most_v, c->dtype, 0);
    b.sparse = row.out_bound;
    return b;
}

static void check_both(const check_worst *w, double ceiling, const char *what, int step, int branch,
                       const check_call *c)
{
    double l2 = sqrt(w->squared_error / w->squared_reference);
    check_report(w, "%-6s step %d branch %d, %s D = %d, %s, GPU against CPU", what, step, branch,
                 c->dtype == MCSA_BF16 ? "bf16" : "f16", c->D, chosen.P ? "means" : "keys");
    CHECK_TRUE(l2 <= ceiling, "relative L2 %.2e is above %.2e", l2, ceiling);
}

/* What an anchor left for the bounds of the steps that reuse it. */
typedef struct anchor {
    uint16_t *out; /* [H, N, D] the CPU's */
    call_bounds bounds;
} anchor;

static void compare(mcsa_run *cpu, int step, int branch, const check_call *c, const mcsa_tensor *cpu_out, anchor *a)
{
    const mcsa_plan *plan = mcsa_cache_plan(cpu, 0, branch);
    const mcsa_selection *s = &mcsa_cache_plan(cpu, 0, 0)->own;
    int action = mcsa_run_action(cpu, (mcsa_site){ step, 0, branch }), K = s->K;
    double u = check_unit(c->dtype), tiny = 0x1p-25;
    call_bounds bounds = bounds_of(c, K > 0 ? K : 1, s->P);
    check_worst w = { 0 };
    double out2 = 0, o2 = 0, r2 = 0; /* squares of what was rounded, in units of the last place */
    for (int h = 0; h < c->H; h++)
        for (int i = 0; i < c->N; i++) {
            int64_t slot = (int64_t)h * c->N + i;
            int n = action == MCSA_REUSE ? s->order[slot] : i;
            for (int d = 0; d < c->D; d++) {
                double cpu_x = check_get(cpu_out, h, n, d), bound = bounds.dense;
                if (action == MCSA_REUSE) {
                    bound = bounds.sparse;
                    if (plan->residual.data) {
                        double o = (double)check_float(a->out[((int64_t)h * c->N + n) * c->D + d], c->dtype);
                        double r = (double)mcsa_from_bf16(((uint16_t *)plan->residual.data)[slot * c->D + d]);
                        double missed = a->bounds.dense + u * (fabs(o) + a->bounds.dense) + a->bounds.sparse;
                        bound += missed + 0x1p-8 * (fabs(r) + missed);
                        o2 += u * u * o * o;
                        r2 += 0x1p-16 * r * r;
                    }
                }
                out2 += u * u * cpu_x * cpu_x;
                bound += u * (fabs(cpu_x) + bound) + tiny;
                check_judge(&w, check_get(&c->out.host, h, n, d), cpu_x, 2 * bound, h, n, d);
            }
        }
    static const char *const names[] = { "dense", "anchor", "reuse" };
    check_both(&w, 2 * u * sqrt(fmax(fmax(out2, o2), r2) / out2), names[action], step, branch, c);
    if (action != MCSA_ANCHOR) return;
    a->bounds = bounds;
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            memcpy(a->out + ((int64_t)h * c->N + n) * c->D, check_at(cpu_out, h, n, 0),
                   sizeof(uint16_t) * (size_t)c->D);
}

/* Sampled rows of a dense step against double, so that the CPU is not the only witness. */
static void sample_dense(const check_call *c, uint64_t seed)
{
    check_worst w = { 0 };
    for (int i = 0; i < 32; i++) {
        check_row row;
        int h = (int)check_below(&seed, c->H);
        int64_t n = i ? check_below(&seed, c->N) : c->N - 1;
        check_attend(&row, c, h, n, NULL, 0, 0);
        check_judge_row(&w, c, &row, h, n);
    }
    check_report(&w, "dense  %s D = %d, 32 rows against double", c->dtype == MCSA_BF16 ? "bf16" : "f16", c->D);
}

static void whole_run(mcsa_dtype dtype, int D, check_layout layout, mcsa_residual residual, mcsa_tail tail)
{
    mcsa_config config = { .steps = STEPS, .layers = 1, .branches = BRANCHES, .schedule = schedule, .density = 0.25f };
    config.residual = residual;
    config.tail = tail;
    config.device = MCSA_DEVICE_CUDA;
    mcsa_run *gpu = open_run(&config);
    config.device = MCSA_DEVICE_CPU;
    config.isa = MCSA_ISA_SCALAR;
    mcsa_run *cpu = open_run(&config);
    mcsa_backend given = *cpu->backend;
    given.group = group_as_gpu;
    given.cluster = cluster_as_gpu;
    given.attend_select = NULL;
    given.select = select_as_gpu;
    cpu->backend = &given;

    static check_call c;
    int shape[4] = { HEADS, TOKENS, TOKENS, D };
    check_call_make(&c, shape, dtype, layout, CHECK_NORMAL, 1);
    check_tensor cpu_out = check_tensor_make(HEADS, TOKENS, D, dtype, CHECK_HND);
    anchor anchors[BRANCHES];
    for (int b = 0; b < BRANCHES; b++) anchors[b].out = check_alloc(sizeof(uint16_t) * HEADS * TOKENS * (size_t)D);
    for (int step = 0; step < STEPS; step++)
        for (int branch = 0; branch < BRANCHES; branch++) {
            mcsa_site at = { step, 0, branch };
            check_call_fill(&c, step % 2 ? CHECK_CLUSTERED : CHECK_NORMAL, (uint64_t)(100 * step + 10 * branch + D));
            check_buffer_poison(&c.out.buffer);
            CHECK_TRUE(mcsa_attend(gpu, at, c.x.q, c.x.k, c.x.v, c.x.out) == MCSA_OK, "%s", mcsa_run_error(gpu));
            check_download(c.out.host.data, &c.out.buffer);
            if (mcsa_run_action(gpu, at) == MCSA_ANCHOR && branch == 0) take_choice(gpu);
            CHECK_TRUE(mcsa_attend(cpu, at, &c.q.host, &c.k.host, &c.v.host, &cpu_out.host) == MCSA_OK, "%s",
                       mcsa_run_error(cpu));
            compare(cpu, step, branch, &c, &cpu_out.host, &anchors[branch]);
            if (step == 0 && branch == 0) sample_dense(&c, 5);
        }
    mcsa_stats g = { .size = sizeof g }, p = { .size = sizeof p };
    mcsa_run_stats(gpu, &g);
    mcsa_run_stats(cpu, &p);
    CHECK_TRUE(g.dense == p.dense && g.anchor == p.anchor && g.reuse == p.reuse && g.fallback == 0,
               "GPU %lld dense %lld anchor %lld reuse, CPU %lld %lld %lld", (long long)g.dense, (long long)g.anchor,
               (long long)g.reuse, (long long)p.dense, (long long)p.anchor, (long long)p.reuse);
    CHECK_TRUE(g.selection_bytes == p.selection_bytes && g.residual_bytes == p.residual_bytes,
               "GPU holds %lld and %lld bytes, the CPU %lld and %lld", (long long)g.selection_bytes,
               (long long)g.residual_bytes, (long long)p.selection_bytes, (long long)p.residual_bytes);
    double stages = g.dense_s + g.grouping_s + g.selection_s + g.sparse_s;
    CHECK_TRUE(g.dense_s > 0 && g.grouping_s > 0 && g.selection_s > 0 && g.sparse_s > 0 && g.attention_s == stages,
               "stages %g %g %g %g s of %g", g.dense_s, g.grouping_s, g.selection_s, g.sparse_s, g.attention_s);
    for (int b = 0; b < BRANCHES; b++) free(anchors[b].out);
    check_tensor_free(&cpu_out);
    check_call_free(&c);
    mcsa_run_free(cpu);
    mcsa_run_free(gpu);
}

/* Cross-attention outside the schedule, with row sums. */
static void cross_attention(mcsa_dtype dtype, int D)
{
    static check_call c;
    int shape[4] = { 3, 257, 77, D };
    mcsa_config config = { .steps = 1, .layers = 1, .device = MCSA_DEVICE_CUDA };
    mcsa_run *run = open_run(&config);
    check_call_make(&c, shape, dtype, CHECK_NHD, CHECK_NORMAL, 9);
    size_t rows = (size_t)c.H * (size_t)c.N;
    check_buffer lse = check_buffer_make(sizeof(float) * rows);
    float *sums = check_alloc(sizeof(float) * rows);
    CHECK_TRUE(mcsa_attend_dense(run, c.x.q, c.x.k, c.x.v, c.x.out, lse.data) == MCSA_OK, "%s", mcsa_run_error(run));
    check_download(c.out.host.data, &c.out.buffer);
    check_download(sums, &lse);
    check_worst out = { 0 }, sum = { 0 };
    for (int h = 0; h < c.H; h++)
        for (int n = 0; n < c.N; n++) {
            check_row row;
            check_attend(&row, &c, h, n, NULL, 0, 0);
            check_judge_row(&out, &c, &row, h, n);
            check_judge(&sum, (double)sums[(int64_t)h * c.N + n], row.lse, row.lse_bound, h, n, 0);
        }
    check_report(&out, "cross  257 queries, 77 keys, D = %d against double", D);
    check_report(&sum, "cross  257 queries, 77 keys, D = %d, row sums", D);
    free(sums);
    check_buffer_free(&lse);
    check_call_free(&c);
    mcsa_run_free(run);
}

int main(void)
{
    check_gpu();
    mcsa_gpu gpu = { .size = sizeof gpu };
    CHECK_TRUE(mcsa_gpu_read(&gpu, 0) == MCSA_OK, "%s", gpu.missing);
    printf("%s, %d multiprocessors, %.1f GB, driver for CUDA %d.%d\n", gpu.name, gpu.multiprocessors,
           (double)gpu.memory_bytes * 1e-9, gpu.driver / 1000, gpu.driver % 1000 / 10);
    whole_run(MCSA_BF16, 128, CHECK_HND, MCSA_RESIDUAL_BF16, MCSA_TAIL_OFF);
    whole_run(MCSA_BF16, 64, CHECK_NHD, MCSA_RESIDUAL_BF16, MCSA_TAIL_OFF);
    whole_run(MCSA_F16, 128, CHECK_PADDED, MCSA_RESIDUAL_BF16, MCSA_TAIL_OFF);
    whole_run(MCSA_F16, 64, CHECK_HND, MCSA_RESIDUAL_OFF, MCSA_TAIL_OFF);
    whole_run(MCSA_BF16, 128, CHECK_HND, MCSA_RESIDUAL_BF16, MCSA_TAIL_MEANS);
    whole_run(MCSA_BF16, 64, CHECK_NHD, MCSA_RESIDUAL_BF16, MCSA_TAIL_MEANS);
    whole_run(MCSA_F16, 128, CHECK_PADDED, MCSA_RESIDUAL_BF16, MCSA_TAIL_MEANS);
    whole_run(MCSA_F16, 64, CHECK_HND, MCSA_RESIDUAL_OFF, MCSA_TAIL_MEANS);
    cross_attention(MCSA_BF16, 128);
    cross_attention(MCSA_F16, 64);
    free_choice();
    return check_done("backend_test");
}
