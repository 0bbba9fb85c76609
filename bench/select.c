/* select.c - what exact selection costs beside dense attention.  As runs do it, within dense attention: the difference
 * of the two.  Apart, from the row LSE: the mass pass, and top-K, which is the whole less the mass pass of the same
 * round (it includes writing the bitmap); its radix select is timed by itself too, on the masses of head 0.  Gates:
 * kept keys against masses in double, masses of a group sum to its queries, and thresholds leave exactly K. */
#include "suites.h"

#include "cpu/cpu.h"
#include "cpu/kth.h"

#include <math.h>
#include <omp.h>
#include <string.h>

typedef struct selecting {
    bench_problem problem;
    mcsa_selection s;
    mcsa_block block;
    uint32_t *mass; /* [G, N] of head 0, as integers of the same order */
    mcsa_kth *kth;  /* [G] */
} selecting;

static void run_dense(void *context)
{
    selecting *c = context;
    mcsa_backend_cpu.attend_dense(c->problem.state, &c->problem.x, c->problem.lse);
}

static void run_both(void *context)
{
    selecting *c = context;
    mcsa_backend_cpu.attend_select(c->problem.state, &c->problem.x, &c->s);
}

static void run_select(void *context)
{
    selecting *c = context;
    mcsa_backend_cpu.select(c->problem.state, &c->problem.x, c->problem.lse, &c->s);
}

/* As src/cpu/select.c but for the top-K.  keep: [G, N] gets the masses of head 0, or NULL. */
static void sum_masses(selecting *c, uint32_t *keep)
{
    mcsa_cpu *cpu = c->problem.state;
    const mcsa_qkv *x = &c->problem.x;
    const mcsa_selection *s = &c->s;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)s->H * s->G; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / s->G), g = (int)(task % s->G), count = mcsa_group_size(s, g);
        const int32_t *order = s->order + (int64_t)h * s->N + (int64_t)g * s->C;
        mcsa_rows queries = mcsa_head_rows(x->q, h, order, 0, count), keys = mcsa_head_rows(x->k, h, NULL, 0, s->N);
        mcsa_tile_load(tile, kernels, &queries);
        for (int i = 0; i < count; i++) tile->lse[i] = c->problem.lse[(int64_t)h * s->N + order[i]];
        mcsa_tile_mass(tile, &keys, x->scale, tile->lse);
        if (keep && h == 0) memcpy(keep + (int64_t)g * s->N, tile->mass, sizeof *tile->mass * (size_t)s->N);
    }
}

static void run_mass(void *context)
{
    sum_masses(context, NULL);
}

static void run_threshold(void *context)
{
    selecting *c = context;
#pragma omp parallel for schedule(dynamic) num_threads(((mcsa_cpu *)c->problem.state)->threads)
    for (int64_t task = 0; task < (int64_t)c->s.H * c->s.G; task++) {
        int64_t g = task % c->s.G;
        mcsa_kth kth = mcsa_kth_largest(c->mass + g * c->s.N, c->s.N, c->s.K);
        if (task == g) c->kth[g] = kth;
    }
}

/* Each mass is off by at most the bound of bench_keeps_the_heaviest; so is their sum. */
static int masses_sum_to_queries(const selecting *c)
{
    const float *mass = (const float *)(const void *)c->mass;
    for (int g = 0; g < c->s.G; g++) {
        double sum = 0, queries = mcsa_group_size(&c->s, g);
        for (int64_t j = 0; j < c->s.N; j++) sum += (double)mass[(int64_t)g * c->s.N + j];
        if (!(fabs(sum - queries) <= queries * 16 * c->problem.x.dims.D * 0x1p-24)) return 0;
    }
    return 1;
}

static int thresholds_leave_k(const selecting *c)
{
    for (int64_t g = 0; g < c->s.G; g++) {
        int above = 0, equal = 0;
        for (int64_t j = 0; j < c->s.N; j++) {
            above += c->mass[g * c->s.N + j] > c->kth[g].threshold;
            equal += c->mass[g * c->s.N + j] == c->kth[g].threshold;
        }
        if (above + c->kth[g].ties != c->s.K || c->kth[g].ties > equal) return 0;
    }
    return 1;
}

static mcsa_status open_case(selecting *c, const bench_plan *plan, mcsa_error *error)
{
    TRY(bench_problem_open(&c->problem, &plan->shape, 0, error));
    TRY(bench_selection_open(&c->s, &c->problem.memory, &plan->shape, plan->densities[0], error));
    size_t masses = sizeof *c->mass * (size_t)c->s.G * (size_t)c->s.N;
    if (mcsa_block_reserve(&c->problem.memory, &c->block, masses + sizeof *c->kth * (size_t)c->s.G))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the masses of %d groups of %d keys", c->s.G, c->s.N);
    c->mass = c->block.data;
    c->kth = (mcsa_kth *)(void *)(c->mass + (int64_t)c->s.G * c->s.N);
    return MCSA_OK;
}

static void add(bench_table *table, const char *label, void (*run)(void *), selecting *c, double operations, int right)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = c;
    one->operations = operations;
    one->wrong = !right;
}

mcsa_status bench_select(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    enum { DENSE, BOTH, DIFFERENCE, SELECT, MASS };
    selecting c = { 0 };
    if (plan->device == MCSA_DEVICE_CUDA) return bench_select_cuda(plan, table, error);
    table->share = "of dense";
    mcsa_status status = open_case(&c, plan, error);
    if (status != MCSA_OK) goto done;
    double full = bench_dense_operations(&plan->shape);
    run_dense(&c);
    int dense = bench_check_rows(&c.problem, NULL) <= 1;
    mcsa_backend_cpu.group(c.problem.state, &c.problem.x, &c.s);
    run_both(&c);
    const double rounding = plan->shape.dtype == MCSA_BF16 ? 0x1p-9 : 0; /* of probabilities, for the product with v */
    int both = dense && bench_is_permutation(&c.s) && bench_check_rows(&c.problem, NULL) <= 1 &&
               bench_keeps_the_heaviest(&c.problem, &c.s, rounding);
    run_select(&c);
    int selected = dense && bench_keeps_the_heaviest(&c.problem, &c.s, 0);
    sum_masses(&c, c.mass);
    int massed = dense && masses_sum_to_queries(&c);
    run_threshold(&c);
    add(table, "dense with LSE", run_dense, &c, full, dense);
    add(table, "dense and select at once", run_both, &c, full, both);
    add(table, "  select (difference)", NULL, NULL, 0, both);
    table->cases[DIFFERENCE].whole = BOTH;
    table->cases[DIFFERENCE].part = DENSE;
    add(table, "select apart", run_select, &c, full / 2, selected);
    add(table, "  mass pass", run_mass, &c, full / 2, massed);
    add(table, "  top-K, bitmap (difference)", NULL, NULL, 0, selected && massed);
    table->cases[table->count - 1].whole = SELECT;
    table->cases[table->count - 1].part = MASS;
    add(table, "  top-K threshold alone", run_threshold, &c, 0, massed && thresholds_leave_k(&c));
    status = bench_run(table, plan->repeats, error);
done:
    mcsa_block_release(&c.problem.memory, &c.block);
    mcsa_block_release(&c.problem.memory, &c.s.memory);
    bench_problem_close(&c.problem);
    return status;
}
