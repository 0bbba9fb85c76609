/* group.c - Fast PDDP at half, once and twice the tokens against dense attention at the same size, and against k-means
 * (the paper's table 7: a single call, its share of a step when every anchor of a 40-step ramp groups anew, and 2 calls
 * in 40 steps against k-means in every step), and the variance of queries about their group's mean against that of
 * groups in file order.  Queries are clustered as problem.c says: how far the variance can fall depends on them.  Gate:
 * an order is a permutation, and its groups vary less than those in file order; for k-means see kmeans.c.  The clusters
 * of keys that an anchor makes have a row of their own, with the gates of clusters.h. */
#include "suites.h"

#include "clusters.h"
#include "kmeans.h"

#include <stdlib.h>
#include <string.h>

enum { SIZES = 3, PAPER_CALLS = 2 /* of Fast PDDP in BENCH_KMEANS_STEPS */ };

typedef struct grouping {
    bench_problem problem;
    mcsa_selection s;
    bench_kmeans kmeans;
    int row; /* of Fast PDDP; that of clusters follows */
} grouping;

static void run_dense(void *context)
{
    grouping *c = context;
    mcsa_backend_cpu.attend_dense(c->problem.state, &c->problem.x, c->problem.lse);
}

static void run_group(void *context)
{
    grouping *c = context;
    mcsa_backend_cpu.group(c->problem.state, &c->problem.x, &c->s);
}

static void run_cluster(void *context)
{
    grouping *c = context;
    mcsa_backend_cpu.cluster(c->problem.state, &c->problem.x, &c->s);
}

double bench_groupings_per_step(void)
{
    mcsa_action actions[BENCH_RAMP_STEPS];
    int anchors = 0;
    mcsa_schedule_fill("ramp", BENCH_RAMP_STEPS, actions, NULL, 0);
    for (int i = 0; i < BENCH_RAMP_STEPS; i++) anchors += actions[i] == MCSA_ANCHOR;
    return (double)anchors / BENCH_RAMP_STEPS;
}

static mcsa_status add_size(grouping *c, const bench_shape *shape, const bench_plan *plan, bench_table *table,
                            mcsa_error *error)
{
    char label[48];
    TRY(bench_problem_open(&c->problem, shape, BENCH_CLUSTERS, error));
    TRY(bench_problem_select(&c->problem, &c->s, shape, (bench_budget){ plan->densities[0], MCSA_TAIL_MEANS }, error));
    int base = table->count;
    snprintf(label, sizeof label, "dense, N = %d", shape->tokens);
    bench_case *one = bench_add(table, label);
    one->run = run_dense;
    one->operations = bench_dense_operations(shape);
    run_dense(c);
    one->wrong = !(bench_check_rows(&c->problem, NULL) <= 1);
    snprintf(label, sizeof label, "group, N = %d", shape->tokens);
    one = bench_add(table, label);
    one->run = run_group;
    run_group(c);
    int permuted = bench_is_permutation(&c->s);
    double ratio = permuted ? bench_scatter(&c->problem, &c->s, 1) / bench_scatter(&c->problem, &c->s, 0) : 0;
    one->wrong = !permuted || (c->s.G > 1 && !(ratio < 1));
    c->row = table->count - 1;
    snprintf(label, sizeof label, "cluster keys, N = %d", shape->tokens);
    one = bench_add(table, label);
    one->run = run_cluster;
    one->operations = bench_cluster_operations(&c->s, shape->dim);
    one->wrong = !(bench_clusters_make(&c->problem, &c->s) && bench_clusters_are_tight(&c->problem, &c->s));
    for (int i = base; i < table->count; i++) {
        table->cases[i].context = c;
        table->cases[i].tokens = shape->tokens;
    }
    TRY(bench_kmeans_add(&c->kmeans, &c->problem, shape, table, error));
    for (int i = base; i < table->count; i++) table->cases[i].base = base;
    bench_figure_add(table, ratio, "variance within groups / in file order, N = %d", shape->tokens);
    return MCSA_OK;
}

static void add_shares_of_a_step(const grouping *c, bench_table *table)
{
    int N = c->problem.x.dims.N;
    double call = table->cases[c->row].median_s, clusters = table->cases[c->row + 1].median_s;
    double kmeans = bench_kmeans_per_step(&c->kmeans, table);
    bench_figure_add(table, 1e3 * call * bench_groupings_per_step(),
                     "ms per layer and step over a %d-step ramp, N = %d", BENCH_RAMP_STEPS, N);
    bench_figure_add(table, 1e3 * clusters * bench_groupings_per_step(), "the same of clusters of keys, N = %d", N);
    bench_figure_add(table, 1e3 * kmeans, "ms per layer and step of k-means (%d + %d x %d iterations), N = %d",
                     BENCH_KMEANS_FIRST, BENCH_KMEANS_STEPS - 1, BENCH_KMEANS_NEXT, N);
    if (call > 0)
        bench_figure_add(table, kmeans / (call * PAPER_CALLS / BENCH_KMEANS_STEPS),
                         "k-means / Fast PDDP, %d calls in %d steps, N = %d", PAPER_CALLS, BENCH_KMEANS_STEPS, N);
}

mcsa_status bench_group(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    grouping cases[SIZES] = { 0 };
    mcsa_status status = MCSA_OK;
    if (plan->device == MCSA_DEVICE_CUDA) return bench_group_cuda(plan, table, error);
    table->share = "of dense";
    for (int i = 0; i < SIZES; i++) {
        bench_shape shape = plan->shape;
        shape.tokens = i == 0 ? shape.tokens / 2 : shape.tokens * i;
        if (shape.tokens < 1) shape.tokens = 1;
        if ((status = add_size(&cases[i], &shape, plan, table, error)) != MCSA_OK) goto done;
    }
    if ((status = bench_run(table, plan->repeats, error)) != MCSA_OK) goto done;
    for (int i = 0; i < SIZES; i++) {
        const bench_kmeans *k = &cases[i].kmeans;
        if (k->status != MCSA_OK) status = mcsa_fail(error, k->status, "%s", k->error.text);
        add_shares_of_a_step(&cases[i], table);
    }
done:
    for (int i = 0; i < SIZES; i++) {
        bench_kmeans_close(&cases[i].kmeans);
        mcsa_block_release(&cases[i].problem.memory, &cases[i].s.memory);
        bench_problem_close(&cases[i].problem);
    }
    return status;
}
