/* attend.c - dense attention against token-sparse attention at matched density, selection and grouping excluded (the
 * paper's table 6).  Groups are runs of C queries of a shuffled order.  Kept keys are `clustered` (runs of 16
 * neighbours) or `scattered` (each on its own), ascending in both. */
#include "suites.h"

#include <stdlib.h>

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

static mcsa_status add_sparse(sparse_case *c, const bench_plan *plan, int d, int run, bench_table *table,
                              mcsa_error *error)
{
    const bench_shape *shape = &plan->shape;
    char label[48];
    snprintf(label, sizeof label, "sparse s = %.2f %s", (double)plan->densities[d],
             run > 1 ? "clustered" : "scattered");
    TRY(bench_selection_open(&c->selection, &c->problem->memory, shape, plan->densities[d], error));
    bench_selection_shuffle(&c->selection, run);
    bench_case *one = bench_add(table, label);
    one->run = run_sparse;
    one->context = c;
    one->density = (double)c->selection.K / shape->tokens;
    one->operations = bench_dense_operations(shape) * one->density;
    run_sparse(c);
    one->wrong = !(bench_check_rows(c->problem, &c->selection) <= 1);
    return MCSA_OK;
}

mcsa_status bench_attend(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    bench_problem problem;
    sparse_case sparse[2 * BENCH_DENSITIES] = { 0 };
    if (plan->device == MCSA_DEVICE_CUDA) return bench_attend_cuda(plan, table, error);
    TRY(bench_problem_open(&problem, &plan->shape, 0, error));
    bench_case *dense = bench_add(table, "dense with LSE");
    dense->run = run_dense;
    dense->context = &problem;
    dense->operations = bench_dense_operations(&plan->shape);
    run_dense(&problem);
    dense->wrong = !(bench_check_rows(&problem, NULL) <= 1);
    mcsa_status status = MCSA_OK;
    for (int i = 0; i < 2 * plan->density_count; i++) {
        sparse[i].problem = &problem;
        status = add_sparse(&sparse[i], plan, i / 2, i % 2 ? 1 : 16, table, error);
        if (status != MCSA_OK) goto done;
    }
    status = bench_run(table, plan->repeats, error);
done:
    for (int i = 0; i < 2 * BENCH_DENSITIES; i++) mcsa_block_release(&problem.memory, &sparse[i].selection.memory);
    bench_problem_close(&problem);
    return status;
}
