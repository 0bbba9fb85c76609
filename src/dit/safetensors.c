/* safetensors.c - the reader of safetensors.h.
 *
 *     u64 little-endian: bytes of JSON | JSON { name: { dtype, shape, data_offsets: [begin, end] } } | data
 *
 * Names point into the parsed JSON and data into the mapping; both live as long as the dit_tensors.  What it
 * does not do: notice that a file shrinks while it is mapped (the operating system then raises SIGBUS), or
 * load dtypes other than F32, BF16 and F16. */
#include "safetensors.h"

#include "base/half.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_HEADER_BYTES = 100 << 20, /* the limit of the format's own reader */
    MAX_SHARDS = 4096
};

typedef struct shard {
    void *map;
    size_t bytes;
    cJSON *header;
    const char *file; /* as the index calls it; valid while the index is being read */
} shard;

struct dit_tensors {
    shard *shards;
    int shard_count;
    dit_tensor *items; /* sorted by name */
    int count;
};

static size_t element_bytes(mcsa_dtype dtype)
{
    return dtype == MCSA_F32 ? 4 : 2;
}

static int parse_dtype(const char *text, mcsa_dtype *dtype)
{
    static const struct {
        const char *text;
        mcsa_dtype dtype;
    } known[] = { { "F32", MCSA_F32 }, { "BF16", MCSA_BF16 }, { "F16", MCSA_F16 } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(text, known[i].text)) {
            *dtype = known[i].dtype;
            return 1;
        }
    return 0;
}

/* A whole number in [0, 2^53], the range in which JSON's doubles are exact. */
static int parse_size(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item)) return 0;
    double number = item->valuedouble;
    if (!(number >= 0 && number <= 9007199254740992.0) || number != (double)(int64_t)number) return 0;
    *value = (int64_t)number;
    return 1;
}

static mcsa_status parse_shape(const cJSON *shape, dit_tensor *tensor, const char *path, mcsa_error *error)
{
    if (!cJSON_IsArray(shape)) return mcsa_fail(error, MCSA_EFORMAT, "%s: tensor %s has no shape", path, tensor->name);
    const cJSON *extent;
    int64_t product = 1;
    cJSON_ArrayForEach(extent, shape)
    {
        if (tensor->rank == DIT_MAX_RANK)
            return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s: tensor %s has more than %d dimensions", path, tensor->name,
                             DIT_MAX_RANK);
        int64_t size;
        if (!parse_size(extent, &size))
            return mcsa_fail(error, MCSA_EFORMAT, "%s: dimension %d of tensor %s is not a whole number >= 0", path,
                             tensor->rank, tensor->name);
        /* A product under 2^60 keeps the byte count inside int64_t whatever the dtype. */
        if (size && product > ((int64_t)1 << 60) / size)
            return mcsa_fail(error, MCSA_EFORMAT, "%s: tensor %s has a shape of more than 2^60 elements", path,
                             tensor->name);
        product *= size;
        tensor->shape[tensor->rank++] = size;
    }
    return MCSA_OK;
}

static mcsa_status parse_tensor(const cJSON *entry, const unsigned char *data, int64_t data_bytes, dit_tensor *tensor,
                                const char *path, mcsa_error *error)
{
    *tensor = (dit_tensor){ .name = entry->string };
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsString(dtype) || cJSON_GetArraySize(offsets) != 2)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: tensor %s lacks dtype or two data_offsets", path, tensor->name);
    if (!parse_dtype(dtype->valuestring, &tensor->dtype))
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s: tensor %s is %.20s; F32, BF16 and F16 are supported", path,
                         tensor->name, dtype->valuestring);
    TRY(parse_shape(cJSON_GetObjectItemCaseSensitive(entry, "shape"), tensor, path, error));

    int64_t begin, end;
    if (!parse_size(offsets->child, &begin) || !parse_size(offsets->child->next, &end) || begin > end ||
        end > data_bytes)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: tensor %s lies outside the %lld bytes of data that the file holds",
                         path, tensor->name, (long long)data_bytes);
    int64_t need = dit_tensor_count(tensor) * (int64_t)element_bytes(tensor->dtype);
    if (end - begin != need)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: tensor %s has %lld bytes where its shape and dtype need %lld", path,
                         tensor->name, (long long)(end - begin), (long long)need);
    tensor->data = data + begin;
    return MCSA_OK;
}

static mcsa_status next_shard(shard **out, dit_tensors *tensors, mcsa_error *error)
{
    const int count = tensors->shard_count + 1;
    shard *shards = realloc(tensors->shards, (size_t)count * sizeof *shards);
    if (!shards) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a table of %d shards", count);
    tensors->shards = shards;
    *out = &shards[tensors->shard_count++];
    **out = (shard){ 0 };
    return MCSA_OK;
}

static mcsa_status reserve_items(dit_tensors *tensors, int more, mcsa_error *error)
{
    const int count = tensors->count + more;
    if (!more) return MCSA_OK;
    dit_tensor *items = realloc(tensors->items, (size_t)count * sizeof *items);
    if (!items) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a table of %d tensors", count);
    tensors->items = items;
    return MCSA_OK;
}

static mcsa_status map_file(shard *s, const char *path, mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return mcsa_fail(error, MCSA_EIO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(file, &info) != 0) {
        status = mcsa_fail(error, MCSA_EIO, "cannot find the size of %s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode) || info.st_size < 8) {
        status = mcsa_fail(error, MCSA_EFORMAT, "%s is not a safetensors file: it has %lld bytes, the shortest has 10",
                           path, (long long)info.st_size);
        goto done;
    }
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED) {
        status = mcsa_fail(error, MCSA_EIO, "cannot map the %lld bytes of %s: %s", (long long)info.st_size, path,
                           strerror(errno));
        goto done;
    }
    s->map = map;
    s->bytes = (size_t)info.st_size;
done:
    close(file);
    return status;
}

static mcsa_status add_shard(dit_tensors *tensors, const char *path, const char *file, mcsa_error *error)
{
    shard *s = NULL;
    TRY(next_shard(&s, tensors, error));
    s->file = file;
    TRY(map_file(s, path, error));

    const unsigned char *bytes = s->map;
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | bytes[i];
    if (header_bytes > MAX_HEADER_BYTES || header_bytes > s->bytes - 8)
        return mcsa_fail(error, MCSA_EFORMAT,
                         "%s is not a safetensors file: its header claims %llu bytes, the file has %zu", path,
                         (unsigned long long)header_bytes, s->bytes);
    s->header = cJSON_ParseWithLength((const char *)bytes + 8, (size_t)header_bytes);
    if (!cJSON_IsObject(s->header))
        return mcsa_fail(error, MCSA_EFORMAT, "%s is not a safetensors file: its header is not a JSON object", path);

    const unsigned char *data = bytes + 8 + header_bytes;
    int64_t data_bytes = (int64_t)(s->bytes - 8 - (size_t)header_bytes);
    TRY(reserve_items(tensors, cJSON_GetArraySize(s->header), error));
    const cJSON *entry;
    cJSON_ArrayForEach(entry, s->header)
    {
        if (!strcmp(entry->string, "__metadata__")) continue;
        TRY(parse_tensor(entry, data, data_bytes, &tensors->items[tensors->count], path, error));
        tensors->count++;
    }
    return MCSA_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const dit_tensor *)a)->name, ((const dit_tensor *)b)->name);
}

static mcsa_status sort_tensors(dit_tensors *tensors, const char *path, mcsa_error *error)
{
    if (tensors->count) qsort(tensors->items, (size_t)tensors->count, sizeof *tensors->items, by_name);
    for (int i = 1; i < tensors->count; i++)
        if (!strcmp(tensors->items[i - 1].name, tensors->items[i].name))
            return mcsa_fail(error, MCSA_EFORMAT, "%s: tensor %s appears twice", path, tensors->items[i].name);
    return MCSA_OK;
}

/* The shards lie beside the index under plain file names; a name with a slash could point anywhere and is
 * refused. */
static mcsa_status shard_path(char path[DIT_MAX_PATH], const char *index_path, const char *file, mcsa_error *error)
{
    const char *slash = strrchr(index_path, '/');
    int folder = slash ? (int)(slash - index_path) + 1 : 0;
    if (strchr(file, '/') || snprintf(path, DIT_MAX_PATH, "%.*s%s", folder, index_path, file) >= DIT_MAX_PATH)
        return mcsa_fail(error, MCSA_EFORMAT, "%s: shard %.80s is not a plain file name", index_path, file);
    return MCSA_OK;
}

static int is_open(const dit_tensors *tensors, const char *file)
{
    for (int i = 0; i < tensors->shard_count; i++)
        if (!strcmp(tensors->shards[i].file, file)) return 1;
    return 0;
}

static mcsa_status add_indexed(dit_tensors *tensors, const dit_json *index, mcsa_error *error)
{
    const cJSON *map = dit_json_get(index, "weight_map"), *entry;
    if (!cJSON_IsObject(map)) return mcsa_fail(error, MCSA_EFORMAT, "%s has no weight_map", index->path);
    cJSON_ArrayForEach(entry, map)
    {
        if (!cJSON_IsString(entry))
            return mcsa_fail(error, MCSA_EFORMAT, "%s: weight_map of %s is not a file name", index->path,
                             entry->string);
        if (is_open(tensors, entry->valuestring)) continue;
        if (tensors->shard_count == MAX_SHARDS)
            return mcsa_fail(error, MCSA_EUNSUPPORTED, "%s names more than %d shards", index->path, MAX_SHARDS);
        char path[DIT_MAX_PATH];
        TRY(shard_path(path, index->path, entry->valuestring, error));
        TRY(add_shard(tensors, path, entry->valuestring, error));
    }
    TRY(sort_tensors(tensors, index->path, error));
    cJSON_ArrayForEach(entry, map) if (!dit_tensors_find(tensors, entry->string)) return mcsa_fail(
        error, MCSA_EFORMAT, "%s promises tensor %s in %s, which does not hold it", index->path, entry->string,
        entry->valuestring);
    return MCSA_OK;
}

static mcsa_status resolve(char path[DIT_MAX_PATH], const char *given, mcsa_error *error)
{
    static const char *const names[] = { "diffusion_pytorch_model.safetensors", "model.safetensors",
                                         "diffusion_pytorch_model.safetensors.index.json",
                                         "model.safetensors.index.json" };
    struct stat info;
    if (stat(given, &info) != 0) return mcsa_fail(error, MCSA_EIO, "cannot open %s: %s", given, strerror(errno));
    int length = snprintf(path, DIT_MAX_PATH, "%s", given);
    for (size_t i = 0; S_ISDIR(info.st_mode) && i < sizeof names / sizeof *names; i++) {
        length = snprintf(path, DIT_MAX_PATH, "%s/%s", given, names[i]);
        if (length < DIT_MAX_PATH && access(path, F_OK) == 0) return MCSA_OK;
    }
    if (S_ISDIR(info.st_mode))
        return mcsa_fail(error, MCSA_EIO, "%s holds neither %s nor %s, nor an index of one", given, names[0], names[1]);
    if (length >= DIT_MAX_PATH) return mcsa_fail(error, MCSA_EINVAL, "the path %.80s... is too long", given);
    return MCSA_OK;
}

static int ends_with(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && !strcmp(text + n - m, ending);
}

mcsa_status dit_tensors_open(dit_tensors **out, const char *given, mcsa_error *error)
{
    char path[DIT_MAX_PATH];
    mcsa_status status;
    *out = NULL;
    TRY(resolve(path, given, error));
    dit_tensors *tensors = calloc(1, sizeof *tensors);
    if (!tensors) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the table of %s", path);

    if (ends_with(path, ".index.json")) {
        dit_json index;
        status = dit_json_open(&index, path, error);
        if (status == MCSA_OK) status = add_indexed(tensors, &index, error);
        cJSON_Delete(index.root);
    } else {
        status = add_shard(tensors, path, path, error);
        if (status == MCSA_OK) status = sort_tensors(tensors, path, error);
    }
    if (status != MCSA_OK) {
        dit_tensors_free(tensors);
        return status;
    }
    *out = tensors;
    return MCSA_OK;
}

void dit_tensors_free(dit_tensors *tensors)
{
    if (!tensors) return;
    for (int i = 0; i < tensors->shard_count; i++) {
        cJSON_Delete(tensors->shards[i].header);
        if (tensors->shards[i].map) munmap(tensors->shards[i].map, tensors->shards[i].bytes);
    }
    free(tensors->shards);
    free(tensors->items);
    free(tensors);
}

const dit_tensor *dit_tensors_find(const dit_tensors *tensors, const char *name)
{
    dit_tensor key = { .name = name };
    if (!tensors->count) return NULL;
    return bsearch(&key, tensors->items, (size_t)tensors->count, sizeof *tensors->items, by_name);
}

int dit_tensors_count(const dit_tensors *tensors)
{
    return tensors->count;
}

const dit_tensor *dit_tensors_at(const dit_tensors *tensors, int i)
{
    return &tensors->items[i];
}

static const char *format_shape(char text[128], const int64_t *shape, int rank)
{
    int length = snprintf(text, 128, "[");
    for (int i = 0; i < rank && length < 100; i++)
        length += snprintf(text + length, (size_t)(128 - length), i ? ", %lld" : "%lld", (long long)shape[i]);
    snprintf(text + length, (size_t)(128 - length), "]");
    return text;
}

mcsa_status dit_tensors_require(const dit_tensors *tensors, const char *name, const int64_t *shape, int rank,
                                const dit_tensor **out, mcsa_error *error)
{
    char expected[128], found[128];
    const dit_tensor *tensor = dit_tensors_find(tensors, name);
    if (!tensor)
        return mcsa_fail(error, MCSA_EFORMAT, "tensor %s of shape %s is missing from the weights", name,
                         format_shape(expected, shape, rank));
    if (tensor->rank != rank || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) != 0)
        return mcsa_fail(error, MCSA_EFORMAT, "tensor %s has shape %s where the configuration needs %s", name,
                         format_shape(found, tensor->shape, tensor->rank), format_shape(expected, shape, rank));
    *out = tensor;
    return MCSA_OK;
}

int64_t dit_tensor_count(const dit_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

void dit_tensor_read(const dit_tensor *tensor, float *dst)
{
    int64_t count = dit_tensor_count(tensor);
    const unsigned char *src = tensor->data;
    if (tensor->dtype == MCSA_F32) {
        if (count) memcpy(dst, src, (size_t)count * 4);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, src + 2 * i, 2);
        dst[i] = tensor->dtype == MCSA_BF16 ? mcsa_from_bf16(half) : mcsa_from_f16(half);
    }
}
