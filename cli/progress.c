/* progress.c - formats and rewrites the line on standard error, so that standard output keeps only
 * results. */
#include "progress.h"

#include "interrupt.h"

#include <stdio.h>
#include <unistd.h>

static const char ERASE_LINE[] = "\r\033[K";

void progress_start(progress *line, const char *label, int quiet)
{
    line->label = label;
    line->visible = !quiet && isatty(STDERR_FILENO) && isatty(STDOUT_FILENO);
}

/* "75 s", "12 min 30 s", "3 h 05 min" */
static void duration(double seconds, char *text, size_t bytes)
{
    long whole = (long)(seconds + 0.5);
    if (whole < 120)
        snprintf(text, bytes, "%ld s", whole);
    else if (whole < 7200)
        snprintf(text, bytes, "%ld min %02ld s", whole / 60, whole % 60);
    else
        snprintf(text, bytes, "%ld h %02ld min", whole / 3600, whole / 60 % 60);
}

void progress_text(const progress *line, const dit_progress *state, char *text, size_t bytes)
{
    if (state->step == 0) {
        snprintf(text, bytes, "%-6s step 0/%d", line->label, state->steps);
        return;
    }
    char left[40];
    double per_step = state->elapsed_s / state->step;
    duration(per_step * (state->steps - state->step), left, sizeof left);
    snprintf(text, bytes, "%-6s step %d/%d, %.2f s/step, %s left", line->label, state->step, state->steps,
             per_step, left);
}

int progress_step(void *user, const dit_progress *state)
{
    const progress *line = user;
    if (line->visible) {
        char text[120];
        progress_text(line, state, text, sizeof text);
        fprintf(stderr, "%s%s", ERASE_LINE, text);
        fflush(stderr);
    }
    return interrupt_asked();
}

void progress_end(const progress *line)
{
    if (!line->visible) return;
    fputs(ERASE_LINE, stderr);
    fflush(stderr);
}
