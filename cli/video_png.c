/* video_png.c - a contact sheet: all frames of a clip on one page, left to right, top to bottom, on white. */
#include "staged.h"
#include "video.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = CLIP_SHEET_COLUMNS, GAP = 2 };

void clip_sheet_size(const clip *c, int *width, int *height)
{
    int columns = c->frames < COLUMNS ? c->frames : COLUMNS;
    int rows = (c->frames + COLUMNS - 1) / COLUMNS;
    *width = columns * (c->width + GAP) + GAP;
    *height = rows * (c->height + GAP) + GAP;
}

/* page: [page height, page width, 3] */
static void paste_frames(const clip *c, uint8_t *page, size_t page_row)
{
    size_t frame_row = 3 * (size_t)c->width;
    for (int t = 0; t < c->frames; t++) {
        size_t left = GAP + (size_t)(t % COLUMNS) * (size_t)(c->width + GAP);
        size_t top = GAP + (size_t)(t / COLUMNS) * (size_t)(c->height + GAP);
        const uint8_t *frame = clip_frame(c, t);
        for (size_t y = 0; y < (size_t)c->height; y++)
            memcpy(page + (top + y) * page_row + 3 * left, frame + y * frame_row, frame_row);
    }
}

mcsa_status clip_write_png(const clip *c, const char *path, mcsa_error *error)
{
    int width, height;
    clip_sheet_size(c, &width, &height);
    size_t page_row = 3 * (size_t)width, page_bytes = page_row * (size_t)height;
    staged file;
    FILE *stream = NULL;
    TRY(staged_name(&file, path, error));
    uint8_t *page = malloc(page_bytes);
    if (!page) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a sheet of %d x %d pixels", width, height);
    memset(page, 255, page_bytes);
    paste_frames(c, page, page_row);

    mcsa_status status = staged_open(&file, &stream, error);
    if (status == MCSA_OK) {
        /* libpng's simplified interface returns instead of jumping out of the caller with longjmp. */
        png_image image = { .version = PNG_IMAGE_VERSION,
                            .width = (png_uint_32)width,
                            .height = (png_uint_32)height,
                            .format = PNG_FORMAT_RGB };
        if (!png_image_write_to_stdio(&image, stream, 0, page, 0, NULL))
            status = mcsa_fail(error, MCSA_EIO, "cannot write %s: %s", path, image.message);
        status = staged_close(&file, stream, status, error);
    }
    free(page);
    return status;
}
