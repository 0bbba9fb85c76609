/* group_cuda.c - Fast PDDP and clusters of keys on a GPU at half, once and twice the tokens: the table and the gates of
 * group.c. */
#include "suites.h"

#include "clusters.h"
#include "gpu.h"

#include <string.h>

enum { SIZES = 3, ROWS = 3 /* of a size */ };

typedef struct grouping {
    bench_gpu gpu;
    bench_gpu_selection s;
    double dense_s, group_s, cluster_s;
} grouping;

static void run_dense(void *context)
{
    grouping *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_dense(&c->gpu, &c->dense_s);
    bench_gpu_wait(&c->gpu);
}

static void run_group(void *context)
{
    grouping *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_group(&c->gpu, &c->s, &c->group_s);
    bench_gpu_wait(&c->gpu);
}

static void run_cluster(void *context)
{
    grouping *c = context;
    bench_gpu_start(&c->gpu);
    bench_gpu_cluster(&c->gpu, &c->s, &c->cluster_s);
    bench_gpu_wait(&c->gpu);
}

static bench_case *add(bench_table *table, const char *what, grouping *c, void (*run)(void *), const double *stage)
{
    char label[48];
    snprintf(label, sizeof label, "%s, N = %d", what, c->gpu.x.dims.N);
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = c;
    one->stage = stage;
    one->tokens = c->gpu.x.dims.N;
    one->base = (table->count - 1) / ROWS * ROWS;
    return one;
}

static mcsa_status add_size(grouping *c, const bench_shape *shape, float density, bench_table *table, mcsa_error *error)
{
    TRY(bench_gpu_open(&c->gpu, shape, BENCH_CLUSTERS, density, error));
    TRY(bench_gpu_selection_open(&c->s, &c->gpu, (bench_budget){ density, MCSA_TAIL_MEANS }, error));
    bench_case *dense = add(table, "dense", c, run_dense, &c->dense_s);
    dense->operations = bench_dense_operations(shape);
    bench_gpu_poison(&c->gpu);
    run_dense(c);
    dense->wrong = !bench_gpu_is_right(&c->gpu, NULL);
    bench_case *group = add(table, "group", c, run_group, &c->group_s);
    run_group(c);
    const int permuted = bench_gpu_selection_fetch(&c->s, &c->gpu) && bench_is_permutation(&c->s.host);
    const double ratio =
        permuted ? bench_scatter(&c->gpu.sample, &c->s.host, 1) / bench_scatter(&c->gpu.sample, &c->s.host, 0) : 0;
    group->wrong = !permuted || (c->s.host.G > 1 && !(ratio < 1));
    bench_case *cluster = add(table, "cluster keys", c, run_cluster, &c->cluster_s);
    cluster->operations = bench_cluster_operations(&c->s.there, shape->dim);
    run_cluster(c);
    cluster->wrong = !(bench_gpu_selection_fetch(&c->s, &c->gpu) && bench_is_partition(&c->s.host) &&
                       bench_clusters_are_tight(&c->gpu.sample, &c->s.host));
    bench_figure_add(table, ratio, "variance within groups / in file order, N = %d", shape->tokens);
    return bench_gpu_outcome(&c->gpu, error);
}

static mcsa_status fill_table(grouping *cases, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    for (int i = 0; i < SIZES; i++) {
        bench_shape shape = plan->shape;
        shape.tokens = i == 0 ? shape.tokens / 2 : shape.tokens * i;
        if (shape.tokens < 1) shape.tokens = 1;
        TRY(add_size(&cases[i], &shape, plan->densities[0], table, error));
    }
    TRY(bench_run(table, plan->repeats, error));
    for (int i = 1; i < table->count; i += ROWS) {
        bench_figure_add(table, 1e3 * table->cases[i].median_s * bench_groupings_per_step(),
                         "ms per layer and step over a %d-step ramp, N = %d", BENCH_RAMP_STEPS, table->cases[i].tokens);
        bench_figure_add(table, 1e3 * table->cases[i + 1].median_s * bench_groupings_per_step(),
                         "the same of clusters of keys, N = %d", table->cases[i].tokens);
    }
    bench_gpu_add_clocks(&cases[SIZES - 1].gpu, table);
    for (int i = 0; i < SIZES; i++) TRY(bench_gpu_outcome(&cases[i].gpu, error));
    return MCSA_OK;
}

mcsa_status bench_group_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    grouping cases[SIZES];
    memset(cases, 0, sizeof cases);
    table->share = "of dense";
    table->peak = BENCH_GPU_PEAK;
    mcsa_status status = fill_table(cases, plan, table, error);
    for (int i = 0; i < SIZES; i++) {
        bench_gpu_selection_close(&cases[i].s, &cases[i].gpu);
        bench_gpu_close(&cases[i].gpu);
    }
    return status;
}
