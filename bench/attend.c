/* attend.c - dense attention against token-sparse attention at matched density, selection and grouping excluded (the
 * paper's table 6).  Groups are runs of C queries of a shuffled order.  Kept keys are `clustered` (runs of 16
 * neighbours) or `scattered` (each on its own), ascending in both; or, with `means`, those of clusters that fit from a
 * random one on, and the means of all other clusters, in as many rows. */
#include "suites.h"

#include "clusters.h"

#include <stdlib.h>

const bench_pattern bench_patterns[BENCH_PATTERNS] = {
    { "clustered", MCSA_TAIL_OFF, 16 },
    { "scattered", MCSA_TAIL_OFF, 1 },
    { "means", MCSA_TAIL_MEANS, 0 },
};

typedef struct sparse_case {
    bench_problem *problem;
    mcsa_selection selection;
} sparse_case;

static void run_dense(void *context)
{
    bench_problem *p = context;
    mcsa_backend_cpu.attend_dense(p->state, &p->x, p->lse);
}

static void run_sparse(void *context)
{
    sparse_case *c = context;
    mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    mcsa_backend_cpu.attend_tokens(c->problem->state, &c->problem->x, &c->selection, &none);
}

static mcsa_status add_sparse(sparse_case *c, const bench_plan *plan, float density, const bench_pattern *pattern,
                              bench_table *table, mcsa_error *error)
{
    const bench_shape *shape = &plan->shape;
    const bench_problem *p = c->problem;
    char label[48];
    snprintf(label, sizeof label, "sparse s = %.2f %s", (double)density, pattern->name);
    TRY(bench_problem_select(c->problem, &c->selection, shape, (bench_budget){ density, pattern->tail }, error));
    const int clustered = bench_clusters_make(p, &c->selection);
    if (clustered) bench_selection_shuffle(&c->selection, pattern->run);
    bench_case *one = bench_add(table, label);
    one->run = run_sparse;
    one->context = c;
    one->density = (double)c->selection.K / shape->tokens;
    one->operations = bench_dense_operations(shape) * one->density;
    if (clustered) run_sparse(c);
    one->wrong = !clustered || !(bench_check_rows(p, &c->selection) <= 1);
    return MCSA_OK;
}

mcsa_status bench_attend(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    bench_problem problem;
    sparse_case sparse[BENCH_PATTERNS * BENCH_DENSITIES] = { 0 };
    if (plan->device == MCSA_DEVICE_CUDA) return bench_attend_cuda(plan, table, error);
    TRY(bench_problem_open(&problem, &plan->shape, 0, error));
    bench_case *dense = bench_add(table, "dense with LSE");
    dense->run = run_dense;
    dense->context = &problem;
    dense->operations = bench_dense_operations(&plan->shape);
    run_dense(&problem);
    dense->wrong = !(bench_check_rows(&problem, NULL) <= 1);
    mcsa_status status = MCSA_OK;
    for (int i = 0; i < BENCH_PATTERNS * plan->density_count; i++) {
        sparse[i].problem = &problem;
        status = add_sparse(&sparse[i], plan, plan->densities[i / BENCH_PATTERNS], &bench_patterns[i % BENCH_PATTERNS],
                            table, error);
        if (status != MCSA_OK) goto done;
    }
    status = bench_run(table, plan->repeats, error);
done:
    for (int i = 0; i < BENCH_PATTERNS * BENCH_DENSITIES; i++)
        mcsa_block_release(&problem.memory, &sparse[i].selection.memory);
    bench_problem_close(&problem);
    return status;
}
