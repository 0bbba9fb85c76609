/* clip.c - floats to bytes, and bytes to the colour space of video. */
#include "video.h"

#include <math.h>
#include <stdlib.h>

static uint8_t to_byte(float value)
{
    float level = (value + 1.0f) * 127.5f;
    if (!(level > 0.0f)) return 0; /* NaN too */
    if (level >= 255.0f) return 255;
    return (uint8_t)lrintf(level);
}

mcsa_status clip_from_latent(clip *out, const float *latent, int frames, int height, int width,
                             mcsa_error *error)
{
    size_t pixels = (size_t)frames * (size_t)height * (size_t)width;
    *out = (clip){ frames, height, width, malloc(3 * pixels) };
    if (!out->rgb)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a clip of %d frames of %d x %d", frames, height,
                         width);
    for (size_t channel = 0; channel < 3; channel++)
        for (size_t i = 0; i < pixels; i++) out->rgb[3 * i + channel] = to_byte(latent[channel * pixels + i]);
    return MCSA_OK;
}

void clip_free(clip *c)
{
    free(c->rgb);
    c->rgb = NULL;
}

const uint8_t *clip_frame(const clip *c, int t)
{
    return c->rgb + (size_t)t * 3 * (size_t)c->height * (size_t)c->width;
}

void clip_to_ycbcr(const uint8_t rgb[3], uint8_t ycbcr[3])
{
    double r = rgb[0] / 255.0, g = rgb[1] / 255.0, b = rgb[2] / 255.0;
    double luma = 0.299 * r + 0.587 * g + 0.114 * b;
    ycbcr[0] = (uint8_t)lrint(16.0 + 219.0 * luma);
    ycbcr[1] = (uint8_t)lrint(128.0 + 224.0 * (b - luma) / 1.772);
    ycbcr[2] = (uint8_t)lrint(128.0 + 224.0 * (r - luma) / 1.402);
}
