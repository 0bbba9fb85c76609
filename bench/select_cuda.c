/* select_cuda.c - what an anchor chooses on a GPU beside its dense attention: groups, the keys that each keeps (the
 * mass pass and top-K), and with means clusters of keys and those of them that each group keeps.  Gates: groups are a
 * permutation, kept keys the heaviest by masses in double, and those of clusters.h. */
#include "suites.h"

#include "clusters.h"
#include "gpu.h"

#include <string.h>

typedef struct selecting {
    bench_gpu gpu;
    bench_gpu_selection s, m; /* single keys; clusters and means */
    double dense_s, group_s, select_s, cluster_s, means_s;
} selecting;

static void run_dense(void *context)
{
    selecting *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_dense(&c->gpu, &c->dense_s);
    bench_gpu_wait(&c->gpu);
}

static void run_group(void *context)
{
    selecting *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_group(&c->gpu, &c->s, &c->group_s);
    bench_gpu_wait(&c->gpu);
}

static void run_select(void *context)
{
    selecting *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_select(&c->gpu, &c->s, &c->select_s);
    bench_gpu_wait(&c->gpu);
}

static void run_cluster(void *context)
{
    selecting *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_cluster(&c->gpu, &c->m, &c->cluster_s);
    bench_gpu_wait(&c->gpu);
}

static void run_select_means(void *context)
{
    selecting *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_select(&c->gpu, &c->m, &c->means_s);
    bench_gpu_wait(&c->gpu);
}

/* Groups, and clusters that hold every key once. */
static int choose_by_clusters(selecting *c)
{
    double ignored;
    bench_gpu_start(&c->gpu);
    bench_gpu_group(&c->gpu, &c->m, &ignored);
    run_cluster(c);
    return bench_gpu_selection_fetch(&c->m, &c->gpu) && bench_is_permutation(&c->m.host) &&
           bench_is_partition(&c->m.host) && bench_clusters_are_tight(&c->gpu.sample, &c->m.host);
}

static int means_are_right(selecting *c)
{
    run_select_means(c);
    return bench_gpu_selection_fetch(&c->m, &c->gpu) &&
           bench_keeps_the_heaviest(&c->gpu.sample, &c->m.host, bench_gpu_mass_slack(&c->gpu));
}

static bench_case *add(bench_table *table, const char *label, selecting *c, void (*run)(void *), const double *stage)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = c;
    one->stage = stage;
    return one;
}

static mcsa_status fill_table(selecting *c, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    const double full = bench_dense_operations(&plan->shape);
    TRY(bench_gpu_open(&c->gpu, &plan->shape, 0, plan->densities[0], error));
    TRY(bench_gpu_selection_open(&c->s, &c->gpu, (bench_budget){ plan->densities[0], MCSA_TAIL_OFF }, error));
    TRY(bench_gpu_selection_open(&c->m, &c->gpu, (bench_budget){ plan->densities[0], MCSA_TAIL_MEANS }, error));
    bench_gpu_poison(&c->gpu);
    run_dense(c);
    run_group(c);
    run_select(c);
    const int dense = bench_gpu_is_right(&c->gpu, NULL), fetched = bench_gpu_selection_fetch(&c->s, &c->gpu),
              grouped = fetched && bench_is_permutation(&c->s.host),
              selected = dense && grouped &&
                         bench_keeps_the_heaviest(&c->gpu.sample, &c->s.host, bench_gpu_mass_slack(&c->gpu)),
              clustered = choose_by_clusters(c), means = dense && clustered && means_are_right(c);
    TRY(bench_gpu_outcome(&c->gpu, error));
    bench_case *one = add(table, "dense with LSE", c, run_dense, &c->dense_s);
    one->operations = full;
    one->wrong = !dense;
    add(table, "group", c, run_group, &c->group_s)->wrong = !grouped;
    one = add(table, "select: mass pass, top-K, bitmap", c, run_select, &c->select_s);
    one->operations = full / 2;
    one->wrong = !selected;
    one = add(table, "cluster keys", c, run_cluster, &c->cluster_s);
    one->operations = bench_cluster_operations(&c->m.there, plan->shape.dim);
    one->wrong = !clustered;
    one = add(table, "select, means: mass pass, rank", c, run_select_means, &c->means_s);
    one->operations = full / 2;
    one->wrong = !means;
    TRY(bench_run(table, plan->repeats, error));
    bench_gpu_add_clocks(&c->gpu, table);
    return bench_gpu_outcome(&c->gpu, error);
}

mcsa_status bench_select_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    selecting c;
    memset(&c, 0, sizeof c);
    table->share = "of dense";
    table->peak = BENCH_GPU_PEAK;
    mcsa_status status = fill_table(&c, plan, table, error);
    bench_gpu_selection_close(&c.s, &c.gpu);
    bench_gpu_selection_close(&c.m, &c.gpu);
    bench_gpu_close(&c.gpu);
    return status;
}
