/* safetensors_write.c - the writer of safetensors.h: header and data go to PATH.PID.part, which becomes PATH
 * by a rename once every byte is written.  The header is padded with blanks so that data starts at a multiple
 * of 8. */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *dtype_name(mcsa_dtype dtype)
{
    switch (dtype) {
    case MCSA_F32: return "F32";
    case MCSA_BF16: return "BF16";
    case MCSA_F16: return "F16";
    }
    return NULL;
}

static int64_t tensor_bytes(const dit_tensor *tensor)
{
    return dit_tensor_count(tensor) * (tensor->dtype == MCSA_F32 ? 4 : 2);
}

static int add_entry(cJSON *root, const dit_tensor *tensor, int64_t begin)
{
    cJSON *entry = cJSON_AddObjectToObject(root, tensor->name);
    if (!entry || !cJSON_AddStringToObject(entry, "dtype", dtype_name(tensor->dtype))) return 0;
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int i = 0; shape && i < tensor->rank; i++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i]))) return 0;
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    return shape && offsets && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(begin + tensor_bytes(tensor))));
}

static char *format_header(const dit_tensor *tensors, int count)
{
    int64_t begin = 0;
    char *text = NULL;
    cJSON *root = cJSON_CreateObject();
    for (int i = 0; root && i < count; i++) {
        if (!add_entry(root, &tensors[i], begin)) goto done;
        begin += tensor_bytes(&tensors[i]);
    }
    if (root) text = cJSON_PrintUnformatted(root);
done:
    cJSON_Delete(root);
    return text;
}

static int write_file(FILE *file, const char *header, const dit_tensor *tensors, int count)
{
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    if (fwrite(prefix, 1, 8, file) != 8 || fprintf(file, "%s%*s", header, (int)(padded - length), "") < 0) return 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)tensor_bytes(&tensors[i]);
        if (bytes && fwrite(tensors[i].data, 1, bytes, file) != bytes) return 0;
    }
    return 1;
}

mcsa_status dit_tensors_write(const char *path, const dit_tensor *tensors, int count, mcsa_error *error)
{
    mcsa_status status = MCSA_OK;
    FILE *file = NULL;
    for (int i = 0; i < count; i++)
        if (!dtype_name(tensors[i].dtype))
            return mcsa_fail(error, MCSA_EINVAL, "tensor %s has the unknown dtype %d", tensors[i].name,
                             (int)tensors[i].dtype);
    size_t room = strlen(path) + 32;
    char *part = malloc(room), *header = format_header(tensors, count);
    if (!part || !header) {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for the header of %s", path);
        goto done;
    }
    snprintf(part, room, "%s.%ld.part", path, (long)getpid());
    file = fopen(part, "wb");
    if (!file) {
        status = mcsa_fail(error, MCSA_EIO, "cannot create %s: %s", part, strerror(errno));
        goto done;
    }
    int written = write_file(file, header, tensors, count);
    written &= fclose(file) == 0; /* a full disk may show only here */
    if (!written || rename(part, path) != 0) {
        status = mcsa_fail(error, MCSA_EIO, "cannot write %s: %s", path, strerror(errno));
        unlink(part);
    }
done:
    cJSON_free(header);
    free(part);
    return status;
}
