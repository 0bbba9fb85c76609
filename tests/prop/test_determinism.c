/* test_determinism.c - the same bits whatever the number of threads, the order of independent calls, the
 * strides of the tensors or the company of other runs.  R4, R5, R15, T7. */
#include "test.h"

#include <pthread.h>

enum { H = 2, N = 90, D = 20, STEPS = 4, L = 2, B = 2, CALLS = STEPS * L * B };

typedef struct scene {
    mcsa_isa isa;
    mcsa_dtype dtype;
    mcsa_residual residual;
    int threads;
    int backwards; /* order of the layers; branches inside, not outside, of them */
    test_layout layout;
    int fused; /* q, k, v as slices of one [N, 3, H, D] */
} scene;

/* The three tensors as a fused projection leaves them. */
static void fuse(test_call *c)
{
    test_tensor all = test_tensor_make(1, c->N, 3 * (int64_t)c->H * c->D, c->dtype, TEST_HND);
    test_tensor *parts[3] = { &c->q, &c->k, &c->v };
    for (int i = 0; i < 3; i++) {
        mcsa_tensor view = parts[i]->view;
        view.data = test_at(&all.view, 0, 0, i * (int64_t)c->H * c->D);
        view.stride[0] = c->D;
        view.stride[1] = 3 * (int64_t)c->H * c->D;
        view.stride[2] = 1;
        test_copy(&view, &parts[i]->view);
        free(parts[i]->storage);
        *parts[i] = (test_tensor){ .view = view };
    }
    c->q.storage = all.storage; /* one owner */
}

/* All calls of a small run; out: [CALLS] contiguous tensors in order of (step, layer, branch). */
static void play(const scene *s, test_tensor *out)
{
    mcsa_config config = { .steps = STEPS, .layers = L, .branches = B, .schedule = "list:0,2", .density = 0.2f };
    config.group = 24;
    config.isa = s->isa;
    config.residual = s->residual;
    config.threads = s->threads;
    mcsa_run *run = NULL;
    if (mcsa_run_create(&run, &config, NULL, 0) != MCSA_OK) return;
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < L * B; i++) {
            int layer = s->backwards ? L - 1 - i / B : i % L, branch = s->backwards ? i % B : i / L;
            int call = (step * L + layer) * B + branch;
            test_call c = test_call_make((const int[]){ H, N, N, D }, s->dtype, s->layout, (uint64_t)call, 1);
            if (s->fused) fuse(&c);
            test_attend(run, step, layer, branch, &c);
            out[call] = test_tensor_make(H, N, D, s->dtype, TEST_HND);
            test_copy(&out[call].view, &c.out.view);
            test_call_free(&c);
        }
    mcsa_run_free(run);
}

static void release(test_tensor *out)
{
    for (int i = 0; i < CALLS; i++) test_tensor_free(&out[i]);
}

static void expect_same(const test_tensor *a, const test_tensor *b, const char *what)
{
    for (int i = 0; i < CALLS; i++) {
        assert_non_null(a[i].storage);
        assert_non_null(b[i].storage);
        int64_t different = test_different(&a[i].view, &b[i].view);
        if (different) fail_msg("%s: %lld elements of call %d differ", what, (long long)different, i);
    }
}

/* All of `others` against the first. */
static void compare(const scene *first, const scene *others, size_t count, const char *what)
{
    test_tensor a[CALLS] = { { .bytes = 0 } }, b[CALLS] = { { .bytes = 0 } };
    play(first, a);
    for (size_t i = 0; i < count; i++) {
        play(&others[i], b);
        expect_same(a, b, what);
        release(b);
    }
    release(a);
}

static void r15_any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            scene one = { .isa = test_levels[l], .dtype = test_dtypes[t], .threads = 1 }, more[2] = { one, one };
            one.residual = more[0].residual = more[1].residual = (mcsa_residual)(MCSA_RESIDUAL_BF16 + (int)t);
            more[0].threads = 3;
            more[1].threads = 5;
            compare(&one, more, 2, "threads");
        }
    }
}

/* T7 */
static void t7_the_same_input_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        scene s = { .isa = test_levels[l], .dtype = MCSA_BF16, .threads = 2 };
        compare(&s, &s, 1, "twice");
    }
}

static void independent_calls_come_in_any_order(void **state)
{
    (void)state;
    scene forwards = { .dtype = MCSA_F32, .threads = 1 }, backwards = forwards;
    backwards.backwards = 1;
    compare(&forwards, &backwards, 1, "order of layers");
}

/* R4: strided views give the bits of contiguous ones. */
static void r4_strides_do_not_change_a_bit(void **state)
{
    (void)state;
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            scene plain = { .isa = test_levels[l], .dtype = test_dtypes[t], .threads = 1 },
                  other[3] = { plain, plain, plain };
            other[0].layout = TEST_NHD;
            other[1].layout = TEST_SPREAD;
            other[2].fused = 1;
            compare(&plain, other, 3, "[N, H, D], columns two apart, fused q, k, v");
        }
    }
}

/* R4: and they are not copied: all layouts ask the allocator for the same bytes. */
static void r4_strided_views_are_not_copied(void **state)
{
    (void)state;
    int64_t bytes[3], calls[3];
    for (int layout = 0; layout < 3; layout++) {
        test_heap heap = { 0 };
        mcsa_config config = { .steps = 2, .layers = 1, .schedule = "list:0", .allocator = test_heap_allocator(&heap) };
        mcsa_run *run = test_run(&config);
        test_call c = test_call_make((const int[]){ H, N, N, D }, MCSA_F32, (test_layout)layout, 1, 1);
        for (int step = 0; step < 2; step++) assert_attends(run, step, 0, 0, &c);
        bytes[layout] = heap.bytes;
        calls[layout] = heap.calls;
        assert_int_equal(test_damage(&c.out), 0);
        test_call_free(&c);
        mcsa_run_free(run);
    }
    for (int layout = 1; layout < 3; layout++) {
        assert_int_equal(bytes[layout], bytes[0]);
        assert_int_equal(calls[layout], calls[0]);
    }
}

/* R5: what lies behind the last token, here NaN, never enters, at any step. */
static void r5_padding_never_enters(void **state)
{
    (void)state;
    enum { PADDED = 128 };
    for (size_t l = 0; l < TEST_COUNT(test_levels); l++) {
        if (!test_has(test_levels[l])) continue;
        for (size_t t = 0; t < TEST_COUNT(test_dtypes); t++) {
            mcsa_config config = { .steps = 2, .layers = 1, .schedule = "list:0", .group = 32, .isa = test_levels[l] };
            mcsa_run *run = test_run(&config), *padded = test_run(&config);
            test_call c = test_call_make((const int[]){ H, N, N, D }, test_dtypes[t], TEST_HND, 5, 1);
            test_call p = test_call_make((const int[]){ H, PADDED, PADDED, D }, test_dtypes[t], TEST_HND, 6, 1);
            test_tensor *from[3] = { &c.q, &c.k, &c.v }, *to[3] = { &p.q, &p.k, &p.v };
            for (int i = 0; i < 3; i++) {
                for (int h = 0; h < H; h++)
                    for (int n = N; n < PADDED; n++)
                        for (int d = 0; d < D; d++) test_set(&to[i]->view, h, n, d, (double)NAN);
                to[i]->view.shape[1] = N;
                test_copy(&to[i]->view, &from[i]->view);
            }
            p.out.view.shape[1] = N;
            for (int step = 0; step < 2; step++) {
                assert_attends(run, step, 0, 0, &c);
                assert_attends(padded, step, 0, 0, &p);
                assert_same_bits(&c.out.view, &p.out.view);
            }
            test_call_free(&c);
            test_call_free(&p);
            mcsa_run_free(run);
            mcsa_run_free(padded);
        }
    }
}

typedef struct job {
    scene s;
    test_tensor out[CALLS];
} job;

static void *play_job(void *user)
{
    job *j = user;
    play(&j->s, j->out);
    return NULL;
}

/* Two runs share nothing: at once in two threads they give what they give one after the other. */
static void two_runs_at_once_are_independent(void **state)
{
    (void)state;
    static job at_once[2], in_turn[2]; /* too large for a stack */
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        scene s = { .dtype = i ? MCSA_F32 : MCSA_BF16,
                    .threads = 2,
                    .residual = i ? MCSA_RESIDUAL_INT4 : MCSA_RESIDUAL_INT8 };
        at_once[i].s = in_turn[i].s = s;
        play_job(&in_turn[i]);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, play_job, &at_once[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        expect_same(at_once[i].out, in_turn[i].out, "two runs at once");
        release(at_once[i].out);
        release(in_turn[i].out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r15_any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(t7_the_same_input_gives_the_same_bits),
        cmocka_unit_test(independent_calls_come_in_any_order),
        cmocka_unit_test(r4_strides_do_not_change_a_bit),
        cmocka_unit_test(r4_strided_views_are_not_copied),
        cmocka_unit_test(r5_padding_never_enters),
        cmocka_unit_test(two_runs_at_once_are_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
