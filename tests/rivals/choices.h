/* choices.h - a method without a run: what it chooses after a dense call, and whether that is a choice at all. */
#ifndef MCSA_TESTS_RIVALS_CHOICES_H
#define MCSA_TESTS_RIVALS_CHOICES_H

#include "fixture.h"

typedef struct chooser {
    const rival_method *method;
    mcsa_run *dense;
    rival_setup setup;
    void *state; /* the method's */
    float *lse;  /* [H, N] */
} chooser;

/* config as for a run. */
static inline chooser chooser_open(const rival_config *config)
{
    mcsa_error error = { "" };
    chooser c = { .method = rival_method_find(config->method), .dense = test_run(&config->attention) };
    void *backend = NULL;
    assert_non_null(c.method);
    if (rival_kernels_cpu.open(&backend, &config->attention, &error) != MCSA_OK) fail_msg("%s", error.text);
    c.setup = (rival_setup){ .kernels = &rival_kernels_cpu,
                             .backend = backend,
                             .dense = c.dense,
                             .layers = config->attention.layers,
                             .branches = 1,
                             .grid = { config->grid[0], config->grid[1], config->grid[2] },
                             .density = (double)config->attention.density,
                             .threads = config->attention.threads,
                             .seed = config->seed };
    if (c.method->open(&c.state, &c.setup, &error) != MCSA_OK) fail_msg("%s: %s", config->method, error.text);
    return c;
}

static inline void chooser_close(chooser *c)
{
    c->method->close(c->state);
    rival_kernels_cpu.close(c->setup.backend);
    mcsa_run_free(c->dense);
    free(c->lse);
}

static inline mcsa_qkv chooser_x(const test_call *c)
{
    return (mcsa_qkv){ .q = &c->q.view,
                       .k = &c->k.view,
                       .v = &c->v.view,
                       .out = &c->out.view,
                       .dims = { c->H, c->N, c->M, c->D, c->dtype },
                       .scale = 1 / sqrtf((float)c->D) };
}

/* The dense calls of the warm-up at steps 0 and 1, whose last is the anchor. */
static inline void chooser_warm_up(chooser *c, const test_call *call)
{
    mcsa_error error = { "" };
    mcsa_qkv x = chooser_x(call);
    c->lse = realloc(c->lse, sizeof *c->lse * (size_t)call->H * (size_t)call->N);
    assert_non_null(c->lse);
    for (int step = 0; step < 2; step++) {
        rival_call now = { .at = { step, 0, 0 }, .x = &x, .lse = c->lse, .anchor = step == 1 };
        assert_int_equal(mcsa_attend_dense(c->dense, &call->q.view, &call->k.view, &call->v.view, &call->out.view,
                                           c->lse),
                         MCSA_OK);
        if (c->method->observe && c->method->observe(c->state, &now, &error) != MCSA_OK)
            fail_msg("%s: %s", c->method->name, error.text);
    }
}

static inline const rival_choice *chooser_choose(chooser *c, const test_call *call, int step)
{
    mcsa_error error = { "" };
    const rival_choice *choice = NULL;
    mcsa_qkv x = chooser_x(call);
    rival_call now = { .at = { step, 0, 0 }, .x = &x, .lse = c->lse };
    if (c->method->choose(c->state, &now, &choice, &error) != MCSA_OK) fail_msg("%s: %s", c->method->name, error.text);
    return choice;
}

static inline double choice_density(const rival_choice *choice)
{
    double N = choice->queries.N;
    return rival_map_pairs(&choice->map, &choice->queries, &choice->keys).executed / (choice->map.H * N * N);
}

#endif
