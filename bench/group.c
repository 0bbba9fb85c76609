/* group.c - Fast PDDP at half, once and twice the tokens against dense attention at the same size (the paper's table 7:
 * a single call, and its share of a step when every anchor of a 40-step ramp groups anew), and the variance of queries
 * about their group's mean against that of groups in file order.  Queries are clustered as problem.c says: how far the
 * variance can fall depends on them.  Gate: an order is a permutation, and its groups vary less than those in file
 * order. */
#include "suites.h"

#include <stdlib.h>
#include <string.h>

enum { SIZES = 3, STEPS = 40, CLUSTERS = 64 };

typedef struct grouping {
    bench_problem problem;
    mcsa_selection s;
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

/* Sum over groups of squared distances to the group's mean; of groups in file order when order is NULL. */
static double scatter(const grouping *c, const int32_t *order)
{
    const mcsa_dims *dims = &c->problem.x.dims;
    double total = 0;
    for (int h = 0; h < c->s.H; h++)
        for (int g = 0; g < c->s.G; g++)
            for (int d = 0; d < dims->D; d++) {
                double sum = 0, squares = 0, count = mcsa_group_size(&c->s, g);
                for (int i = 0; i < (int)count; i++) {
                    int64_t at = (int64_t)g * c->s.C + i;
                    double q = bench_element(&c->problem.q, h, order ? order[(int64_t)h * dims->N + at] : at, d);
                    sum += q;
                    squares += q * q;
                }
                total += squares - sum * sum / count;
            }
    return total;
}

/* Calls of group per step over a 40-step ramp. */
static double calls_per_step(void)
{
    mcsa_action actions[STEPS];
    int anchors = 0;
    mcsa_schedule_fill("ramp", STEPS, actions, NULL, 0);
    for (int i = 0; i < STEPS; i++) anchors += actions[i] == MCSA_ANCHOR;
    return (double)anchors / STEPS;
}

static mcsa_status add_size(grouping *c, const bench_shape *shape, const bench_plan *plan, bench_table *table,
                            mcsa_error *error)
{
    char label[48];
    TRY(bench_problem_open(&c->problem, shape, CLUSTERS, error));
    TRY(bench_selection_open(&c->s, &c->problem.memory, shape, plan->densities[0], error));
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
    double ratio = permuted ? scatter(c, c->s.order) / scatter(c, NULL) : 0;
    one->wrong = !permuted || (c->s.G > 1 && !(ratio < 1));
    for (int i = base; i < table->count; i++) {
        table->cases[i].context = c;
        table->cases[i].base = base;
        table->cases[i].tokens = shape->tokens;
    }
    bench_figure_add(table, ratio, "variance within groups / in file order, N = %d", shape->tokens);
    return MCSA_OK;
}

mcsa_status bench_group(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    grouping cases[SIZES] = { 0 };
    mcsa_status status = MCSA_OK;
    table->share = "of dense";
    for (int i = 0; i < SIZES; i++) {
        bench_shape shape = plan->shape;
        shape.tokens = i == 0 ? shape.tokens / 2 : shape.tokens * i;
        if (shape.tokens < 1) shape.tokens = 1;
        if ((status = add_size(&cases[i], &shape, plan, table, error)) != MCSA_OK) goto done;
    }
    if ((status = bench_run(table, plan->repeats, error)) != MCSA_OK) goto done;
    for (int i = 1; i < table->count; i += 2)
        bench_figure_add(table, 1e3 * table->cases[i].median_s * calls_per_step(),
                         "ms per layer and step over a %d-step ramp, N = %d", STEPS, table->cases[i].tokens);
done:
    for (int i = 0; i < SIZES; i++) {
        mcsa_block_release(&cases[i].problem.memory, &cases[i].s.memory);
        bench_problem_close(&cases[i].problem);
    }
    return status;
}
