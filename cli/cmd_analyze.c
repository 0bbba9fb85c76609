/* cmd_analyze.c - `mcsa analyze`: where sparse attention loses on given attention calls, and what to do about it.
 *
 * The calls are files: those of --tensors, or with --model what a dense clip leaves in a folder that is removed at the
 * end. */
#include "analyze_clip.h"
#include "analyze_report.h"
#include "capture_pick.h"
#include "clip_options.h"
#include "command.h"
#include "interrupt.h"
#include "processor.h"
#include "progress.h"
#include "staged.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omp.h>

typedef struct settings {
    const char *tensors, *model, *prompt, *context, *negative_context;
    int frames, height, width;
    float guidance;
    uint64_t seed;
    captured_picks picks;
    const char *heads;
    int steps, sample;
    const char *densities, *methods, *grid;
    float tolerance;
    int threads, isa, backend, precision;
    const char *report;
    int json, quiet;
} settings;

/* clang-format off */
#define FIELD(name) .offset = offsetof(settings, name)

static const option table[] = {
    { .name = "What to analyse", .kind = OPTION_HEADING },
    { .name = "tensors", .kind = OPTION_TEXT, FIELD(tensors), .value = "DIR",
      .help = "folder of captured calls, written by `mcsa generate --capture` or from PyTorch "
              "(docs/ANALYZE.md)" },
    { .name = "model", .kind = OPTION_TEXT, FIELD(model), .value = "DIR",
      .help = "instead: make a dense clip with this model and look at its attention. The options to "
              "--negative-context are those of `mcsa generate`" },
    { .name = "prompt", .kind = OPTION_TEXT, FIELD(prompt), .value = "TEXT",
      .help = "its caption; default \"a red star orbits over a blue checker background\"" },
    CLIP_SIZE_OPTIONS(settings),
    { .name = "seed", .kind = OPTION_SEED, FIELD(seed), .value = "N", .fallback = "0", .help = "of its noise" },
    GUIDANCE_OPTION(settings),
    { .name = "context", .kind = OPTION_TEXT, FIELD(context), .value = "FILE",
      .help = "instead of --prompt, a .safetensors file with the tensor \"context\"" },
    { .name = "negative-context", .kind = OPTION_TEXT, FIELD(negative_context), .value = "FILE",
      .help = "the same for the unconditional branch" },
    { .name = "at-steps", .kind = OPTION_TEXT, FIELD(picks.steps), .value = "all|growing|spread:N|A,B-C",
      .help = "which denoising steps. growing: the first, and on with gaps of 1, 2, 3, ...; spread:N: N of "
              "them, evenly. Default growing with --model, all with --tensors" },
    { .name = "at-layers", .kind = OPTION_TEXT, FIELD(picks.layers), .value = "all|growing|spread:N|A,B-C",
      .help = "which layers, likewise; default spread:3 and all" },
    { .name = "at-branches", .kind = OPTION_TEXT, FIELD(picks.branches), .value = "all|A,B-C",
      .help = "which branches of guidance, 0 the conditional one; default 0 and all" },
    { .name = "at-heads", .kind = OPTION_TEXT, FIELD(heads), .value = "all|growing|spread:N|A,B-C",
      .fallback = "all", .help = "which heads; --methods always take all" },
    { .name = "steps", .kind = OPTION_INT, FIELD(steps), .value = "N", .min = 1, .max = ANALYSIS_STEPS,
      .help = "denoising steps of the whole run, which the recommendation is for. Default 40 with --model, "
              "one more than the last captured with --tensors" },

    { .name = "How", .kind = OPTION_HEADING },
    { .name = "densities", .kind = OPTION_TEXT, FIELD(densities), .value = "X[,X...]",
      .fallback = "0.05,0.10,0.15,0.25",
      .help = "shares of the query-key pairs that are computed, ascending, at most 8" },
    { .name = "sample", .kind = OPTION_INT, FIELD(sample), .value = "N",
      .fallback = "512", .min = 1, .max = 1048576,
      .help = "queries of each head, evenly spaced, that choose keys for themselves" },
    { .name = "methods", .kind = OPTION_TEXT, FIELD(methods), .value = "NAME[,NAME...]",
      .help = "also say what other methods keep; `mcsa generate --method list` names them" },
    { .name = "grid", .kind = OPTION_TEXT, FIELD(grid), .value = "FRAMES,ROWS,COLUMNS",
      .help = "of the tokens, for methods that need it; default what the captured files say" },
    { .name = "tolerance", .kind = OPTION_REAL, FIELD(tolerance), .value = "X",
      .fallback = "0.05", .min = 0, .max = 10, .above_min = 1,
      .help = "relative L2 of the attention output that a reuse step may miss; the recommendation is the "
              "cheapest that keeps to it" },

    { .name = "Machine", .kind = OPTION_HEADING },
    MACHINE_OPTIONS(settings),

    { .name = "Results", .kind = OPTION_HEADING },
    { .name = "report", .kind = OPTION_TEXT, FIELD(report), .value = "FILE",
      .help = "write all points as JSON, ready to plot" },
    { .name = "json", .kind = OPTION_FLAG, FIELD(json),
      .help = "print that JSON on standard output instead of the tables" },
    { .name = "quiet", .kind = OPTION_FLAG, FIELD(quiet), .help = "print nothing but errors" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "mcsa analyze",
    .summary = "measure where sparse attention loses, and recommend density, group and schedule",
    .synopsis = "--tensors DIR | --model DIR [options]",
    .description =
        "Holds ways to choose keys against dense attention on captured q, k and v: blocks by pooled scores, the "
        "best blocks, the best single keys of a group, of similar queries, and of each query for itself. From one "
        "to the next it splits the error into selection, binding of keys, binding of queries and discarded tail. "
        "Where a layer was captured at several steps it also says how long a selection and a residual of one step "
        "serve later ones, and ends with a recommendation.",
    .options = table,
    .examples = "    The shipped model, 9 steps of 3 layers:\n"
                "        mcsa analyze --model models/tiny-t2v --methods bsa,svg2,sol\n\n"
                "    Calls captured elsewhere, of a run of 50 steps:\n"
                "        mcsa analyze --tensors captured --steps 50 --report analysis.json\n",
};

/* Everything that one call of the command holds. */
typedef struct job {
    settings set;
    captured calls;
    char folder[STAGED_PATH_BYTES]; /* of our own, to be removed; "" without */
    analysis_options options;
    int *heads;                   /* those picked */
    const rival_method **methods; /* [method_count] */
    int method_count;
    int grid[3];
    progress line;
    double start;
    char title[400];
    analyze_findings found;
} job;

static mcsa_status parse_densities(job *j, mcsa_error *error)
{
    const char *at = j->set.densities;
    for (;; at++) {
        char *end;
        double x = strtod(at, &end);
        int count = j->options.densities;
        if (end == at || (*end && *end != ',') || !(x > 0 && x <= 1) || count == ANALYSIS_DENSITIES ||
            (count && x <= j->options.density[count - 1]))
            return mcsa_fail(error, MCSA_EINVAL,
                             "--densities takes up to %d ascending numbers above 0 and at most 1 with commas between, "
                             "not '%.64s'",
                             ANALYSIS_DENSITIES, j->set.densities);
        j->options.density[j->options.densities++] = x;
        at = end;
        if (!*at) return MCSA_OK;
    }
}

static mcsa_status parse_methods(job *j, mcsa_error *error)
{
    const char *at = j->set.methods;
    size_t most = 1;
    if (!at) return MCSA_OK;
    for (const char *c = at; *c; c++) most += *c == ',';
    j->methods = calloc(most, sizeof *j->methods);
    if (!j->methods) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %zu methods", most);
    for (;; at++) {
        char name[64];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : 63, at);
        j->methods[j->method_count] = rival_method_find(name);
        if (!j->methods[j->method_count++])
            return mcsa_fail(error, MCSA_EINVAL,
                             "there is no method '%s'; `mcsa generate --method list` says which there are", name);
        at += length;
        if (!*at) return MCSA_OK;
    }
}

static mcsa_status parse_grid(job *j, mcsa_error *error)
{
    int end = 0;
    if (!j->set.grid) return MCSA_OK;
    if (sscanf(j->set.grid, "%6d,%6d,%6d%n", &j->grid[0], &j->grid[1], &j->grid[2], &end) == 3 && !j->set.grid[end] &&
        j->grid[0] > 0 && j->grid[1] > 0 && j->grid[2] > 0)
        return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "--grid takes frames, rows and columns like 21,30,52, not '%.64s'",
                     j->set.grid);
}

static mcsa_status check_settings(job *j, mcsa_error *error)
{
    settings *set = &j->set;
    if (!set->tensors == !set->model)
        return mcsa_fail(error, MCSA_EINVAL, "give --tensors DIR or --model DIR; try --model models/tiny-t2v");
    if (set->prompt && set->context)
        return mcsa_fail(error, MCSA_EINVAL, "--prompt and --context say the same thing twice; give one of them");
    if (!set->prompt && !set->context) set->prompt = "a red star orbits over a blue checker background";
    if (!set->picks.steps) set->picks.steps = set->model ? "growing" : "all";
    if (!set->picks.layers) set->picks.layers = set->model ? "spread:3" : "all";
    if (!set->picks.branches) set->picks.branches = set->model ? "0" : "all";
    if (set->model && !set->steps) set->steps = 40;
    TRY(parse_densities(j, error));
    TRY(parse_methods(j, error));
    TRY(parse_grid(j, error));
    return set->report ? staged_check(set->report, error) : MCSA_OK;
}

/* Makes the clip; its calls lie in j->folder. */
static mcsa_status make_clip(job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    const char *temporary = getenv("TMPDIR");
    const analyze_clip clip = {
        .model = set->model,
        .prompt = set->prompt,
        .context = set->context,
        .negative_context = set->negative_context,
        .steps = set->steps,
        .frames = set->frames,
        .height = set->height,
        .width = set->width,
        .guidance = set->guidance,
        .seed = set->seed,
        .threads = set->threads,
        .quiet = set->quiet || set->json,
        .isa = (mcsa_isa)set->isa,
        .device = (mcsa_device)set->backend,
        .precision = (mcsa_dtype)set->precision,
        .picks = set->picks,
    };
    int length =
        snprintf(j->folder, sizeof j->folder, "%s/mcsa-analyze-XXXXXX", temporary && temporary[0] ? temporary : "/tmp");
    if (length >= (int)sizeof j->folder || !mkdtemp(j->folder)) {
        j->folder[0] = '\0';
        return mcsa_fail(error, MCSA_EIO, "cannot make a temporary folder: %s", strerror(errno));
    }
    return analyze_clip_capture(&clip, j->folder, error);
}

static void remove_folder(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) return;
    for (const struct dirent *file; (file = readdir(dir));)
        if (captured_is_name(file->d_name)) unlinkat(dirfd(dir), file->d_name, 0);
    closedir(dir);
    rmdir(path);
}

static int show_progress(void *user, int done, int total)
{
    job *j = user;
    dit_progress state = { .step = done, .steps = total, .elapsed_s = mcsa_seconds() - j->start };
    return progress_step(&j->line, &state);
}

/* The heads that are looked at: indices in j->heads. */
static mcsa_status pick_heads(job *j, mcsa_error *error)
{
    analysis_call call;
    TRY(captured_load(&j->calls, 0, &call, error));
    const int H = (int)call.q.shape[0];
    char *keep = malloc((size_t)H);
    j->heads = malloc((size_t)H * sizeof *j->heads);
    if (!keep || !j->heads) {
        free(keep);
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for a list of %d heads", H);
    }
    for (int h = 0; h < H; h++) j->heads[h] = h;
    mcsa_status status = capture_pick(keep, j->heads, H, "at-heads", j->set.heads, error);
    for (int h = 0; status == MCSA_OK && h < H; h++)
        if (keep[h]) j->heads[j->options.heads++] = h;
    j->options.head = j->heads;
    free(keep);
    return status;
}

static mcsa_status prepare(job *j, mcsa_error *error)
{
    static const captured_picks all = { "all", "all", "all" };
    settings *set = &j->set;
    TRY(check_settings(j, error));
    if (set->model) TRY(make_clip(j, error));
    TRY(captured_open(&j->calls, set->model ? j->folder : set->tensors, set->model ? &all : &set->picks, error));
    TRY(pick_heads(j, error));
    for (int i = 0; i < 3 && !set->grid; i++) j->grid[i] = j->calls.grid[i];
    int last = 0;
    for (int i = 0; i < j->calls.count; i++) last = j->calls.at[i].step > last ? j->calls.at[i].step : last;
    if (!set->steps) set->steps = last + 1 < ANALYSIS_STEPS ? last + 1 : ANALYSIS_STEPS;
    if (last >= set->steps)
        return mcsa_fail(error, MCSA_EINVAL, "step %d was captured, so the run has more than the %d steps of --steps",
                         last, set->steps);
    return MCSA_OK;
}

static mcsa_status load_call(void *user, int i, analysis_call *call, mcsa_error *error)
{
    return captured_load(&((job *)user)->calls, i, call, error);
}

static mcsa_status measure(job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    analyze_findings *f = &j->found;
    const analysis_source source = {
        .count = j->calls.count, .at = j->calls.at, .user = j, .load = load_call, .progress = show_progress
    };
    j->options.sample = set->sample;
    j->options.attention = (mcsa_config){ .threads = set->threads ? set->threads : omp_get_max_threads(),
                                          .isa = (mcsa_isa)set->isa,
                                          .device = (mcsa_device)set->backend };
    TRY(analysis_measure(&f->measured, &j->options, &source, error));
    if (!j->method_count) return MCSA_OK;
    if (!f->measured.pairs)
        return mcsa_fail(error, MCSA_EINVAL, "--methods needs a layer captured at two steps or more");
    f->rival = calloc((size_t)j->method_count * (size_t)j->options.densities, sizeof *f->rival);
    if (!f->rival) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the results of %d methods", j->method_count);
    TRY(analysis_measure_rivals(f->rival, j->methods, j->method_count, &j->options, j->grid, &source, error));
    f->rivals = j->method_count * j->options.densities;
    return MCSA_OK;
}

/* A GPU computes the scores of an anchor twice and has groups of 128 alone (METHOD.md, 9 and mcsa.h). */
static mcsa_status advise(job *j, mcsa_error *error)
{
    const int gpu = j->set.backend == MCSA_DEVICE_CUDA;
    analyze_findings *f = &j->found;
    if (!f->measured.pairs) return MCSA_OK;
    f->advised = 1;
    f->wish = (analysis_wish){ .steps = j->set.steps,
                               .tolerance = (double)j->set.tolerance,
                               .selection_cost = gpu ? 0.5 : 0,
                               .group_fixed = gpu ? 128 : 0 };
    return analysis_advise(&f->advice, &f->measured, &f->wish, error);
}

static void describe(job *j)
{
    const analysis *a = &j->found.measured;
    const processor_use used = processor_of((mcsa_device)j->set.backend, (mcsa_isa)j->set.isa, j->set.threads);
    snprintf(j->title, sizeof j->title, "%d calls of %d layer%s, %d of %d heads of %d, %d tokens; %s, %s, %d thread%s",
             a->calls, a->series, a->series == 1 ? "" : "s or branches", a->heads, a->H, a->D, a->N, used.name,
             used.isa, used.threads, used.threads == 1 ? "" : "s");
    j->found.title = j->title;
}

static mcsa_status perform(job *j, mcsa_error *error)
{
    progress_start(&j->line, "analyse", j->set.quiet || j->set.json);
    j->start = mcsa_seconds();
    mcsa_status status = measure(j, error);
    progress_end(&j->line);
    if (status == MCSA_OK) status = advise(j, error);
    if (status == MCSA_OK) describe(j);
    return status;
}

static mcsa_status write_report(const char *text, const char *path, mcsa_error *error)
{
    staged file;
    FILE *stream = NULL;
    TRY(staged_name(&file, path, error));
    TRY(staged_open(&file, &stream, error));
    fprintf(stream, "%s\n", text);
    return staged_close(&file, stream, MCSA_OK, error);
}

static mcsa_status deliver(const job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    if (!set->json && !set->quiet) TRY(analyze_tables(&j->found, stdout, error));
    if (!set->json && !set->report) return MCSA_OK;
    char *text = analyze_json(&j->found);
    if (!text) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the report");
    if (set->json) puts(text);
    mcsa_status status = set->report ? write_report(text, set->report, error) : MCSA_OK;
    free(text);
    return status;
}

static void close_job(job *j)
{
    captured_close(&j->calls);
    if (j->folder[0]) remove_folder(j->folder);
    analysis_free(&j->found.measured);
    free(j->found.rival);
    free(j->heads);
    free(j->methods);
}

int cmd_analyze(int argc, char **argv)
{
    job j = { 0 };
    mcsa_error error = { "" };
    int help;
    mcsa_status status = options_parse(&page, argc, argv, &j.set, &help, &error);
    if (status == MCSA_OK && help) {
        options_help(&page, stdout);
        return EXIT_DONE;
    }
    interrupt_watch();
    if (status == MCSA_OK) status = prepare(&j, &error);
    if (status == MCSA_OK) status = perform(&j, &error);
    if (status == MCSA_OK) status = deliver(&j, &error);

    int code = command_end("analyze", status, &error, "interrupted; nothing was written");
    close_job(&j);
    return code;
}
