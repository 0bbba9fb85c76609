/* options.c - parses command lines by table and says what is allowed when something is not. */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Levenshtein distance, at most `limit` characters of each word: enough to spot a typing slip. */
static int edit_distance(const char *a, const char *b)
{
    enum { LIMIT = 32 };
    int row[LIMIT + 1];
    int rows = (int)strnlen(a, LIMIT), columns = (int)strnlen(b, LIMIT);
    for (int j = 0; j <= columns; j++) row[j] = j;
    for (int i = 1; i <= rows; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= columns; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = row[j - 1] < row[j] ? row[j - 1] + 1 : row[j] + 1;
            row[j] = best < replaced ? best : replaced;
        }
    }
    return row[columns];
}

static const option *find_option(const options_page *page, const char *name, size_t length)
{
    for (const option *o = page->options; o->name; o++)
        if (o->kind != OPTION_HEADING && strlen(o->name) == length && memcmp(o->name, name, length) == 0)
            return o;
    return NULL;
}

static mcsa_status unknown_option(const options_page *page, const char *name, size_t length,
                                  mcsa_error *error)
{
    char typed[64];
    snprintf(typed, sizeof typed, "%.*s", (int)(length < 60 ? length : 60), name);
    const char *nearest = NULL;
    int least = 3; /* more than two slips is another word */
    for (const option *o = page->options; o->name; o++) {
        if (o->kind == OPTION_HEADING) continue;
        int distance = edit_distance(typed, o->name);
        if (distance < least) {
            least = distance;
            nearest = o->name;
        }
    }
    if (nearest)
        return mcsa_fail(error, MCSA_EINVAL, "unknown option --%s; did you mean --%s?", typed, nearest);
    return mcsa_fail(error, MCSA_EINVAL, "unknown option --%s; `%s --help` lists the options", typed,
                     page->command);
}

static mcsa_status parse_int(const option *o, const char *text, int *out, mcsa_error *error)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end || errno || (double)number < o->min || (double)number > o->max)
        return mcsa_fail(error, MCSA_EINVAL, "--%s takes a whole number from %.0f to %.0f, not '%.64s'",
                         o->name, o->min, o->max, text);
    *out = (int)number;
    return MCSA_OK;
}

static mcsa_status parse_seed(const option *o, const char *text, uint64_t *out, mcsa_error *error)
{
    int hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, hexadecimal ? 16 : 10);
    /* strtoull takes "-1" for 2^64 - 1; a seed starts with a digit. */
    if (!isdigit((unsigned char)text[0]) || *end || errno)
        return mcsa_fail(
            error, MCSA_EINVAL,
            "--%s takes a whole number from 0 to 18446744073709551615 or 0x and hexadecimal digits, not "
            "'%.64s'",
            o->name, text);
    *out = number;
    return MCSA_OK;
}

static mcsa_status parse_seeds(const option *o, const char *text, option_seeds *out, mcsa_error *error)
{
    *out = (option_seeds){ 0 };
    for (;;) {
        char piece[24]; /* 2^64 - 1 has 20 digits */
        size_t length = strcspn(text, ",");
        if (length >= sizeof piece)
            return mcsa_fail(error, MCSA_EINVAL, "--%s has a seed of %zu characters", o->name, length);
        snprintf(piece, sizeof piece, "%.*s", (int)length, text);
        if (out->count == OPTION_SEEDS_MAX)
            return mcsa_fail(error, MCSA_EINVAL, "--%s takes at most %d seeds", o->name, OPTION_SEEDS_MAX);
        TRY(parse_seed(o, piece, &out->seed[out->count], error));
        for (int i = 0; i < out->count; i++)
            if (out->seed[i] == out->seed[out->count])
                return mcsa_fail(error, MCSA_EINVAL, "--%s has %s twice", o->name, piece);
        out->count++;
        if (!text[length]) return MCSA_OK;
        text += length + 1;
    }
}

static mcsa_status parse_real(const option *o, const char *text, float *out, mcsa_error *error)
{
    char *end;
    float number = strtof(text, &end); /* compared as it is kept: 1e-60 is 0 */
    int below = o->above_min ? number <= o->min : number < o->min;
    if (end == text || *end || !isfinite(number) || below || number > o->max)
        return mcsa_fail(error, MCSA_EINVAL, "--%s takes a number %s %g and at most %g, not '%.64s'", o->name,
                         o->above_min ? "above" : "of at least", o->min, o->max, text);
    *out = number;
    return MCSA_OK;
}

/* "scalar, avx2 or avx512bf16" into text[bytes]. */
static void list_choices(const option_choice *choices, const char *between, const char *before_last,
                         char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (const option_choice *c = choices; c->word && used < bytes; c++) {
        const char *joint = c == choices ? "" : c[1].word ? between : before_last;
        int wrote = snprintf(text + used, bytes - used, "%s%s", joint, c->word);
        used += (size_t)wrote;
    }
}

static mcsa_status parse_choice(const option *o, const char *text, int *out, mcsa_error *error)
{
    for (const option_choice *c = o->choices; c->word; c++) {
        if (strcmp(c->word, text) == 0) {
            *out = c->value;
            return MCSA_OK;
        }
    }
    char allowed[200];
    list_choices(o->choices, ", ", " or ", allowed, sizeof allowed);
    return mcsa_fail(error, MCSA_EINVAL, "--%s takes %s, not '%.64s'", o->name, allowed, text);
}

static mcsa_status parse_text(const option *o, const char *text, const char **out, mcsa_error *error)
{
    if (!text[0]) return mcsa_fail(error, MCSA_EINVAL, "--%s takes %s, not an empty text", o->name, o->value);
    *out = text;
    return MCSA_OK;
}

static mcsa_status parse_texts(const option *o, const char *text, option_texts *out, mcsa_error *error)
{
    if (out->count == OPTION_TEXTS_MAX)
        return mcsa_fail(error, MCSA_EINVAL, "--%s may be given %d times, not more", o->name,
                         OPTION_TEXTS_MAX);
    TRY(parse_text(o, text, &out->text[out->count], error));
    out->count++;
    return MCSA_OK;
}

static mcsa_status parse_value(const option *o, const char *text, void *settings, mcsa_error *error)
{
    void *field = (char *)settings + o->offset;
    switch (o->kind) {
    case OPTION_HEADING: break;
    case OPTION_FLAG: *(int *)field = 1; break;
    case OPTION_INT: return parse_int(o, text, field, error);
    case OPTION_SEED: return parse_seed(o, text, field, error);
    case OPTION_SEEDS: return parse_seeds(o, text, field, error);
    case OPTION_REAL: return parse_real(o, text, field, error);
    case OPTION_TEXT: return parse_text(o, text, field, error);
    case OPTION_TEXTS: return parse_texts(o, text, field, error);
    case OPTION_CHOICE: return parse_choice(o, text, field, error);
    }
    return MCSA_OK;
}

mcsa_status options_parse(const options_page *page, int argc, char **argv, void *settings, int *help,
                          mcsa_error *error)
{
    *help = 0;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            *help = 1;
            return MCSA_OK;
        }
    }
    for (const option *o = page->options; o->name; o++)
        if (o->fallback) TRY(parse_value(o, o->fallback, settings, error));

    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i];
        if (strncmp(argument, "--", 2) != 0 || !argument[2])
            return mcsa_fail(error, MCSA_EINVAL,
                             "'%.64s' is not an option; options start with -- (see `%s --help`)", argument,
                             page->command);
        const char *name = argument + 2, *equals = strchr(name, '=');
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        const option *o = find_option(page, name, length);
        if (!o) return unknown_option(page, name, length, error);

        const char *value = equals ? equals + 1 : NULL;
        if (o->kind == OPTION_FLAG) {
            if (value)
                return mcsa_fail(error, MCSA_EINVAL, "--%s takes no value, not '%.64s'", o->name, value);
        } else if (!value) {
            if (i + 1 == argc)
                return mcsa_fail(error, MCSA_EINVAL, "--%s needs a value: %s", o->name, o->value);
            value = argv[++i];
        }
        TRY(parse_value(o, value, settings, error));
    }
    return MCSA_OK;
}

void options_wrap(const char *text, int indent, FILE *out)
{
    enum { WIDTH = 80 };
    int column = 0;
    while (*text) {
        if (text[0] == '\n' && text[1] == '\n') {
            fputs("\n\n", out);
            column = 0;
        }
        if (isspace((unsigned char)*text)) {
            text++;
            continue;
        }
        int length = (int)strcspn(text, " \n");
        if (column && column + 1 + length > WIDTH) {
            fputc('\n', out);
            column = 0;
        }
        column += fprintf(out, "%*s%.*s", column ? 1 : indent, "", length, text);
        text += length;
    }
    fputc('\n', out);
}

/* "(whole number from 1 to 1000; default 40)", or nothing. */
static void allowed_and_default(const option *o, char *text, size_t bytes)
{
    char allowed[120] = "";
    if (o->kind == OPTION_INT)
        snprintf(allowed, sizeof allowed, "from %.0f to %.0f", o->min, o->max);
    else if (o->kind == OPTION_REAL)
        snprintf(allowed, sizeof allowed, "%s %g, at most %g", o->above_min ? "above" : "at least", o->min,
                 o->max);
    const char *joint = allowed[0] && o->fallback ? "; " : "";
    const char *before = o->fallback ? "default " : "";
    if (allowed[0] || o->fallback)
        snprintf(text, bytes, " (%s%s%s%s)", allowed, joint, before, o->fallback ? o->fallback : "");
    else
        text[0] = '\0';
}

static void option_help(const option *o, FILE *out)
{
    if (o->kind == OPTION_HEADING) {
        fprintf(out, "\n  %s\n", o->name);
        return;
    }
    char value[200] = "", text[1400], limits[240];
    if (o->kind == OPTION_CHOICE)
        list_choices(o->choices, "|", "|", value, sizeof value);
    else if (o->value)
        snprintf(value, sizeof value, "%s", o->value);
    fprintf(out, "    --%s%s%s\n", o->name, value[0] ? " " : "", value);
    allowed_and_default(o, limits, sizeof limits);
    snprintf(text, sizeof text, "%s%s", o->help, limits);
    options_wrap(text, 8, out);
}

void options_help(const options_page *page, FILE *out)
{
    fprintf(out, "NAME\n    %s - %s\n\nSYNOPSIS\n", page->command, page->summary);
    fprintf(out, "    %s %s\n\nDESCRIPTION\n", page->command, page->synopsis);
    options_wrap(page->description, 4, out);
    fputs("\nOPTIONS\n", out);
    for (const option *o = page->options; o->name; o++) option_help(o, out);
    fputs("    --help\n        print this page\n", out);
    if (page->examples) fprintf(out, "\nEXAMPLES\n%s", page->examples);
    fputs("\nEXIT STATUS\n    0   done\n    1   the run failed or was interrupted\n"
          "    2   wrong usage: an option, a value or a word that is not understood\n",
          out);
}
