/* cmd_bench.c - `mcsa bench`: times the kernels here, after checking their answers. */
#include "suites.h"
#include "choices.h"
#include "command.h"
#include "cpu/peak.h"
#include "gpu.h"
#include "options.h"
#include "processor.h"
#include "staged.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct settings {
    int heads, tokens, dim, group, tail, ffn, dtype, threads, isa, backend, steps, repeats, frames, height, width;
    const char *density, *json, *model, *shape, *methods;
} settings;

/* clang-format off */
static const option_choice dtypes[] = { { "f32", MCSA_F32 }, { "bf16", MCSA_BF16 }, { "f16", MCSA_F16 }, { 0 } };

#define FIELD(name) .offset = offsetof(settings, name)

static const option table[] = {
    { .name = "Problem", .kind = OPTION_HEADING },
    { .name = "heads", .kind = OPTION_INT, FIELD(heads), .value = "H", .fallback = "3", .min = 1, .max = 1024,
      .help = "attention heads" },
    { .name = "tokens", .kind = OPTION_INT, FIELD(tokens), .value = "N", .fallback = "8192", .min = 1, .max = 1 << 20,
      .help = "queries, and as many keys" },
    { .name = "dim", .kind = OPTION_INT, FIELD(dim), .value = "D", .fallback = "128", .min = 1, .max = 256,
      .help = "head dimension" },
    { .name = "group", .kind = OPTION_INT, FIELD(group), .value = "C", .fallback = "128", .min = 1, .max = 4096,
      .help = "queries per group" },
    { .name = "density", .kind = OPTION_TEXT, FIELD(density), .value = "S,S,...", .fallback = "0.15,0.25",
      .help = "shares of the keys to keep; tables other than attend and methods use the first" },
    { .name = "tail", .kind = OPTION_CHOICE, FIELD(tail), .choices = choices_tail, .fallback = TAIL_DEFAULT,
      .help = "what stands for keys that are not kept, means of clusters or nothing: model, scaling; the other tables "
              "have rows of both" },
    { .name = "ffn", .kind = OPTION_INT, FIELD(ffn), .value = "N", .fallback = "1536", .min = 1, .max = 1 << 20,
      .help = "inner channels of the feed-forward layers: gemm" },
    { .name = "methods", .kind = OPTION_TEXT, FIELD(methods), .value = "NAME,...",
      .help = "those of methods, default all: names as in --method" },
    { .name = "dtype", .kind = OPTION_CHOICE, FIELD(dtype), .choices = dtypes, .fallback = "bf16",
      .help = "of the tensors" },
    { .name = "Model", .kind = OPTION_HEADING },
    { .name = "model", .kind = OPTION_TEXT, FIELD(model), .value = "DIR",
      .help = "directory of the model: model, scaling" },
    { .name = "shape", .kind = OPTION_TEXT, FIELD(shape), .value = "NAME",
      .help = "instead of --model, with --backend cuda: random weights of wan2.1-14b-720p, wan2.1-14b-480p or "
              "wan2.1-1.3b-480p, at the clip of that name: model" },
    { .name = "frames", .kind = OPTION_INT, FIELD(frames), .value = "N", .fallback = "16", .min = 1, .max = 4096,
      .help = "of its clip" },
    { .name = "height", .kind = OPTION_INT, FIELD(height), .value = "N", .fallback = "64", .min = 1, .max = 8192,
      .help = "of its clip" },
    { .name = "width", .kind = OPTION_INT, FIELD(width), .value = "N", .fallback = "64", .min = 1, .max = 8192,
      .help = "of its clip" },
    { .name = "Measuring", .kind = OPTION_HEADING },
    { .name = "repeats", .kind = OPTION_INT, FIELD(repeats), .value = "N", .fallback = "11", .min = 1,
      .max = BENCH_REPEATS_MAX, .help = "rounds over all rows of a table" },
    { .name = "threads", .kind = OPTION_INT, FIELD(threads), .value = "N", .min = 1, .max = 4096,
      .help = "default: all cores, or what OMP_NUM_THREADS says" },
    { .name = "isa", .kind = OPTION_CHOICE, FIELD(isa), .choices = choices_isa, .fallback = "auto",
      .help = "highest instruction set to use" },
    { .name = "steps", .kind = OPTION_INT, FIELD(steps), .value = "N", .min = 1, .max = 1000,
      .help = "denoise N steps too, by schedule ramp and dense: model on a GPU" },
    { .name = "backend", .kind = OPTION_CHOICE, FIELD(backend), .choices = choices_backend, .fallback = "cpu",
      .help = "cuda: the first GPU: attend, select, group, model, methods" },
    { .name = "json", .kind = OPTION_TEXT, FIELD(json), .value = "FILE", .help = "write the table as JSON too" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "mcsa bench",
    .summary = "time the kernels on this machine, after checking their answers",
    .synopsis = "attend|select|group|reuse|gemm|model|scaling|methods [options]",
    .description =
        "attend: dense attention against token-sparse attention at matched densities, with clustered and "
        "scattered kept keys, and with means of clusters among the rows; x s is the speed-up times the density, 1 "
        "when sparse attention is as efficient as dense; on a GPU, cuDNN's dense attention too, and anchor layers "
        "with and without means by their parts.\n\n"
        "select: what an anchor chooses, single keys (mass pass and top-K) or clusters of keys, against dense "
        "attention.\n\n"
        "group: grouping of queries and clustering of keys at half, once and twice --tokens, against dense attention, "
        "and the variance left in groups.\n\n"
        "reuse: a reuse step with each form of the residual, and what it costs beside the attention; with means.\n\n"
        "gemm: the linear layers of a block of heads times dim channels.\n\n"
        "model: a dense, an anchor and a reuse step of --model by stage, and the peak of resident memory; on a GPU, "
        "also of a published --shape, what it holds and what 50 steps then cost.\n\n"
        "scaling: attention, and steps of --model when given, over threads and over tokens.\n\n"
        "methods: a sparse call of every method of sparse attention as shares of dense attention: what it chooses at "
        "an anchor (and records for its residual), what it chooses in each sparse call, and what it attends to; x s "
        "is the speed-up of that call times the density executed; 40 steps is the attention of a run by schedule "
        "paper, or the one named, over dense attention at all steps. Branches shared: the mean of both.\n\n"
        "All rows of a table run in turn, round after round. A row whose answer is wrong is not timed, and the "
        "command then fails.",
    .options = table,
    .examples = "mcsa bench attend --tokens 8192 --density 0.15,0.25\n"
                "    mcsa bench select --tokens 16384 --density 0.15 --json select.json\n"
                "    mcsa bench model --model models/tiny-t2v --frames 24 --height 96 --width 96\n"
                "    mcsa bench attend --backend cuda --heads 40 --tokens 75600 --density 0.15,0.25\n"
                "    mcsa bench model --backend cuda --shape wan2.1-14b-720p --density 0.15 --repeats 1\n"
                "    mcsa bench methods --tokens 8192 --density 0.10,0.15,0.25 --repeats 5\n",
};

static const struct suite {
    const char *name;
    mcsa_status (*run)(const bench_plan *plan, bench_table *table, mcsa_error *error);
    int gpu; /* there is a table about a GPU too */
} suites[] = {
    { "attend", bench_attend, 1 },   { "select", bench_select, 1 },   { "group", bench_group, 1 },
    { "reuse", bench_reuse, 0 },     { "gemm", bench_gemm, 0 },       { "model", bench_model, 1 },
    { "scaling", bench_scaling, 0 }, { "methods", bench_methods, 1 },
};
enum { SUITES = sizeof suites / sizeof suites[0] };

static mcsa_status read_densities(const char *text, bench_plan *plan, mcsa_error *error)
{
    const char *at = text;
    for (;;) {
        char *end;
        float density = strtof(at, &end);
        if (end == at || !(density > 0 && density <= 1))
            return mcsa_fail(error, MCSA_EINVAL, "--density %s: each must be above 0 and at most 1", text);
        if (plan->density_count == BENCH_DENSITIES)
            return mcsa_fail(error, MCSA_EINVAL, "--density %s: at most %d", text, BENCH_DENSITIES);
        plan->densities[plan->density_count++] = density;
        if (*end == '\0') return MCSA_OK;
        if (*end != ',')
            return mcsa_fail(error, MCSA_EINVAL, "--density %s: expected a comma before \"%s\"", text, end);
        at = end + 1;
    }
}

static mcsa_status find_shape(const settings *set, bench_plan *plan, mcsa_error *error)
{
    const bench_model_shape *shape = bench_model_shapes;
    while (shape->name && strcmp(shape->name, set->shape) != 0) shape++;
    if (!shape->name)
        return mcsa_fail(error, MCSA_EINVAL, "--shape %.60s: `mcsa bench --help` names those there are", set->shape);
    if (set->model) return mcsa_fail(error, MCSA_EINVAL, "--shape and --model name two models; give one of them");
    if (set->backend != MCSA_DEVICE_CUDA)
        return mcsa_fail(error, MCSA_EINVAL, "--shape %s needs --backend cuda", set->shape);
    plan->made = shape;
    plan->frames = shape->frames;
    plan->height = shape->height;
    plan->width = shape->width;
    return MCSA_OK;
}

static mcsa_status make_plan(const struct suite *suite, const settings *set, bench_plan *plan, mcsa_error *error)
{
    mcsa_machine machine = { .size = sizeof machine };
    mcsa_machine_read(&machine);
    mcsa_isa isa = set->isa ? (mcsa_isa)set->isa : machine.isa;
    if (isa > machine.isa)
        return mcsa_fail(error, MCSA_EUNSUPPORTED, "--isa %s: this machine has %s", mcsa_isa_name(isa),
                         mcsa_isa_name(machine.isa));
    int threads = set->threads ? set->threads : machine.threads;
    if (set->backend == MCSA_DEVICE_CUDA && !suite->gpu)
        return mcsa_fail(error, MCSA_EINVAL, "--backend cuda: the table %s is about the CPU", suite->name);
    *plan =
        (bench_plan){ .shape = { set->heads, set->tokens, set->dim, set->group, threads, (mcsa_dtype)set->dtype, isa },
                      .repeats = set->repeats,
                      .ffn = set->ffn,
                      .model = set->model,
                      .frames = set->frames,
                      .height = set->height,
                      .width = set->width,
                      .steps = set->steps,
                      .methods = set->methods,
                      .device = (mcsa_device)set->backend,
                      .tail = (mcsa_tail)set->tail };
    if (set->shape) TRY(find_shape(set, plan, error));
    return read_densities(set->density, plan, error);
}

/* What the rows were measured on, and when.  Returns 0 without memory. */
static int add_circumstances(cJSON *root, const bench_plan *plan)
{
    const processor_use used = processor_of(plan->device, plan->shape.isa, plan->shape.threads);
    char text[80];
    const time_t now = time(NULL);
    struct tm utc;
    if (!cJSON_AddStringToObject(root, "processor", used.name)) return 0;
    if (gmtime_r(&now, &utc) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) &&
        !cJSON_AddStringToObject(root, "date", text))
        return 0;
    if (plan->device != MCSA_DEVICE_CUDA) return 1;
    bench_gpu_driver(text, sizeof text);
    return cJSON_AddStringToObject(root, "driver", text) != NULL;
}

static mcsa_status write_json(const bench_table *result, const bench_plan *plan, const char *path, mcsa_error *error)
{
    staged file;
    FILE *stream;
    TRY(staged_name(&file, path, error));
    TRY(staged_open(&file, &stream, error));
    cJSON *root = bench_json(result);
    char *text = root && add_circumstances(root, plan) ? cJSON_Print(root) : NULL;
    mcsa_status status = MCSA_OK;
    if (text)
        fprintf(stream, "%s\n", text);
    else
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for the JSON of %d rows", result->count);
    cJSON_free(text);
    cJSON_Delete(root);
    return staged_close(&file, stream, status, error);
}

/* What the rows have in common; rows that differ say so. */
static void make_title(char *title, size_t bytes, const struct suite *suite, const bench_plan *plan)
{
    const bench_shape *s = &plan->shape;
    const char *plural = s->threads == 1 ? "" : "s", *tail = choice_word(choices_tail, (int)plan->tail);
    const processor_use used = processor_of(plan->device, s->isa, s->threads);
    if (plan->device == MCSA_DEVICE_CUDA && (suite->run != bench_model || (!plan->made && !plan->model)))
        snprintf(title, bytes, "%s: H = %d, N = %d, D = %d, s = %.2f, C = %d, %s, %.60s, median of %d", suite->name,
                 s->heads, s->tokens, s->dim, (double)plan->densities[0], s->group, dtypes[s->dtype - 1].word,
                 used.name, plan->repeats);
    else if (plan->device == MCSA_DEVICE_CUDA)
        snprintf(title, bytes, "%s: %.80s%s, %d x %d x %d, s = %.2f, tail %s, %.60s, median of %d", suite->name,
                 plan->made ? plan->made->name : plan->model, plan->made ? " with random weights" : "", plan->frames,
                 plan->height, plan->width, (double)plan->densities[0], tail, used.name, plan->repeats);
    else if (plan->model)
        snprintf(title, bytes, "%s: %.80s, %d x %d x %d, s = %.2f, tail %s, C = %d, %s, %d thread%s, median of %d",
                 suite->name, plan->model, plan->frames, plan->height, plan->width, (double)plan->densities[0], tail,
                 s->group, mcsa_isa_name(s->isa), s->threads, plural, plan->repeats);
    else
        snprintf(title, bytes, "%s: H = %d, N = %d, D = %d, s = %.2f, C = %d, %s, %s, %d thread%s, median of %d",
                 suite->name, s->heads, s->tokens, s->dim, (double)plan->densities[0], s->group,
                 dtypes[s->dtype - 1].word, mcsa_isa_name(s->isa), s->threads, plural, plan->repeats);
}

static mcsa_status run(const struct suite *suite, const settings *set, bench_table *result, mcsa_error *error)
{
    bench_plan plan;
    char title[240];
    TRY(make_plan(suite, set, &plan, error));
    const bench_shape *s = &plan.shape;
    make_title(title, sizeof title, suite, &plan);
    result->title = title;
    result->peak = mcsa_cpu_peak(s->isa, s->dtype, s->threads);
    TRY(suite->run(&plan, result, error));
    bench_print(result, stdout);
    if (set->json) TRY(write_json(result, &plan, set->json, error));
    for (int c = 0; c < result->count; c++)
        if (result->cases[c].wrong)
            return mcsa_fail(error, MCSA_EUNSUPPORTED, "\"%s\" gave a wrong answer", result->cases[c].label);
    return MCSA_OK;
}

static const struct suite *find_suite(const char *name)
{
    for (int i = 0; i < SUITES; i++)
        if (strcmp(suites[i].name, name) == 0) return &suites[i];
    return NULL;
}

int cmd_bench(int argc, char **argv)
{
    settings set = { 0 };
    bench_table result = { 0 };
    mcsa_error error = { "" };
    int help, named = argc > 0 && strncmp(argv[0], "--", 2) != 0;
    const struct suite *suite = named ? find_suite(argv[0]) : NULL;
    if (named && !suite) {
        fprintf(stderr, "mcsa bench: unknown table '%s'; there are: %.*s\n", argv[0], (int)strcspn(page.synopsis, " "),
                page.synopsis);
        return EXIT_USAGE;
    }
    if (options_parse(&page, argc - named, argv + named, &set, &help, &error) != MCSA_OK) {
        fprintf(stderr, "mcsa bench: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (help) {
        options_help(&page, stdout);
        return EXIT_DONE;
    }
    if (!suite) {
        fprintf(stderr, "mcsa bench: name a table: %.*s (see mcsa bench --help)\n", (int)strcspn(page.synopsis, " "),
                page.synopsis);
        return EXIT_USAGE;
    }
    mcsa_status status = run(suite, &set, &result, &error);
    return command_end("bench", status, &error, "interrupted");
}
