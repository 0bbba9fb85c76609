/* select_cuda.c - what an anchor chooses on a GPU beside its dense attention: groups, and the keys that each keeps (the
 * mass pass and top-K).  Gates: groups are a permutation, and kept keys the heaviest by masses in double. */
#include "suites.h"

#include "gpu.h"

#include <string.h>

typedef struct selecting {
    bench_gpu gpu;
    bench_gpu_selection s;
    double dense_s, group_s, select_s;
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
    TRY(bench_gpu_selection_open(&c->s, &c->gpu, plan->densities[0], error));
    bench_gpu_poison(&c->gpu);
    run_dense(c);
    run_group(c);
    run_select(c);
    const int dense = bench_gpu_is_right(&c->gpu, NULL), fetched = bench_gpu_selection_fetch(&c->s, &c->gpu),
              grouped = fetched && bench_is_permutation(&c->s.host),
              selected = dense && grouped &&
                         bench_keeps_the_heaviest(&c->gpu.sample, &c->s.host, bench_gpu_mass_slack(&c->gpu));
    TRY(bench_gpu_outcome(&c->gpu, error));
    bench_case *one = add(table, "dense with LSE", c, run_dense, &c->dense_s);
    one->operations = full;
    one->wrong = !dense;
    add(table, "group", c, run_group, &c->group_s)->wrong = !grouped;
    one = add(table, "select: mass pass, top-K, bitmap", c, run_select, &c->select_s);
    one->operations = full / 2;
    one->wrong = !selected;
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
    bench_gpu_close(&c.gpu);
    return status;
}
