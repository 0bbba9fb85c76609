/* progress.h - one line on a terminal that says how far a rendition is; nothing at all when the output is
 * piped.
 *
 * The time left is the mean so far times the steps left: too high during an MC-Sparse run, whose dense
 * steps come first. */
#ifndef MCSA_CLI_PROGRESS_H
#define MCSA_CLI_PROGRESS_H

#include "dit/generate.h"

typedef struct progress {
    const char *label; /* "dense", "mcsa" */
    int visible;
} progress;

/* quiet: never show. */
void progress_start(progress *line, const char *label, int quiet);

/* A dit_generate_options.progress callback; user is the progress.  Cancels once interrupt_asked(). */
int progress_step(void *user, const dit_progress *state);

/* Leaves the cursor at the start of an empty line. */
void progress_end(const progress *line);

/* "mcsa   step 12/40, 0.51 s/step, 14 s left": what progress_step shows. */
void progress_text(const progress *line, const dit_progress *state, char *text, size_t bytes);

#endif
