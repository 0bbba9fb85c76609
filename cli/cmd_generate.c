/* cmd_generate.c - `mcsa generate`: a caption in, a clip out; with --compare twice, dense and MC-Sparse.
 *
 * Three stages: prepare refuses whatever can be refused before the long part, perform denoises, deliver
 * writes every file.  Nothing but captured calls is written before all clips are made, so Ctrl-C leaves no
 * other file at all. */
#include "attention.h"
#include "clip_options.h"
#include "command.h"
#include "dit/generate.h"
#include "interrupt.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "processor.h"
#include "rendition.h"
#include "report.h"
#include "staged.h"

#include <stdlib.h>
#include <string.h>

typedef struct settings {
    const char *model, *prompt, *context, *negative_context;
    int steps, frames, height, width;
    float guidance, shift;
    uint64_t seed;
    int sampler;
    attention_settings attention;
    int threads, isa, backend, precision;
    int compare, quiet, json;
    option_texts out;
    const char *report, *capture;
    captured_picks picks;
} settings;

/* clang-format off */
#define FIELD(name) .offset = offsetof(settings, name)

static const option table[] = {
    { .name = "What to make", .kind = OPTION_HEADING },
    { .name = "model", .kind = OPTION_TEXT, FIELD(model), .value = "DIR",
      .help = "model directory with transformer/ and, where the model has one of ours, text_encoder/; or "
              "the directory of a bare Wan transformer. Required." },
    { .name = "prompt", .kind = OPTION_TEXT, FIELD(prompt), .value = "TEXT",
      .help = "caption of the clip in plain English. The model knows a few dozen words and lists them "
              "when it meets another." },
    { .name = "context", .kind = OPTION_TEXT, FIELD(context), .value = "FILE",
      .help = "instead of --prompt, for models whose text encoder mcsa cannot run: a .safetensors file "
              "with the tensor \"context\" [rows, text_dim]" },
    { .name = "negative-context", .kind = OPTION_TEXT, FIELD(negative_context), .value = "FILE",
      .help = "the same for the unconditional branch of guidance; needed with --context unless --guidance "
              "is 1" },
    CLIP_SIZE_OPTIONS(settings),
    { .name = "seed", .kind = OPTION_SEED, FIELD(seed), .value = "N", .fallback = "0",
      .help = "of the noise; the same seed gives the same noise on every machine" },

    { .name = "Sampling", .kind = OPTION_HEADING },
    SAMPLING_OPTIONS(settings),

    { .name = "Attention", .kind = OPTION_HEADING },
    ATTENTION_OPTIONS(settings, attention),

    { .name = "Machine", .kind = OPTION_HEADING },
    MACHINE_OPTIONS(settings),

    { .name = "Results", .kind = OPTION_HEADING },
    { .name = "out", .kind = OPTION_TEXTS, FIELD(out), .value = "FILE",
      .help = "where the clip goes; may be repeated. The ending says the format: .mp4 video, .png contact "
              "sheet of all frames, .y4m uncompressed video, .safetensors the latent itself. Default "
              "clip.mp4, or clip.safetensors for a model that does not make pixels" },
    { .name = "compare", .kind = OPTION_FLAG, FIELD(compare),
      .help = "make the dense clip from the same noise first, write it to FILE with -dense before the "
              "ending, and say how much faster and how faithful the method was" },
    { .name = "report", .kind = OPTION_TEXT, FIELD(report), .value = "FILE",
      .help = "write what was done and what it cost as JSON" },
    { .name = "capture", .kind = OPTION_TEXT, FIELD(capture), .value = "DIR",
      .help = "write q, k and v of self-attention calls as .safetensors files there, for `mcsa analyze`; of "
              "the method's clip, not of the dense one of --compare. With all steps and layers that is "
              "3 tensors of each call of the run" },
    { .name = "at-steps", .kind = OPTION_TEXT, FIELD(picks.steps), .value = "all|growing|spread:N|A,B-C",
      .fallback = "growing",
      .help = "which steps are captured. growing: the first, and on with gaps of 1, 2, 3, ...; spread:N: N "
              "of them, evenly" },
    { .name = "at-layers", .kind = OPTION_TEXT, FIELD(picks.layers), .value = "all|growing|spread:N|A,B-C",
      .fallback = "spread:3", .help = "which layers, likewise" },
    { .name = "at-branches", .kind = OPTION_TEXT, FIELD(picks.branches), .value = "all|A,B-C",
      .fallback = "all", .help = "which branches of guidance; 0 is the conditional one" },
    { .name = "json", .kind = OPTION_FLAG, FIELD(json),
      .help = "print that report on standard output instead of the table" },
    { .name = "quiet", .kind = OPTION_FLAG, FIELD(quiet), .help = "print nothing but errors" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "mcsa generate",
    .summary = "make a video clip from a caption",
    .synopsis = "--model DIR --prompt TEXT [options]",
    .description =
        "Denoises a clip with a video transformer on the CPU or a GPU. Most of the time of such a model goes to "
        "attention, in which every token of the clip looks at every other. MC-Sparse looks at all of them "
        "in a few anchor steps only, remembers which ones mattered and what the others added, and in the "
        "steps between looks at a tenth.\n\n"
        "With --compare the clip is made both ways from the same noise and a table says what was gained "
        "and what was lost.",
    .options = table,
    .examples = "    Watch it work, and see the frames side by side:\n"
                "        mcsa generate --model models/tiny-t2v --compare --out clip.mp4 \\\n"
                "            --out clip.png --prompt \"a red star orbits over a blue checker background\"\n\n"
                "    Larger, with a quarter of the cache:\n"
                "        mcsa generate --model models/tiny-t2v --prompt \"a green ring moves left\" \\\n"
                "            --frames 24 --height 96 --width 96 --steps 20 --residual int4\n\n"
                "    The same noise with another method of sparse attention, set against dense:\n"
                "        mcsa generate --method list\n"
                "        mcsa generate --model models/tiny-t2v --prompt \"a red star spins\" \\\n"
                "            --method bsa --density 0.15 --schedule paper --compare\n\n"
                "    A Wan checkpoint, with text states and decoding by Diffusers (docs/REAL_MODELS.md):\n"
                "        mcsa generate --model Wan2.1-T2V-1.3B-Diffusers --context c.safetensors \\\n"
                "            --negative-context n.safetensors --frames 5 --height 60 --width 104 \\\n"
                "            --out latent.safetensors\n",
};

/* Everything that one call of the command holds. */
typedef struct job {
    settings set;
    video_model model;
    context condition, null_condition;
    float *noise; /* [in_channels, frames, height, width] */
    capture *capture; /* NULL without --capture */
    rendition made, dense;
    quality fidelity;
} job;

static mcsa_status check_settings(settings *set, mcsa_error *error)
{
    if (!set->model)
        return mcsa_fail(error, MCSA_EINVAL,
                         "--model DIR is missing; try --model models/tiny-t2v, or --help");
    if (!set->prompt && !set->context)
        return mcsa_fail(error, MCSA_EINVAL, "nothing to draw: give --prompt TEXT (or --context FILE)");
    if (set->prompt && set->context)
        return mcsa_fail(error, MCSA_EINVAL,
                         "--prompt and --context say the same thing twice; give one of them");
    if (set->compare && attention_is_dense(&set->attention))
        return mcsa_fail(error, MCSA_EINVAL,
                         "--compare sets a method against dense; --method dense leaves nothing to set");
    return attention_settle(&set->attention, set->steps, error);
}

static mcsa_status check_model(job *j, mcsa_error *error)
{
    settings *set = &j->set;
    const dit_wan_config *config = dit_wan_describe(j->model.transformer);
    TRY(model_check_channels(config, error));
    if (!set->out.count)
        set->out = (option_texts){ 1, { config->out_channels == 3 ? "clip.mp4" : "clip.safetensors" } };
    TRY(model_check_size(config, set->frames, set->height, set->width, error));
    TRY(output_check(&set->out, config->out_channels, error));
    return set->report ? staged_check(set->report, error) : MCSA_OK;
}

static mcsa_status read_contexts(job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    TRY(set->prompt ? context_from_caption(&j->condition, &j->model, set->prompt, error)
                    : context_from_file(&j->condition, &j->model, set->context, error));
    if (set->guidance == 1.0f) return MCSA_OK;
    if (set->negative_context)
        return context_from_file(&j->null_condition, &j->model, set->negative_context, error);
    if (!j->model.text)
        return mcsa_fail(error, MCSA_EINVAL,
                         "--guidance %g needs --negative-context FILE, or take --guidance 1", set->guidance);
    return context_from_caption(&j->null_condition, &j->model, "<null>", error);
}

static mcsa_status open_capture(job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    const dit_wan_config *config = dit_wan_describe(j->model.transformer);
    const capture_order order = {
        .dir = set->capture,
        .picks = set->picks,
        .steps = set->steps,
        .layers = config->layers,
        .branches = set->guidance == 1.0f ? 1 : 2,
        .grid = { set->frames / config->patch[0], set->height / config->patch[1],
                  set->width / config->patch[2] },
        .device = (mcsa_device)set->backend,
    };
    return capture_open(&j->capture, &order, error);
}

static mcsa_status prepare(job *j, mcsa_error *error)
{
    settings *set = &j->set;
    TRY(check_settings(set, error));
    dit_wan_options options = { .threads = set->threads,
                                .precision = (mcsa_dtype)set->precision,
                                .device = (mcsa_device)set->backend };
    TRY(model_open(&j->model, set->model, &options, error));
    if (set->shift == 0.0f) set->shift = j->model.shift;
    TRY(check_model(j, error));
    TRY(read_contexts(j, error));
    int64_t count =
        (int64_t)dit_wan_describe(j->model.transformer)->in_channels * set->frames * set->height * set->width;
    j->noise = malloc((size_t)count * sizeof *j->noise);
    if (!j->noise) return mcsa_fail(error, MCSA_ENOMEM, "no memory for %lld noise values", (long long)count);
    dit_noise(set->seed, j->noise, count);
    return set->capture ? open_capture(j, error) : MCSA_OK;
}

static mcsa_status perform(job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    attention_settings dense = set->attention;
    dense.method = "dense";
    rendition_order order = {
        .model = &j->model,
        .frames = set->frames,
        .height = set->height,
        .width = set->width,
        .noise = j->noise,
        .condition = &j->condition,
        .null_condition = &j->null_condition,
        .guidance = set->guidance,
        .shift = set->shift,
        .sampler = (dit_sampler_kind)set->sampler,
        .label = dense.method,
        .quiet = set->quiet,
        .attention = &dense,
        .steps = set->steps,
        .threads = set->threads,
        .isa = (mcsa_isa)set->isa,
        .device = (mcsa_device)set->backend,
        .seed = set->seed,
    };
    if (set->compare) TRY(rendition_make(&j->dense, &order, error));
    order.attention = &set->attention;
    order.label = set->attention.method;
    order.capture = j->capture;
    TRY(rendition_make(&j->made, &order, error));
    if (!set->compare) return MCSA_OK;
    return quality_of_latents(&j->fidelity, &j->dense.latent, &j->made.latent, error);
}

static void fill_report(report *r, const job *j)
{
    const settings *set = &j->set;
    const dit_wan_config *config = dit_wan_describe(j->model.transformer);
    const processor_use used = processor_of((mcsa_device)set->backend, (mcsa_isa)set->isa, set->threads);
    *r = (report){
        .method = set->attention.method,
        .tail = attention_is_mc_sparse(&set->attention) ? choice_word(choices_tail, set->attention.tail)
                                                        : NULL,
        .backend = choice_word(choices_backend, set->backend),
        .isa = used.isa,
        .threads = used.threads,
        .steps = set->steps,
        .tokens = dit_wan_tokens(j->model.transformer, set->frames, set->height, set->width),
        .heads = config->heads,
        .head_dim = config->head_dim,
        .layers = config->layers,
        .made = &j->made,
        .dense = set->compare ? &j->dense : NULL,
        .fidelity = j->fidelity,
    };
}

static mcsa_status print_json(const report *r, mcsa_error *error)
{
    char *text = report_json(r);
    if (!text) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the report");
    puts(text);
    free(text);
    return MCSA_OK;
}

static mcsa_status deliver(const job *j, mcsa_error *error)
{
    const settings *set = &j->set;
    int talk = !set->quiet && !set->json;
    report numbers;
    fill_report(&numbers, j);
    if (set->json) TRY(print_json(&numbers, error));
    if (talk) {
        report_table(&numbers, stdout);
        putchar('\n');
    }
    for (int i = 0; i < set->out.count; i++) {
        char dense_name[STAGED_PATH_BYTES];
        if (set->compare) {
            TRY(output_dense_name(set->out.text[i], dense_name, sizeof dense_name, error));
            TRY(output_write(dense_name, &j->dense.latent, error));
            if (talk) printf("wrote %s\n", dense_name);
        }
        TRY(output_write(set->out.text[i], &j->made.latent, error));
        if (talk) printf("wrote %s\n", set->out.text[i]);
    }
    if (talk && j->capture) printf("wrote %d calls to %s\n", capture_count(j->capture), set->capture);
    if (!set->report) return MCSA_OK;
    TRY(report_write(&numbers, set->report, error));
    if (talk) printf("wrote %s\n", set->report);
    return MCSA_OK;
}

int cmd_generate(int argc, char **argv)
{
    job j = { 0 };
    mcsa_error error = { "" };
    int help;
    mcsa_status status = options_parse(&page, argc, argv, &j.set, &help, &error);
    if (status == MCSA_OK && help) {
        options_help(&page, stdout);
        return EXIT_DONE;
    }
    if (status == MCSA_OK && strcmp(j.set.attention.method, "list") == 0) {
        attention_list_methods(stdout);
        return EXIT_DONE;
    }
    interrupt_watch();
    if (status == MCSA_OK) status = prepare(&j, &error);
    if (status == MCSA_OK) status = perform(&j, &error);
    if (status == MCSA_OK) status = deliver(&j, &error);

    int code = command_end("generate", status, &error,
                           j.capture ? "interrupted; nothing was written but captured calls"
                                     : "interrupted; nothing was written");
    capture_close(j.capture);
    rendition_free(&j.made);
    rendition_free(&j.dense);
    context_free(&j.condition);
    context_free(&j.null_condition);
    free(j.noise);
    model_close(&j.model);
    return code;
}
