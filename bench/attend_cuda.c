/* attend_cuda.c - attention on a GPU: cuDNN, dense, reuse layers at each density, and anchor layers by their parts.
 *
 * A reuse layer is all that a user waits for: the bitmap becomes lists, means are made, queries and kept keys are
 * gathered, and the residual is added.  Its kept keys are `clustered`, `scattered` or with `means` in groups of a
 * shuffled order, as in attend.c, or `chosen`: those of an anchor.  The anchors are at the first density, one that
 * keeps single keys and one with means.  Gates: rows in double; an anchor followed by its reuse gives dense attention
 * back; groups are a permutation; kept keys are the heaviest; those of clusters.h. */
#include "suites.h"

#include "clusters.h"
#include "cudnn_attention.h"
#include "gpu.h"

#include <stdlib.h>

enum { REUSES = BENCH_PATTERNS * BENCH_DENSITIES, ANCHORS = 2, DENSE_ROW = 1 };

typedef struct attending attending;

typedef struct reuse_case {
    attending *owner;
    bench_gpu_selection keys;
    double seconds;
} reuse_case;

/* What an anchor chose, with a reuse of it, and the anchor's seconds. */
typedef struct anchor_case {
    reuse_case chosen;
    double dense, group, cluster, select, record, total;
} anchor_case;

struct attending {
    bench_gpu gpu;
    bench_cudnn *cudnn;
    mcsa_block residual;
    mcsa_residual_rows add, record;
    reuse_case reuses[REUSES];
    anchor_case anchors[ANCHORS];
    double cudnn_s, dense_s;
};

static void run_cudnn(void *context)
{
    attending *c = context;
    bench_gpu_start(&c->gpu);
    bench_cudnn_attend(c->cudnn);
    bench_gpu_lap(&c->gpu, &c->cudnn_s);
    bench_gpu_wait(&c->gpu);
}

static void run_dense(void *context)
{
    attending *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_dense(&c->gpu, &c->dense_s);
    bench_gpu_wait(&c->gpu);
}

static void run_reuse(void *context)
{
    reuse_case *r = context;
    bench_gpu *gpu = &r->owner->gpu;
    bench_gpu_start(gpu);
    bench_gpu_tokens(gpu, &r->keys, &r->owner->add, &r->seconds);
    bench_gpu_wait(gpu);
}

static void run_anchor(void *context)
{
    anchor_case *a = context;
    bench_gpu *gpu = &a->chosen.owner->gpu;
    bench_gpu_selection *keys = &a->chosen.keys;
    bench_gpu_start(gpu);
    bench_gpu_dense(gpu, &a->dense);
    bench_gpu_group(gpu, keys, &a->group);
    if (keys->there.P) bench_gpu_cluster(gpu, keys, &a->cluster);
    bench_gpu_select(gpu, keys, &a->select);
    bench_gpu_tokens(gpu, keys, &a->chosen.owner->record, &a->record);
    bench_gpu_wait(gpu);
    a->total = a->dense + a->group + a->cluster + a->select + a->record;
}

static bench_case *add(bench_table *table, const char *label, void (*run)(void *), void *context, const double *stage)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = context;
    one->stage = stage;
    one->base = DENSE_ROW;
    return one;
}

static mcsa_status add_cudnn(attending *c, bench_table *table, double operations, mcsa_error *error)
{
    char label[48] = "cuDNN";
    mcsa_error refusal = { "" };
    mcsa_status status = bench_cudnn_open(&c->cudnn, &c->gpu.x, &c->gpu.memory, &refusal);
    if (status == MCSA_OK) {
        const int version = bench_cudnn_version(c->cudnn);
        snprintf(label, sizeof label, "cuDNN %d.%d.%d, no LSE", version / 10000, version / 100 % 100, version % 100);
        bench_gpu_poison(&c->gpu);
        run_cudnn(c);
        status = bench_cudnn_outcome(c->cudnn, &refusal);
    }
    bench_case *one = add(table, label, run_cudnn, c, &c->cudnn_s);
    one->operations = operations;
    if (status == MCSA_ENOMEM) return mcsa_fail(error, status, "%s", refusal.text);
    if (status == MCSA_OK) {
        one->wrong = !bench_gpu_is_right(&c->gpu, NULL);
        return bench_gpu_outcome(&c->gpu, error);
    }
    snprintf(one->missing, sizeof one->missing, "%.*s", (int)sizeof one->missing - 1, refusal.text);
    return MCSA_OK;
}

static int reuse_is_right(reuse_case *r)
{
    attending *c = r->owner;
    const mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    bench_gpu_poison(&c->gpu);
    bench_gpu_start(&c->gpu);
    bench_gpu_tokens(&c->gpu, &r->keys, &none, &r->seconds);
    bench_gpu_wait(&c->gpu);
    return bench_gpu_is_right(&c->gpu, &r->keys) && bench_gpu_gives_dense_back(&c->gpu, &r->keys, &c->add);
}

static void add_reuse(reuse_case *r, bench_table *table, const char *pattern, double full, int right)
{
    const mcsa_selection *s = &r->keys.there;
    char label[48];
    snprintf(label, sizeof label, "reuse s = %.2f %s", (double)s->K / s->N, pattern);
    bench_case *one = add(table, label, run_reuse, r, &r->seconds);
    one->density = (double)s->K / s->N;
    one->operations = full * one->density;
    one->wrong = !right;
}

/* On both sides: clusters where they are wanted, and a shuffled choice.  Returns whether the clusters hold every key
 * once. */
static int fill_pattern(bench_gpu_selection *s, bench_gpu *gpu, int run)
{
    double ignored;
    if (s->there.P) {
        bench_gpu_start(gpu);
        bench_gpu_cluster(gpu, s, &ignored);
        if (!bench_gpu_selection_fetch(s, gpu) || !bench_is_partition(&s->host)) return 0;
    }
    bench_selection_shuffle(&s->host, run);
    bench_gpu_selection_put(s, gpu);
    return 1;
}

static mcsa_status add_pattern(reuse_case *r, bench_table *table, float density, const bench_pattern *pattern,
                               double full, mcsa_error *error)
{
    bench_gpu *gpu = &r->owner->gpu;
    TRY(bench_gpu_selection_open(&r->keys, gpu, (bench_budget){ density, pattern->tail }, error));
    add_reuse(r, table, pattern->name, full, fill_pattern(&r->keys, gpu, pattern->run) && reuse_is_right(r));
    return bench_gpu_outcome(gpu, error);
}

static int clusters_are_right(const bench_gpu *gpu, const mcsa_selection *s)
{
    return !s->P || (bench_is_partition(s) && bench_clusters_are_tight(&gpu->sample, s));
}

/* The anchor's own keys are those of its groups: the CPU's gates look at both. */
static int anchor_is_right(anchor_case *a)
{
    bench_gpu *gpu = &a->chosen.owner->gpu;
    const mcsa_selection *host = &a->chosen.keys.host;
    return bench_gpu_selection_fetch(&a->chosen.keys, gpu) && bench_gpu_is_right(gpu, NULL) &&
           bench_is_permutation(host) && clusters_are_right(gpu, host) &&
           bench_keeps_the_heaviest(&gpu->sample, host, bench_gpu_mass_slack(gpu)) && reuse_is_right(&a->chosen);
}

static mcsa_status add_anchor(anchor_case *a, bench_table *table, bench_budget budget, double full, mcsa_error *error)
{
    attending *c = a->chosen.owner;
    const int means = budget.tail == MCSA_TAIL_MEANS, first = table->count;
    const mcsa_selection *s = &a->chosen.keys.there;
    TRY(bench_gpu_selection_open(&a->chosen.keys, &c->gpu, budget, error));
    bench_gpu_poison(&c->gpu);
    run_anchor(a);
    TRY(bench_gpu_outcome(&c->gpu, error));
    const int right = anchor_is_right(a);
    char label[48];
    snprintf(label, sizeof label, "anchor layer, s = %.2f%s", (double)budget.density, means ? ", means" : "");
    add(table, label, run_anchor, a, &a->total);
    add(table, "  dense with LSE", NULL, NULL, &a->dense)->operations = full;
    add(table, "  grouping", NULL, NULL, &a->group);
    if (means)
        add(table, "  clustering of keys", NULL, NULL, &a->cluster)->operations =
            bench_cluster_operations(s, c->gpu.x.dims.D);
    add(table, "  selection", NULL, NULL, &a->select)->operations = full / 2;
    add(table, "  token-sparse, residual recorded", NULL, NULL, &a->record)->operations = full * s->K / s->N;
    for (int i = first; i < table->count; i++) table->cases[i].wrong = !right;
    add_reuse(&a->chosen, table, means ? "means, chosen" : "chosen", full, right);
    return bench_gpu_outcome(&c->gpu, error);
}

static mcsa_status open_case(attending *c, const bench_plan *plan, mcsa_error *error)
{
    float most = 0;
    for (int i = 0; i < plan->density_count; i++) most = plan->densities[i] > most ? plan->densities[i] : most;
    TRY(bench_gpu_open(&c->gpu, &plan->shape, 0, most, error));
    const size_t bytes = (size_t)c->gpu.backend->residual_bytes(MCSA_RESIDUAL_BF16, &c->gpu.x.dims);
    if (mcsa_block_reserve(&c->gpu.memory, &c->residual, bytes))
        return mcsa_fail(error, MCSA_ENOMEM, "the GPU has no room for a residual of %zu bytes", bytes);
    c->add = (mcsa_residual_rows){ MCSA_RESIDUAL_BF16, c->residual.data, 0 };
    c->record = (mcsa_residual_rows){ MCSA_RESIDUAL_BF16, c->residual.data, 1 };
    for (int i = 0; i < REUSES; i++) c->reuses[i].owner = c;
    for (int i = 0; i < ANCHORS; i++) c->anchors[i].chosen.owner = c;
    return MCSA_OK;
}

static mcsa_status fill_table(attending *c, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    const double full = bench_dense_operations(&plan->shape);
    TRY(open_case(c, plan, error));
    TRY(add_cudnn(c, table, full, error));
    bench_case *dense = add(table, "dense with LSE", run_dense, c, &c->dense_s);
    dense->operations = full;
    bench_gpu_poison(&c->gpu);
    run_dense(c);
    dense->wrong = !bench_gpu_is_right(&c->gpu, NULL);
    for (int i = 0; i < BENCH_PATTERNS * plan->density_count; i++)
        TRY(add_pattern(&c->reuses[i], table, plan->densities[i / BENCH_PATTERNS], &bench_patterns[i % BENCH_PATTERNS],
                        full, error));
    for (int i = 0; i < ANCHORS; i++) {
        const bench_budget budget = { plan->densities[0], i ? MCSA_TAIL_MEANS : MCSA_TAIL_OFF };
        TRY(add_anchor(&c->anchors[i], table, budget, full, error));
    }
    TRY(bench_run(table, plan->repeats, error));
    bench_gpu_add_clocks(&c->gpu, table);
    if (c->cudnn) TRY(bench_cudnn_outcome(c->cudnn, error));
    return bench_gpu_outcome(&c->gpu, error);
}

mcsa_status bench_attend_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    table->peak = BENCH_GPU_PEAK;
    attending *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d reuse layers", REUSES);
    mcsa_status status = fill_table(c, plan, table, error);
    bench_cudnn_close(c->cudnn);
    for (int i = 0; i < REUSES; i++) bench_gpu_selection_close(&c->reuses[i].keys, &c->gpu);
    for (int i = 0; i < ANCHORS; i++) bench_gpu_selection_close(&c->anchors[i].chosen.keys, &c->gpu);
    mcsa_block_release(&c->gpu.memory, &c->residual);
    bench_gpu_close(&c->gpu);
    free(c);
    return status;
}
