/* model_cuda.c - seconds of a dense, an anchor and a reuse step of a model on a GPU by stage, what the model and its
 * run hold, and what a schedule of 50 steps then costs.  Both branches of guidance, shared.  Grouping is of queries, and
 * of keys too with means.
 *
 * With a shape instead of a directory the weights are random and made on the GPU: what a step costs does not depend on
 * them.  Steps are seconds long, so the ones that the gates of step.h run are the only warm-up. */
#include "step.h"

#include "dit/generate.h"

#include <stdlib.h>

enum { SCHEDULE_STEPS = 50 };

/* The patch of 1 x 2 x 2 and 16 channels of latent are Wan2.1's; a latent frame stands for four frames after the first,
 * and a latent pixel for 8 x 8. */
#define WAN21(h, ffn, depth)                                                                                           \
    {                                                                                                                  \
        .patch = { 1, 2, 2 }, .heads = h, .head_dim = 128, .in_channels = 16, .out_channels = 16, .text_dim = 4096,    \
        .freq_dim = 256, .ffn_dim = ffn, .layers = depth, .rope_max_seq_len = 1024, .cross_attn_norm = 1, .eps = 1e-6f \
    }

const bench_model_shape bench_model_shapes[] = {
    { "wan2.1-14b-720p", WAN21(40, 13824, 40), 21, 90, 160 }, /* 75,600 tokens: 81 frames of 1280 x 720 */
    { "wan2.1-14b-480p", WAN21(40, 13824, 40), 21, 60, 104 }, /* 32,760 tokens: 81 frames of 832 x 480 */
    { "wan2.1-1.3b-480p", WAN21(12, 8960, 30), 21, 60, 104 },
    { 0 },
};

enum { OF_DENSE = 1 << MCSA_DENSE, OF_ANCHOR = 1 << MCSA_ANCHOR, OF_REUSE = 1 << MCSA_REUSE, OF_ALL = 7 };

static const struct {
    const char *name;
    size_t offset; /* in bench_stages */
    int actions;   /* whose steps have this part */
} parts[] = {
    { NULL, offsetof(bench_stages, total), OF_ALL },
    { "  self-attention", offsetof(bench_stages, self), OF_ALL },
    { "    dense", offsetof(bench_stages, dense), OF_DENSE | OF_ANCHOR },
    { "    grouping", offsetof(bench_stages, grouping), OF_ANCHOR },
    { "    selection", offsetof(bench_stages, selection), OF_ANCHOR },
    { "    token-sparse and residual", offsetof(bench_stages, sparse), OF_ANCHOR | OF_REUSE },
    { "  cross-attention", offsetof(bench_stages, cross), OF_ALL },
    { "  linear layers", offsetof(bench_stages, linear), OF_ALL },
    { "  norms, RoPE and the rest", offsetof(bench_stages, other), OF_ALL },
};
enum { PARTS = sizeof parts / sizeof *parts };

/* What the rows of the table read, in their order. */
typedef struct row {
    mcsa_action action;
    size_t offset;
} row;

static void add_row(bench_table *table, const bench_step *step, mcsa_action action, int part, int base)
{
    static const char *const names[] = { "dense step", "anchor step", "reuse step" };
    bench_case *added = bench_add(table, parts[part].name ? parts[part].name : names[action]);
    added->base = base;
    if (parts[part].offset == offsetof(bench_stages, linear)) added->operations = step->linear_operations;
    if (parts[part].offset == offsetof(bench_stages, dense)) added->operations = step->attention_operations;
}

/* first: the row of each action's step */
static void add_rows(bench_table *table, const bench_step *step, const int *right, row *rows, int *first)
{
    for (int action = 0; action < BENCH_ACTIONS; action++) {
        first[action] = table->count;
        for (int p = 0; p < PARTS; p++) {
            if (!(parts[p].actions >> action & 1)) continue;
            rows[table->count] = (row){ (mcsa_action)action, parts[p].offset };
            add_row(table, step, (mcsa_action)action, p, first[action]);
            table->cases[table->count - 1].wrong = !right[action];
        }
    }
}

/* seconds: [rows, repeats] */
static mcsa_status time_rounds(bench_step *step, bench_table *table, const row *rows, double *seconds, int repeats,
                               mcsa_error *error)
{
    for (int r = 0; r < repeats; r++) {
        for (int action = 0; action < BENCH_ACTIONS; action++) bench_step_run(step, (mcsa_action)action);
        if (step->status != MCSA_OK) return mcsa_fail(error, step->status, "%s", step->error.text);
        for (int i = 0; i < table->count; i++) {
            const char *stages = (const char *)&step->stages[rows[i].action];
            seconds[i * repeats + r] = *(const double *)(const void *)(stages + rows[i].offset);
        }
    }
    for (int i = 0; i < table->count; i++) bench_summarise(&table->cases[i], seconds + i * repeats, repeats);
    return MCSA_OK;
}

/* step_s: of each action */
static mcsa_status add_schedule(bench_table *table, const double *step_s, const char *schedule, mcsa_error *error)
{
    mcsa_action actions[SCHEDULE_STEPS];
    double denoise = 0;
    TRY(mcsa_schedule_fill(schedule, SCHEDULE_STEPS, actions, error->text, sizeof error->text));
    for (int s = 0; s < SCHEDULE_STEPS; s++) denoise += step_s[actions[s]];
    bench_figure_add(table, denoise, "%d steps by schedule %s, s", SCHEDULE_STEPS, schedule);
    bench_figure_add(table, SCHEDULE_STEPS * step_s[MCSA_DENSE] / denoise, "speed-up of that over dense");
    return MCSA_OK;
}

static mcsa_status add_figures(bench_table *table, const bench_step *step, const int *first, mcsa_error *error)
{
    double step_s[BENCH_ACTIONS];
    mcsa_stats stats = { .size = sizeof stats };
    for (int action = 0; action < BENCH_ACTIONS; action++) step_s[action] = table->cases[first[action]].median_s;
    mcsa_run_stats(step->run, &stats);
    bench_figure_add(table, step->tokens, "tokens");
    bench_figure_add(table, (double)dit_wan_bytes(step->model.transformer) / 0x1p30,
                     "model: weights and work memory, GiB");
    bench_figure_add(table, (double)stats.selection_bytes / 0x1p30, "selections, GiB");
    bench_figure_add(table, (double)stats.residual_bytes / 0x1p30, "residuals, GiB");
    bench_figure_add(table, (double)stats.scratch_bytes / 0x1p30, "scratch of attention, GiB");
    bench_figure_add(table, SCHEDULE_STEPS * step_s[MCSA_DENSE], "%d dense steps, s", SCHEDULE_STEPS);
    TRY(add_schedule(table, step_s, "ramp", error));
    TRY(add_schedule(table, step_s, "fast", error));
    return add_schedule(table, step_s, "paper", error);
}

/* Seconds of plan->steps steps for real; schedule NULL: all dense. */
static mcsa_status denoise(double *seconds, const bench_step *step, const bench_plan *plan, const char *schedule,
                           mcsa_error *error)
{
    dit_wan *transformer = step->model.transformer;
    const int layers = dit_wan_describe(transformer)->layers;
    const dit_generate_options options = { .steps = plan->steps,
                                           .guidance = 5,
                                           .shift = 5,
                                           .sampler = DIT_UNIPC,
                                           .frames = plan->frames,
                                           .height = plan->height,
                                           .width = plan->width,
                                           .noise = step->latent,
                                           .context = step->context,
                                           .null_context = step->context,
                                           .context_rows = step->call.context_rows,
                                           .null_rows = step->call.context_rows };
    const mcsa_config config = { .steps = plan->steps,
                                 .layers = layers,
                                 .branches = BENCH_BRANCHES,
                                 .density = plan->densities[0],
                                 .schedule = schedule,
                                 .tail = plan->tail,
                                 .dense_layers = schedule ? 0 : layers,
                                 .device = plan->device };
    mcsa_run *run = NULL;
    mcsa_status status = mcsa_run_create(&run, &config, error->text, sizeof error->text);
    /* The latent that comes out is of no use; a velocity has its size. */
    if (status == MCSA_OK) status = dit_generate(transformer, run, &options, step->velocity, seconds, error);
    mcsa_run_free(run);
    return status;
}

static mcsa_status add_denoising(bench_step *step, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    double dense = 0, sparse = 0;
    mcsa_run_free(step->run); /* its memory is wanted */
    step->run = NULL;
    TRY(denoise(&sparse, step, plan, "ramp", error));
    TRY(denoise(&dense, step, plan, NULL, error));
    bench_figure_add(table, sparse, "%d steps by schedule ramp, run, s", plan->steps);
    bench_figure_add(table, dense, "%d dense steps, run, s", plan->steps);
    bench_figure_add(table, dense / sparse, "speed-up of these");
    return MCSA_OK;
}

static mcsa_status time_steps(bench_step *step, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    int right[BENCH_ACTIONS], first[BENCH_ACTIONS];
    row rows[BENCH_ACTIONS * PARTS];
    double *seconds = calloc((size_t)BENCH_ACTIONS * PARTS * (size_t)plan->repeats, sizeof *seconds);
    if (!seconds) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d rounds of times", plan->repeats);
    table->share = "of step";
    table->peak = 0;
    mcsa_status status = bench_step_check(step, right, error);
    if (status == MCSA_OK) {
        add_rows(table, step, right, rows, first);
        status = time_rounds(step, table, rows, seconds, plan->repeats, error);
    }
    free(seconds);
    if (status == MCSA_OK) status = add_figures(table, step, first, error);
    return status == MCSA_OK && plan->steps ? add_denoising(step, plan, table, error) : status;
}

mcsa_status bench_model_cuda(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    bench_step step;
    TRY(bench_step_open(&step, plan, 0, error));
    mcsa_status status = time_steps(&step, plan, table, error);
    bench_step_close(&step);
    return status;
}
