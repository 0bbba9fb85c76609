/* scratch.h - what the tests of the command share: a directory that vanishes, and a clip with known
 * colours. */
#ifndef TESTS_CLI_SCRATCH_H
#define TESTS_CLI_SCRATCH_H

#include "video.h"

#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Group fixtures: a fresh directory under the working directory, entered; left and removed with all its
 * files. */
int scratch_enter(void **state);
int scratch_leave(void **state);

/* Entries of the current directory. */
int scratch_files(void);

/* A smooth picture that moves: every frame differs and no edge is harder than an encoder for people
 * expects. */
void scratch_clip(clip *out, int frames, int height, int width);

#endif
