/* wan_config.c - see wan_config.h. */
#include "wan_config.h"

#include "json.h"

#include <stddef.h>
#include <string.h>

enum { MAX_PATCH_NUMBERS = 1 << 20 };

typedef struct field {
    const char *key;
    size_t offset; /* of an int in dit_wan_config */
    int standard;  /* what Diffusers assumes when the key is absent */
    int low, high;
} field;

/* clang-format off */
#define FIELD(key, member, standard, low, high) { key, offsetof(dit_wan_config, member), standard, low, high }
/* clang-format on */

/* The upper limits are far above any published model; with at most 2^31 tokens they keep every byte count
 * inside int64. */
static const field fields[] = {
    FIELD("num_attention_heads", heads, 40, 1, 1024),
    FIELD("attention_head_dim", head_dim, 128, 2, 256), /* 256: the limit of mcsa_attend */
    FIELD("in_channels", in_channels, 16, 1, 1 << 16),
    FIELD("out_channels", out_channels, 16, 1, 1 << 16),
    FIELD("text_dim", text_dim, 4096, 1, 1 << 20),
    FIELD("freq_dim", freq_dim, 256, 2, 1 << 16),
    FIELD("ffn_dim", ffn_dim, 13824, 1, 1 << 20),
    FIELD("num_layers", layers, 40, 1, 4096),
    FIELD("rope_max_seq_len", rope_max_seq_len, 1024, 1, 1 << 20),
};

static mcsa_status refuse_other_models(const dit_json *json, mcsa_error *error)
{
    static const char *const image_keys[] = { "image_dim", "added_kv_proj_dim", "pos_embed_seq_len" };
    const cJSON *class_name = dit_json_get(json, "_class_name"), *norm = dit_json_get(json, "qk_norm");
    if (cJSON_IsString(class_name) && strcmp(class_name->valuestring, "WanTransformer3DModel") != 0)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s describes a %.60s; only WanTransformer3DModel is supported",
                         json->path, class_name->valuestring);
    for (size_t i = 0; i < sizeof image_keys / sizeof *image_keys; i++)
        if (dit_json_get(json, image_keys[i]))
            return mcsa_fail(error, MCSA_EUNSUPPORTED,
                             "%s sets %s: image-to-video models with image embeddings are not supported", json->path,
                             image_keys[i]);
    if (norm && !(cJSON_IsString(norm) && !strcmp(norm->valuestring, "rms_norm_across_heads")))
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s: qk_norm is not rms_norm_across_heads, the only one supported",
                         json->path);
    return MCSA_OK;
}

static mcsa_status read_patch(dit_wan_config *config, const dit_json *json, mcsa_error *error)
{
    const cJSON *patch = dit_json_get(json, "patch_size"), *extent;
    int axis = 0;
    if (!patch) return MCSA_OK;
    if (!cJSON_IsArray(patch) || cJSON_GetArraySize(patch) != 3)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: patch_size is not a list of 3 numbers", json->path);
    cJSON_ArrayForEach(extent, patch)
    {
        double size = cJSON_IsNumber(extent) ? extent->valuedouble : 0;
        if (!(size >= 1 && size <= 64) || size != (double)(int)size)
            return mcsa_fail(error, MCSA_EFORMAT, "%s: patch_size[%d] is not a whole number from 1 to 64", json->path,
                             axis);
        config->patch[axis++] = (int)size;
    }
    return MCSA_OK;
}

static mcsa_status read_norms(dit_wan_config *config, const dit_json *json, mcsa_error *error)
{
    const cJSON *affine = dit_json_get(json, "cross_attn_norm"), *eps = dit_json_get(json, "eps");
    if (affine) {
        if (!cJSON_IsBool(affine))
            return mcsa_fail(error, MCSA_EFORMAT, "%s: cross_attn_norm is neither true nor false", json->path);
        config->cross_attn_norm = cJSON_IsTrue(affine);
    }
    if (eps) {
        if (!cJSON_IsNumber(eps) || !(eps->valuedouble >= 0 && eps->valuedouble <= 1))
            return mcsa_fail(error, MCSA_EFORMAT, "%s: eps is not a number from 0 to 1", json->path);
        config->eps = (float)eps->valuedouble;
    }
    return MCSA_OK;
}

static mcsa_status read_fields(dit_wan_config *config, const dit_json *json, mcsa_error *error)
{
    TRY(refuse_other_models(json, error));
    *config = (dit_wan_config){ .patch = { 1, 2, 2 }, .cross_attn_norm = 1, .eps = 1e-6f };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int *value = (int *)((char *)config + fields[i].offset);
        *value = fields[i].standard;
        TRY(dit_json_int(json, fields[i].key, fields[i].low, fields[i].high, value, error));
    }
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(json->root, "out_channels")))
        config->out_channels = config->in_channels; /* null means "the same", an absent key 16 */
    TRY(read_patch(config, json, error));
    TRY(read_norms(config, json, error));
    if (config->head_dim % 2 || config->freq_dim % 2)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: attention_head_dim %d and freq_dim %d must both be even", json->path,
                         config->head_dim, config->freq_dim);
    const int64_t pixels = (int64_t)config->patch[0] * config->patch[1] * config->patch[2];
    const int channels = config->in_channels > config->out_channels ? config->in_channels : config->out_channels;
    if (pixels * channels > MAX_PATCH_NUMBERS)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: a patch of %lld pixels and %d channels exceeds %d numbers",
                         json->path, (long long)pixels, channels, MAX_PATCH_NUMBERS);
    return MCSA_OK;
}

mcsa_status dit_wan_config_read(dit_wan_config *config, const char *dir, mcsa_error *error)
{
    dit_json json;
    TRY(dit_json_open_in(&json, dir, "config.json", error));
    mcsa_status status = read_fields(config, &json, error);
    cJSON_Delete(json.root);
    return status;
}

mcsa_status dit_wan_config_check(const dit_wan_config *config, mcsa_error *error)
{
    int64_t numbers = config->in_channels > config->out_channels ? config->in_channels : config->out_channels;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const int value = *(const int *)((const char *)config + fields[i].offset);
        if (value < fields[i].low || value > fields[i].high)
            return mcsa_fail(error, MCSA_EINVAL, "%s is %d, outside %d to %d", fields[i].key, value, fields[i].low,
                             fields[i].high);
    }
    for (int axis = 0; axis < 3; axis++) {
        if (config->patch[axis] < 1 || config->patch[axis] > 64)
            return mcsa_fail(error, MCSA_EINVAL, "patch[%d] is %d, outside 1 to 64", axis, config->patch[axis]);
        numbers *= config->patch[axis];
    }
    if (config->head_dim % 2 || config->freq_dim % 2 || numbers > MAX_PATCH_NUMBERS || !(config->eps >= 0))
        return mcsa_fail(error, MCSA_EINVAL,
                         "head_dim and freq_dim must be even, a patch at most %d numbers, eps not "
                         "negative",
                         MAX_PATCH_NUMBERS);
    return MCSA_OK;
}
