/* reuse.c - token-sparse attention as a run calls it: the groups and keys that grouping and selection chose, recording
 * the residual at an anchor, adding it in each form at a reuse step, and the same tiles with their key lists expanded
 * beforehand and nothing written, which is what the rest of a reuse step is overhead to.  The same with means of
 * clusters in place of some kept keys.  Gates: sparse rows in double; reuse of the same q, k, v gives the dense output
 * back to the rounding of the form. */
#include "suites.h"

#include "clusters.h"
#include "cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS, MEANS, CHOICES }; /* what groups attend to: kept keys alone, or means too */

typedef struct reusing reusing;

/* One choice, and the output by it without a residual. */
typedef struct choice_case {
    reusing *owner;
    mcsa_selection s;
    double *bare; /* [H, N, D] */
    int right;
} choice_case;

static const struct form {
    int choice;
    mcsa_residual form;
    const char *name;
    double step; /* largest rounding of an element over the largest of its row, or over itself for bf16 */
} forms[] = {
    { KEYS, MCSA_RESIDUAL_OFF, "no residual", 0 },
    { KEYS, MCSA_RESIDUAL_BF16, "bf16 residual", 0x1p-8 },
    { KEYS, MCSA_RESIDUAL_INT8, "int8 residual", 0.5 / 127 },
    { KEYS, MCSA_RESIDUAL_INT4, "int4 residual", 0.5 / 7 },
    { MEANS, MCSA_RESIDUAL_OFF, "means, no residual", 0 },
    { MEANS, MCSA_RESIDUAL_BF16, "means, bf16 residual", 0x1p-8 },
};
enum { FORMS = sizeof forms / sizeof *forms, BF16 = 1, MEANS_BF16 = 5 };

typedef struct form_case {
    choice_case *choice;
    mcsa_residual_rows rows;
    mcsa_block block;
} form_case;

struct reusing {
    bench_problem problem;
    choice_case choices[CHOICES];
    form_case forms[FORMS];
    mcsa_block block;
    int32_t *lists; /* [H, G, K] kept keys */
    double *dense;  /* [H, N, D] dense output */
};

static void run_dense(void *context)
{
    reusing *c = context;
    mcsa_backend_cpu.attend_dense(c->problem.state, &c->problem.x, c->problem.lse);
}

static void attend(form_case *f, int record)
{
    const bench_problem *p = &f->choice->owner->problem;
    f->rows.record = record;
    mcsa_backend_cpu.attend_tokens(p->state, &p->x, &f->choice->s, &f->rows);
}

static void run_reuse(void *context)
{
    attend(context, 0);
}

/* Timed after reuse steps have written out, so what is recorded then is about zero; the work is the same. */
static void run_record(void *context)
{
    attend(context, 1);
}

static void run_tiles(void *context)
{
    reusing *c = context;
    mcsa_cpu *cpu = c->problem.state;
    const mcsa_qkv *x = &c->problem.x;
    const mcsa_selection *s = &c->choices[KEYS].s;
    const mcsa_kernels *kernels = mcsa_cpu_kernels(cpu, x->dims.dtype);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int64_t task = 0; task < (int64_t)s->H * s->G; task++) {
        mcsa_tile *tile = &cpu->tiles[omp_get_thread_num()];
        int h = (int)(task / s->G), g = (int)(task % s->G);
        const int32_t *order = s->order + (int64_t)h * s->N + (int64_t)g * s->C, *list = c->lists + task * s->K;
        mcsa_rows queries = mcsa_head_rows(x->q, h, order, 0, mcsa_group_size(s, g));
        mcsa_rows keys = mcsa_head_rows(x->k, h, list, 0, s->K), values = mcsa_head_rows(x->v, h, list, 0, s->K);
        mcsa_tile_load(tile, kernels, &queries);
        mcsa_tile_attend(tile, &keys, &values, x->scale, 0);
    }
}

static void copy_out(const reusing *c, double *to)
{
    const mcsa_dims *dims = &c->problem.x.dims;
    for (int h = 0; h < dims->H; h++)
        for (int n = 0; n < dims->N; n++)
            for (int d = 0; d < dims->D; d++) *to++ = bench_element(&c->problem.out, h, n, d);
}

static void expand_lists(reusing *c)
{
    const mcsa_selection *s = &c->choices[KEYS].s;
    int32_t *list = c->lists;
    for (int64_t g = 0; g < (int64_t)s->H * s->G; g++)
        for (int j = 0; j < s->N; j++)
            if (bench_kept(s, g, j)) *list++ = j;
}

/* Dense, record, reuse: within the form's step of the residual, and within the output's rounding of the three values
 * that were rounded on the way: dense, bare and the sum. */
static int gives_dense_back(form_case *f, double step)
{
    reusing *c = f->choice->owner;
    const mcsa_dims *dims = &c->problem.x.dims;
    const double u = dims->dtype == MCSA_F32 ? 0x1p-20 : 0x1p-8; /* for F32: sums of up to K terms in another order */
    double worst = 0;
    run_dense(c);
    attend(f, 1);
    attend(f, 0);
    for (int64_t row = 0; row < (int64_t)dims->H * dims->N; row++) {
        const double *dense = c->dense + row * dims->D, *bare = f->choice->bare + row * dims->D;
        double largest = 0;
        for (int d = 0; d < dims->D; d++) largest = fmax(largest, fabs(dense[d] - bare[d]) + u * fabs(bare[d]));
        for (int d = 0; d < dims->D; d++) {
            double got = bench_element(&c->problem.out, row / dims->N, row % dims->N, d);
            double bound = step * largest + u * (2 * fabs(dense[d]) + fabs(bare[d])) + 0x1p-20;
            double used = fabs(got - dense[d]) / bound;
            worst = bench_worse(worst, used);
        }
    }
    return worst <= 1;
}

static mcsa_status open_form(form_case *f, const struct form *form, choice_case *choice, mcsa_error *error)
{
    bench_problem *p = &choice->owner->problem;
    size_t bytes = (size_t)mcsa_backend_cpu.residual_bytes(form->form, &p->x.dims);
    if (bytes && mcsa_block_reserve(&p->memory, &f->block, bytes))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a residual of %zu bytes", bytes);
    f->choice = choice;
    f->rows = (mcsa_residual_rows){ form->form, f->block.data, 0 };
    return MCSA_OK;
}

static mcsa_status open_case(reusing *c, const bench_plan *plan, mcsa_error *error)
{
    static const mcsa_tail tails[CHOICES] = { [KEYS] = MCSA_TAIL_OFF, [MEANS] = MCSA_TAIL_MEANS };
    TRY(bench_problem_open(&c->problem, &plan->shape, 0, error));
    for (int i = 0; i < CHOICES; i++) {
        const bench_budget budget = { plan->densities[0], tails[i] };
        c->choices[i].owner = c;
        TRY(bench_problem_select(&c->problem, &c->choices[i].s, &plan->shape, budget, error));
    }
    const mcsa_selection *s = &c->choices[KEYS].s;
    size_t elements = (size_t)s->H * (size_t)s->N * (size_t)plan->shape.dim;
    size_t keys = (size_t)s->H * (size_t)s->G * (size_t)s->K;
    if (mcsa_block_reserve(&c->problem.memory, &c->block, 3 * sizeof *c->dense * elements + sizeof *c->lists * keys))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu kept keys and three outputs in double", keys);
    c->dense = c->block.data;
    c->choices[KEYS].bare = c->dense + elements;
    c->choices[MEANS].bare = c->choices[KEYS].bare + elements;
    c->lists = (int32_t *)(void *)(c->choices[MEANS].bare + elements);
    for (int i = 0; i < FORMS; i++) TRY(open_form(&c->forms[i], &forms[i], &c->choices[forms[i].choice], error));
    return MCSA_OK;
}

static void close_case(reusing *c)
{
    for (int i = 0; i < CHOICES; i++) mcsa_block_release(&c->problem.memory, &c->choices[i].s.memory);
    for (int i = 0; i < FORMS; i++) mcsa_block_release(&c->problem.memory, &c->forms[i].block);
    mcsa_block_release(&c->problem.memory, &c->block);
    bench_problem_close(&c->problem);
}

/* Groups, clusters and kept keys of an anchor, and sparse attention by them. */
static void choose(choice_case *choice)
{
    const bench_problem *p = &choice->owner->problem;
    const mcsa_residual_rows none = { MCSA_RESIDUAL_OFF, NULL, 0 };
    mcsa_backend_cpu.group(p->state, &p->x, &choice->s);
    if (!bench_clusters_make(p, &choice->s)) return;
    mcsa_backend_cpu.select(p->state, &p->x, p->lse, &choice->s);
    mcsa_backend_cpu.attend_tokens(p->state, &p->x, &choice->s, &none);
    copy_out(choice->owner, choice->bare);
    choice->right = bench_check_rows(p, &choice->s) <= 1;
}

static int add(bench_table *table, const char *label, void (*run)(void *), void *context, int right)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = context;
    one->wrong = !right;
    return table->count - 1;
}

static int form_is_right(form_case *f, const struct form *form)
{
    return f->choice->right && (form->form == MCSA_RESIDUAL_OFF || gives_dense_back(f, form->step));
}

/* first: the row of forms[0]; the tiles are the row before. */
static void add_figures(bench_table *table, int first)
{
    const bench_case *tiles = &table->cases[first - 1];
    for (int i = 0; i < FORMS; i++) {
        const bench_case *reuse = &table->cases[first + i];
        if (!reuse->wrong && forms[i].choice == KEYS)
            bench_figure_add(table, 1 - tiles->median_s / reuse->median_s,
                             "share of a reuse step outside the tiles, %s", forms[i].name);
    }
    const bench_case *keys = &table->cases[first + BF16], *means = &table->cases[first + MEANS_BF16];
    if (!keys->wrong && !means->wrong)
        bench_figure_add(table, means->median_s / keys->median_s, "a reuse step with means / without");
}

static mcsa_status fill_table(reusing *c, const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    TRY(open_case(c, plan, error));
    run_dense(c);
    copy_out(c, c->dense);
    add(table, "dense with LSE", run_dense, c, bench_check_rows(&c->problem, NULL) <= 1);
    for (int i = 0; i < CHOICES; i++) choose(&c->choices[i]);
    if (c->choices[KEYS].right) expand_lists(c);
    add(table, "tiles alone", run_tiles, c, c->choices[KEYS].right);
    const int first = table->count;
    for (int i = 0; i < FORMS; i++)
        add(table, forms[i].name, run_reuse, &c->forms[i], form_is_right(&c->forms[i], &forms[i]));
    add(table, "record bf16 residual", run_record, &c->forms[BF16], !table->cases[first + BF16].wrong);
    add(table, "means, record bf16 residual", run_record, &c->forms[MEANS_BF16],
        !table->cases[first + MEANS_BF16].wrong);
    for (int i = 0; i < table->count; i++) {
        bench_case *one = &table->cases[i];
        if (i) one->density = (double)c->choices[KEYS].s.K / c->choices[KEYS].s.N;
        one->operations = bench_dense_operations(&plan->shape) * one->density;
    }
    TRY(bench_run(table, plan->repeats, error));
    add_figures(table, first);
    return MCSA_OK;
}

mcsa_status bench_reuse(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    reusing *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d forms of the residual", FORMS);
    mcsa_status status = fill_table(c, plan, table, error);
    close_case(c);
    free(c);
    return status;
}
