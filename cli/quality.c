/* quality.c - fidelity in double precision; SSIM's window is separable, so rows are blurred first and
 * columns after. */
#include "quality.h"

#include "video.h"

#include <math.h>
#include <stdlib.h>

enum { WINDOW = 11 };

/* The moments under the window that SSIM is made of; row by row they stand side by side. */
enum { MEAN_A, MEAN_B, SQUARE_A, SQUARE_B, PRODUCT, MOMENTS };

static size_t frame_size(const planes *p)
{
    return (size_t)p->height * (size_t)p->width;
}

double quality_psnr(const planes *reference, const planes *candidate, double peak)
{
    size_t plane = frame_size(reference);
    double sum_db = 0.0;
    int exact = 0;
    for (int t = 0; t < reference->frames; t++) {
        double squares = 0.0;
        for (int c = 0; c < reference->channels; c++) {
            size_t start = ((size_t)c * (size_t)reference->frames + (size_t)t) * plane;
            for (size_t i = start; i < start + plane; i++) {
                double difference = (double)candidate->data[i] - (double)reference->data[i];
                squares += difference * difference;
            }
        }
        double mean = squares / ((double)plane * reference->channels);
        exact += mean == 0.0;
        sum_db += mean == 0.0 ? 100.0 : 10.0 * log10(peak * peak / mean);
    }
    return exact == reference->frames ? INFINITY : sum_db / reference->frames;
}

double quality_rel_l2(const planes *reference, const planes *candidate)
{
    size_t count = frame_size(reference) * (size_t)reference->channels * (size_t)reference->frames;
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; i++) {
        double value = reference->data[i], difference = candidate->data[i] - value;
        error += difference * difference;
        norm += value * value;
    }
    return error == 0.0 ? 0.0 : sqrt(error / norm);
}

/* weights: [size], sum 1 */
static void gaussian(double *weights, int size)
{
    double sum = 0.0;
    for (int i = 0; i < size; i++) {
        double x = (i - 0.5 * (size - 1)) / 1.5;
        weights[i] = exp(-0.5 * x * x);
        sum += weights[i];
    }
    for (int i = 0; i < size; i++) weights[i] /= sum;
}

/* rows: [height, width - size + 1, MOMENTS]; a, b: [height, width] */
static void blur_rows(double *rows, const float *a, const float *b, int height, int width,
                      const double *weights, int size)
{
    for (int y = 0; y < height; y++, a += width, b += width) {
        for (int x = 0; x + size <= width; x++, rows += MOMENTS) {
            double sum[MOMENTS] = { 0 };
            for (int i = 0; i < size; i++) {
                double w = weights[i], p = a[x + i], q = b[x + i];
                sum[MEAN_A] += w * p;
                sum[MEAN_B] += w * q;
                sum[SQUARE_A] += w * p * p;
                sum[SQUARE_B] += w * q * q;
                sum[PRODUCT] += w * p * q;
            }
            for (int m = 0; m < MOMENTS; m++) rows[m] = sum[m];
        }
    }
}

static double ssim_at(const double *moments, double c1, double c2)
{
    double a = moments[MEAN_A], b = moments[MEAN_B];
    double variance_a = moments[SQUARE_A] - a * a, variance_b = moments[SQUARE_B] - b * b;
    double covariance = moments[PRODUCT] - a * b;
    return (2.0 * a * b + c1) * (2.0 * covariance + c2) /
           ((a * a + b * b + c1) * (variance_a + variance_b + c2));
}

mcsa_status quality_ssim(const planes *reference, const planes *candidate, double peak, double *ssim,
                         mcsa_error *error)
{
    int height = reference->height, width = reference->width;
    int tall = height < WINDOW ? height : WINDOW, wide = width < WINDOW ? width : WINDOW;
    double down[WINDOW], across[WINDOW];
    gaussian(down, tall);
    gaussian(across, wide);
    size_t columns = (size_t)(width - wide + 1), places_down = (size_t)(height - tall + 1);
    double *rows = malloc((size_t)height * columns * MOMENTS * sizeof *rows); /* [height, columns, MOMENTS] */
    if (!rows) return mcsa_fail(error, MCSA_ENOMEM, "no memory to compare frames of %d x %d", height, width);

    double c1 = 0.01 * peak * 0.01 * peak, c2 = 0.03 * peak * 0.03 * peak, sum = 0.0;
    int images = reference->channels * reference->frames;
    for (int image = 0; image < images; image++) {
        size_t start = (size_t)image * frame_size(reference);
        blur_rows(rows, reference->data + start, candidate->data + start, height, width, across, wide);
        for (size_t y = 0; y < places_down; y++) {
            for (size_t x = 0; x < columns; x++) {
                double moments[MOMENTS] = { 0 };
                for (int i = 0; i < tall; i++)
                    for (int m = 0; m < MOMENTS; m++)
                        moments[m] += down[i] * rows[((y + (size_t)i) * columns + x) * MOMENTS + (size_t)m];
                sum += ssim_at(moments, c1, c2);
            }
        }
    }
    free(rows);
    *ssim = sum / ((double)images * (double)places_down * (double)columns);
    return MCSA_OK;
}

/* levels: 0 .. 255, to be freed */
static mcsa_status to_levels(planes *levels, const planes *latent, mcsa_error *error)
{
    clip pictures;
    TRY(clip_from_latent(&pictures, latent->data, latent->frames, latent->height, latent->width, error));
    size_t pixels = frame_size(latent) * (size_t)latent->frames;
    *levels = *latent;
    levels->data = malloc(3 * pixels * sizeof(float));
    if (levels->data)
        for (size_t channel = 0; channel < 3; channel++)
            for (size_t i = 0; i < pixels; i++)
                levels->data[channel * pixels + i] = pictures.rgb[3 * i + channel];
    clip_free(&pictures);
    return levels->data ? MCSA_OK : mcsa_fail(error, MCSA_ENOMEM, "no memory to compare %zu pixels", pixels);
}

static mcsa_status compare_pixels(quality *out, const planes *reference, const planes *candidate,
                                  mcsa_error *error)
{
    planes a = { 0 }, b = { 0 };
    mcsa_status status = to_levels(&a, reference, error);
    if (status == MCSA_OK) status = to_levels(&b, candidate, error);
    if (status == MCSA_OK) {
        out->psnr_db = quality_psnr(&a, &b, 255.0);
        status = quality_ssim(&a, &b, 255.0, &out->ssim, error);
    }
    free(a.data);
    free(b.data);
    return status;
}

static double value_range(const planes *p)
{
    size_t count = frame_size(p) * (size_t)p->channels * (size_t)p->frames;
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        low = fmin(low, p->data[i]);
        high = fmax(high, p->data[i]);
    }
    return high - low;
}

mcsa_status quality_of_latents(quality *out, const planes *reference, const planes *candidate,
                               mcsa_error *error)
{
    out->rel_l2 = quality_rel_l2(reference, candidate);
    if (reference->channels == 3) return compare_pixels(out, reference, candidate, error);
    double peak = value_range(reference);
    out->psnr_db = quality_psnr(reference, candidate, peak);
    return quality_ssim(reference, candidate, peak, &out->ssim, error);
}
