/* options.h - one table per command describes its options; the parser and the help both read it, so they
 * cannot disagree.
 *
 * A default is a string that goes through the same parser as what the user types, so a default that the
 * option would refuse is found by the first test that runs.  Only `--name value` and `--name=value` exist:
 * no short options, no abbreviations and no positional arguments, because no command here needs them. */
#ifndef MCSA_CLI_OPTIONS_H
#define MCSA_CLI_OPTIONS_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

typedef enum option_kind {
    OPTION_HEADING, /* a title in the help; takes no part in parsing */
    OPTION_FLAG,    /* int: 1 when given */
    OPTION_INT,     /* int in [min, max] */
    OPTION_SEED,    /* uint64_t, decimal or 0x hexadecimal */
    OPTION_SEEDS,   /* option_seeds: one or more of them, commas between, none twice */
    OPTION_REAL,    /* float in [min, max], or (min, max] with above_min */
    OPTION_TEXT,    /* const char *, borrowed from argv; not empty */
    OPTION_TEXTS,   /* option_texts: may be given several times */
    OPTION_CHOICE   /* int: the value of one of `choices` */
} option_kind;

typedef struct option_choice {
    const char *word;
    int value;
} option_choice;

enum { OPTION_TEXTS_MAX = 8 };

typedef struct option_texts {
    int count;
    const char *text[OPTION_TEXTS_MAX];
} option_texts;

enum { OPTION_SEEDS_MAX = 64 };

typedef struct option_seeds {
    int count;
    uint64_t seed[OPTION_SEEDS_MAX];
} option_seeds;

typedef struct option {
    const char *name; /* without the dashes; the title of an OPTION_HEADING */
    option_kind kind;
    size_t offset;                /* of the field in the settings struct */
    const char *value;            /* what the help calls the value: "N", "FILE" */
    const char *fallback;         /* the default as one would type it; NULL: zero */
    double min, max;              /* OPTION_INT, OPTION_REAL */
    int above_min;                /* OPTION_REAL: min itself is refused */
    const option_choice *choices; /* OPTION_CHOICE: ends with a NULL word */
    const char *help;
} option;

typedef struct options_page {
    const char *command;     /* "mcsa generate" */
    const char *summary;     /* one line, no full stop */
    const char *synopsis;    /* what follows the command */
    const char *description; /* paragraphs, separated by an empty line */
    const option *options;   /* ends with a NULL name */
    const char *examples;    /* verbatim lines, or NULL */
} options_page;

/* Fills *settings, a struct that the offsets of the page refer to, with defaults and then with argv.
 * *help is 1 when --help was given; the rest is then not checked.  MCSA_EINVAL with a sentence that says
 * what was wrong and what is allowed. */
mcsa_status options_parse(const options_page *page, int argc, char **argv, void *settings, int *help,
                          mcsa_error *error);

/* The page as a manual: NAME, SYNOPSIS, DESCRIPTION, OPTIONS, EXAMPLES, EXIT STATUS. */
void options_help(const options_page *page, FILE *out);

/* Words with single blanks between them, wrapped at 80 columns; an empty line starts a paragraph. */
void options_wrap(const char *text, int indent, FILE *out);

#endif
