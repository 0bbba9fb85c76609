/* video_y4m.c - YUV4MPEG2: one text line, then per frame "FRAME\n" and the planes Y', Cb, Cr.
 *
 * C444 keeps the colour of every pixel: this is the ending for measuring and for feeding other encoders.
 * The format has no field for the matrix; readers take BT.601 for frames of this size, which is what
 * clip_to_ycbcr makes. */
#include "staged.h"
#include "video.h"

#include <stdlib.h>

mcsa_status clip_write_y4m(const clip *c, const char *path, mcsa_error *error)
{
    staged file;
    FILE *stream = NULL;
    TRY(staged_name(&file, path, error));
    size_t pixels = (size_t)c->height * (size_t)c->width;
    uint8_t *planes = malloc(3 * pixels); /* [3, height, width] */
    if (!planes)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a frame of %d x %d", c->height, c->width);

    mcsa_status status = staged_open(&file, &stream, error);
    if (status != MCSA_OK) {
        free(planes);
        return status;
    }
    fprintf(stream, "YUV4MPEG2 W%d H%d F%d:1 Ip A1:1 C444\n", c->width, c->height, CLIP_FRAMES_PER_SECOND);
    for (int t = 0; t < c->frames; t++) {
        const uint8_t *rgb = clip_frame(c, t);
        for (size_t i = 0; i < pixels; i++) {
            uint8_t ycbcr[3];
            clip_to_ycbcr(rgb + 3 * i, ycbcr);
            for (size_t plane = 0; plane < 3; plane++) planes[plane * pixels + i] = ycbcr[plane];
        }
        fputs("FRAME\n", stream);
        fwrite(planes, 1, 3 * pixels, stream); /* staged_close asks the stream whether all writes went well */
    }
    free(planes);
    return staged_close(&file, stream, MCSA_OK, error);
}
