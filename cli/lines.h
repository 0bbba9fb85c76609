/* lines.h - a text file as its lines that say something: blanks at both ends cut, comments from # to the end
 * of the line and empty lines left out. */
#ifndef MCSA_CLI_LINES_H
#define MCSA_CLI_LINES_H

#include "base/status.h"

typedef struct text_line {
    char *text;
    int number; /* in the file, from 1 */
} text_line;

typedef struct text_lines {
    text_line *line; /* [count] */
    int count;
} text_lines;

/* MCSA_EIO when it cannot be read.  On failure nothing is held. */
mcsa_status lines_read(text_lines *out, const char *path, mcsa_error *error);
void lines_free(text_lines *lines);

#endif
