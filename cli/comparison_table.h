/* comparison_table.h - a comparison as a table, one row for each run: for the terminal, or as Markdown. */
#ifndef MCSA_CLI_COMPARISON_TABLE_H
#define MCSA_CLI_COMPARISON_TABLE_H

#include "comparison.h"

#include <stdio.h>

typedef enum table_style { TABLE_PLAIN, TABLE_MARKDOWN } table_style;

/* caption: a line above the table that says what was compared on what. */
mcsa_status comparison_table(const comparison *c, const plan *p, const char *caption, table_style style,
                             FILE *out, mcsa_error *error);

#endif
