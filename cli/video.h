/* video.h - a clip in memory and the files it can become.
 *
 *   clip.c        from the values of a pixel-space model to 8 bits, and to the Y'CbCr of BT.601
 *   video_mp4.c   .mp4   H.264 where libavcodec has an encoder for it, else MPEG-4 part 2
 *   video_png.c   .png   a contact sheet of all frames
 *   video_y4m.c   .y4m   uncompressed, 4:4:4
 *
 * Every writer stages its file, see staged.h. */
#ifndef MCSA_CLI_VIDEO_H
#define MCSA_CLI_VIDEO_H

#include "base/status.h"

#include <stdint.h>

/* tiny-t2v's scenes are drawn at 8 frames per second. */
enum { CLIP_FRAMES_PER_SECOND = 8 };

typedef struct clip {
    int frames, height, width;
    uint8_t *rgb; /* [frames, height, width, 3] */
} clip;

/* latent: [3, frames, height, width], nominally in [-1, 1]; values outside are clamped, NaN becomes black,
 * and each is rounded to the nearest of 256 levels. */
mcsa_status clip_from_latent(clip *out, const float *latent, int frames, int height, int width,
                             mcsa_error *error);
void clip_free(clip *c);

/* [height, width, 3] of one frame. */
const uint8_t *clip_frame(const clip *c, int t);

/* Y', Cb, Cr of BT.601 in the ranges 16..235 and 16..240, rounded. */
void clip_to_ycbcr(const uint8_t rgb[3], uint8_t ycbcr[3]);

mcsa_status clip_write_mp4(const clip *c, const char *path, mcsa_error *error);
mcsa_status clip_write_png(const clip *c, const char *path, mcsa_error *error);
mcsa_status clip_write_y4m(const clip *c, const char *path, mcsa_error *error);

/* The encoder that clip_write_mp4 would take: "libx264", "mpeg4", or NULL when there is none. */
const char *clip_mp4_encoder(void);

enum { CLIP_SHEET_COLUMNS = 8 };

/* Frames stand in rows of at most CLIP_SHEET_COLUMNS with gaps of 2 pixels between them and around. */
void clip_sheet_size(const clip *c, int *width, int *height);

#endif
