/* contender.c - see contender.h. */
#include "contender.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char bench_mc_sparse[] = "mc-sparse";

/* Arrays of bench_arena.answers: of dense attention by the step of the clip, of the sparse output at the anchor by
 * branch, and of the output that is looked at. */
enum { DENSE, AT_ANCHOR = DENSE + BENCH_CLIP_STEPS, NOW = AT_ANCHOR + BENCH_BOTH, ANSWERS };

/* Anchors cost more than sparse calls do and are not what the table is about. */
enum { MOST_ANCHORS = 5 };

static bench_answer *answers_of(const bench_arena *arena, int which)
{
    return arena->answers + (size_t)which * BENCH_CLIP_ROWS;
}

static int clip_step(int step, int branch)
{
    return (step + branch) % BENCH_CLIP_STEPS;
}

static int first_step(int round)
{
    return BENCH_GATE_STEP + 1 + 3 * round;
}

/* Anchors are spread evenly over the rounds: round r has number r anchors / repeats, if the one before has not. */
static int anchor_of(const bench_arena *arena, int r)
{
    const int repeats = arena->plan->repeats, number = r * arena->anchors / repeats;
    return r == 0 || (r - 1) * arena->anchors / repeats < number ? number : -1;
}

static mcsa_status fill_actions(bench_arena *arena, mcsa_error *error)
{
    const int repeats = arena->plan->repeats;
    arena->anchors = repeats < 2 * MOST_ANCHORS ? (repeats + 1) / 2 : MOST_ANCHORS;
    arena->steps = first_step(repeats);
    arena->actions = malloc(sizeof *arena->actions * (size_t)arena->steps);
    arena->answers = malloc(sizeof *arena->answers * ANSWERS * BENCH_CLIP_ROWS);
    if (!arena->actions || !arena->answers)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d steps and %d answers", arena->steps, ANSWERS);
    for (int step = 0; step < arena->steps; step++) arena->actions[step] = MCSA_REUSE;
    arena->actions[0] = MCSA_DENSE;
    arena->actions[BENCH_FIRST_ANCHOR] = MCSA_ANCHOR;
    for (int r = 0; r < repeats; r++)
        if (anchor_of(arena, r) >= 0) arena->actions[first_step(r)] = MCSA_ANCHOR;
    return MCSA_OK;
}

static mcsa_config config_of(const bench_arena *arena, int branches, mcsa_tail tail, float density)
{
    const bench_shape *shape = &arena->plan->shape;
    return (mcsa_config){ .steps = arena->steps,
                          .layers = 1,
                          .branches = branches,
                          .density = density,
                          .group = shape->group,
                          .tail = tail,
                          .actions = arena->actions,
                          .threads = shape->threads,
                          .isa = shape->isa,
                          .device = arena->plan->device };
}

/* Answers of dense attention at every step of the clip, for all contenders. */
static mcsa_status answer_dense(bench_arena *arena, mcsa_error *error)
{
    for (int step = 0; step < BENCH_CLIP_STEPS; step++)
        TRY(bench_answers(answers_of(arena, DENSE + step), &arena->clip, step, NULL, error));
    return MCSA_OK;
}

mcsa_status bench_arena_open(bench_arena *arena, const bench_plan *plan, mcsa_error *error)
{
    memset(arena, 0, sizeof *arena);
    arena->plan = plan;
    TRY(bench_clip_open(&arena->clip, plan, error));
    mcsa_status status = fill_actions(arena, error);
    if (status == MCSA_OK) {
        const mcsa_config config = config_of(arena, 1, MCSA_TAIL_OFF, 1);
        status = mcsa_run_create(&arena->dense, &config, error->text, sizeof error->text);
    }
    if (status == MCSA_OK) status = answer_dense(arena, error);
    if (status != MCSA_OK) bench_arena_close(arena);
    return status;
}

void bench_arena_close(bench_arena *arena)
{
    mcsa_run_free(arena->dense);
    free(arena->actions);
    free(arena->answers);
    bench_clip_close(&arena->clip);
    memset(arena, 0, sizeof *arena);
}

/* Waits until the calls so far are done.  A reuse that became an anchor is not what was asked. */
static mcsa_status settle(mcsa_run *run, mcsa_error *error)
{
    mcsa_stats stats = { .size = sizeof stats };
    TRY(mcsa_run_stats(run, &stats));
    if (!stats.fallback) return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "%lld calls fell back to an anchor", (long long)stats.fallback);
}

mcsa_status bench_arena_dense(bench_arena *arena, double *seconds, mcsa_error *error)
{
    const bench_moment *at = &arena->clip.there[0];
    const double begin = mcsa_seconds();
    mcsa_status status = mcsa_attend_dense(arena->dense, &at->q, &at->k, &at->v, &arena->clip.out, arena->clip.lse);
    if (status != MCSA_OK) return mcsa_fail(error, status, "%s", mcsa_run_error(arena->dense));
    TRY(settle(arena->dense, error));
    *seconds = mcsa_seconds() - begin;
    return MCSA_OK;
}

static mcsa_status judge_rows(bench_arena *arena, const bench_answer *answers, double *used, mcsa_error *error)
{
    const size_t D = (size_t)arena->clip.out.shape[2];
    float *rows = malloc(sizeof *rows * BENCH_CLIP_ROWS * D);
    if (!rows) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d rows", BENCH_CLIP_ROWS);
    mcsa_status status = bench_clip_fetch(&arena->clip, rows, error);
    if (status == MCSA_OK) *used = bench_worse(*used, bench_answers_used(answers, rows, &arena->clip));
    free(rows);
    return status;
}

mcsa_status bench_arena_judge(bench_arena *arena, double *used, mcsa_error *error)
{
    double ignored;
    *used = 0;
    TRY(bench_clip_poison(&arena->clip, error));
    TRY(bench_arena_dense(arena, &ignored, error));
    return judge_rows(arena, answers_of(arena, DENSE), used, error);
}

/* Keeps a failure that concerns this method on this machine as what is missing. */
static mcsa_status forgive(bench_contender *c, mcsa_status status, const mcsa_error *why, mcsa_error *error)
{
    if (status == MCSA_OK) return MCSA_OK;
    if (status != MCSA_ENOMEM && status != MCSA_EUNSUPPORTED)
        return mcsa_fail(error, status, "%s: %.400s", c->name, why->text);
    snprintf(c->missing, sizeof c->missing, "%.*s", (int)sizeof c->missing - 1, why->text);
    return MCSA_OK;
}

/* The grid of N tokens with the most even sides, frames first. */
static void even_grid(int N, int *grid)
{
    grid[0] = grid[1] = 1;
    for (int f = 1; f * f * f <= N; f++)
        if (N % f == 0) grid[0] = f;
    for (int r = 1; r * r <= N / grid[0]; r++)
        if (N / grid[0] % r == 0) grid[1] = r;
    grid[2] = N / grid[0] / grid[1];
}

static mcsa_status open_run(bench_contender *c, const bench_arena *arena, float density, mcsa_error *error)
{
    const mcsa_config config = config_of(arena, c->branches, c->tail, density);
    c->anchors = c->learns = c->residual = 1;
    if (c->name == bench_mc_sparse) return mcsa_run_create(&c->ours, &config, error->text, sizeof error->text);
    const rival_method *method = rival_method_find(c->name);
    rival_config rival = { .attention = config, .method = c->name, .seed = 1 };
    even_grid(arena->plan->shape.tokens, rival.grid);
    TRY(rival_run_create(&c->rival, &rival, error));
    c->anchors = method->anchors || method->residual;
    c->residual = method->residual;
    c->learns = method->observe || method->residual;
    return MCSA_OK;
}

mcsa_status bench_contender_open(bench_contender *c, bench_arena *arena, float density, mcsa_error *error)
{
    mcsa_error why = { "" };
    c->anchor = calloc((size_t)(arena->anchors + arena->plan->repeats), sizeof *c->anchor);
    if (!c->anchor) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d times", arena->plan->repeats);
    c->calls = c->anchor + arena->anchors;
    return forgive(c, open_run(c, arena, density, &why), &why, error);
}

void bench_contender_close(bench_contender *c)
{
    rival_run_free(c->rival);
    mcsa_run_free(c->ours);
    free(c->anchor);
    c->rival = NULL;
    c->ours = NULL;
    c->anchor = c->calls = NULL;
}

static mcsa_status call_ours(bench_contender *c, bench_arena *arena, mcsa_site at, bench_call_cost *cost,
                             mcsa_error *why)
{
    const bench_moment *x = &arena->clip.there[clip_step(at.step, at.branch)];
    const double begin = mcsa_seconds();
    mcsa_status status = mcsa_attend(c->ours, at, &x->q, &x->k, &x->v, &arena->clip.out);
    if (status != MCSA_OK) return mcsa_fail(why, status, "%s", mcsa_run_error(c->ours));
    TRY(settle(c->ours, why));
    cost->attend += mcsa_seconds() - begin;
    return MCSA_OK;
}

/* One call of a branch; adds its seconds to *cost. */
static mcsa_status call(bench_contender *c, bench_arena *arena, mcsa_site at, bench_call_cost *cost, mcsa_error *why)
{
    const bench_moment *x = &arena->clip.there[clip_step(at.step, at.branch)];
    rival_stats before, after;
    if (c->ours) return call_ours(c, arena, at, cost, why);
    rival_run_stats(c->rival, &before);
    mcsa_status status = rival_attend(c->rival, at, &x->q, &x->k, &x->v, &arena->clip.out);
    rival_run_stats(c->rival, &after);
    cost->choose += after.choose_s - before.choose_s;
    cost->attend += after.attend_s - before.attend_s;
    return status == MCSA_OK ? MCSA_OK : mcsa_fail(why, status, "%s", rival_run_error(c->rival));
}

/* All branches of a step, one after the other; *cost gets their mean. */
static mcsa_status take_step(bench_contender *c, bench_arena *arena, int step, bench_call_cost *cost, mcsa_error *error)
{
    mcsa_error why = { "" };
    *cost = (bench_call_cost){ 0 };
    for (int branch = 0; branch < c->branches && !c->missing[0]; branch++)
        TRY(forgive(c, call(c, arena, (mcsa_site){ step, 0, branch }, cost, &why), &why, error));
    cost->choose /= c->branches;
    cost->attend /= c->branches;
    return MCSA_OK;
}

/* Queries, padded as rival_map_pairs pads them, times the means that they attend to. */
static double mean_pairs(const rival_choice *choice)
{
    const rival_map *map = &choice->map;
    double pairs = 0;
    for (int h = 0; choice->tail.key && h < map->H; h++)
        for (int q = 0; q < map->Q; q++) {
            int means = 0;
            for (int k = 0; k < map->K; k++)
                means += !rival_map_has(map, h, q, k) && rival_part_size(&choice->keys, h, k) > 0;
            pairs += (double)means * rival_tile_rows(rival_part_size(&choice->queries, h, q));
        }
    return pairs;
}

/* Answers of what the last call chose; *executed gets the density of it. */
static mcsa_status answer_choice(bench_contender *c, bench_arena *arena, mcsa_site at, int which, double *executed,
                                 mcsa_error *error)
{
    const int step = clip_step(at.step, at.branch);
    rival_choice made = { 0 };
    if (c->ours) TRY(bench_choice_of(&made, c->ours, at.branch, &arena->clip, step, error));
    const rival_choice *choice = c->ours ? &made : rival_run_choice(c->rival);
    const double H = choice->map.H, N = choice->queries.N;
    const double exact = rival_map_pairs(&choice->map, &choice->queries, &choice->keys).executed;
    *executed = (exact + (c->ours ? mean_pairs(choice) : 0)) / (H * N * N);
    mcsa_status status = bench_answers(answers_of(arena, which), &arena->clip, step, choice, error);
    rival_choice_free(&made);
    return status;
}

/* One call into NaN; c->missing says when there was none. */
static mcsa_status call_afresh(bench_contender *c, bench_arena *arena, mcsa_site at, mcsa_error *error)
{
    mcsa_error why = { "" };
    bench_call_cost cost = { 0 };
    TRY(bench_clip_poison(&arena->clip, error));
    return forgive(c, call(c, arena, at, &cost, &why), &why, error);
}

static mcsa_status judge_anchor(bench_contender *c, bench_arena *arena, int branch, mcsa_error *error)
{
    const mcsa_site at = { BENCH_FIRST_ANCHOR, 0, branch };
    double executed;
    TRY(call_afresh(c, arena, at, error));
    if (c->missing[0]) return MCSA_OK;
    TRY(judge_rows(arena, answers_of(arena, DENSE + clip_step(at.step, branch)), &c->used, error));
    return c->residual ? answer_choice(c, arena, at, AT_ANCHOR + branch, &executed, error) : MCSA_OK;
}

static mcsa_status judge_sparse(bench_contender *c, bench_arena *arena, int branch, mcsa_error *error)
{
    const mcsa_site at = { BENCH_GATE_STEP, 0, branch };
    const bench_answer *dense = answers_of(arena, DENSE + clip_step(BENCH_FIRST_ANCHOR, branch));
    bench_answer *now = answers_of(arena, NOW);
    TRY(call_afresh(c, arena, at, error));
    if (c->missing[0]) return MCSA_OK;
    TRY(answer_choice(c, arena, at, NOW, &c->executed, error));
    int32_t index[BENCH_CLIP_ROWS];
    const int samples = c->residual ? bench_clip_sample(&arena->clip, index) : 0;
    for (int i = 0; i < samples; i++)
        bench_answer_compensate(&now[i], &dense[i], &answers_of(arena, AT_ANCHOR + branch)[i], &arena->clip);
    return judge_rows(arena, now, &c->used, error);
}

mcsa_status bench_contender_judge(bench_contender *c, bench_arena *arena, float density, mcsa_error *error)
{
    for (int branch = 0; branch < c->branches && !c->missing[0]; branch++) TRY(judge_anchor(c, arena, branch, error));
    for (int branch = 0; branch < c->branches && !c->missing[0]; branch++) TRY(judge_sparse(c, arena, branch, error));
    if (c->missing[0]) return MCSA_OK;
    if (c->rival) {
        rival_stats stats;
        rival_run_stats(c->rival, &stats);
        c->virtual_keys = stats.density_tail;
    }
    if (!(fabs(c->executed - (double)density) <= 0.005))
        snprintf(c->missing, sizeof c->missing, "executes %.2f %% of the pairs, not %.2f %%: not timed",
                 100 * c->executed, 100 * (double)density);
    return MCSA_OK;
}

mcsa_status bench_contender_watch(bench_contender *c, bench_arena *arena, mcsa_error *error)
{
    return c->rival ? take_step(c, arena, 0, &c->watch, error) : MCSA_OK; /* MC-Sparse learns nothing there */
}

/* Methods without later anchors do the first one again. */
static mcsa_status take_anchor(bench_contender *c, bench_arena *arena, int r, double dense, mcsa_error *error)
{
    bench_call_cost ignored, *cost = &c->anchor[anchor_of(arena, r)];
    TRY(take_step(c, arena, c->anchors ? first_step(r) : BENCH_FIRST_ANCHOR, cost, error));
    if (c->ours) cost->attend -= dense;
    return take_step(c, arena, first_step(r) + 1, &ignored, error);
}

mcsa_status bench_contender_round(bench_contender *c, bench_arena *arena, int r, double dense, mcsa_error *error)
{
    if (c->learns && anchor_of(arena, r) >= 0) TRY(take_anchor(c, arena, r, dense, error));
    return take_step(c, arena, first_step(r) + 2, &c->calls[r], error);
}
