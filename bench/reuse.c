/* reuse.c - token-sparse attention as a run calls it: the groups and keys that grouping and selection chose, recording
 * the residual at an anchor, adding it in each form at a reuse step, and the same tiles with their key lists expanded
 * beforehand and nothing written, which is what the rest of a reuse step is overhead to.  Gates: sparse rows in double;
 * reuse of the same q, k, v gives the dense output back to the rounding of the form. */
#include "suites.h"

#include "cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { FORMS = 4 };

typedef struct reusing reusing;

/* One form of the residual. */
typedef struct form_case {
    reusing *owner;
    mcsa_residual_rows rows;
    mcsa_block block;
} form_case;

struct reusing {
    bench_problem problem;
    mcsa_selection s;
    mcsa_block block;
    int32_t *lists;       /* [H, G, K] kept keys */
    double *dense, *bare; /* [H, N, D] dense and uncompensated output */
    form_case forms[FORMS];
};

static const struct form {
    mcsa_residual form;
    const char *name;
    double step; /* largest rounding of an element over the largest of its row, or over itself for bf16 */
} forms[FORMS] = {
    { MCSA_RESIDUAL_OFF, "no residual", 0 },
    { MCSA_RESIDUAL_BF16, "bf16 residual", 0x1p-8 },
    { MCSA_RESIDUAL_INT8, "int8 residual", 0.5 / 127 },
    { MCSA_RESIDUAL_INT4, "int4 residual", 0.5 / 7 },
};

static void run_dense(void *context)
{
    reusing *c = context;
    mcsa_backend_cpu.attend_dense(c->problem.state, &c->problem.x, c->problem.lse);
}

static void attend(form_case *f, int record)
{
    f->rows.record = record;
    mcsa_backend_cpu.attend_tokens(f->owner->problem.state, &f->owner->problem.x, &f->owner->s, &f->rows);
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
    const mcsa_selection *s = &c->s;
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
    const mcsa_selection *s = &c->s;
    int32_t *list = c->lists;
    for (int64_t g = 0; g < (int64_t)s->H * s->G; g++)
        for (int j = 0; j < s->N; j++)
            if (s->kept[g * s->words + j / 64] >> (j % 64) & 1) *list++ = j;
}

/* Dense, record, reuse: within the form's step of the residual, and within the output's rounding of the three values
 * that were rounded on the way: dense, bare and the sum. */
static int gives_dense_back(form_case *f, double step)
{
    reusing *c = f->owner;
    const mcsa_dims *dims = &c->problem.x.dims;
    const double u = dims->dtype == MCSA_F32 ? 0x1p-20 : 0x1p-8; /* for F32: sums of up to K terms in another order */
    double worst = 0;
    run_dense(c);
    attend(f, 1);
    attend(f, 0);
    for (int64_t row = 0; row < (int64_t)dims->H * dims->N; row++) {
        const double *dense = c->dense + row * dims->D, *bare = c->bare + row * dims->D;
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

static mcsa_status open_case(reusing *c, const bench_plan *plan, mcsa_error *error)
{
    TRY(bench_problem_open(&c->problem, &plan->shape, 0, error));
    TRY(bench_selection_open(&c->s, &c->problem.memory, &plan->shape, plan->densities[0], error));
    size_t elements = (size_t)c->s.H * (size_t)c->s.N * (size_t)plan->shape.dim;
    size_t keys = (size_t)c->s.H * (size_t)c->s.G * (size_t)c->s.K;
    if (mcsa_block_reserve(&c->problem.memory, &c->block, 2 * sizeof *c->dense * elements + sizeof *c->lists * keys))
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu kept keys and two outputs in double", keys);
    c->dense = c->block.data;
    c->bare = c->dense + elements;
    c->lists = (int32_t *)(void *)(c->bare + elements);
    for (int i = 0; i < FORMS; i++) {
        form_case *f = &c->forms[i];
        size_t bytes = (size_t)mcsa_backend_cpu.residual_bytes(forms[i].form, &c->problem.x.dims);
        if (bytes && mcsa_block_reserve(&c->problem.memory, &f->block, bytes))
            return mcsa_fail(error, MCSA_ENOMEM, "no memory for a residual of %zu bytes", bytes);
        f->owner = c;
        f->rows = (mcsa_residual_rows){ forms[i].form, f->block.data, 0 };
    }
    return MCSA_OK;
}

static int add(bench_table *table, const char *label, void (*run)(void *), void *context, int right)
{
    bench_case *one = bench_add(table, label);
    one->run = run;
    one->context = context;
    one->wrong = !right;
    return table->count - 1;
}

mcsa_status bench_reuse(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    reusing *c = calloc(1, sizeof *c);
    if (!c) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d forms of the residual", FORMS);
    mcsa_status status = open_case(c, plan, error);
    if (status != MCSA_OK) goto done;
    run_dense(c);
    copy_out(c, c->dense);
    add(table, "dense with LSE", run_dense, c, bench_check_rows(&c->problem, NULL) <= 1);
    mcsa_backend_cpu.group(c->problem.state, &c->problem.x, &c->s);
    mcsa_backend_cpu.select(c->problem.state, &c->problem.x, c->problem.lse, &c->s);
    expand_lists(c);
    attend(&c->forms[0], 0);
    copy_out(c, c->bare);
    int bare = bench_check_rows(&c->problem, &c->s) <= 1;
    int tiles = add(table, "tiles alone", run_tiles, c, bare), reuse[FORMS];
    for (int i = 0; i < FORMS; i++)
        reuse[i] = add(table, forms[i].name, run_reuse, &c->forms[i],
                       i ? bare && gives_dense_back(&c->forms[i], forms[i].step) : bare);
    add(table, "record bf16 residual", run_record, &c->forms[1], !table->cases[reuse[1]].wrong);
    for (int i = 0; i < table->count; i++) {
        bench_case *one = &table->cases[i];
        if (i) one->density = (double)c->s.K / c->s.N;
        one->operations = bench_dense_operations(&plan->shape) * one->density;
    }
    if ((status = bench_run(table, plan->repeats, error)) != MCSA_OK) goto done;
    for (int i = 0; i < FORMS; i++)
        if (!table->cases[reuse[i]].wrong)
            bench_figure_add(table, 1 - table->cases[tiles].median_s / table->cases[reuse[i]].median_s,
                             "share of a reuse step outside the tiles, %s", forms[i].name);
done:
    mcsa_block_release(&c->problem.memory, &c->s.memory);
    mcsa_block_release(&c->problem.memory, &c->block);
    for (int i = 0; i < FORMS; i++) mcsa_block_release(&c->problem.memory, &c->forms[i].block);
    bench_problem_close(&c->problem);
    free(c);
    return status;
}
