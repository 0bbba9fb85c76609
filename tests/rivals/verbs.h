/* verbs.h - what the tests of the rivals' CPU kernels share: a table at one level and number of threads, partitions
 * with empty parts, large parts and rows left out, and arrays of numbers between canaries. */
#ifndef MCSA_TESTS_RIVALS_VERBS_H
#define MCSA_TESTS_RIVALS_VERBS_H

#include "rivals/kernels.h"
#include "test.h"

static const rival_kernels *const verbs = &rival_kernels_cpu;

static inline void *verbs_open(mcsa_isa isa, int threads)
{
    mcsa_error error = { "" };
    void *state = NULL;
    const mcsa_config config = { .isa = isa, .threads = threads };
    if (verbs->open(&state, &config, &error) != MCSA_OK) fail_msg("%s", error.text);
    return state;
}

#define assert_ok(call)                                    \
    do {                                                   \
        mcsa_error error = { "" };                         \
        if ((call) != MCSA_OK) fail_msg("%s", error.text); \
    } while (0)

/* A random order of the rows cut at random places: part 3, if there is one, is empty, the last part holds a third of
 * the rows, and the first and last row of the order are in no part when there are more than two. */
static inline rival_partition verbs_partition(int H, int N, int P, uint64_t seed)
{
    rival_partition p = { 0 };
    mcsa_error error = { "" };
    if (rival_partition_reserve(&p, H, N, P, &error) != MCSA_OK) fail_msg("%s", error.text);
    for (int h = 0; h < H; h++) {
        int32_t *order = p.order + (int64_t)h * N, *first = p.first + (int64_t)h * (P + 1);
        for (int i = 0; i < N; i++) order[i] = i;
        for (int i = N - 1; i > 0; i--) {
            int j = test_below(&seed, i + 1), swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
        int end = N > 2 ? N - 1 : N, shared = P > 1 ? end - end / 3 : end;
        first[0] = N > 2;
        for (int k = 1; k < P; k++) {
            int rest = shared - first[k - 1], most = 2 * shared / P + 1;
            first[k] = first[k - 1] + (k == 4 ? 0 : test_below(&seed, (rest < most ? rest : most) + 1));
        }
        first[P] = end;
    }
    return p;
}

static inline float *verbs_normal(size_t count, uint64_t seed, double amplitude)
{
    float *x = test_alloc(sizeof *x * count);
    for (size_t i = 0; i < count; i++) x[i] = (float)(amplitude * test_normal(&seed));
    return x;
}

/* scale x . y of rows in double, and scale sum |x y| in *size. */
static inline double verbs_dot(const double *x, const double *y, int D, double scale, double *size)
{
    double dot = 0;
    *size = 0;
    for (int d = 0; d < D; d++) {
        dot += x[d] * y[d];
        *size += fabs(x[d] * y[d]);
    }
    *size *= scale;
    return scale * dot;
}

static inline mcsa_qkv verbs_call(const test_call *c, float scale)
{
    return (mcsa_qkv){ &c->q.view, &c->k.view, &c->v.view, &c->out.view, { c->H, c->N, c->M, c->D, c->dtype }, scale };
}

static inline double verbs_unit(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 ? U_F32 : dtype == MCSA_BF16 ? U_BF16 : U_F16;
}

/* Runs a verb: out [count] poisoned before. */
typedef mcsa_status (*verbs_step)(void *state, const void *user, float *out, mcsa_error *error);

/* The output of a verb with one thread, the same bits as with four; between canaries, for test_words_free. */
static inline float *verbs_run(verbs_step step, const void *user, size_t count, mcsa_isa isa)
{
    float *out[2];
    for (int t = 0; t < 2; t++) {
        void *state = verbs_open(isa, t ? 4 : 1);
        out[t] = test_words(count);
        memset(out[t], 0xff, sizeof *out[t] * count); /* NaN */
        assert_ok(step(state, user, out[t], &error));
        verbs->close(state);
    }
    assert_memory_equal(out[0], out[1], sizeof *out[0] * count);
    test_words_free(out[1], count);
    return out[0];
}

/* H, N, D, and parts of the queries and keys */
typedef struct verbs_shape {
    int H, N, D, Q, K;
} verbs_shape;

static const verbs_shape verbs_shapes[] = {
    { 2, 1, 16, 1, 1 }, { 2, 65, 64, 3, 5 }, { 3, 130, 24, 2, 130 }, { 1, 1000, 128, 4, 9 }, { 2, 257, 17, 40, 33 },
};

#endif
