/* test_limits.c - what the CUDA backend refuses before it asks a driver, each with the number that is wrong.  Needs no
 * GPU and no CUDA. */
#include "test.h"

#include "cuda/limits.h"

typedef struct option_case {
    mcsa_backend_options options;
    const char *says; /* NULL: taken */
} option_case;

static void options_are_limited(void **state)
{
    (void)state;
    const option_case cases[] = {
        { { .C = 128, .residual = MCSA_RESIDUAL_BF16 }, NULL },
        { { .C = 128, .residual = MCSA_RESIDUAL_OFF }, NULL },
        { { .C = 64, .residual = MCSA_RESIDUAL_BF16 }, "config.group is 64; on a GPU it must be 128" },
        { { .C = 256, .residual = MCSA_RESIDUAL_BF16 }, "config.group is 256" },
        { { .C = 128, .residual = MCSA_RESIDUAL_INT8 },
          "config.residual is 2; on a GPU it must be bf16 (1) or off (4)" },
        { { .C = 128, .residual = MCSA_RESIDUAL_INT4 }, "config.residual is 3" },
        { { .C = 128, .residual = MCSA_RESIDUAL_BF16, .check_finite = 1 },
          "config.check_finite is 1; on a GPU it must be 0" },
    };
    for (size_t i = 0; i < TEST_COUNT(cases); i++) {
        mcsa_error error = { "" };
        mcsa_status status = mcsa_cuda_limit_options(&cases[i].options, &error);
        assert_int_equal(status, cases[i].says ? MCSA_EUNSUPPORTED : MCSA_OK);
        if (cases[i].says && !strstr(error.text, cases[i].says))
            fail_msg("\"%s\" lacks \"%s\"", error.text, cases[i].says);
    }
}

/* A call that is taken, on addresses that nothing reads. */
typedef struct desk {
    mcsa_tensor q, k, v, out;
    mcsa_qkv x;
    _Alignas(16) char place[32];
} desk;

static void set_desk(desk *d, mcsa_dtype dtype, int D)
{
    memset(d, 0, sizeof *d);
    mcsa_tensor t = { d->place, dtype, { 3, 50, D }, { 50 * (int64_t)D, D, 1 } };
    d->q = d->k = d->v = d->out = t;
    d->x = (mcsa_qkv){ &d->q, &d->k, &d->v, &d->out, { 3, 50, 50, D, dtype }, 1 };
}

static void expect(const desk *d, const char *says)
{
    mcsa_error error = { "" };
    mcsa_status status = mcsa_cuda_limit_call(&d->x, &error);
    if (!says) {
        if (status != MCSA_OK) fail_msg("refused: %s", error.text);
        return;
    }
    assert_int_equal(status, MCSA_EUNSUPPORTED);
    if (!strstr(error.text, says)) fail_msg("\"%s\" lacks \"%s\"", error.text, says);
}

static void calls_are_limited(void **state)
{
    (void)state;
    desk d;
    for (int D = 64; D <= 128; D += 64) {
        set_desk(&d, MCSA_BF16, D);
        expect(&d, NULL);
        set_desk(&d, MCSA_F16, D);
        expect(&d, NULL);
    }
    set_desk(&d, MCSA_F32, 64);
    expect(&d, "q has dtype F32; on a GPU it must be BF16 or F16");
    const int wrong_dims[] = { 1, 32, 96, 127, 256 };
    for (size_t i = 0; i < TEST_COUNT(wrong_dims); i++) {
        char says[80];
        snprintf(says, sizeof says, "head dimension %d; on a GPU it must be 64 or 128", wrong_dims[i]);
        set_desk(&d, MCSA_BF16, wrong_dims[i]);
        expect(&d, says);
    }
    set_desk(&d, MCSA_BF16, 64);
    d.k.stride[2] = 2;
    expect(&d, "k has stride 2 along the head dimension; on a GPU it must be 1");
    set_desk(&d, MCSA_BF16, 64);
    d.v.stride[1] = 68;
    expect(&d, "v has stride 68 along its tokens; on a GPU it must be a multiple of 8 elements");
    set_desk(&d, MCSA_BF16, 64);
    d.out.stride[0] = 50 * 64 + 4;
    expect(&d, "out has stride 3204 along its heads");
    d.out.stride[0] = INT64_C(1) << 39;
    expect(&d, "out has stride 549755813888 along its heads");
    set_desk(&d, MCSA_BF16, 64);
    d.q.data = d.place + 2;
    expect(&d, "q starts 2 bytes past a multiple of 16");
}

/* The stride of an axis of one element is never used, so it may be anything. */
static void unused_strides_are_free(void **state)
{
    (void)state;
    desk d;
    set_desk(&d, MCSA_F16, 128);
    d.q.shape[0] = d.k.shape[0] = d.v.shape[0] = d.out.shape[0] = 1;
    d.q.stride[0] = 3;
    d.k.stride[0] = 0;
    d.q.shape[1] = 1;
    d.q.stride[1] = -7;
    expect(&d, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_limited),
        cmocka_unit_test(calls_are_limited),
        cmocka_unit_test(unused_strides_are_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
