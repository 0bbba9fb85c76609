/* staged.c - write to a part, rename when all went well. */
#include "staged.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

mcsa_status staged_name(staged *file, const char *path, mcsa_error *error)
{
    int whole = snprintf(file->path, sizeof file->path, "%s", path);
    int part = snprintf(file->part, sizeof file->part, "%s.%ld.part", path, (long)getpid());
    if (whole < 0 || part < 0 || (size_t)part >= sizeof file->part)
        return mcsa_fail(error, MCSA_EINVAL, "the file name has %zu bytes; at most %d are possible",
                         strlen(path), STAGED_PATH_BYTES - 32);
    return MCSA_OK;
}

mcsa_status staged_open(const staged *file, FILE **out, mcsa_error *error)
{
    *out = fopen(file->part, "wb");
    if (!*out) return mcsa_fail(error, MCSA_EIO, "cannot write %s: %s", file->path, strerror(errno));
    return MCSA_OK;
}

mcsa_status staged_close(const staged *file, FILE *stream, mcsa_status status, mcsa_error *error)
{
    if (stream) {
        int broken = ferror(stream);
        if (fclose(stream) != 0) broken = 1;
        if (broken && status == MCSA_OK)
            status = mcsa_fail(error, MCSA_EIO, "cannot write all of %s: %s", file->path, strerror(errno));
    }
    if (status == MCSA_OK && rename(file->part, file->path) != 0)
        status =
            mcsa_fail(error, MCSA_EIO, "cannot rename %s to %s: %s", file->part, file->path, strerror(errno));
    if (status != MCSA_OK) unlink(file->part);
    return status;
}

mcsa_status staged_check(const char *path, mcsa_error *error)
{
    staged name;
    TRY(staged_name(&name, path, error));
    struct stat found;
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return mcsa_fail(error, MCSA_EIO, "cannot write %s: it is a directory", path);
    char *slash = strrchr(name.path, '/');
    const char *directory = ".";
    if (slash) {
        slash[slash == name.path] = '\0'; /* the root keeps its slash */
        directory = name.path;
    }
    if (access(directory, W_OK | X_OK) != 0)
        return mcsa_fail(error, MCSA_EIO, "cannot write %s: directory %s: %s", path, directory,
                         strerror(errno));
    return MCSA_OK;
}
