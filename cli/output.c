/* output.c - one table from endings to writers. */
#include "output.h"

#include "dit/safetensors.h"
#include "staged.h"
#include "video.h"

#include <string.h>
#include <strings.h>

typedef struct output_format {
    const char *ending;
    mcsa_status (*write)(const clip *c, const char *path, mcsa_error *error); /* NULL: the latent itself */
} output_format;

static const output_format formats[] = {
    { ".mp4", clip_write_mp4 },
    { ".png", clip_write_png },
    { ".y4m", clip_write_y4m },
    { ".safetensors", NULL },
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* Where the ending of the file's own name starts; NULL when it has none. */
static const char *ending_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    return dot == name ? NULL : dot;
}

static const output_format *find_format(const char *path)
{
    const char *ending = ending_of(path);
    for (int i = 0; ending && i < FORMATS; i++)
        if (strcasecmp(ending, formats[i].ending) == 0) return &formats[i];
    return NULL;
}

mcsa_status output_check(const option_texts *paths, int channels, mcsa_error *error)
{
    for (int i = 0; i < paths->count; i++) {
        const output_format *format = find_format(paths->text[i]);
        if (!format)
            return mcsa_fail(
                error, MCSA_EINVAL,
                "--out %.200s: the ending says the format and must be .mp4, .png, .y4m or .safetensors",
                paths->text[i]);
        if (format->write && channels != 3)
            return mcsa_fail(
                error, MCSA_EINVAL,
                "--out %.200s: this model makes latents of %d channels, not pixels; write .safetensors "
                "and decode it (docs/REAL_MODELS.md)",
                paths->text[i], channels);
        TRY(staged_check(paths->text[i], error));
    }
    return MCSA_OK;
}

mcsa_status output_dense_name(const char *path, char *name, size_t bytes, mcsa_error *error)
{
    const char *ending = ending_of(path);
    int stem = ending ? (int)(ending - path) : (int)strlen(path);
    int length = snprintf(name, bytes, "%.*s-dense%s", stem, path, ending ? ending : "");
    if (length < 0 || (size_t)length >= bytes)
        return mcsa_fail(error, MCSA_EINVAL, "--out: the file name has %zu bytes; at most %zu are possible",
                         strlen(path), bytes - 32);
    return MCSA_OK;
}

static mcsa_status write_latent(const char *path, const planes *latent, mcsa_error *error)
{
    dit_tensor tensor = { .name = "latent",
                          .dtype = MCSA_F32,
                          .rank = 4,
                          .shape = { latent->channels, latent->frames, latent->height, latent->width },
                          .data = latent->data };
    return dit_tensors_write(path, &tensor, 1, error);
}

mcsa_status output_write(const char *path, const planes *latent, mcsa_error *error)
{
    const output_format *format = find_format(path);
    if (!format->write) return write_latent(path, latent, error);
    clip pictures;
    TRY(clip_from_latent(&pictures, latent->data, latent->frames, latent->height, latent->width, error));
    mcsa_status status = format->write(&pictures, path, error);
    clip_free(&pictures);
    return status;
}
