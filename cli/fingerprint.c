/* fingerprint.c - FNV-1a over samples; files are combined by addition, so that their order in the directory
 * does not matter. */
#include "fingerprint.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096, SAMPLES = 64, SAMPLE_BYTES = 4096 };

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

static mcsa_status hash_file(uint64_t *hash, const char *path, mcsa_error *error)
{
    struct stat found;
    FILE *stream = fopen(path, "rb");
    if (!stream || fstat(fileno(stream), &found) != 0) {
        if (stream) fclose(stream);
        return mcsa_fail(error, MCSA_EIO, "cannot read %.300s: %s", path, strerror(errno));
    }
    int64_t size = found.st_size;
    uint64_t own = hash_bytes(0xcbf29ce484222325u, &size, sizeof size);
    unsigned char sample[SAMPLE_BYTES];
    for (int64_t i = 0; i < SAMPLES; i++) {
        if (fseeko(stream, (off_t)(size / SAMPLES * i), SEEK_SET) != 0) break;
        own = hash_bytes(own, sample, fread(sample, 1, sizeof sample, stream));
    }
    mcsa_status status = ferror(stream)
                             ? mcsa_fail(error, MCSA_EIO, "cannot read %.300s: %s", path, strerror(errno))
                             : MCSA_OK;
    fclose(stream);
    *hash += own;
    return status;
}

static int is_weights(const char *name)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(name), tail = sizeof ending - 1;
    return length > tail && strcmp(name + length - tail, ending) == 0;
}

mcsa_status fingerprint_model(char text[17], const char *dir, mcsa_error *error)
{
    static const char *const parts[] = { ".", "transformer", "text_encoder" };
    uint64_t hash = 0;
    mcsa_status status = MCSA_OK;
    for (size_t i = 0; status == MCSA_OK && i < sizeof parts / sizeof parts[0]; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", dir, parts[i]);
        DIR *entries = opendir(path);
        if (!entries) continue; /* a model need not have all of them */
        for (struct dirent *entry; status == MCSA_OK && (entry = readdir(entries));) {
            if (!is_weights(entry->d_name)) continue;
            int length = snprintf(path, sizeof path, "%s/%s/%s", dir, parts[i], entry->d_name);
            if (length >= PATH_BYTES)
                status = mcsa_fail(error, MCSA_EINVAL, "a file name of the model has %d bytes", length);
            else
                status = hash_file(&hash, path, error);
        }
        closedir(entries);
    }
    snprintf(text, 17, "%016llx", (unsigned long long)hash);
    return status;
}
