/* lines.c - see lines.h. */
#include "lines.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the line says, cut in place; "" when nothing. */
static const char *trim(char *line)
{
    line[strcspn(line, "#")] = '\0';
    size_t length = strlen(line);
    while (length && isspace((unsigned char)line[length - 1])) line[--length] = '\0';
    while (isspace((unsigned char)*line)) line++;
    return line;
}

static mcsa_status add(text_lines *out, const char *text, int number, mcsa_error *error)
{
    text_line *grown = realloc(out->line, ((size_t)out->count + 1) * sizeof *grown);
    if (!grown) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d lines", out->count + 1);
    out->line = grown;
    char *copy = strdup(text);
    if (!copy) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a line of %zu bytes", strlen(text));
    out->line[out->count++] = (text_line){ copy, number };
    return MCSA_OK;
}

mcsa_status lines_read(text_lines *out, const char *path, mcsa_error *error)
{
    *out = (text_lines){ 0 };
    FILE *stream = fopen(path, "r");
    if (!stream) return mcsa_fail(error, MCSA_EIO, "cannot open %.300s: %s", path, strerror(errno));
    char *buffer = NULL;
    size_t bytes = 0;
    mcsa_status status = MCSA_OK;
    for (int number = 1; status == MCSA_OK && getline(&buffer, &bytes, stream) >= 0; number++) {
        const char *text = trim(buffer);
        if (*text) status = add(out, text, number, error);
    }
    if (status == MCSA_OK && !feof(stream))
        status = mcsa_fail(error, MCSA_EIO, "cannot read %.300s: %s", path, strerror(errno));
    free(buffer);
    fclose(stream);
    if (status != MCSA_OK) lines_free(out);
    return status;
}

void lines_free(text_lines *lines)
{
    for (int i = 0; i < lines->count; i++) free(lines->line[i].text);
    free(lines->line);
    *lines = (text_lines){ 0 };
}
