/* methods.c - what one sparse call of every method of sparse attention costs beside dense attention, choosing and
 * attending apart, and what that makes of a run.
 *
 * All methods take the same q, k and v, which drift a little from step to step, so that choices which are reused are
 * out of date as in a run and clusters have something to follow.  Values and keys have no structure and queries have
 * 64 centres: costs are those of the sizes, not of a model's attention.  Methods that need a grid of tokens get the
 * most even one.
 *
 * mc-sparse+tail is MC-Sparse with means, which its density executed counts as it counts keys; the tail of another
 * method is beside its density.
 *
 * A run of 40 steps is the sum of medians: dense steps with what the method watches there, the first anchor of the
 * schedule, later ones where the method makes use of them, and sparse calls for the rest.  The anchor is what one costs
 * beyond dense attention: learning, and the sparse call whose difference is the residual. */
#include "contender.h"

#include "core/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_STEPS = 40, CONTENDERS = 32 };

enum {
    DENSE_MS,
    WATCH_MS,
    ANCHOR_MS,
    CHOOSE_MS,
    ATTEND_MS,
    ANCHOR,
    CHOOSE,
    ATTEND,
    EXECUTED,
    TAIL,
    TIMES_S,
    RUN,
    USED
};

static const bench_column columns[] = {
    [DENSE_MS] = { "dense_ms", NULL, 0 },
    [WATCH_MS] = { "dense_step_choose_ms", NULL, 0 },
    [ANCHOR_MS] = { "anchor_ms", NULL, 0 },
    [CHOOSE_MS] = { "choose_ms", NULL, 0 },
    [ATTEND_MS] = { "attend_ms", NULL, 0 },
    [ANCHOR] = { "anchor_share", "anchor", 1 },
    [CHOOSE] = { "choose_share", "choose", 1 },
    [ATTEND] = { "attend_share", "attend", 1 },
    [EXECUTED] = { "density_executed", "executed", 1 },
    [TAIL] = { "density_tail", "tail", 1 },
    [TIMES_S] = { "times_s", "x s", 0 },
    [RUN] = { "run_40_share", "40 steps", 1 },
    [USED] = { "bound_used", NULL, 0 },
    [USED + 1] = { 0 },
};

/* A row of a contender: the schedule that its run is counted for. */
typedef struct run_row {
    const char *label; /* behind the name */
    mcsa_tail tail;
    int branches;
    const char *schedule;
} run_row;

static const run_row other = { "", MCSA_TAIL_OFF, 1, "paper" };

static const run_row ours[] = {
    { " paper", MCSA_TAIL_OFF, 1, "paper" },
    { " shared paper", MCSA_TAIL_OFF, BENCH_BOTH, "paper" },
    { " shared ramp", MCSA_TAIL_OFF, BENCH_BOTH, "ramp" },
    { "+tail shared paper", MCSA_TAIL_MEANS, BENCH_BOTH, "paper" },
    { "+tail shared ramp", MCSA_TAIL_MEANS, BENCH_BOTH, "ramp" },
    { "+tail shared 6,14,25", MCSA_TAIL_MEANS, BENCH_BOTH, "list:6,14,25" },
    { "+tail shared 3,10,20", MCSA_TAIL_MEANS, BENCH_BOTH, "list:3,10,20" },
};

typedef struct field {
    bench_arena arena;
    bench_contender contenders[CONTENDERS];
    int count;
    double *dense; /* [repeats] */
    double *room;  /* [repeats], for medians */
    int base;      /* the row of dense attention at this density */
    double used;   /* share of its bound that dense attention uses */
} field;

/* Seconds beyond those of dense attention, and the sparse call's. */
typedef struct medians {
    double dense, watch, anchor, choose, attend;
} medians;

static int named_in(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ','), at += at != NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) return 1;
    return !list;
}

static int is_known(const char *name)
{
    return strcmp(name, bench_mc_sparse) == 0 || rival_method_find(name);
}

static mcsa_status check_names(const char *list, mcsa_error *error)
{
    for (const char *at = list; at; at = strchr(at, ','), at += at != NULL) {
        char name[40];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        if (!is_known(name)) return mcsa_fail(error, MCSA_EINVAL, "--methods: there is no method \"%s\"", name);
    }
    return MCSA_OK;
}

static void add_contender(field *f, const char *name, int branches, mcsa_tail tail)
{
    f->contenders[f->count++] = (bench_contender){ .name = name, .branches = branches, .tail = tail };
}

/* MC-Sparse as in the paper, with its branches shared, and with means too, and the others. */
static void enter(field *f, const char *list)
{
    f->count = 0;
    if (named_in(list, bench_mc_sparse)) {
        add_contender(f, bench_mc_sparse, 1, MCSA_TAIL_OFF);
        add_contender(f, bench_mc_sparse, BENCH_BOTH, MCSA_TAIL_OFF);
        add_contender(f, bench_mc_sparse, BENCH_BOTH, MCSA_TAIL_MEANS);
    }
    for (const rival_method *const *m = rival_methods; *m && f->count < CONTENDERS; m++)
        if (named_in(list, (*m)->name)) add_contender(f, (*m)->name, 1, MCSA_TAIL_OFF);
}

static int takes_part(const bench_contender *c)
{
    return c->used <= 1 && !c->missing[0];
}

static mcsa_status prepare(bench_contender *c, bench_arena *arena, float density, mcsa_error *error)
{
    TRY(bench_contender_open(c, arena, density, error));
    if (takes_part(c)) TRY(bench_contender_judge(c, arena, density, error));
    if (takes_part(c)) TRY(bench_contender_watch(c, arena, error));
    return MCSA_OK;
}

static mcsa_status time_all(field *f, mcsa_error *error)
{
    double ignored;
    TRY(bench_arena_dense(&f->arena, &ignored, error));
    for (int r = 0; r < f->arena.plan->repeats; r++) {
        TRY(bench_arena_dense(&f->arena, &f->dense[r], error));
        for (int i = 0; i < f->count; i++)
            if (takes_part(&f->contenders[i]))
                TRY(bench_contender_round(&f->contenders[i], &f->arena, r, f->dense[r], error));
    }
    return MCSA_OK;
}

static double median(double *seconds, int count)
{
    bench_case one;
    bench_summarise(&one, seconds, count);
    return one.median_s;
}

static medians measured(const field *f, const bench_contender *c)
{
    const int repeats = f->arena.plan->repeats, anchors = f->arena.anchors;
    medians m = { .watch = c->watch.choose };
    memcpy(f->room, f->dense, sizeof *f->room * (size_t)repeats);
    m.dense = median(f->room, repeats);
    for (int i = 0; i < anchors; i++) f->room[i] = c->anchor[i].choose + c->anchor[i].attend;
    m.anchor = median(f->room, anchors);
    for (int r = 0; r < repeats; r++) f->room[r] = c->calls[r].choose;
    m.choose = median(f->room, repeats);
    for (int r = 0; r < repeats; r++) f->room[r] = c->calls[r].attend;
    m.attend = median(f->room, repeats);
    return m;
}

/* Attention of a run over that of dense attention. */
static double run_share(const bench_contender *c, const medians *m, const char *schedule)
{
    mcsa_action actions[RUN_STEPS];
    mcsa_schedule_fill(schedule, RUN_STEPS, actions, NULL, 0);
    double total = 0;
    for (int step = 0, sparse = 0; step < RUN_STEPS; step++) {
        if (actions[step] == MCSA_DENSE)
            total += m->dense + m->watch;
        else if (actions[step] == MCSA_ANCHOR && (c->anchors || !sparse))
            total += m->dense + m->anchor;
        else
            total += m->choose + m->attend;
        sparse |= actions[step] == MCSA_REUSE;
    }
    return total / (RUN_STEPS * m->dense);
}

static void fill_row(const field *f, const bench_contender *c, const char *schedule, bench_case *row)
{
    const int repeats = f->arena.plan->repeats;
    const medians m = measured(f, c);
    for (int r = 0; r < repeats; r++) f->room[r] = c->calls[r].choose + c->calls[r].attend;
    bench_summarise(row, f->room, repeats);
    row->density = c->executed;
    row->values[DENSE_MS] = 1e3 * m.dense;
    row->values[WATCH_MS] = 1e3 * m.watch;
    row->values[ANCHOR_MS] = 1e3 * m.anchor;
    row->values[CHOOSE_MS] = 1e3 * m.choose;
    row->values[ATTEND_MS] = 1e3 * m.attend;
    row->values[ANCHOR] = m.anchor / m.dense;
    row->values[CHOOSE] = m.choose / m.dense;
    row->values[ATTEND] = m.attend / m.dense;
    row->values[EXECUTED] = c->executed;
    row->values[TAIL] = c->virtual_keys;
    row->values[TIMES_S] = m.dense * c->executed / (m.choose + m.attend);
    row->values[USED] = c->used;
    row->values[RUN] = run_share(c, &m, schedule);
}

static void add_row(const field *f, const bench_contender *c, const run_row *as, float density, bench_table *table)
{
    char label[48];
    snprintf(label, sizeof label, "%.2f %s%s", (double)density, c->name, as->label);
    bench_case *row = bench_add(table, label);
    row->base = f->base;
    row->wrong = !(c->used <= 1 && f->used <= 1); /* its time is compared with dense attention's */
    memcpy(row->missing, c->missing, sizeof row->missing);
    if (takes_part(c) && !row->wrong) fill_row(f, c, as->schedule, row);
}

static void add_rows(const field *f, float density, bench_table *table)
{
    for (int i = 0; i < f->count; i++) {
        const bench_contender *c = &f->contenders[i];
        if (c->name != bench_mc_sparse) add_row(f, c, &other, density, table);
        for (size_t o = 0; c->name == bench_mc_sparse && o < sizeof ours / sizeof *ours; o++)
            if (ours[o].branches == c->branches && ours[o].tail == c->tail) add_row(f, c, &ours[o], density, table);
    }
}

/* The row of dense attention, as it was timed in turn with the methods at this density. */
static void add_dense(field *f, float density, bench_table *table)
{
    const int repeats = f->arena.plan->repeats;
    char label[48];
    snprintf(label, sizeof label, "%.2f dense attention", (double)density);
    f->base = table->count;
    bench_case *row = bench_add(table, label);
    row->base = f->base;
    row->operations = bench_dense_operations(&f->arena.plan->shape);
    row->wrong = !(f->used <= 1);
    for (int i = 0; i < BENCH_COLUMNS; i++) row->values[i] = NAN;
    row->values[USED] = f->used;
    memcpy(f->room, f->dense, sizeof *f->room * (size_t)repeats);
    if (!row->wrong) bench_summarise(row, f->room, repeats);
}

static mcsa_status compete(field *f, const char *list, float density, bench_table *table, mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    enter(f, list);
    for (int i = 0; status == MCSA_OK && i < f->count; i++)
        status = prepare(&f->contenders[i], &f->arena, density, error);
    if (status == MCSA_OK) status = time_all(f, error);
    if (status == MCSA_OK) {
        add_dense(f, density, table);
        add_rows(f, density, table);
    }
    for (int i = 0; i < f->count; i++) bench_contender_close(&f->contenders[i]);
    return status;
}

mcsa_status bench_methods(const bench_plan *plan, bench_table *table, mcsa_error *error)
{
    TRY(check_names(plan->methods, error));
    field *f = calloc(1, sizeof *f);
    if (!f) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d methods", CONTENDERS);
    mcsa_status status = bench_arena_open(&f->arena, plan, error);
    if (status != MCSA_OK) goto done;
    const size_t times = (size_t)plan->repeats;
    f->dense = malloc(2 * sizeof *f->dense * times);
    if (!f->dense) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu times", times);
        goto close;
    }
    f->room = f->dense + times;
    table->columns = columns;
    status = bench_arena_judge(&f->arena, &f->used, error);
    for (int i = 0; status == MCSA_OK && i < plan->density_count; i++)
        status = compete(f, plan->methods, plan->densities[i], table, error);
close:
    bench_arena_close(&f->arena);
done:
    free(f->dense);
    free(f);
    return status;
}
