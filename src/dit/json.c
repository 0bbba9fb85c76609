/* json.c - see json.h. */
#include "json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* The index of a 14B checkpoint is about 100 KiB and a vocabulary a few MiB; the limit keeps a wrong path
     * (a video, a weight file) from being read into memory. */
    MAX_BYTES = 64 << 20
};

static mcsa_status read_text(char **text, size_t *length, const char *path, mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    char *bytes = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return mcsa_fail(error, MCSA_EIO, "cannot open %s: %s", path, strerror(errno));

    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET) != 0) {
        status = mcsa_fail(error, MCSA_EIO, "cannot find the size of %s: %s", path, strerror(errno));
        goto done;
    }
    if (size > MAX_BYTES) {
        status = mcsa_fail(error, MCSA_EFORMAT, "%s has %ld bytes, more than the %d of any JSON file we read", path,
                           size, MAX_BYTES);
        goto done;
    }
    bytes = malloc((size_t)size + 1);
    if (!bytes) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for the %ld bytes of %s", size, path);
        goto done;
    }
    if (fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        status = mcsa_fail(error, MCSA_EIO, "cannot read the %ld bytes of %s", size, path);
        goto done;
    }
    bytes[size] = 0;
    *text = bytes;
    *length = (size_t)size;
    bytes = NULL;
done:
    free(bytes);
    fclose(file);
    return status;
}

static mcsa_status parse(dit_json *json, mcsa_error *error)
{
    char *text = NULL;
    size_t length = 0;
    TRY(read_text(&text, &length, json->path, error));
    json->root = cJSON_ParseWithLength(text, length);
    free(text);
    if (!json->root) return mcsa_fail(error, MCSA_EFORMAT, "%s is not valid JSON", json->path);
    if (!cJSON_IsObject(json->root)) {
        cJSON_Delete(json->root);
        json->root = NULL;
        return mcsa_fail(error, MCSA_EFORMAT, "%s does not hold a JSON object", json->path);
    }
    return MCSA_OK;
}

mcsa_status dit_json_open(dit_json *json, const char *path, mcsa_error *error)
{
    json->root = NULL;
    if (snprintf(json->path, DIT_MAX_PATH, "%s", path) >= DIT_MAX_PATH)
        return mcsa_fail(error, MCSA_EINVAL, "the path %.80s... is too long", path);
    return parse(json, error);
}

mcsa_status dit_json_open_in(dit_json *json, const char *dir, const char *name, mcsa_error *error)
{
    json->root = NULL;
    if (snprintf(json->path, DIT_MAX_PATH, "%s/%s", dir, name) >= DIT_MAX_PATH)
        return mcsa_fail(error, MCSA_EINVAL, "the path %.80s... is too long", dir);
    return parse(json, error);
}

const cJSON *dit_json_get(const dit_json *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->root, key);
    return cJSON_IsNull(item) ? NULL : item;
}

mcsa_status dit_json_int(const dit_json *json, const char *key, int low, int high, int *value, mcsa_error *error)
{
    const cJSON *item = dit_json_get(json, key);
    if (!item) return MCSA_OK;
    if (!cJSON_IsNumber(item)) return mcsa_fail(error, MCSA_EFORMAT, "%s: %s is not a number", json->path, key);
    double number = item->valuedouble;
    if (!(number >= low && number <= high) || number != (double)(int)number)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: %s is %g, not a whole number from %d to %d", json->path, key, number,
                         low, high);
    *value = (int)number;
    return MCSA_OK;
}
