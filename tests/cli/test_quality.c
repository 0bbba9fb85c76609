/* test_quality.c - the three measures against values that can be worked out by hand. */
#include "quality.h"
#include "scratch.h"

#include <math.h>
#include <stdlib.h>

/* Deterministic values in [0, 255], different for each seed. */
static planes make_planes(int channels, int frames, int height, int width, unsigned seed)
{
    size_t count = (size_t)channels * (size_t)frames * (size_t)height * (size_t)width;
    planes p = { channels, frames, height, width, malloc(count * sizeof(float)) };
    assert_non_null(p.data);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        p.data[i] = (float)(seed >> 24);
    }
    return p;
}

static size_t count_of(const planes *p)
{
    return (size_t)p->channels * (size_t)p->frames * (size_t)p->height * (size_t)p->width;
}

static double ssim(const planes *a, const planes *b)
{
    double value = -9.0;
    mcsa_error error;
    assert_int_equal(quality_ssim(a, b, 255.0, &value, &error), MCSA_OK);
    return value;
}

/* Sums of up to 10^4 terms of order 1 in double: 10^4 * 2^-53, rounded up. */
static const double EXACT = 1e-11;

static void near(double got, double expected, double bound)
{
    if (!(fabs(got - expected) <= bound)) fail_msg("%.17g is not %.17g", got, expected);
}

static void identical_clips_are_perfect(void **state)
{
    (void)state;
    planes a = make_planes(3, 2, 16, 20, 1);
    assert_true(isinf(quality_psnr(&a, &a, 255.0)));
    near(ssim(&a, &a), 1.0, EXACT);
    near(quality_rel_l2(&a, &a), 0.0, 0.0);
    free(a.data);
}

static void psnr_of_a_constant_offset_is_analytic(void **state)
{
    (void)state;
    planes a = make_planes(3, 2, 16, 20, 1), b = make_planes(3, 2, 16, 20, 1);
    for (size_t i = 0; i < count_of(&b); i++) b.data[i] += 5.0f;
    near(quality_psnr(&a, &b, 255.0), 20.0 * log10(255.0 / 5.0), EXACT);
    near(quality_psnr(&a, &b, 1.0), 20.0 * log10(1.0 / 5.0), EXACT);
    free(a.data);
    free(b.data);
}

static void psnr_is_the_mean_over_frames(void **state)
{
    (void)state;
    planes a = make_planes(2, 2, 4, 4, 1), b = make_planes(2, 2, 4, 4, 1);
    for (size_t channel = 0; channel < 2; channel++)
        for (size_t i = 0; i < 16; i++) {
            b.data[channel * 32 + i] += 1.0f;       /* frame 0 */
            b.data[channel * 32 + 16 + i] += 10.0f; /* frame 1: 20 dB less */
        }
    near(quality_psnr(&a, &b, 255.0), 20.0 * log10(255.0) - 10.0, EXACT);
    for (size_t channel = 0; channel < 2; channel++)
        for (size_t i = 0; i < 16; i++) b.data[channel * 32 + i] = a.data[channel * 32 + i];
    near(quality_psnr(&a, &b, 255.0), (100.0 + 20.0 * log10(255.0 / 10.0)) / 2.0, EXACT);
    free(a.data);
    free(b.data);
}

static void ssim_of_flat_pictures_is_the_luminance_term(void **state)
{
    (void)state;
    planes a = make_planes(1, 1, 12, 15, 1), b = make_planes(1, 1, 12, 15, 1);
    for (size_t i = 0; i < count_of(&a); i++) {
        a.data[i] = 100.0f;
        b.data[i] = 120.0f;
    }
    /* Without variance the structure term is c2 / c2. */
    double c1 = 0.01 * 255.0 * 0.01 * 255.0;
    near(ssim(&a, &b), (2.0 * 100.0 * 120.0 + c1) / (100.0 * 100.0 + 120.0 * 120.0 + c1), 1e-9);
    free(a.data);
    free(b.data);
}

static void ssim_of_one_window_agrees_with_its_definition(void **state)
{
    (void)state;
    planes a = make_planes(1, 1, 11, 11, 3), b = make_planes(1, 1, 11, 11, 4);
    double sum = 0.0, mean_a = 0.0, mean_b = 0.0;
    for (int y = 0; y < 11; y++)
        for (int x = 0; x < 11; x++) {
            double w = exp(-((x - 5) * (x - 5) + (y - 5) * (y - 5)) / (2.0 * 1.5 * 1.5));
            sum += w;
            mean_a += w * (double)a.data[y * 11 + x];
            mean_b += w * (double)b.data[y * 11 + x];
        }
    mean_a /= sum;
    mean_b /= sum;
    /* About the means, unlike the code under test. */
    double variance_a = 0.0, variance_b = 0.0, covariance = 0.0;
    for (int y = 0; y < 11; y++)
        for (int x = 0; x < 11; x++) {
            double w = exp(-((x - 5) * (x - 5) + (y - 5) * (y - 5)) / (2.0 * 1.5 * 1.5)) / sum;
            double p = (double)a.data[y * 11 + x] - mean_a, q = (double)b.data[y * 11 + x] - mean_b;
            variance_a += w * p * p;
            variance_b += w * q * q;
            covariance += w * p * q;
        }
    double c1 = 2.55 * 2.55, c2 = 7.65 * 7.65;
    double expected = (2.0 * mean_a * mean_b + c1) * (2.0 * covariance + c2) /
                      ((mean_a * mean_a + mean_b * mean_b + c1) * (variance_a + variance_b + c2));
    near(ssim(&a, &b), expected, EXACT);
    free(a.data);
    free(b.data);
}

static void ssim_is_symmetric_and_falls_with_noise(void **state)
{
    (void)state;
    planes a = make_planes(3, 2, 20, 17, 5), b = make_planes(3, 2, 20, 17, 5);
    planes noise = make_planes(3, 2, 20, 17, 6);
    double before = 1.0;
    for (int level = 1; level <= 3; level++) {
        for (size_t i = 0; i < count_of(&b); i++) b.data[i] += 0.1f * (noise.data[i] - 127.5f);
        double value = ssim(&a, &b);
        near(ssim(&b, &a), value, EXACT);
        assert_true(value < before && value > -1.0);
        before = value;
    }
    free(a.data);
    free(b.data);
    free(noise.data);
}

static void frames_smaller_than_the_window_are_measured_too(void **state)
{
    (void)state;
    const int sizes[][2] = { { 1, 1 }, { 1, 30 }, { 8, 5 }, { 11, 3 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        planes a = make_planes(2, 1, sizes[i][0], sizes[i][1], 7);
        planes b = make_planes(2, 1, sizes[i][0], sizes[i][1], 8);
        near(ssim(&a, &a), 1.0, EXACT);
        assert_true(ssim(&a, &b) < 1.0);
        free(a.data);
        free(b.data);
    }
}

static void relative_l2_scales_with_the_error(void **state)
{
    (void)state;
    planes a = make_planes(1, 1, 4, 4, 9), b = make_planes(1, 1, 4, 4, 9);
    for (size_t i = 0; i < count_of(&b); i++) b.data[i] *= 1.25f;
    near(quality_rel_l2(&a, &b), 0.25, 1e-6); /* the products are rounded to float */
    free(a.data);
    free(b.data);
}

static void pixels_are_compared_as_a_viewer_sees_them(void **state)
{
    (void)state;
    planes a = make_planes(3, 1, 12, 12, 10), b = make_planes(3, 1, 12, 12, 10);
    for (size_t i = 0; i < count_of(&a); i++) {
        a.data[i] = 1.5f; /* white, both clamped to 255 */
        b.data[i] = 1.0f;
    }
    quality q;
    mcsa_error error;
    assert_int_equal(quality_of_latents(&q, &a, &b, &error), MCSA_OK);
    assert_true(isinf(q.psnr_db));
    near(q.ssim, 1.0, EXACT);
    near(q.rel_l2, 1.0 / 3.0, EXACT);
    free(a.data);
    free(b.data);
}

static void latents_are_compared_over_the_range_of_the_reference(void **state)
{
    (void)state;
    planes a = make_planes(4, 1, 12, 12, 11), b = make_planes(4, 1, 12, 12, 11);
    for (size_t i = 0; i < count_of(&a); i++) {
        a.data[i] = i % 2 ? 3.0f : -1.0f;
        b.data[i] = a.data[i] + 0.5f;
    }
    quality q;
    mcsa_error error;
    assert_int_equal(quality_of_latents(&q, &a, &b, &error), MCSA_OK);
    near(q.psnr_db, 20.0 * log10(4.0 / 0.5), EXACT);
    near(q.rel_l2, 0.5 / sqrt(5.0), EXACT);
    free(a.data);
    free(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identical_clips_are_perfect),
        cmocka_unit_test(psnr_of_a_constant_offset_is_analytic),
        cmocka_unit_test(psnr_is_the_mean_over_frames),
        cmocka_unit_test(ssim_of_flat_pictures_is_the_luminance_term),
        cmocka_unit_test(ssim_of_one_window_agrees_with_its_definition),
        cmocka_unit_test(ssim_is_symmetric_and_falls_with_noise),
        cmocka_unit_test(frames_smaller_than_the_window_are_measured_too),
        cmocka_unit_test(relative_l2_scales_with_the_error),
        cmocka_unit_test(pixels_are_compared_as_a_viewer_sees_them),
        cmocka_unit_test(latents_are_compared_over_the_range_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
