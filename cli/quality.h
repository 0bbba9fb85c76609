/* quality.h - how near a clip is to a reference: PSNR, SSIM and relative L2.
 *
 * Both clips are planes of floats of one shape; peak is the range that the values may have.  Luma is not
 * formed: SSIM is the mean over channels, so an error of colour alone counts too. */
#ifndef MCSA_CLI_QUALITY_H
#define MCSA_CLI_QUALITY_H

#include "base/status.h"

typedef struct planes {
    int channels, frames, height, width;
    float *data; /* [channels, frames, height, width] */
} planes;

typedef struct quality {
    double psnr_db; /* INFINITY for identical clips */
    double ssim;    /* 1 for identical clips */
    double rel_l2;  /* |candidate - reference| / |reference| */
} quality;

/* Mean over frames of 10 log10(peak^2 / mean squared error over the frame's channels and pixels).  A frame
 * without any error counts as 100 dB unless all are without, so that one of them does not make the mean
 * infinite. */
double quality_psnr(const planes *reference, const planes *candidate, double peak);

/* Wang, Bovik, Sheikh and Simoncelli 2004: Gaussian window of 11 x 11 and sigma 1.5 wherever it fits
 * whole, K1 = 0.01, K2 = 0.03; the mean over places, frames and channels.  Frames narrower or lower than
 * 11 get a window of their size. Fails only with MCSA_ENOMEM. */
mcsa_status quality_ssim(const planes *reference, const planes *candidate, double peak, double *ssim,
                         mcsa_error *error);

double quality_rel_l2(const planes *reference, const planes *candidate);

/* All three for what a model made.  With 3 channels the clips are pixels: PSNR and SSIM compare the 8-bit
 * levels that a viewer gets, peak 255.  Otherwise they compare latents, peak being the range of the
 * reference.  Relative L2 always compares the latents. */
mcsa_status quality_of_latents(quality *out, const planes *reference, const planes *candidate,
                               mcsa_error *error);

#endif
