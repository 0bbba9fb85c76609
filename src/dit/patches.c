/* patches.c - see patches.h. */
#include "patches.h"

typedef struct walk {
    int64_t tokens, pixels;          /* pixels: of a patch */
    int64_t columns, lines, channel; /* steps in the latent: one line, one frame, one channel */
} walk;

static walk walk_of(const dit_patches *p)
{
    walk w = { .tokens = (int64_t)p->grid[0] * p->grid[1] * p->grid[2],
               .pixels = (int64_t)p->patch[0] * p->patch[1] * p->patch[2] };
    w.columns = (int64_t)p->grid[2] * p->patch[2];
    w.lines = w.columns * p->grid[1] * p->patch[1];
    w.channel = w.lines * p->grid[0] * p->patch[0];
    return w;
}

/* Where pixel (0, 0, 0) of token n lies in a channel. */
static int64_t corner(const dit_patches *p, const walk *w, int64_t n)
{
    int64_t column = n % p->grid[2], line = n / p->grid[2] % p->grid[1], frame = n / p->grid[2] / p->grid[1];
    return frame * p->patch[0] * w->lines + line * p->patch[1] * w->columns + column * p->patch[2];
}

/* Where pixel i of a patch lies, seen from its corner. */
static int64_t inside(const dit_patches *p, const walk *w, int64_t i)
{
    int64_t column = i % p->patch[2], line = i / p->patch[2] % p->patch[1], frame = i / p->patch[2] / p->patch[1];
    return frame * w->lines + line * w->columns + column;
}

void dit_patches_gather(const dit_patches *p, const float *latent, float *rows)
{
    const walk w = walk_of(p);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < w.tokens; n++) {
        const float *from = latent + corner(p, &w, n);
        float *row = rows + n * w.pixels * p->channels;
        for (int64_t i = 0; i < w.pixels; i++) {
            const float *pixel = from + inside(p, &w, i);
            for (int c = 0; c < p->channels; c++) row[c * w.pixels + i] = pixel[c * w.channel];
        }
    }
}

void dit_patches_scatter(const dit_patches *p, const float *rows, float *latent)
{
    const walk w = walk_of(p);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < w.tokens; n++) {
        float *to = latent + corner(p, &w, n);
        const float *row = rows + n * w.pixels * p->channels;
        for (int64_t i = 0; i < w.pixels; i++) {
            float *pixel = to + inside(p, &w, i);
            for (int c = 0; c < p->channels; c++) pixel[c * w.channel] = row[i * p->channels + c];
        }
    }
}
