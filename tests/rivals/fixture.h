/* fixture.h - what the tests over all methods share: a run of one method on a grid of tokens, and its calls. */
#ifndef MCSA_TESTS_RIVALS_FIXTURE_H
#define MCSA_TESTS_RIVALS_FIXTURE_H

#include "test.h"

#include "rivals/rival.h"

/* Step 0 is dense, 1 an anchor, 2 and 4 are sparse, and 3 is an anchor to those that learn there. */
enum { FIXTURE_STEPS = 5 };

/* The grid of N tokens with the most even sides. */
static inline void fixture_grid(int N, int *grid)
{
    int frames = 1, rows = 1;
    for (int f = 1; f * f * f <= N; f++)
        if (N % f == 0) frames = f;
    for (int r = 1; r * r <= N / frames; r++)
        if (N / frames % r == 0) rows = r;
    grid[0] = frames;
    grid[1] = rows;
    grid[2] = N / frames / rows;
}

/* Five steps of one layer; what the test wants otherwise it changes. */
static inline rival_config fixture_config(const char *method, int N, double density)
{
    rival_config config = { .method = method, .seed = 5 };
    config.attention = (mcsa_config){
        .steps = FIXTURE_STEPS, .layers = 1, .schedule = "list:1,3", .density = (float)density, .threads = 1
    };
    fixture_grid(N, config.grid);
    return config;
}

static inline rival_run *fixture_open(const rival_config *config)
{
    rival_run *run = NULL;
    mcsa_error error = { "" };
    if (rival_run_create(&run, config, &error) != MCSA_OK) fail_msg("%s: %s", config->method, error.text);
    return run;
}

static inline mcsa_status fixture_attend(rival_run *run, mcsa_site at, const test_call *c)
{
    return rival_attend(run, at, &c->q.view, &c->k.view, &c->v.view, &c->out.view);
}

/* Poisons out, attends, and fails with the sentence of the run. */
static inline void fixture_attends(rival_run *run, mcsa_site at, const test_call *c, const char *method)
{
    for (int h = 0; h < c->H; h++)
        for (int n = 0; n < c->N; n++)
            for (int d = 0; d < c->D; d++) test_set(&c->out.view, h, n, d, (double)NAN);
    if (fixture_attend(run, at, c) != MCSA_OK)
        fail_msg("%s, step %d layer %d branch %d: %s", method, at.step, at.layer, at.branch, rival_run_error(run));
}

/* [steps] outputs of one branch, q, k and v drawn anew at every step with seeds that depend on nothing else. */
typedef struct fixture_clip {
    int shape[4]; /* H, N, N, D */
    mcsa_dtype dtype;
    double amplitude;
} fixture_clip;

static inline test_call fixture_call(const fixture_clip *clip, int step, int branch)
{
    return test_call_make(clip->shape, clip->dtype, TEST_HND, (uint64_t)(1000 * step + 100 * branch + 1),
                          clip->amplitude);
}

#endif
