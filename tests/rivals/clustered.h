/* clustered.h - what the tests of methods that cluster share: rows around centres, the CPU's kernels, and a method
 * opened without a run. */
#ifndef MCSA_TESTS_RIVALS_CLUSTERED_H
#define MCSA_TESTS_RIVALS_CLUSTERED_H

#include "test.h"

#include "rivals/method.h"

#define assert_done(call)                                                  \
    do {                                                                   \
        mcsa_error done_error = { "" };                                    \
        if ((call) != MCSA_OK) fail_msg("%s: %s", #call, done_error.text); \
    } while (0)

static inline void *clustered_kernels(int threads)
{
    void *state = NULL;
    assert_done(rival_kernels_cpu.open(&state, &(mcsa_config){ .threads = threads }, &done_error));
    return state;
}

/* Rows around `centres` places of each head, drawn at random and normal with `amplitude`, `spread` apart from them. */
static inline void clustered_fill(const mcsa_tensor *t, int centres, double amplitude, double spread, uint64_t seed)
{
    uint64_t places = 7919 * seed;
    for (int64_t h = 0; h < t->shape[0]; h++)
        for (int64_t n = 0; n < t->shape[1]; n++) {
            uint64_t place = places + 1000 * (uint64_t)(h + 1) + (uint64_t)test_below(&seed, centres);
            for (int64_t d = 0; d < t->shape[2]; d++)
                test_set(t, h, n, d, amplitude * test_normal(&place) + spread * test_normal(&seed));
        }
}

typedef struct clustered_run {
    const rival_method *method;
    rival_setup setup;
    void *state; /* the method's */
    float *lse;  /* [H, N] of the tensors at hand */
} clustered_run;

/* dense: the run of the dense calls, or NULL for methods that do not ask it. */
static inline clustered_run clustered_open_beside(mcsa_run *dense, const rival_method *method, double density,
                                                  int threads)
{
    clustered_run run = { .method = method };
    run.setup = (rival_setup){ .kernels = &rival_kernels_cpu,
                               .backend = clustered_kernels(threads),
                               .dense = dense,
                               .layers = 2,
                               .branches = 2,
                               .density = density,
                               .threads = threads,
                               .seed = 77 };
    assert_done(method->open(&run.state, &run.setup, &done_error));
    return run;
}

static inline clustered_run clustered_open(const rival_method *method, double density, int threads)
{
    return clustered_open_beside(NULL, method, density, threads);
}

static inline void clustered_close(clustered_run *run)
{
    run->method->close(run->state);
    rival_kernels_cpu.close(run->setup.backend);
    free(run->lse);
}

static inline mcsa_qkv clustered_x(const test_call *c)
{
    return (mcsa_qkv){ .q = &c->q.view,
                       .k = &c->k.view,
                       .v = &c->v.view,
                       .out = &c->out.view,
                       .dims = { c->H, c->N, c->M, c->D, c->dtype },
                       .scale = 1 / sqrtf((float)c->D) };
}

static inline const rival_choice *clustered_choose(clustered_run *run, mcsa_site at, const mcsa_qkv *x)
{
    const rival_choice *choice = NULL;
    const rival_call call = { .at = at, .x = x };
    assert_done(run->method->choose(run->state, &call, &choice, &done_error));
    return choice;
}

/* The dense call before: anchor says whether the warm-up ends with it. */
static inline void clustered_observe(clustered_run *run, mcsa_site at, const mcsa_qkv *x, int anchor)
{
    const rival_call call = { .at = at, .x = x, .lse = run->lse, .anchor = anchor };
    assert_done(run->method->observe(run->state, &call, &done_error));
}

/* The choice computed into x->out. */
static inline void clustered_attend(clustered_run *run, const rival_choice *choice, const mcsa_qkv *x)
{
    const rival_kernels *k = run->setup.kernels;
    run->lse = realloc(run->lse, sizeof *run->lse * (size_t)x->dims.H * (size_t)x->dims.N);
    assert_non_null(run->lse);
    assert_done(k->attend(run->setup.backend, x, &choice->queries, &choice->keys, &choice->map, run->lse, &done_error));
    if (choice->tail.key)
        assert_done(
            k->tail(run->setup.backend, x, &choice->queries, &choice->map, &choice->tail, run->lse, &done_error));
}

/* Executed pairs over all pairs. */
static inline double clustered_density(const rival_choice *choice)
{
    const rival_map *map = &choice->map;
    double N = choice->queries.N;
    return rival_map_pairs(map, &choice->queries, &choice->keys).executed / (map->H * N * N);
}

/* The x of [-1, 1.01] between which pairs(x) pass `target`, as near to one another as floats go: nearer, the roundings
 * of a budget come apart that are meant to be one. */
static inline void clustered_bracket(double (*pairs)(const void *user, double x), const void *user, double target,
                                     double *low, double *high)
{
    *low = -1;
    *high = 1.01;
    for (int i = 0; i < 40; i++) {
        double middle = (*low + *high) / 2;
        if ((float)middle == (float)*low || (float)middle == (float)*high) break;
        *(pairs(user, middle) < target ? low : high) = middle;
    }
}

/* Whether two choices keep the same pairs of the same parts. */
static inline int clustered_same(const rival_choice *a, const rival_choice *b)
{
    const rival_partition *parts[2][2] = { { &a->queries, &b->queries }, { &a->keys, &b->keys } };
    for (int i = 0; i < 2; i++) {
        const rival_partition *p = parts[i][0], *q = parts[i][1];
        if (p->H != q->H || p->N != q->N || p->P != q->P) return 0;
        if (memcmp(p->order, q->order, sizeof *p->order * (size_t)p->H * (size_t)p->N) != 0) return 0;
        if (memcmp(p->first, q->first, sizeof *p->first * (size_t)p->H * (size_t)(p->P + 1)) != 0) return 0;
    }
    size_t words = (size_t)a->map.H * (size_t)a->map.Q * (size_t)a->map.words;
    return memcmp(a->map.kept, b->map.kept, sizeof *a->map.kept * words) == 0;
}

#endif
