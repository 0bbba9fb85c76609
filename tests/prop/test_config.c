/* test_config.c - what a run refuses: every field of the configuration, every argument of a call.  A
 * refusal has the right code, a sentence with the offending number, and leaves the run as usable as
 * before. */
#include "test.h"

typedef struct refusal {
    mcsa_config config;
    mcsa_status status;
    const char *says;
} refusal;

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    const mcsa_action bad_actions[2] = { MCSA_DENSE, (mcsa_action)7 };
    const mcsa_allocator half = { .alloc = test_heap_alloc };
    const refusal cases[] = {
        { { .steps = 0, .layers = 1 }, MCSA_EINVAL, "config.steps is 0" },
        { { .steps = -3, .layers = 1 }, MCSA_EINVAL, "config.steps is -3" },
        { { .steps = 1000001, .layers = 1 }, MCSA_EINVAL, "1000001" },
        { { .steps = 1, .layers = 0 }, MCSA_EINVAL, "config.layers is 0" },
        { { .steps = 1, .layers = -1 }, MCSA_EINVAL, "config.layers is -1" },
        { { .steps = 1, .layers = 1, .branches = -2 }, MCSA_EINVAL, "config.branches is -2" },
        { { .steps = 1, .layers = 1, .branches = 65 }, MCSA_EINVAL, "65" },
        { { .steps = 1, .layers = 1, .density = -0.1f }, MCSA_EINVAL, "config.density is -0.1" },
        { { .steps = 1, .layers = 1, .density = 1.01f }, MCSA_EINVAL, "1.01" },
        { { .steps = 1, .layers = 1, .density = NAN }, MCSA_EINVAL, "nan" },
        { { .steps = 1, .layers = 1, .density = INFINITY }, MCSA_EINVAL, "inf" },
        { { .steps = 1, .layers = 1, .group = -1 }, MCSA_EINVAL, "config.group is -1" },
        { { .steps = 1, .layers = 1, .group = 4097 }, MCSA_EINVAL, "4097" },
        { { .steps = 1, .layers = 1, .schedule = "sometimes" }, MCSA_EINVAL, "sometimes" },
        { { .steps = 4, .layers = 1, .schedule = "list:4" }, MCSA_EINVAL, "4" },
        { { .steps = 2, .layers = 1, .actions = bad_actions }, MCSA_EINVAL, "config.actions[0][1] is 7" },
        { { .steps = 1, .layers = 2, .dense_layers = 3 }, MCSA_EINVAL, "config.dense_layers is 3" },
        { { .steps = 1, .layers = 2, .dense_layers = -1 }, MCSA_EINVAL, "config.dense_layers is -1" },
        { { .steps = 1, .layers = 1, .sharing = (mcsa_sharing)9 }, MCSA_EINVAL, "config.sharing is 9" },
        { { .steps = 1, .layers = 1, .tail = (mcsa_tail)9 }, MCSA_EINVAL, "config.tail is 9" },
        { { .steps = 1, .layers = 1, .residual = (mcsa_residual)9 }, MCSA_EINVAL, "config.residual is 9" },
        { { .steps = 1, .layers = 1, .scale = -1 }, MCSA_EINVAL, "config.scale is -1" },
        { { .steps = 1, .layers = 1, .scale = NAN }, MCSA_EINVAL, "nan" },
        { { .steps = 1, .layers = 1, .threads = -4 }, MCSA_EINVAL, "config.threads is -4" },
        { { .steps = 1, .layers = 1, .threads = 4097 }, MCSA_EINVAL, "4097" },
        { { .steps = 1, .layers = 1, .isa = (mcsa_isa)17 }, MCSA_EINVAL, "config.isa is 17" },
        { { .steps = 1, .layers = 1, .allocator = half }, MCSA_EINVAL, "only one of alloc and free" },
        { { .size = 8, .steps = 1, .layers = 1 }, MCSA_EINVAL, "config.size is 8" },
    };
    for (size_t i = 0; i < TEST_COUNT(cases); i++) {
        char error[256] = "";
        mcsa_run *run = (mcsa_run *)error;
        mcsa_status status = mcsa_run_create(&run, &cases[i].config, error, sizeof error);
        if (status != cases[i].status || !strstr(error, cases[i].says))
            fail_msg("case %zu: %s, \"%s\" lacks \"%s\"", i, mcsa_status_name(status), error, cases[i].says);
        assert_null(run);
    }
    mcsa_run *run = NULL;
    assert_int_equal(mcsa_run_create(NULL, &cases[0].config, NULL, 0), MCSA_EINVAL);
    assert_int_equal(mcsa_run_create(&run, NULL, NULL, 0), MCSA_EINVAL);
    assert_int_equal(mcsa_run_create(&run, &cases[0].config, NULL, 0), MCSA_EINVAL);
}

static void a_missing_instruction_set_is_refused_by_name(void **state)
{
    (void)state;
    if (mcsa_cpu_isa() == MCSA_ISA_AVX512BF16) {
        print_message("  skip: this machine has every level\n");
        return;
    }
    char error[256];
    mcsa_run *run = NULL;
    mcsa_config config = { .steps = 1, .layers = 1, .isa = MCSA_ISA_AVX512BF16 };
    assert_int_equal(mcsa_run_create(&run, &config, error, sizeof error), MCSA_EUNSUPPORTED);
    assert_non_null(strstr(error, "avx512bf16"));
    assert_null(run);
}

/* The struct may grow: an older caller's shorter one means defaults for the rest; a newer caller's longer
 * one is fine while what this library does not know is zero. */
static void the_configuration_may_grow(void **state)
{
    (void)state;
    struct {
        mcsa_config known;
        unsigned char later[32];
    } newer = { .known = { .size = sizeof newer, .steps = 3, .layers = 2 } };
    char error[256], place[64];
    mcsa_run *run = NULL;
    assert_int_equal(mcsa_run_create(&run, &newer.known, error, sizeof error), MCSA_OK);
    mcsa_run_free(run);
    newer.later[5] = 1;
    assert_int_equal(mcsa_run_create(&run, &newer.known, error, sizeof error), MCSA_EUNSUPPORTED);
    snprintf(place, sizeof place, "byte %zu", sizeof(mcsa_config) + 5);
    if (!strstr(error, place)) fail_msg("\"%s\" lacks \"%s\"", error, place);

    mcsa_config older = { .size = offsetof(mcsa_config, density), .steps = 3, .layers = 2, .branches = 2 };
    older.density = NAN; /* beyond size: not read */
    older.threads = -1;
    older.allocator.alloc = test_heap_alloc;
    assert_int_equal(mcsa_run_create(&run, &older, error, sizeof error), MCSA_OK);
    mcsa_stats stats = { .size = sizeof stats };
    assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
    assert_true(fabs(stats.density_requested - 0.1) < 1e-7); /* 0.10f */
    mcsa_run_free(run);
}

/* A caller with shorter statistics gets those and no byte more. */
static void statistics_may_grow(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 1, .layers = 1 };
    mcsa_run *run = test_run(&config);
    mcsa_stats stats;
    memset(&stats, 0x5a, sizeof stats);
    stats.size = offsetof(mcsa_stats, fallback);
    assert_int_equal(mcsa_run_stats(run, &stats), MCSA_OK);
    assert_int_equal(stats.dense, 0);
    const unsigned char *bytes = (const unsigned char *)&stats;
    for (size_t i = offsetof(mcsa_stats, fallback); i < sizeof stats; i++) assert_int_equal(bytes[i], 0x5a);
    assert_int_equal(mcsa_run_stats(NULL, &stats), MCSA_EINVAL);
    assert_int_equal(mcsa_run_stats(run, NULL), MCSA_EINVAL);
    mcsa_run_free(run);
}

/* One valid call and its run, to be spoiled one way at a time. */
typedef struct desk {
    mcsa_run *run;
    test_call c;
    test_tensor expected;
    int step;
} desk;

static void open_desk(desk *d, int check_finite)
{
    mcsa_config config = { .steps = 1000, .layers = 2, .branches = 2, .schedule = "list:0", .group = 16 };
    config.check_finite = check_finite;
    d->run = test_run(&config);
    d->c = test_call_make((const int[]){ 2, 40, 40, 8 }, MCSA_F32, TEST_HND, 3, 1);
    d->expected = test_tensor_make(2, 40, 8, MCSA_F32, TEST_HND);
    d->step = 2;
    assert_attends(d->run, 0, 0, 0, &d->c);
    assert_attends(d->run, 1, 0, 0, &d->c);
    test_copy(&d->expected.view, &d->c.out.view);
}

static void close_desk(desk *d)
{
    test_call_free(&d->c);
    test_tensor_free(&d->expected);
    mcsa_run_free(d->run);
}

/* The call is refused, says why and is not counted, and the next reuse gives the bits it gave before. */
static void expect_refusal(desk *d, mcsa_site at, const mcsa_tensor *q, const mcsa_tensor *k, const mcsa_tensor *v,
                           const mcsa_tensor *out, mcsa_status status, const char *says)
{
    mcsa_stats before = { 0 }, after = { 0 };
    assert_int_equal(mcsa_run_stats(d->run, &before), MCSA_OK);
    mcsa_status got = mcsa_attend(d->run, at, q, k, v, out);
    const char *error = mcsa_run_error(d->run);
    if (got != status || !strstr(error, says))
        fail_msg("%s, \"%s\"; expected %s and \"%s\"", mcsa_status_name(got), error, mcsa_status_name(status), says);
    assert_int_equal(mcsa_run_stats(d->run, &after), MCSA_OK);
    assert_int_equal(after.dense + after.anchor + after.reuse + after.fallback,
                     before.dense + before.anchor + before.reuse + before.fallback);
    assert_attends(d->run, d->step++, 0, 0, &d->c);
    assert_same_bits(&d->c.out.view, &d->expected.view);
    assert_int_equal(mcsa_run_stats(d->run, &after), MCSA_OK);
    assert_int_equal(after.reuse, before.reuse + 1);
}

static void bad_sites_are_refused(void **state)
{
    (void)state;
    desk d;
    open_desk(&d, 0);
    const mcsa_tensor *q = &d.c.q.view, *k = &d.c.k.view, *v = &d.c.v.view, *out = &d.c.out.view;
    expect_refusal(&d, (mcsa_site){ -1, 0, 0 }, q, k, v, out, MCSA_EINVAL, "step is -1");
    expect_refusal(&d, (mcsa_site){ 1000, 0, 0 }, q, k, v, out, MCSA_EINVAL, "step is 1000");
    expect_refusal(&d, (mcsa_site){ 1, 2, 0 }, q, k, v, out, MCSA_EINVAL, "layer is 2");
    expect_refusal(&d, (mcsa_site){ 1, -1, 0 }, q, k, v, out, MCSA_EINVAL, "layer is -1");
    expect_refusal(&d, (mcsa_site){ 1, 0, 2 }, q, k, v, out, MCSA_EINVAL, "branch is 2");
    expect_refusal(&d, (mcsa_site){ 1, 0, -1 }, q, k, v, out, MCSA_EINVAL, "branch is -1");
    assert_int_equal(mcsa_attend(NULL, (mcsa_site){ 0, 0, 0 }, q, k, v, out), MCSA_EINVAL);
    assert_int_equal(mcsa_attend_dense(NULL, q, k, v, out, NULL), MCSA_EINVAL);
    close_desk(&d);
}

static void bad_tensors_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = { "q", "k", "v", "out" };
    const struct {
        mcsa_dtype dtype;
        int64_t shape[3], stride[3];
        mcsa_status status;
        const char *says;
    } cases[] = {
        { (mcsa_dtype)0, { 2, 40, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "dtype 0" },
        { (mcsa_dtype)4, { 2, 40, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "dtype 4" },
        { MCSA_BF16, { 2, 40, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "dtype" },
        { MCSA_F32, { 0, 40, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "[0, 40, 8]" },
        { MCSA_F32, { 2, -1, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "[2, -1, 8]" },
        { MCSA_F32, { 2, 40, 0 }, { 320, 8, 1 }, MCSA_EINVAL, "[2, 40, 0]" },
        { MCSA_F32, { 2, INT64_MAX, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "9223372036854775807" },
        { MCSA_F32, { 2, 40, 8 }, { 320, 0, 1 }, MCSA_EINVAL, "stride 0" },
        { MCSA_F32, { 2, 40, 8 }, { 320, -8, 1 }, MCSA_EINVAL, "stride -8" },
        { MCSA_F32, { 2, 40, 8 }, { 320, 8, 0 }, MCSA_EINVAL, "stride 0" },
        { MCSA_F32, { 2, 40, 8 }, { INT64_MAX, 8, 1 }, MCSA_EINVAL, "stride 9223372036854775807" },
        { MCSA_F32, { 2, 40, 8 }, { 320, 7, 1 }, MCSA_EINVAL, "overlap" },
        { MCSA_F32, { 2, 40, 8 }, { 319, 8, 1 }, MCSA_EINVAL, "overlap" },
        { MCSA_F32, { 2, 40, 8 }, { 1, 1, 1 }, MCSA_EINVAL, "overlap" },
        { MCSA_F32, { 2, 40, 8 }, { 8, 8, 1 }, MCSA_EINVAL, "overlap" },
        { MCSA_F32, { 1, 40, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "heads" },
        { MCSA_F32, { 2, 39, 8 }, { 320, 8, 1 }, MCSA_EINVAL, "tokens" },
        { MCSA_F32, { 2, 40, 7 }, { 320, 8, 1 }, MCSA_EINVAL, "head dimension" },
    };
    desk d;
    open_desk(&d, 0);
    for (int which = 0; which < 4; which++) {
        const mcsa_tensor good[4] = { d.c.q.view, d.c.k.view, d.c.v.view, d.c.out.view };
        mcsa_tensor t[4];
        for (size_t i = 0; i < TEST_COUNT(cases); i++) {
            memcpy(t, good, sizeof t);
            t[which].dtype = cases[i].dtype;
            memcpy(t[which].shape, cases[i].shape, sizeof t[which].shape);
            memcpy(t[which].stride, cases[i].stride, sizeof t[which].stride);
            expect_refusal(&d, (mcsa_site){ 1, 0, 0 }, &t[0], &t[1], &t[2], &t[3], cases[i].status, cases[i].says);
            if (!strstr(mcsa_run_error(d.run), names[which]))
                fail_msg("\"%s\" does not name %s", mcsa_run_error(d.run), names[which]);
        }
        memcpy(t, good, sizeof t);
        t[which].data = NULL;
        expect_refusal(&d, (mcsa_site){ 1, 0, 0 }, &t[0], &t[1], &t[2], &t[3], MCSA_EINVAL, "NULL");
        const mcsa_tensor *p[4] = { &good[0], &good[1], &good[2], &good[3] };
        p[which] = NULL;
        expect_refusal(&d, (mcsa_site){ 1, 0, 0 }, p[0], p[1], p[2], p[3], MCSA_EINVAL, "NULL");
    }
    close_desk(&d);
}

static void what_is_too_large_is_unsupported(void **state)
{
    (void)state;
    desk d;
    open_desk(&d, 0);
    test_call wide = test_call_make((const int[]){ 1, 2, 2, 257 }, MCSA_F32, TEST_HND, 1, 1);
    expect_refusal(&d, (mcsa_site){ 1, 0, 0 }, &wide.q.view, &wide.k.view, &wide.v.view, &wide.out.view,
                   MCSA_EUNSUPPORTED, "257");
    test_call_free(&wide);
    close_desk(&d);
}

/* Where shapes of 1 have any stride, nothing is stepped over, so nothing can overlap. */
static void strides_of_single_elements_do_not_matter(void **state)
{
    (void)state;
    mcsa_config config = { .steps = 2, .layers = 1, .schedule = "list:0" };
    mcsa_run *run = test_run(&config);
    float q = 1, k = 2, v = 3, out[2] = { 0, 7 };
    const int64_t odd[][3] = { { 0, 0, 0 }, { -5, 1, INT64_MIN }, { INT64_MAX, INT64_MAX, INT64_MAX } };
    for (size_t i = 0; i < TEST_COUNT(odd); i++) {
        mcsa_tensor t[4] = { { &q, MCSA_F32, { 1, 1, 1 }, { 0 } },
                             { &k, MCSA_F32, { 1, 1, 1 }, { 0 } },
                             { &v, MCSA_F32, { 1, 1, 1 }, { 0 } },
                             { out, MCSA_F32, { 1, 1, 1 }, { 0 } } };
        for (int j = 0; j < 4; j++) memcpy(t[j].stride, odd[i], sizeof odd[i]);
        for (int step = 0; step < 2; step++) {
            out[0] = 0;
            assert_int_equal(mcsa_attend(run, (mcsa_site){ step, 0, 0 }, &t[0], &t[1], &t[2], &t[3]), MCSA_OK);
            assert_true(out[0] == 3 && out[1] == 7); /* one key: its value, exactly */
        }
    }
    mcsa_run_free(run);
}

static void out_may_not_share_memory_with_inputs(void **state)
{
    (void)state;
    desk d;
    open_desk(&d, 0);
    test_call *c = &d.c;
    const mcsa_tensor *inputs[3] = { &c->q.view, &c->k.view, &c->v.view };
    for (int i = 0; i < 3; i++)
        expect_refusal(&d, (mcsa_site){ 1, 0, 0 }, inputs[0], inputs[1], inputs[2], inputs[i], MCSA_EINVAL,
                       "out shares");
    mcsa_tensor last = c->out.view; /* one byte of contact is enough */
    last.data = (char *)test_at(&c->q.view, 1, 39, 7);
    expect_refusal(&d, (mcsa_site){ 1, 0, 0 }, inputs[0], inputs[1], inputs[2], &last, MCSA_EINVAL, "out shares");
    close_desk(&d);
}

/* q, k and v may be one tensor; only out must be apart. */
static void inputs_may_share_memory(void **state)
{
    (void)state;
    desk d;
    open_desk(&d, 0);
    test_call *c = &d.c;
    assert_int_equal(mcsa_attend(d.run, (mcsa_site){ 1, 1, 0 }, &c->q.view, &c->q.view, &c->q.view, &c->out.view),
                     MCSA_OK);
    close_desk(&d);
}

static void non_finite_inputs_are_refused_when_asked(void **state)
{
    (void)state;
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    desk d;
    open_desk(&d, 1);
    const mcsa_tensor *t[3] = { &d.c.q.view, &d.c.k.view, &d.c.v.view };
    static const char *const says[] = { "q has 2 NaN", "k has 2 NaN", "v has 2 NaN" };
    for (int i = 0; i < 3; i++)
        for (size_t b = 0; b < TEST_COUNT(bad); b++) {
            float *first = test_at(t[i], 0, 39, 7), *second = test_at(t[i], 1, 0, 0), keep[2] = { *first, *second };
            *first = *second = bad[b];
            mcsa_status status = mcsa_attend(d.run, (mcsa_site){ 1, 0, 0 }, t[0], t[1], t[2], &d.c.out.view);
            assert_int_equal(status, MCSA_EINVAL);
            assert_non_null(strstr(mcsa_run_error(d.run), says[i]));
            assert_non_null(strstr(mcsa_run_error(d.run), "[0, 39, 7]"));
            *first = keep[0];
            *second = keep[1];
            assert_attends(d.run, 1, 0, 0, &d.c);
            assert_same_bits(&d.c.out.view, &d.expected.view);
        }
    close_desk(&d);
}

/* Every 16-bit code is judged as its format says. */
static void non_finite_codes_of_16_bits(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++)
        for (uint32_t code = 0; code < 65536; code++) {
            uint16_t x = (uint16_t)code;
            int64_t place[3];
            mcsa_tensor t = { &x, f ? MCSA_F16 : MCSA_BF16, { 1, 1, 1 }, { 1, 1, 1 } };
            assert_int_equal(mcsa_tensor_nonfinite(&t, place), !isfinite(test_get(&t, 0, 0, 0)));
        }
}

static void names_and_versions(void **state)
{
    (void)state;
    assert_string_equal(mcsa_version(), MCSA_VERSION);
    static const char *const statuses[] = { "ok",         "invalid argument",   "unsupported", "out of memory",
                                            "bad format", "input/output error", "canceled" };
    for (int i = 0; i < 7; i++) assert_string_equal(mcsa_status_name((mcsa_status)i), statuses[i]);
    assert_non_null(mcsa_status_name((mcsa_status)99));
    static const char *const levels[] = { "auto", "scalar", "avx2", "avx512bf16" };
    for (int i = 0; i < 4; i++) assert_string_equal(mcsa_isa_name((mcsa_isa)i), levels[i]);
    assert_non_null(mcsa_isa_name((mcsa_isa)99));
    mcsa_machine machine = { 0 };
    assert_int_equal(mcsa_machine_read(&machine), MCSA_OK);
    assert_int_equal(machine.isa, mcsa_cpu_isa());
    assert_true(machine.threads >= 1);
    assert_int_equal(machine.isa >= MCSA_ISA_AVX2, strstr(machine.features, "avx2") != NULL);
    assert_int_equal(machine.isa >= MCSA_ISA_AVX512BF16, strstr(machine.features, "avx512bf16") != NULL);
    assert_int_equal(mcsa_machine_read(NULL), MCSA_EINVAL);
    mcsa_config config = { .steps = 1, .layers = 1 };
    mcsa_run *run = test_run(&config);
    assert_string_equal(mcsa_run_error(run), "");
    assert_non_null(mcsa_run_error(NULL));
    mcsa_run_free(run);
    mcsa_run_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(a_missing_instruction_set_is_refused_by_name),
        cmocka_unit_test(the_configuration_may_grow),
        cmocka_unit_test(statistics_may_grow),
        cmocka_unit_test(bad_sites_are_refused),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(what_is_too_large_is_unsupported),
        cmocka_unit_test(strides_of_single_elements_do_not_matter),
        cmocka_unit_test(out_may_not_share_memory_with_inputs),
        cmocka_unit_test(inputs_may_share_memory),
        cmocka_unit_test(non_finite_inputs_are_refused_when_asked),
        cmocka_unit_test(non_finite_codes_of_16_bits),
        cmocka_unit_test(names_and_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
