/* cmd_compare.c - `mcsa compare`: several runs over several captions against the dense clip of the same
 * noise.
 *
 * For each seed and caption the dense clip is made once, then each run, so that what is divided in a speed-up
 * was measured minutes apart at most.  The report is rewritten after each clip: Ctrl-C loses one clip, and
 * the next call goes on from there. */
#include "clip_options.h"
#include "command.h"
#include "comparison_table.h"
#include "dit/generate.h"
#include "fingerprint.h"
#include "interrupt.h"
#include "processor.h"
#include "staged.h"
#include "video.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct settings {
    const char *model, *prompts, *runs;
    option_texts run;
    const char *methods, *densities, *schedule;
    int steps, frames, height, width, sampler;
    float guidance, shift;
    option_seeds seeds;
    int threads, isa, backend, precision;
    const char *report, *markdown, *sheet;
    int recall, verbose, quiet;
} settings;

/* clang-format off */
#define FIELD(name) .offset = offsetof(settings, name)

static const option table[] = {
    { .name = "What to compare", .kind = OPTION_HEADING },
    { .name = "model", .kind = OPTION_TEXT, FIELD(model), .value = "DIR",
      .help = "model directory with transformer/ and our text_encoder/. Required." },
    { .name = "prompts", .kind = OPTION_TEXT, FIELD(prompts), .value = "FILE",
      .help = "captions, one on a line; what follows a # is a comment. Required." },
    { .name = "runs", .kind = OPTION_TEXT, FIELD(runs), .value = "FILE",
      .help = "runs, one on a line, comments likewise" },
    { .name = "run", .kind = OPTION_TEXTS, FIELD(run), .value = "\"NAME: KEY=VALUE ...\"",
      .help = "one more run; may be repeated. Keys are method, density, schedule, tail, residual, "
              "dense-layers, group and branches; `mcsa generate --help` describes them and says the "
              "defaults. Without --run, --runs and --methods there is one run with all defaults" },
    { .name = "methods", .kind = OPTION_TEXT, FIELD(methods), .value = "NAME[,NAME...]",
      .help = "a run of each method at each density by one schedule, whose dense steps are the same for all. "
              "`mcsa generate --method list` names them; mc-sparse is as in the paper, with branches apart "
              "and tail off, and mc-sparse+tail has means. NAME+residual adds the cached residual of "
              "dense - sparse" },
    { .name = "density", .kind = OPTION_TEXT, FIELD(densities), .value = "X[,X...]",
      .fallback = "0.10,0.15,0.25",
      .help = "of --methods: the share of query-key pairs that their sparse calls compute" },
    { .name = "schedule", .kind = OPTION_TEXT, FIELD(schedule), .value = "ramp|fast|paper|every:N[,W]|list:A,B,C",
      .fallback = "paper", .help = "of --methods" },
    { .name = "seeds", .kind = OPTION_SEEDS, FIELD(seeds), .value = "N[,N...]", .fallback = "0",
      .help = "of the noise; every caption is made with each" },

    { .name = "Sampling", .kind = OPTION_HEADING },
    CLIP_SIZE_OPTIONS(settings),
    SAMPLING_OPTIONS(settings),

    { .name = "Machine", .kind = OPTION_HEADING },
    MACHINE_OPTIONS(settings),

    { .name = "Results", .kind = OPTION_HEADING },
    { .name = "report", .kind = OPTION_TEXT, FIELD(report), .value = "FILE",
      .help = "keep what was measured as JSON, clip by clip. When FILE is there already, clips that are in "
              "it are not made again; it is refused when model, sampling or machine differ. Remove it to "
              "measure anew" },
    { .name = "markdown", .kind = OPTION_TEXT, FIELD(markdown), .value = "FILE",
      .help = "write the table as Markdown" },
    { .name = "sheet", .kind = OPTION_TEXT, FIELD(sheet), .value = "FILE",
      .help = "write a .png with the first caption's clip of the first seed, one row of 8 frames each: "
              "dense, then the runs in their order" },
    { .name = "recall", .kind = OPTION_FLAG, FIELD(recall),
      .help = "measure recall too: the sum of exact attention over the keys that a query attends to one by "
              "one, means and virtual keys not counted, with the queries and keys of that very call; the mean "
              "over 32 evenly spaced queries of each head, in all layers and branches, at 8 of the sparse "
              "steps, spread evenly. It takes about 1 % of a clip's time (6 ms a call of 4,096 tokens on two "
              "cores), which is in no column. Clips of a report that lack it are made again" },
    { .name = "verbose", .kind = OPTION_FLAG, FIELD(verbose),
      .help = "a line on standard error for each clip that is done" },
    { .name = "quiet", .kind = OPTION_FLAG, FIELD(quiet), .help = "print nothing but errors" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "mcsa compare",
    .summary = "set MC-Sparse and other methods of sparse attention against dense",
    .synopsis = "--model DIR --prompts FILE [--runs FILE] [--run \"NAME: KEY=VALUE ...\"] [--methods NAME,...] "
                "[options]",
    .description =
        "Makes every caption with dense attention and then with each run from the same noise, and prints one "
        "table: what each run costs in attention and in seconds, and how near it stays to dense.\n\n"
        "This is long: every clip is a whole generation. Give --report and it can be interrupted and goes on "
        "where it was.",
    .options = table,
    .examples =
        "    What schedule, residual and sharing are worth (the runs and captions of the repository):\n"
        "        mcsa compare --model models/tiny-t2v --prompts bench/captions.txt \\\n"
        "            --runs bench/ladder.txt --report ladder.json --markdown ladder.md\n\n"
        "    Two runs, typed here:\n"
        "        mcsa compare --model models/tiny-t2v --prompts bench/captions.txt \\\n"
        "            --run \"default:\" --run \"sparser: density=0.05 residual=int4\"\n\n"
        "    Other methods and the paper's, with the same dense steps:\n"
        "        mcsa compare --model models/tiny-t2v --prompts bench/captions.txt \\\n"
        "            --methods bsa,svg2,pisa,mc-sparse --density 0.15,0.25\n",
};

/* Everything that one call of the command holds. */
typedef struct job {
    settings set;
    plan plan;
    video_model model;
    context *conditions; /* [captions] */
    context null_condition;
    float *noise; /* [in_channels, frames, height, width] */
    int64_t noise_count;
    char weights[17]; /* fingerprint */
    comparison result;
    clip sheet; /* 8 frames of each run; rgb is NULL without --sheet */
    int clips_done;
} job;

static processor_use processor_used(const settings *set)
{
    return processor_of((mcsa_device)set->backend, (mcsa_isa)set->isa, set->threads);
}

static mcsa_status make_plan(job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    if (!set->model || !set->prompts)
        return mcsa_fail(error, MCSA_EINVAL, "--%s is missing; try %s, or --help",
                         set->model ? "prompts" : "model",
                         set->model ? "--prompts bench/captions.txt" : "--model models/tiny-t2v");
    j->plan.seeds = set->seeds;
    TRY(plan_add_dense(&j->plan, error));
    if (set->runs) TRY(plan_read_runs(&j->plan, set->runs, set->steps, error));
    for (int i = 0; i < set->run.count; i++)
        TRY(plan_add_run(&j->plan, set->run.text[i], "--run", set->steps, error));
    if (set->methods)
        TRY(plan_add_grid(&j->plan, &(plan_grid){ set->methods, set->densities, set->schedule }, set->steps,
                          error));
    if (j->plan.runs == 1)
        TRY(plan_add_run(&j->plan, "mc-sparse:", "the run of all defaults", set->steps, error));
    return plan_read_captions(&j->plan, set->prompts, error);
}

static mcsa_status read_captions(job *j, mcsa_error *error)
{
    const text_lines *captions = &j->plan.captions;
    j->conditions = calloc((size_t)captions->count, sizeof *j->conditions);
    if (!j->conditions) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %d captions", captions->count);
    for (int i = 0; i < captions->count; i++) {
        mcsa_error why = { "" };
        mcsa_status status = context_from_caption(&j->conditions[i], &j->model, captions->line[i].text, &why);
        if (status != MCSA_OK)
            return mcsa_fail(error, status, "%.150s:%d: %.340s", j->set.prompts, captions->line[i].number,
                             why.text);
    }
    if (j->set.guidance == 1.0f) return MCSA_OK;
    return context_from_caption(&j->null_condition, &j->model, "<null>", error);
}

static mcsa_status check_files(const settings *set, int channels, mcsa_error *error)
{
    const char *const paths[] = { set->report, set->markdown, set->sheet };
    for (int i = 0; i < 3; i++)
        if (paths[i]) TRY(staged_check(paths[i], error));
    if (set->sheet && channels != 3)
        return mcsa_fail(error, MCSA_EINVAL, "--sheet: this model makes latents of %d channels, not pixels",
                         channels);
    return MCSA_OK;
}

static mcsa_status check_layers(const plan *p, int layers, mcsa_error *error)
{
    for (int i = 0; i < p->runs; i++) {
        const plan_run *run = &p->run[i];
        mcsa_error why;
        if (!attention_is_dense(&run->attention) &&
            attention_dense_layers(&run->attention, layers, NULL, &why) != MCSA_OK)
            return mcsa_fail(error, MCSA_EINVAL, "run '%.100s': %.340s", run->name, why.text);
    }
    return MCSA_OK;
}

static mcsa_status prepare_memory(job *j, int channels, mcsa_error *error)
{
    const settings *set = &j->set;
    j->noise_count = (int64_t)channels * set->frames * set->height * set->width;
    j->noise = malloc((size_t)j->noise_count * sizeof *j->noise);
    if (!j->noise)
        return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld noise values", (long long)j->noise_count);
    if (!set->sheet) return MCSA_OK;
    j->sheet = (clip){ CLIP_SHEET_COLUMNS * j->plan.runs, set->height, set->width, NULL };
    size_t bytes = 3 * (size_t)j->sheet.frames * (size_t)set->height * (size_t)set->width;
    j->sheet.rgb = malloc(bytes);
    return j->sheet.rgb ? MCSA_OK
                        : mcsa_fail(error, MCSA_ENOMEM, "no memory for a sheet of %zu bytes", bytes);
}

/* What all clips of a report share. */
static cJSON *shared_settings(const job *j)
{
    const settings *set = &j->set;
    const dit_wan_config *config = dit_wan_describe(j->model.transformer);
    const processor_use used = processor_used(set);
    cJSON *shared = cJSON_CreateObject();
    cJSON_AddStringToObject(shared, "model", set->model);
    cJSON_AddStringToObject(shared, "weights", j->weights);
    cJSON_AddNumberToObject(shared, "frames", set->frames);
    cJSON_AddNumberToObject(shared, "height", set->height);
    cJSON_AddNumberToObject(shared, "width", set->width);
    cJSON_AddNumberToObject(shared, "tokens",
                            (double)dit_wan_tokens(j->model.transformer, set->frames, set->height,
                                                   set->width));
    cJSON_AddNumberToObject(shared, "heads", config->heads);
    cJSON_AddNumberToObject(shared, "head_dim", config->head_dim);
    cJSON_AddNumberToObject(shared, "layers", config->layers);
    cJSON_AddNumberToObject(shared, "steps", set->steps);
    cJSON_AddNumberToObject(shared, "guidance", set->guidance);
    cJSON_AddNumberToObject(shared, "shift", set->shift);
    cJSON_AddStringToObject(shared, "sampler", choice_word(choices_sampler, set->sampler));
    cJSON_AddStringToObject(shared, "precision",
                            choice_word(choices_precision, dit_wan_precision(j->model.transformer)));
    cJSON_AddStringToObject(shared, "backend", choice_word(choices_backend, set->backend));
    cJSON_AddStringToObject(shared, "isa", used.isa);
    cJSON_AddNumberToObject(shared, "threads", used.threads);
    cJSON_AddStringToObject(shared, "processor", used.name);
    return shared;
}

static mcsa_status prepare(job *j, mcsa_error *error)
{
    settings *set = &j->set;
    TRY(make_plan(j, error));
    dit_wan_options options = { .threads = set->threads,
                                .precision = (mcsa_dtype)set->precision,
                                .device = (mcsa_device)set->backend };
    TRY(model_open(&j->model, set->model, &options, error));
    if (set->shift == 0.0f) set->shift = j->model.shift;
    const dit_wan_config *config = dit_wan_describe(j->model.transformer);
    TRY(model_check_channels(config, error));
    TRY(model_check_size(config, set->frames, set->height, set->width, error));
    TRY(check_layers(&j->plan, config->layers, error));
    if (!j->model.text)
        return mcsa_fail(error, MCSA_EINVAL, "%.300s has no text encoder that mcsa can run", set->model);
    TRY(read_captions(j, error));
    TRY(check_files(set, config->out_channels, error));
    TRY(prepare_memory(j, config->in_channels, error));
    TRY(fingerprint_model(j->weights, set->model, error));
    return comparison_open(&j->result, shared_settings(j), set->report, error);
}

static mcsa_status make_clip(const job *j, clip_place at, rendition *out, mcsa_error *error)
{
    const settings *set = &j->set;
    const plan_run *run = &j->plan.run[at.run];
    char label[120];
    snprintf(label, sizeof label, "%d/%d %.60s,", j->clips_done + 1, plan_clips(&j->plan), run->name);
    rendition_order order = {
        .model = &j->model,
        .frames = set->frames,
        .height = set->height,
        .width = set->width,
        .noise = j->noise,
        .condition = &j->conditions[at.caption],
        .null_condition = &j->null_condition,
        .guidance = set->guidance,
        .shift = set->shift,
        .sampler = (dit_sampler_kind)set->sampler,
        .label = label,
        .quiet = set->quiet,
        .attention = &run->attention,
        .steps = set->steps,
        .threads = set->threads,
        .isa = (mcsa_isa)set->isa,
        .device = (mcsa_device)set->backend,
        .seed = j->plan.seeds.seed[at.seed],
        .recall = set->recall,
    };
    mcsa_error why = { "" };
    mcsa_status status = rendition_make(out, &order, &why);
    return status == MCSA_OK ? status : mcsa_fail(error, status, "run %.80s: %.400s", run->name, why.text);
}

/* 8 frames spread over the clip, to their row of the sheet. */
static mcsa_status add_to_sheet(job *j, int run, const planes *latent, mcsa_error *error)
{
    clip pictures;
    TRY(clip_from_latent(&pictures, latent->data, latent->frames, latent->height, latent->width, error));
    size_t frame = 3 * (size_t)latent->height * (size_t)latent->width;
    for (int i = 0; i < CLIP_SHEET_COLUMNS; i++)
        memcpy(j->sheet.rgb + ((size_t)run * CLIP_SHEET_COLUMNS + (size_t)i) * frame,
               clip_frame(&pictures, i * latent->frames / CLIP_SHEET_COLUMNS), frame);
    clip_free(&pictures);
    return MCSA_OK;
}

/* Keeps the numbers of a clip at once. */
static mcsa_status keep(job *j, clip_place at, const rendition *dense, const rendition *made, int in_sheet,
                        mcsa_error *error)
{
    quality fidelity;
    TRY(quality_of_latents(&fidelity, &dense->latent, &made->latent, error));
    clip_numbers numbers = comparison_measure(dense, made, &fidelity), before;
    /* Made again for the sheet, it is the same clip. */
    if (!j->set.recall && comparison_find(&j->result, &j->plan, at, &before)) numbers.recall = before.recall;
    TRY(comparison_put(&j->result, &j->plan, at, &numbers, error));
    if (in_sheet) TRY(add_to_sheet(j, at.run, &made->latent, error));
    if (j->set.verbose)
        fprintf(stderr, "%d/%d %s: %s: %.2f s, %.2f dB\n", j->clips_done + 1, plan_clips(&j->plan),
                j->plan.run[at.run].name, j->plan.captions.line[at.caption].text, numbers.denoise_s,
                numbers.psnr_db);
    j->clips_done++;
    return j->set.report ? comparison_write(&j->result, &j->plan, j->set.report, error) : MCSA_OK;
}

/* With all numbers that are asked for now. */
static int was_made(const job *j, clip_place at)
{
    clip_numbers numbers;
    if (!comparison_find(&j->result, &j->plan, at, &numbers)) return 0;
    return !j->set.recall || !comparison_lacks_recall(&numbers);
}

static int runs_missing(const job *j, clip_place at)
{
    int missing = 0;
    for (at.run = 0; at.run < j->plan.runs; at.run++)
        missing += !was_made(j, at);
    return missing;
}

/* Dense and the runs that are missing; all of them when they are wanted for the sheet. */
static mcsa_status make_runs(job *j, clip_place at, int in_sheet, mcsa_error *error)
{
    rendition dense;
    at.run = 0;
    dit_noise(j->plan.seeds.seed[at.seed], j->noise, j->noise_count);
    TRY(make_clip(j, at, &dense, error));
    mcsa_status status = keep(j, at, &dense, &dense, in_sheet, error);
    for (at.run = 1; status == MCSA_OK && at.run < j->plan.runs; at.run++) {
        if (!in_sheet && was_made(j, at)) {
            j->clips_done++;
            continue;
        }
        rendition made;
        status = make_clip(j, at, &made, error);
        if (status != MCSA_OK) break;
        status = keep(j, at, &dense, &made, in_sheet, error);
        rendition_free(&made);
    }
    rendition_free(&dense);
    return status;
}

static mcsa_status perform(job *j, mcsa_error *error)
{
    for (int seed = 0; seed < j->plan.seeds.count; seed++)
        for (int caption = 0; caption < j->plan.captions.count; caption++) {
            clip_place at = { caption, seed, 0 };
            int missing = runs_missing(j, at);
            /* Numbers outlive a call of the command, pictures do not: a sheet needs its clips made together.
             */
            int in_sheet =
                j->set.sheet && seed == 0 && caption == 0 && (missing || access(j->set.sheet, F_OK) != 0);
            if (!missing && !in_sheet) {
                j->clips_done += j->plan.runs;
                continue;
            }
            TRY(make_runs(j, at, in_sheet, error));
            if (in_sheet) TRY(clip_write_png(&j->sheet, j->set.sheet, error));
        }
    return MCSA_OK;
}

static void describe(const job *j, char *text, size_t bytes)
{
    const settings *set = &j->set;
    const processor_use used = processor_used(set);
    char date[16];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    snprintf(
        text, bytes,
        "%d caption%s x %d seed%s, %d x %d x %d (%lld tokens), %d steps, guidance %g, %s; "
        "%s, %s, %d thread%s; %s",
        j->plan.captions.count, j->plan.captions.count == 1 ? "" : "s", j->plan.seeds.count,
        j->plan.seeds.count == 1 ? "" : "s", set->frames, set->height, set->width,
        (long long)dit_wan_tokens(j->model.transformer, set->frames, set->height, set->width), set->steps,
        (double)set->guidance, choice_word(choices_sampler, set->sampler), used.name, used.isa,
        used.threads, used.threads == 1 ? "" : "s", date);
}

static mcsa_status write_markdown(const job *j, const char *text, mcsa_error *error)
{
    staged file;
    FILE *stream = NULL;
    TRY(staged_name(&file, j->set.markdown, error));
    TRY(staged_open(&file, &stream, error));
    mcsa_status status = comparison_table(&j->result, &j->plan, text, TABLE_MARKDOWN, stream, error);
    return staged_close(&file, stream, status, error);
}

static mcsa_status deliver(const job *j, mcsa_error *error)
{
    char text[600];
    describe(j, text, sizeof text);
    if (!j->set.quiet) TRY(comparison_table(&j->result, &j->plan, text, TABLE_PLAIN, stdout, error));
    /* Also when no clip was made: the summaries are of today's plan. */
    if (j->set.report) TRY(comparison_write(&j->result, &j->plan, j->set.report, error));
    return j->set.markdown ? write_markdown(j, text, error) : MCSA_OK;
}

static void close_job(job *j)
{
    comparison_close(&j->result);
    for (int i = 0; j->conditions && i < j->plan.captions.count; i++) context_free(&j->conditions[i]);
    free(j->conditions);
    context_free(&j->null_condition);
    free(j->noise);
    clip_free(&j->sheet);
    model_close(&j->model);
    plan_free(&j->plan);
}

int cmd_compare(int argc, char **argv)
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

    char canceled[600] = "interrupted; nothing was kept, --report would";
    if (j.set.report)
        snprintf(canceled, sizeof canceled,
                 "interrupted; %.480s keeps what was done, the same command goes on from there", j.set.report);
    int code = command_end("compare", status, &error, canceled);
    close_job(&j);
    return code;
}
