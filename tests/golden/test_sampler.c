/* test_sampler.c - both samplers against Diffusers' schedulers, and the noise against the C library's
 * functions.
 *
 * A trajectory is replayed: the golden velocities go in, x after every step is compared.  Limit 1e-5: the
 * schedulers compute their scalars in float (2^-24 = 6e-8, grown by logarithms and differences), ours in
 * double.  Sigmas themselves may differ by the two roundings that the schedulers make, 2e-7. */
#include "golden.h"

#include "dit/generate.h"
#include "dit/sampler.h"

#include <string.h>

static const double LIMIT = 1e-5;

static float *part(const dit_tensors *tensors, const char *key, const char *name, const dit_tensor **tensor)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", key, name);
    return floats_of(tensors, full, tensor);
}

static void replay(dit_sampler_kind kind, int steps, float shift)
{
    char key[64];
    mcsa_error error = { "" };
    const dit_tensor *shape, *unused;
    dit_sampler *sampler = NULL;
    dit_tensors *tensors = open_tensors(GOLDEN("samplers.safetensors"));
    snprintf(key, sizeof key, "%s-%d-%g", kind == DIT_EULER ? "euler" : "unipc", steps, (double)shift);
    float *xs = part(tensors, key, "x", &shape), *velocity = part(tensors, key, "velocity", &unused);
    float *sigmas = part(tensors, key, "sigmas", &unused), *timesteps = part(tensors, key, "timesteps", &unused);
    int64_t count = shape->shape[1];
    assert_int_equal(shape->shape[0], steps + 1);
    must(dit_sampler_create(&sampler, kind, steps, shift, count, &error), &error);

    float *x = malloc((size_t)count * sizeof *x), *ours = malloc((size_t)steps * 2 * sizeof *ours);
    for (int round = 0; round < 2; round++) { /* starting again at step 0 forgets the first trajectory */
        double worst = 0;
        memcpy(x, xs, (size_t)count * sizeof *x);
        for (int i = 0; i < steps; i++) {
            ours[i] = dit_sampler_sigma(sampler, i);
            ours[steps + i] = dit_sampler_timestep(sampler, i);
            dit_sampler_step(sampler, i, x, velocity + i * count);
            worst = fmax(worst, relative_l2(x, xs + (i + 1) * count, count));
        }
        within(key, worst, LIMIT);
        within("    sigmas", relative_l2(ours, sigmas, steps), 2e-7);
        within("    timesteps", relative_l2(ours + steps, timesteps, steps), kind == DIT_UNIPC ? 0.0 : 2e-7);
    }
    free(x);
    free(ours);
    free(xs);
    free(velocity);
    free(sigmas);
    free(timesteps);
    dit_sampler_free(sampler);
    dit_tensors_free(tensors);
}

static void test_euler(void **state)
{
    (void)state;
    replay(DIT_EULER, 1, 3.0f);
    replay(DIT_EULER, 5, 1.0f);
    replay(DIT_EULER, 40, 3.0f);
}

static void test_unipc(void **state)
{
    (void)state;
    replay(DIT_UNIPC, 1, 3.0f);
    replay(DIT_UNIPC, 2, 3.0f);
    replay(DIT_UNIPC, 3, 1.0f);
    replay(DIT_UNIPC, 10, 3.0f);
    replay(DIT_UNIPC, 40, 5.0f);
}

static void test_refusals(void **state)
{
    (void)state;
    mcsa_error error = { "" };
    dit_sampler *sampler = NULL;
    assert_int_equal(dit_sampler_create(&sampler, DIT_EULER, 0, 3.0f, 8, &error), MCSA_EINVAL);
    assert_int_equal(dit_sampler_create(&sampler, DIT_EULER, 4, 0.0f, 8, &error), MCSA_EINVAL);
    assert_int_equal(dit_sampler_create(&sampler, DIT_EULER, 4, NAN, 8, &error), MCSA_EINVAL);
    assert_int_equal(dit_sampler_create(&sampler, (dit_sampler_kind)7, 4, 3.0f, 8, &error), MCSA_EINVAL);
    assert_null(sampler);
}

/* The golden numbers come from the C library's log, cos and sin in double, rounded to float.  Our series are
 * right to about 2^-52, so the two floats could differ only where a number falls within 2^-28 of the middle
 * between two floats: once in 10^8. */
static void test_noise(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint64_t seed;
    } cases[] = { { "seed-0", 0 }, { "seed-1", 1 }, { "seed-9223372036854775813", 9223372036854775813u } };
    dit_tensors *tensors = open_tensors(GOLDEN("noise.safetensors"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dit_tensor *shape;
        float *expected = floats_of(tensors, cases[i].name, &shape);
        int64_t count = dit_tensor_count(shape);
        float *noise = malloc((size_t)count * sizeof *noise);
        dit_noise(cases[i].seed, noise, count);
        assert_memory_equal(noise, expected, (size_t)count * sizeof *noise);
        free(noise);
        free(expected);
    }
    dit_tensors_free(tensors);
}

/* Mean, variance and fourth moment of 2^20 numbers within 5 standard errors of 0, 1 and 3. */
static void test_noise_is_normal(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20 };
    float *noise = malloc(COUNT * sizeof *noise);
    double sum = 0, square = 0, fourth = 0;
    dit_noise(42, noise, COUNT);
    for (int i = 0; i < COUNT; i++) {
        double x = noise[i];
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
    }
    within("mean", fabs(sum / COUNT), 5 / sqrt(COUNT));
    within("variance - 1", fabs(square / COUNT - 1), 5 * sqrt(2.0 / COUNT));
    within("fourth moment - 3", fabs(fourth / COUNT - 3), 5 * sqrt(96.0 / COUNT));
    free(noise);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_euler), cmocka_unit_test(test_unipc),           cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_noise), cmocka_unit_test(test_noise_is_normal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
