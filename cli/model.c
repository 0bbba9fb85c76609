/* model.c - finds the parts of a model directory and opens them. */
#include "model.h"

#include "dit/json.h"
#include "dit/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static mcsa_status join(char path[PATH_BYTES], const char *dir, const char *name, mcsa_error *error)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", dir, name);
    if (length < 0 || length >= PATH_BYTES)
        return mcsa_fail(error, MCSA_EINVAL,
                         "the name of the model directory has %zu bytes; at most %d are possible",
                         strlen(dir), PATH_BYTES - 64);
    return MCSA_OK;
}

static int is_file(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

static mcsa_status find_transformer(char path[PATH_BYTES], const char *dir, mcsa_error *error)
{
    if (access(dir, R_OK | X_OK) != 0)
        return mcsa_fail(error, MCSA_EIO, "cannot open the model directory %.300s: %s", dir, strerror(errno));
    TRY(join(path, dir, "transformer_2/config.json", error));
    if (is_file(path))
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "%.300s has two transformers, for high and for low noise; mcsa runs one", dir);
    TRY(join(path, dir, "transformer/config.json", error));
    if (is_file(path)) return join(path, dir, "transformer", error);
    TRY(join(path, dir, "config.json", error));
    if (is_file(path)) return join(path, dir, ".", error);
    return mcsa_fail(error, MCSA_EFORMAT, "%.300s holds neither transformer/config.json nor config.json",
                     dir);
}

/* path: "" when the directory has no text encoder of ours. */
static mcsa_status find_text_encoder(char path[PATH_BYTES], const char *dir, mcsa_error *error)
{
    TRY(join(path, dir, "text_encoder/config.json", error));
    int ours = 0;
    if (is_file(path)) {
        dit_json config;
        TRY(dit_json_open(&config, path, error));
        const cJSON *name = dit_json_get(&config, "_class_name");
        ours = cJSON_IsString(name) && strcmp(name->valuestring, "WordWindowEncoder") == 0;
        cJSON_Delete(config.root);
    }
    path[0] = '\0';
    return ours ? join(path, dir, "text_encoder", error) : MCSA_OK;
}

static mcsa_status read_shift(float *shift, const char *dir, mcsa_error *error)
{
    char path[PATH_BYTES];
    double value = 3.0; /* Wan2.1 at 480p */
    TRY(join(path, dir, "scheduler/scheduler_config.json", error));
    if (is_file(path)) {
        dit_json config;
        TRY(dit_json_open(&config, path, error));
        const cJSON *item = dit_json_get(&config, "flow_shift");
        if (!item) item = dit_json_get(&config, "shift");
        if (item) value = cJSON_GetNumberValue(item);
        cJSON_Delete(config.root);
    }
    if (!(value > 0.0 && value <= 100.0)) /* refuses the NaN of an item that is no number, too */
        return mcsa_fail(error, MCSA_EFORMAT, "%s: the shift must be a number above 0 and at most 100", path);
    *shift = (float)value;
    return MCSA_OK;
}

static mcsa_status open_parts(video_model *model, const char *dir, const dit_wan_options *options,
                              mcsa_error *error)
{
    char transformer[PATH_BYTES], text[PATH_BYTES];
    TRY(find_transformer(transformer, dir, error));
    TRY(find_text_encoder(text, dir, error));
    TRY(read_shift(&model->shift, dir, error));
    TRY(dit_wan_open(&model->transformer, transformer, options, error));
    if (!text[0]) return MCSA_OK;
    TRY(dit_text_open(&model->text, text, error));
    int width = dit_text_width(model->text), expected = dit_wan_describe(model->transformer)->text_dim;
    if (width != expected)
        return mcsa_fail(error, MCSA_EFORMAT,
                         "%.200s: the text encoder is %d wide, the transformer expects %d", dir, width,
                         expected);
    return MCSA_OK;
}

mcsa_status model_open(video_model *model, const char *dir, const dit_wan_options *options, mcsa_error *error)
{
    *model = (video_model){ 0 };
    mcsa_status status = open_parts(model, dir, options, error);
    if (status != MCSA_OK) model_close(model);
    return status;
}

void model_close(video_model *model)
{
    dit_text_free(model->text);
    dit_wan_free(model->transformer);
    *model = (video_model){ 0 };
}

static mcsa_status context_alloc(context *out, int rows, int width, mcsa_error *error)
{
    *out = (context){ rows, width, malloc((size_t)rows * (size_t)width * sizeof(float)) };
    if (!out->data)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a context of %d rows of %d", rows, width);
    return MCSA_OK;
}

void context_free(context *c)
{
    free(c->data);
    *c = (context){ 0 };
}

mcsa_status context_from_caption(context *out, const video_model *model, const char *caption,
                                 mcsa_error *error)
{
    *out = (context){ 0 };
    if (!model->text)
        return mcsa_fail(error, MCSA_EINVAL,
                         "this model has no text encoder that mcsa can run: give --context FILE and "
                         "--negative-context FILE instead of --prompt (docs/REAL_MODELS.md)");
    TRY(context_alloc(out, dit_text_rows(model->text), dit_text_width(model->text), error));
    mcsa_status status = dit_text_encode(model->text, caption, out->data, error);
    if (status != MCSA_OK) context_free(out);
    return status;
}

static mcsa_status copy_context(context *out, const dit_tensors *file, int width, const char *path,
                                mcsa_error *error)
{
    const dit_tensor *tensor = dit_tensors_find(file, "context");
    if (!tensor) return mcsa_fail(error, MCSA_EFORMAT, "%.300s has no tensor \"context\"", path);
    if (tensor->rank != 2 || tensor->shape[1] != width || tensor->shape[0] < 1 || tensor->shape[0] > 65536)
        return mcsa_fail(error, MCSA_EFORMAT,
                         "%.300s: tensor \"context\" must be [rows, %d], rows from 1 to 65536, but has %d "
                         "dimensions, %lld x %lld",
                         path, width, tensor->rank, tensor->rank > 0 ? (long long)tensor->shape[0] : 1LL,
                         tensor->rank > 1 ? (long long)tensor->shape[1] : 1LL);
    TRY(context_alloc(out, (int)tensor->shape[0], width, error));
    dit_tensor_read(tensor, out->data);
    return MCSA_OK;
}

mcsa_status context_from_file(context *out, const video_model *model, const char *path, mcsa_error *error)
{
    *out = (context){ 0 };
    dit_tensors *file;
    TRY(dit_tensors_open(&file, path, error));
    mcsa_status status = copy_context(out, file, dit_wan_describe(model->transformer)->text_dim, path, error);
    dit_tensors_free(file);
    return status;
}

mcsa_status model_check_channels(const dit_wan_config *config, mcsa_error *error)
{
    if (config->in_channels != config->out_channels)
        return mcsa_fail(error, MCSA_EUNSUPPORTED,
                         "the model takes %d channels and gives %d: it wants an image besides the noise, "
                         "which mcsa does not do",
                         config->in_channels, config->out_channels);
    return MCSA_OK;
}

mcsa_status model_check_size(const dit_wan_config *config, int frames, int height, int width,
                             mcsa_error *error)
{
    static const char *const names[] = { "frames", "height", "width" };
    const int sizes[] = { frames, height, width };
    for (int axis = 0; axis < 3; axis++) {
        int patch = config->patch[axis], below = sizes[axis] / patch * patch;
        if (sizes[axis] == below) continue;
        if (below == 0)
            return mcsa_fail(error, MCSA_EINVAL,
                             "--%s %d: this model works in patches of %d; the least is %d", names[axis],
                             sizes[axis], patch, patch);
        return mcsa_fail(error, MCSA_EINVAL,
                         "--%s %d is not divisible by the model's patch of %d; the nearest sizes are %d and "
                         "%d",
                         names[axis], sizes[axis], patch, below, below + patch);
    }
    for (int axis = 0; axis < 3; axis++) {
        int most = config->rope_max_seq_len * config->patch[axis];
        if (sizes[axis] > most)
            return mcsa_fail(error, MCSA_EINVAL, "--%s %d: positions of this model end at %d", names[axis],
                             sizes[axis], most);
    }
    return MCSA_OK;
}
