/* anchor.c - what an anchor adds to dense attention (grouping, selection, the sparse pass that records the residual),
 * and a whole reuse step, on one backend state.  The gate: order is a permutation; the kept keys of sampled groups hold
 * the largest masses of a double reference; reuse of the same q, k, v gives the dense output back. */
#include "suites.h"

#include "base/half.h"
#include "base/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct anchor {
    bench_problem problem;
    mcsa_selection s;
    mcsa_residual_rows rows;
    mcsa_block residual;
} anchor;

static void run_dense(void *context)
{
    anchor *a = context;
    mcsa_backend_cpu.attend_dense(a->problem.state, &a->problem.x, a->problem.lse);
}

static void run_group(void *context)
{
    anchor *a = context;
    mcsa_backend_cpu.group(a->problem.state, &a->problem.x, &a->s);
}

static void run_select(void *context)
{
    anchor *a = context;
    mcsa_backend_cpu.select(a->problem.state, &a->problem.x, a->problem.lse, &a->s);
}

/* Timed after a reuse step has written out, so what is recorded then is about zero; the work is the same. */
static void run_record(void *context)
{
    anchor *a = context;
    a->rows.record = 1;
    mcsa_backend_cpu.attend_tokens(a->problem.state, &a->problem.x, &a->s, &a->rows);
}

static void run_reuse(void *context)
{
    anchor *a = context;
    a->rows.record = 0;
    mcsa_backend_cpu.attend_tokens(a->problem.state, &a->problem.x, &a->s, &a->rows);
}

static mcsa_status reserve(anchor *a, const bench_plan *plan, mcsa_error *error)
{
    const bench_shape *shape = &plan->shape;
    mcsa_selection *s = &a->s;
    int K = (int)(plan->densities[0] * (float)shape->tokens + 0.5f),
        G = (shape->tokens + shape->group - 1) / shape->group;
    *s = (mcsa_selection){ .H = shape->heads,
                           .N = shape->tokens,
                           .C = shape->group,
                           .G = G,
                           .K = K < 1 ? 1 : K,
                           .words = (shape->tokens + 63) / 64 };
    size_t order = (sizeof *s->order * (size_t)s->H * (size_t)s->N + 63) / 64 * 64;
    size_t kept = sizeof *s->kept * (size_t)s->H * (size_t)G * (size_t)s->words;
    size_t rows = (size_t)mcsa_backend_cpu.residual_bytes(MCSA_RESIDUAL_BF16, &a->problem.x.dims);
    if (mcsa_block_reserve(&a->problem.memory, &s->memory, order + kept) ||
        mcsa_block_reserve(&a->problem.memory, &a->residual, rows))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a cache of %zu bytes", order + kept + rows);
    s->order = s->memory.data;
    s->kept = (uint64_t *)(void *)((char *)s->memory.data + order);
    a->rows = (mcsa_residual_rows){ MCSA_RESIDUAL_BF16, a->residual.data, 0 };
    return MCSA_OK;
}

static int is_permutation(const anchor *a)
{
    int N = a->s.N, good = 1;
    char *seen = malloc((size_t)N);
    for (int h = 0; seen && h < a->s.H; h++) {
        memset(seen, 0, (size_t)N);
        for (int i = 0; i < N; i++) seen[a->s.order[(int64_t)h * N + i]] = 1;
        good &= !memchr(seen, 0, (size_t)N);
    }
    free(seen);
    return good && seen;
}

static double element(const mcsa_tensor *t, int h, int n, int d)
{
    const void *row = mcsa_tensor_row(t, h, n);
    if (t->dtype == MCSA_F32) return (double)((const float *)row)[d];
    uint16_t half = ((const uint16_t *)row)[d];
    return (double)(t->dtype == MCSA_BF16 ? mcsa_from_bf16(half) : mcsa_from_f16(half));
}

/* mass [N] of group g of head h, in double. */
static void exact_mass(const anchor *a, int h, int g, double *mass, double *score)
{
    const mcsa_dims *dims = &a->problem.x.dims;
    memset(mass, 0, sizeof *mass * (size_t)dims->N);
    for (int i = 0; i < mcsa_group_size(&a->s, g); i++) {
        int query = a->s.order[(int64_t)h * dims->N + (int64_t)g * a->s.C + i];
        double max = -INFINITY, sum = 0;
        for (int j = 0; j < dims->N; j++) {
            score[j] = 0;
            for (int d = 0; d < dims->D; d++)
                score[j] += element(&a->problem.q, h, query, d) * element(&a->problem.k, h, j, d);
            score[j] *= (double)a->problem.x.scale;
            max = score[j] > max ? score[j] : max;
        }
        for (int j = 0; j < dims->N; j++) sum += exp(score[j] - max);
        for (int j = 0; j < dims->N; j++) mass[j] += exp(score[j] - max) / sum;
    }
}

/* Exactly K keys are kept, and none of them has less mass than a dropped one by more than float rounding: a mass is a
 * sum of C exponentials of scores that are off by at most D units of 2^-24 of about 8. */
static int keeps_the_heaviest(const anchor *a)
{
    const mcsa_selection *s = &a->s;
    double *mass = malloc(2 * sizeof *mass * (size_t)s->N);
    int good = mass != NULL;
    for (int sample = 0; good && sample < 2; sample++) {
        int h = sample % s->H, g = sample * (s->G - 1), kept = 0;
        const uint64_t *bits = s->kept + ((int64_t)h * s->G + g) * s->words;
        double lightest = INFINITY, heaviest = 0;
        exact_mass(a, h, g, mass, mass + s->N);
        for (int j = 0; j < s->N; j++) {
            int in = (int)(bits[j / 64] >> (j % 64) & 1);
            kept += in;
            if (in && mass[j] < lightest) lightest = mass[j];
            if (!in && mass[j] > heaviest) heaviest = mass[j];
        }
        good = kept == s->K && lightest >= heaviest * (1 - 16 * a->problem.x.dims.D * 0x1p-24);
    }
    free(mass);
    return good;
}

/* Dense, then record, then reuse: the output must come back up to the rounding of the residual and of the output. */
static int gives_dense_back(anchor *a)
{
    const mcsa_tensor *out = &a->problem.out;
    size_t bytes = (size_t)(a->s.H * (int64_t)a->s.N * out->shape[2]) * mcsa_dtype_bytes(out->dtype);
    mcsa_tensor dense = *out;
    double worst = 0;
    run_dense(a);
    dense.data = malloc(bytes);
    if (!dense.data) return 0;
    memcpy(dense.data, out->data, bytes);
    run_record(a);
    run_reuse(a);
    for (int h = 0; h < a->s.H; h++)
        for (int n = 0; n < a->s.N; n++)
            for (int d = 0; d < out->shape[2]; d++) {
                double want = element(&dense, h, n, d), got = element(out, h, n, d);
                double used = fabs(got - want) / (0x1p-8 * (fabs(want) + 1));
                if (!(used <= worst)) worst = used;
            }
    free(dense.data);
    return worst <= 1;
}

static void add(bench_table *table, const char *label, void (*run)(void *), anchor *a, double operations, int right)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = a;
    one->operations = operations;
    one->wrong = !right;
}

mcsa_status bench_anchor(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    anchor a = { 0 };
    mcsa_status status = bench_problem_open(&a.problem, &plan->shape, error);
    if (status != MCSA_OK) return status;
    if ((status = reserve(&a, plan, error)) != MCSA_OK) goto done;
    double full = 4.0 * plan->shape.heads * plan->shape.dim * (double)plan->shape.tokens * plan->shape.tokens;
    double density = (double)a.s.K / plan->shape.tokens;
    run_dense(&a);
    int dense = bench_check_rows(&a.problem, NULL) <= 1;
    run_group(&a);
    int grouped = is_permutation(&a);
    run_select(&a);
    int selected = grouped && keeps_the_heaviest(&a), compensated = selected && gives_dense_back(&a);
    add(table, "dense with LSE", run_dense, &a, full, dense);
    add(table, "group (Fast PDDP)", run_group, &a, 0, grouped);
    add(table, "select (mass, top-K)", run_select, &a, full / 2, selected);
    add(table, "sparse, record residual", run_record, &a, full * density, compensated);
    add(table, "sparse, add residual", run_reuse, &a, full * density, compensated);
    table->cases[3].density = table->cases[4].density = density;
    status = bench_run(table, plan->repeats, error);
done:
    mcsa_block_release(&a.problem.memory, &a.s.memory);
    mcsa_block_release(&a.problem.memory, &a.residual);
    bench_problem_close(&a.problem);
    return status;
}
