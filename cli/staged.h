/* staged.h - a file appears under its name whole or not at all: written beside it as PATH.PID.part, then
 * renamed.
 *
 * An interrupted or failed run leaves neither half a file nor a damaged older one.  Not for the case of a
 * power cut: nothing is synced to the disk. */
#ifndef MCSA_CLI_STAGED_H
#define MCSA_CLI_STAGED_H

#include "base/status.h"

#include <stdio.h>

enum { STAGED_PATH_BYTES = 4096 };

typedef struct staged {
    char path[STAGED_PATH_BYTES];
    char part[STAGED_PATH_BYTES]; /* the name to write to meanwhile */
} staged;

mcsa_status staged_name(staged *file, const char *path, mcsa_error *error);

/* Opens file->part for binary writing. */
mcsa_status staged_open(const staged *file, FILE **out, mcsa_error *error);

/* Closes `stream` (NULL is fine) and, when `status` is MCSA_OK and every write succeeded, renames to
 * file->path.  Else removes the part and returns the failure. */
mcsa_status staged_close(const staged *file, FILE *stream, mcsa_status status, mcsa_error *error);

/* MCSA_EIO unless a file can be made at `path`: asked before a long run rather than after it. */
mcsa_status staged_check(const char *path, mcsa_error *error);

#endif
