/* select.c - what exact selection costs beside dense attention.  As runs do it, within dense attention: the difference
 * of the two.  Apart, from the row LSE: the mass pass, and top-K, which is the whole less the mass pass of the same
 * round (it includes writing the bitmap); its radix select is timed by itself too, on the masses of head 0.  With
 * means, keys are clustered before, and selection sums masses up to clusters and ranks those.  Gates: kept keys and
 * clusters against masses in double, masses of a group sum to its queries, thresholds leave exactly K, and those of
 * clusters.h. */
#include "suites.h"

#include "clusters.h"
#include "cpu/cpu.h"
#include "cpu/kth.h"

#include <math.h>
#include <omp.h>
#include <string.h>

typedef struct selecting {
    bench_problem problem;
    mcsa_selection s, m; /* single keys; clusters and means */
    mcsa_block block;
    uint32_t *mass; /* [G, N] of head 0, as integers of the same order */
    mcsa_kth *kth;  /* [G] */
} selecting;

/* Whether what was looked at is right. */
typedef struct verdict {
    int dense, clusters, both, both_means, apart, apart_means, masses, thresholds;
} verdict;

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

static void run_cluster(void *context)
{
    selecting *c = context;
    mcsa_backend_cpu.cluster(c->problem.state, &c->problem.x, &c->m);
}

static void run_both_means(void *context)
{
    selecting *c = context;
    mcsa_backend_cpu.attend_select(c->problem.state, &c->problem.x, &c->m);
}

static void run_select_means(void *context)
{
    selecting *c = context;
    mcsa_backend_cpu.select(c->problem.state, &c->problem.x, c->problem.lse, &c->m);
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
    TRY(bench_problem_select(&c->problem, &c->s, &plan->shape, (bench_budget){ plan->densities[0], MCSA_TAIL_OFF },
                             error));
    TRY(bench_problem_select(&c->problem, &c->m, &plan->shape, (bench_budget){ plan->densities[0], MCSA_TAIL_MEANS },
                             error));
    size_t masses = sizeof *c->mass * (size_t)c->s.G * (size_t)c->s.N;
    if (mcsa_block_reserve(&c->problem.memory, &c->block, masses + sizeof *c->kth * (size_t)c->s.G))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for the masses of %d groups of %d keys", c->s.G, c->s.N);
    c->mass = c->block.data;
    c->kth = (mcsa_kth *)(void *)(c->mass + (int64_t)c->s.G * c->s.N);
    return MCSA_OK;
}

/* Runs everything once. */
static verdict judge(selecting *c, double rounding)
{
    verdict v = { 0 };
    const bench_problem *p = &c->problem;
    run_dense(c);
    v.dense = bench_check_rows(p, NULL) <= 1;
    mcsa_backend_cpu.group(p->state, &p->x, &c->s);
    mcsa_backend_cpu.group(p->state, &p->x, &c->m);
    const int grouped = v.dense && bench_is_permutation(&c->s);
    v.clusters = bench_clusters_make(p, &c->m) && bench_clusters_are_tight(p, &c->m);
    run_both(c);
    v.both = grouped && bench_check_rows(p, NULL) <= 1 && bench_keeps_the_heaviest(p, &c->s, rounding);
    run_select(c);
    v.apart = grouped && bench_keeps_the_heaviest(p, &c->s, 0);
    if (v.clusters) {
        run_both_means(c);
        v.both_means = grouped && bench_check_rows(p, NULL) <= 1 && bench_keeps_the_heaviest(p, &c->m, rounding);
        run_select_means(c);
        v.apart_means = grouped && bench_keeps_the_heaviest(p, &c->m, 0);
    }
    sum_masses(c, c->mass);
    v.masses = v.dense && masses_sum_to_queries(c);
    run_threshold(c);
    v.thresholds = v.masses && thresholds_leave_k(c);
    return v;
}

static int add(bench_table *table, const char *label, void (*run)(void *), selecting *c, double operations, int right)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = c;
    one->operations = operations;
    one->wrong = !right;
    return table->count - 1;
}

static void add_difference(bench_table *table, const char *label, int whole, int part)
{
    bench_case *one = bench_add(table, label);
    one->whole = whole;
    one->part = part;
    one->wrong = table->cases[whole].wrong || table->cases[part].wrong;
}

static void add_rows(bench_table *table, selecting *c, const bench_shape *shape, const verdict *v)
{
    const double full = bench_dense_operations(shape);
    const int dense = add(table, "dense with LSE", run_dense, c, full, v->dense);
    add(table, "cluster keys", run_cluster, c, bench_cluster_operations(&c->m, shape->dim), v->clusters);
    const int both = add(table, "dense and select at once", run_both, c, full, v->both);
    add_difference(table, "  select (difference)", both, dense);
    const int both_means = add(table, "dense and select at once, means", run_both_means, c, full, v->both_means);
    add_difference(table, "  select (difference), means", both_means, dense);
    const int apart = add(table, "select apart", run_select, c, full / 2, v->apart);
    const int mass = add(table, "  mass pass", run_mass, c, full / 2, v->masses);
    add_difference(table, "  top-K, bitmap (difference)", apart, mass);
    add(table, "  top-K threshold alone", run_threshold, c, 0, v->thresholds);
    const int apart_means = add(table, "select apart, means", run_select_means, c, full / 2, v->apart_means);
    add_difference(table, "  sum up, rank, bitmap (difference)", apart_means, mass);
}

mcsa_status bench_select(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    selecting c = { 0 };
    if (plan->device == MCSA_DEVICE_CUDA) return bench_select_cuda(plan, table, error);
    table->share = "of dense";
    mcsa_status status = open_case(&c, plan, error);
    if (status == MCSA_OK) {
        /* of probabilities, for the product with v */
        const verdict v = judge(&c, plan->shape.dtype == MCSA_BF16 ? 0x1p-9 : 0);
        add_rows(table, &c, &plan->shape, &v);
        status = bench_run(table, plan->repeats, error);
    }
    mcsa_block_release(&c.problem.memory, &c.block);
    mcsa_block_release(&c.problem.memory, &c.s.memory);
    mcsa_block_release(&c.problem.memory, &c.m.memory);
    bench_problem_close(&c.problem);
    return status;
}
