/* model.c - seconds of a dense, an anchor and a reuse step of a model by stage, the peak of resident memory after one
 * step of each kind, and how much more is resident after all rounds: nothing when steps allocate nothing.  Both
 * branches of guidance, shared. Gates: step.h's, and on a clip of 4 x 4 x 4 patches the velocity of the same weights in
 * F32 on the scalar kernels. */
#include "step.h"

#include "cpu/peak.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATCHES = 4 /* along each axis of the clip that is checked against F32 */ };

static double peak_mebibytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024; /* Linux counts KiB */
}

/* Now; NaN where there is no /proc. */
static double resident_mebibytes(void)
{
    FILE *stream = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (!stream) return NAN;
    int read = fscanf(stream, "%*d %ld", &pages);
    fclose(stream);
    return read == 1 ? (double)pages * (double)sysconf(_SC_PAGESIZE) / 0x1p20 : NAN;
}

/* velocity: both branches of a dense step, to be freed by the caller */
static mcsa_status dense_velocity(float **velocity, int64_t *count, const bench_plan *plan, mcsa_dtype precision,
                                  mcsa_error *error)
{
    bench_step step;
    TRY(bench_step_open(&step, plan, precision, error));
    bench_step_run(&step, MCSA_DENSE);
    mcsa_status status = step.status;
    if (status != MCSA_OK) mcsa_fail(error, status, "%s", step.error.text);
    *count = BENCH_BRANCHES * step.outputs;
    *velocity = malloc(sizeof **velocity * (size_t)*count);
    if (*velocity)
        memcpy(*velocity, step.velocity, sizeof **velocity * (size_t)*count);
    else
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for a velocity of %lld numbers", (long long)*count);
    bench_step_close(&step);
    return status;
}

/* The bounds of the golden tests: 5e-3 for BF16 arithmetic, 1e-5 for F32. */
static mcsa_status agrees_with_scalar(int *right, const bench_step *step, const bench_plan *plan, mcsa_error *error)
{
    const dit_wan *transformer = step->model.transformer;
    const int *patch = dit_wan_describe(transformer)->patch;
    float *fast = NULL, *exact = NULL;
    int64_t count = 0;
    bench_plan small = *plan;
    small.frames = PATCHES * patch[0];
    small.height = PATCHES * patch[1];
    small.width = PATCHES * patch[2];
    mcsa_status status = dense_velocity(&fast, &count, &small, 0, error);
    small.shape.isa = MCSA_ISA_SCALAR;
    if (status == MCSA_OK) status = dense_velocity(&exact, &count, &small, MCSA_F32, error);
    if (status == MCSA_OK)
        *right = bench_relative(fast, exact, count) <= (dit_wan_precision(transformer) == MCSA_BF16 ? 5e-3 : 1e-5);
    free(fast);
    free(exact);
    return status;
}

static void add_stage(bench_table *table, const char *name, const double *seconds, double operations, int step)
{
    bench_case *one = bench_add(table, name);
    one->stage = seconds;
    one->operations = operations;
    one->base = step;
    one->wrong = table->cases[step].wrong;
}

static void add_step(bench_table *table, bench_step *step, mcsa_action action, int right)
{
    static const struct {
        const char *name;
        void (*run)(void *);
    } kinds[] = { { "dense step", bench_step_dense },
                  { "anchor step", bench_step_anchor },
                  { "reuse step", bench_step_reuse } };
    const bench_stages *stages = &step->stages[action];
    int at = table->count;
    bench_case *one = bench_add(table, kinds[action].name);
    one->run = kinds[action].run;
    one->context = step;
    one->wrong = !right;
    double attention = action == MCSA_DENSE ? step->attention_operations : 0;
    add_stage(table, "  self-attention", &stages->self, attention, at);
    add_stage(table, "  cross-attention", &stages->cross, 0, at);
    add_stage(table, "  linear layers", &stages->linear, step->linear_operations, at);
    add_stage(table, "  other", &stages->other, 0, at);
}

static mcsa_status time_steps(bench_step *step, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    int right[BENCH_ACTIONS], agrees = 0;
    table->share = "of step";
    table->peak = mcsa_cpu_peak(MCSA_ISA_AUTO, dit_wan_precision(step->model.transformer), plan->shape.threads);
    TRY(bench_step_check(step, right, error));
    double first = peak_mebibytes();
    TRY(agrees_with_scalar(&agrees, step, plan, error));
    for (int action = 0; action < BENCH_ACTIONS; action++)
        add_step(table, step, (mcsa_action)action, right[action] && agrees);
    double before = resident_mebibytes();
    TRY(bench_run(table, plan->repeats, error));
    if (step->status != MCSA_OK) return mcsa_fail(error, step->status, "%s", step->error.text);
    bench_figure_add(table, step->tokens, "tokens");
    for (int i = 0; i < table->count; i += table->count / BENCH_ACTIONS) {
        const bench_case *one = &table->cases[i], *other = &table->cases[i + 4];
        if (one->wrong) continue;
        bench_figure_add(table, 1 - other->median_s / one->median_s, "attention and linear layers, share of the %s",
                         one->label);
    }
    bench_figure_add(table, first, "peak of resident memory after one step of each kind, MiB");
    bench_figure_add(table, resident_mebibytes() - before, "growth of resident memory over %d more of each, MiB",
                     plan->repeats + 1);
    return MCSA_OK;
}

mcsa_status bench_model(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    bench_step step;
    if (plan->device == MCSA_DEVICE_CUDA && (plan->model || plan->made)) return bench_model_cuda(plan, table, error);
    if (!plan->model) return mcsa_fail(error, MCSA_EINVAL, "this table needs --model DIR");
    TRY(bench_step_open(&step, plan, 0, error));
    mcsa_status status = time_steps(&step, plan, table, error);
    bench_step_close(&step);
    return status;
}
