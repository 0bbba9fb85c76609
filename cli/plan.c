/* plan.c - the words of a run go through the same parser as options: "density=0.1" is read as
 * "--density=0.1". */
#include "plan.h"

#include "rivals/method.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 64 /* of a method's name, a density */ };

/* clang-format off */
static const option keys[] = {
    ATTENTION_OPTIONS(plan_run, attention),
    { 0 },
};
/* clang-format on */

static const options_page page = { .command = "mcsa compare", .options = keys };

mcsa_status plan_read_captions(plan *p, const char *path, mcsa_error *error)
{
    TRY(lines_read(&p->captions, path, error));
    if (!p->captions.count) return mcsa_fail(error, MCSA_EINVAL, "%.300s holds no caption", path);
    return MCSA_OK;
}

/* Room for one more run, which counts once it is complete; NULL without memory. */
static plan_run *grow(plan *p)
{
    plan_run *grown = realloc(p->run, ((size_t)p->runs + 1) * sizeof *grown);
    if (!grown) return NULL;
    p->run = grown;
    grown[p->runs] = (plan_run){ 0 };
    return &grown[p->runs];
}

mcsa_status plan_add_dense(plan *p, mcsa_error *error)
{
    plan_run *run = grow(p);
    if (run) run->name = strdup("dense");
    if (!run || !run->name) return mcsa_fail(error, MCSA_ENOMEM, "no memory for a run");
    run->attention.method = "dense";
    p->runs++;
    return MCSA_OK;
}

/* MCSA_EINVAL with "WHERE: " before the sentence that is in `error`. */
static mcsa_status at_place(const char *where, mcsa_error *error)
{
    mcsa_error sentence = *error;
    return mcsa_fail(error, MCSA_EINVAL, "%.150s: %.340s", where, sentence.text);
}

/* "density=0.1 schedule=ramp" */
static mcsa_status parse_words(plan_run *run, const char *text, mcsa_error *error)
{
    enum { MOST = 16 }; /* there are eight keys */
    char *arguments[MOST];
    int count = 0, help;
    char *at = run->words = malloc(3 * strlen(text) + 1); /* "--" and an end for words of one letter */
    if (!at) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the settings of a run");
    for (;;) {
        text += strspn(text, " \t");
        size_t length = strcspn(text, " \t");
        if (!length) break;
        if (!memchr(text, '=', length))
            return mcsa_fail(error, MCSA_EINVAL, "'%.*s' is not of the form key=value",
                             (int)(length < 64 ? length : 64), text);
        if (count == MOST) return mcsa_fail(error, MCSA_EINVAL, "a run has at most %d settings", MOST);
        arguments[count++] = at;
        at += sprintf(at, "--%.*s", (int)length, text) + 1;
        text += length;
    }
    return options_parse(&page, count, arguments, run, &help, error);
}

static mcsa_status parse_name(plan_run *run, const char *text, size_t length, mcsa_error *error)
{
    while (length && isspace((unsigned char)text[length - 1])) length--;
    while (length && isspace((unsigned char)*text)) text++, length--;
    if (!length) return mcsa_fail(error, MCSA_EINVAL, "a name must stand before the colon");
    run->name = strndup(text, length);
    return run->name ? MCSA_OK : mcsa_fail(error, MCSA_ENOMEM, "no memory for a name of %zu bytes", length);
}

static mcsa_status parse_run(plan_run *run, const char *text, int steps, mcsa_error *error)
{
    /* A schedule has a colon, and so may a name that speaks of one; what ends the name has a blank behind it.
     */
    const char *colon = strchr(text, ':');
    while (colon && colon[1] && !isspace((unsigned char)colon[1])) colon = strchr(colon + 1, ':');
    if (!colon) return mcsa_fail(error, MCSA_EINVAL, "'%.64s' is not of the form NAME: key=value ...", text);
    TRY(parse_name(run, text, (size_t)(colon - text), error));
    TRY(parse_words(run, colon + 1, error));
    if (attention_is_dense(&run->attention))
        return mcsa_fail(error, MCSA_EINVAL, "dense attention is the first run of every comparison already");
    TRY(attention_settle(&run->attention, steps, error));
    return attention_text(&run->attention, run->settings, sizeof run->settings, error);
}

static mcsa_status check_new(const plan *p, const plan_run *run, mcsa_error *error)
{
    for (int i = 0; i < p->runs; i++) {
        if (strcmp(p->run[i].name, run->name) == 0)
            return mcsa_fail(error, MCSA_EINVAL, "there is another run named '%.100s'", run->name);
        if (strcmp(p->run[i].settings, run->settings) == 0)
            return mcsa_fail(error, MCSA_EINVAL, "run '%.100s' has the same settings", p->run[i].name);
    }
    return MCSA_OK;
}

static void free_run(plan_run *run)
{
    free(run->name);
    free(run->words);
}

mcsa_status plan_add_run(plan *p, const char *text, const char *where, int steps, mcsa_error *error)
{
    plan_run *run = grow(p);
    if (!run) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d runs", p->runs + 1);
    mcsa_status status = parse_run(run, text, steps, error);
    if (status == MCSA_OK) status = check_new(p, run, error);
    if (status == MCSA_OK) {
        p->runs++;
        return MCSA_OK;
    }
    free_run(run);
    return status == MCSA_EINVAL ? at_place(where, error) : status;
}

mcsa_status plan_read_runs(plan *p, const char *path, int steps, mcsa_error *error)
{
    text_lines lines;
    mcsa_status status = MCSA_OK;
    TRY(lines_read(&lines, path, error));
    if (!lines.count) status = mcsa_fail(error, MCSA_EINVAL, "%.300s holds no run", path);
    for (int i = 0; status == MCSA_OK && i < lines.count; i++) {
        char where[200];
        snprintf(where, sizeof where, "%.180s:%d", path, lines.line[i].number);
        status = plan_add_run(p, lines.line[i].text, where, steps, error);
    }
    lines_free(&lines);
    return status;
}

/* The next of "a,b,c" into text; 0 at the end. */
static int next_word(const char **list, char *text, size_t bytes)
{
    if (!**list) return 0;
    size_t length = strcspn(*list, ",");
    snprintf(text, bytes, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ',');
    return 1;
}

static mcsa_status add_method(plan *p, const char *name, const char *density, const char *schedule, int steps,
                              mcsa_error *error)
{
    static const char ending[] = "+residual";
    char method[WORD_BYTES], line[PLAN_SETTINGS_BYTES + 4 * WORD_BYTES];
    const size_t length = strlen(name), cut = sizeof ending - 1;
    /* A method whose own name ends so is that method. */
    const int with_residual =
        length > cut && strcmp(name + length - cut, ending) == 0 && !rival_method_find(name);
    const int with_tail = strcmp(name, "mc-sparse+tail") == 0;
    snprintf(method, sizeof method, "%.*s", (int)(with_residual ? length - cut : length), name);
    int wrote = snprintf(line, sizeof line,
                         "%s s=%s: method=%s density=%s schedule=%s tail=%s branches=apart%s", name, density,
                         with_tail ? "mc-sparse" : method, density, schedule, with_tail ? "means" : "off",
                         with_residual ? " residual=bf16" : "");
    if ((size_t)wrote >= sizeof line)
        return mcsa_fail(error, MCSA_EINVAL, "--schedule has %zu characters", strlen(schedule));
    return plan_add_run(p, line, "--methods", steps, error);
}

mcsa_status plan_add_grid(plan *p, const plan_grid *grid, int steps, mcsa_error *error)
{
    char density[WORD_BYTES], name[WORD_BYTES];
    for (const char *densities = grid->densities; next_word(&densities, density, sizeof density);)
        for (const char *methods = grid->methods; next_word(&methods, name, sizeof name);)
            TRY(add_method(p, name, density, grid->schedule, steps, error));
    return MCSA_OK;
}

void plan_free(plan *p)
{
    for (int i = 0; i < p->runs; i++) free_run(&p->run[i]);
    free(p->run);
    lines_free(&p->captions);
    *p = (plan){ 0 };
}

int plan_clips(const plan *p)
{
    return p->captions.count * p->seeds.count * p->runs;
}
