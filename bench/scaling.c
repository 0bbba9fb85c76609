/* scaling.c - attention, and a model's steps when one is given, over threads (T = 1, 2, 4, ... at the plan's size) and
 * over tokens (a quarter, a half, all, at the plan's threads).  With a model, heads, dimension and tokens are those of
 * its clip, and tokens vary with the frames; otherwise they are the shape's.  Every size is held at once, so that all
 * rows alternate.  Gates: those of the tables `attend` and `model`. */
#include "step.h"

#include "clusters.h"
#include "cpu/peak.h"

#include <stdlib.h>

enum { TRIALS = 14, KEY_RUN = 16 };

/* One number of threads and tokens. */
typedef struct trial {
    bench_problem problem;
    mcsa_selection selection;
    bench_step step;
} trial;

static void run_dense(void *of)
{
    trial *t = of;
    mcsa_backend_cpu.attend_dense(t->problem.state, &t->problem.x, t->problem.lse);
}

static void run_sparse(void *of)
{
    trial *t = of;
    mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    mcsa_backend_cpu.attend_tokens(t->problem.state, &t->problem.x, &t->selection, &none);
}

static void add(bench_table *table, const char *name, const bench_shape *shape, void (*run)(void *), void *of)
{
    bench_case *one = bench_add(table, name);
    one->run = run;
    one->context = of;
    one->tokens = shape->tokens;
    one->threads = shape->threads;
}

static mcsa_status add_attention(trial *t, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    const bench_shape *shape = &plan->shape;
    char label[48];
    int dense = table->count;
    TRY(bench_problem_open(&t->problem, shape, 0, error));
    TRY(bench_problem_select(&t->problem, &t->selection, shape, (bench_budget){ plan->densities[0], plan->tail },
                             error));
    const int clustered = bench_clusters_make(&t->problem, &t->selection);
    if (clustered) bench_selection_shuffle(&t->selection, KEY_RUN);
    snprintf(label, sizeof label, "dense, N = %d, T = %d", shape->tokens, shape->threads);
    add(table, label, shape, run_dense, t);
    snprintf(label, sizeof label, "sparse, N = %d, T = %d", shape->tokens, shape->threads);
    add(table, label, shape, run_sparse, t);
    table->cases[dense + 1].density = (double)t->selection.K / shape->tokens;
    for (int i = dense; i < dense + 2; i++) {
        table->cases[i].base = dense;
        table->cases[i].operations = bench_dense_operations(shape) * table->cases[i].density;
    }
    run_dense(t);
    table->cases[dense].wrong = !(bench_check_rows(&t->problem, NULL) <= 1);
    if (clustered) run_sparse(t);
    table->cases[dense + 1].wrong = !clustered || !(bench_check_rows(&t->problem, &t->selection) <= 1);
    return MCSA_OK;
}

static mcsa_status add_steps(trial *t, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    const bench_shape *shape = &plan->shape;
    char label[48];
    int right[BENCH_ACTIONS], dense = table->count;
    TRY(bench_step_check(&t->step, right, error));
    snprintf(label, sizeof label, "dense step, N = %d, T = %d", shape->tokens, shape->threads);
    add(table, label, shape, bench_step_dense, &t->step);
    table->cases[dense].wrong = !right[MCSA_DENSE];
    table->cases[dense].base = dense;
    table->cases[dense].operations = t->step.attention_operations + t->step.linear_operations;
    snprintf(label, sizeof label, "reuse step, N = %d, T = %d", shape->tokens, shape->threads);
    add(table, label, shape, bench_step_reuse, &t->step);
    table->cases[dense + 1].wrong = !right[MCSA_REUSE];
    table->cases[dense + 1].base = dense;
    return MCSA_OK;
}

static mcsa_status add_trial(trial *t, bench_plan plan, bench_table *table, mcsa_error *error)
{
    bench_shape *shape = &plan.shape;
    if (plan.model) {
        TRY(bench_step_open(&t->step, &plan, 0, error));
        const dit_wan_config *config = dit_wan_describe(t->step.model.transformer);
        shape->heads = config->heads;
        shape->dim = config->head_dim;
        shape->tokens = t->step.tokens;
        shape->dtype = dit_wan_precision(t->step.model.transformer);
    }
    table->peak = mcsa_cpu_peak(shape->isa, shape->dtype, shape->threads);
    TRY(add_attention(t, &plan, table, error));
    return plan.model ? add_steps(t, &plan, table, error) : MCSA_OK;
}

static mcsa_status run_trials(trial *trials, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    int count = 0;
    table->share = "of dense";
    for (int threads = 1; threads < plan->shape.threads && count < TRIALS - 3; threads *= 2) {
        bench_plan fewer = *plan;
        fewer.shape.threads = threads;
        TRY(add_trial(&trials[count++], fewer, table, error));
    }
    for (int part = 4; part >= 1; part /= 2) {
        bench_plan shorter = *plan;
        shorter.shape.tokens = (plan->shape.tokens + part - 1) / part;
        shorter.frames = (plan->frames + part - 1) / part;
        TRY(add_trial(&trials[count++], shorter, table, error));
    }
    TRY(bench_run(table, plan->repeats, error));
    for (int i = 0; i < count; i++)
        if (trials[i].step.status != MCSA_OK)
            return mcsa_fail(error, trials[i].step.status, "%s", trials[i].step.error.text);
    return MCSA_OK;
}

mcsa_status bench_scaling(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    trial *trials = calloc(TRIALS, sizeof *trials);
    if (!trials) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d sizes", TRIALS);
    mcsa_status status = run_trials(trials, plan, table, error);
    for (int i = 0; i < TRIALS; i++) {
        mcsa_block_release(&trials[i].problem.memory, &trials[i].selection.memory);
        bench_problem_close(&trials[i].problem);
        bench_step_close(&trials[i].step);
    }
    free(trials);
    return status;
}
