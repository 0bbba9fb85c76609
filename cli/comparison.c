/* comparison.c - clips stay the JSON objects that the file holds; numbers go in and out by one table. */
#include "comparison.h"

#include "dit/json.h"
#include "staged.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct number_field {
    const char *key;
    size_t offset; /* in clip_numbers */
    int median;    /* rather than mean, in a summary */
    int later;     /* older reports lack it */
} number_field;

/* clang-format off */
#define FIELD(name) .key = #name, .offset = offsetof(clip_numbers, name)

static const number_field fields[] = {
    { FIELD(density_requested) }, { FIELD(density_nominal), .later = 1 }, { FIELD(density_executed) },
    { FIELD(density_tail), .later = 1 }, { FIELD(density_run) },
    { FIELD(psnr_db) }, { FIELD(ssim) }, { FIELD(rel_l2) },
    { FIELD(denoise_s), .median = 1 }, { FIELD(attention_s), .median = 1 }, { FIELD(linear_s), .median = 1 },
    { FIELD(denoise_speedup), .median = 1 }, { FIELD(attention_speedup), .median = 1 },
    { FIELD(dense) }, { FIELD(anchor) }, { FIELD(reuse) }, { FIELD(fallback) },
    { FIELD(selection_bytes) }, { FIELD(residual_bytes) }, { FIELD(held_bytes), .later = 1 },
    { FIELD(recall), .later = 1 },
};
/* clang-format on */
enum { FIELDS = sizeof fields / sizeof fields[0] };

static double *field_of(clip_numbers *numbers, int f)
{
    return (double *)(void *)((char *)numbers + fields[f].offset);
}

clip_numbers comparison_measure(const rendition *dense, const rendition *made, const quality *fidelity)
{
    const attention_cost *cost = &made->cost;
    return (clip_numbers){
        .density_requested = cost->density_requested,
        .density_nominal = cost->density_nominal,
        .density_executed = cost->density_executed,
        .density_tail = cost->density_tail,
        .density_run = cost->density_run,
        .psnr_db = fidelity->psnr_db,
        .ssim = fidelity->ssim,
        .rel_l2 = fidelity->rel_l2,
        .denoise_s = made->denoise_s,
        .attention_s = cost->attention_s,
        .linear_s = made->linear_s,
        .denoise_speedup = dense->denoise_s / made->denoise_s,
        .attention_speedup = dense->cost.attention_s / cost->attention_s,
        .dense = (double)cost->dense,
        .anchor = (double)cost->anchor,
        .reuse = (double)cost->reuse,
        .fallback = (double)cost->fallback,
        .selection_bytes = (double)cost->selection_bytes,
        .residual_bytes = (double)cost->residual_bytes,
        .held_bytes = (double)cost->held_bytes,
        .recall = cost->recall,
    };
}

int comparison_lacks_recall(const clip_numbers *numbers)
{
    return numbers->reuse > 0 && isinf(numbers->recall);
}

/* Six decimals; JSON has no infinity, null stands for that of identical clips and of what is not told. */
static void add_number(cJSON *object, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, round(value * 1e6) / 1e6);
    else
        cJSON_AddNullToObject(object, key);
}

static void add_numbers(cJSON *object, const clip_numbers *numbers)
{
    clip_numbers copy = *numbers;
    for (int f = 0; f < FIELDS; f++) add_number(object, fields[f].key, *field_of(&copy, f));
}

/* The key of the first number that is missing, or NULL. */
static const char *read_numbers(const cJSON *object, clip_numbers *numbers)
{
    for (int f = 0; f < FIELDS; f++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, fields[f].key);
        const int untold = cJSON_IsNull(item) || (!item && fields[f].later);
        if (!cJSON_IsNumber(item) && !untold) return fields[f].key;
        *field_of(numbers, f) = untold ? INFINITY : item->valuedouble;
    }
    return NULL;
}

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text ? text : "";
}

static mcsa_status check_settings(const cJSON *ours, const cJSON *theirs, const char *path, mcsa_error *error)
{
    for (const cJSON *item = ours->child; item; item = item->next) {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(theirs, item->string);
        if (other && cJSON_Compare(item, other, 1)) continue;
        char *is = cJSON_PrintUnformatted(item), *was = other ? cJSON_PrintUnformatted(other) : NULL;
        mcsa_fail(error, MCSA_EINVAL,
                  "%.150s was made with \"%s\": %.80s, not %.80s; name another report, or remove this one",
                  path, item->string, was ? was : "unsaid", is ? is : "this one");
        cJSON_free(is);
        cJSON_free(was);
        return MCSA_EINVAL;
    }
    return MCSA_OK;
}

static mcsa_status check_clips(const cJSON *clips, const char *path, mcsa_error *error)
{
    if (!cJSON_IsArray(clips)) return mcsa_fail(error, MCSA_EFORMAT, "%.300s has no array \"clips\"", path);
    int number = 0;
    for (const cJSON *clip = clips->child; clip; clip = clip->next, number++) {
        clip_numbers numbers;
        const char *missing = read_numbers(clip, &numbers);
        if (missing)
            return mcsa_fail(error, MCSA_EFORMAT, "%.300s: clip %d has no number \"%s\"", path, number,
                             missing);
    }
    return MCSA_OK;
}

static mcsa_status take_clips(comparison *c, const char *path, mcsa_error *error)
{
    dit_json file;
    TRY(dit_json_open(&file, path, error));
    mcsa_status status = check_settings(c->settings, dit_json_get(&file, "settings"), path, error);
    if (status == MCSA_OK) status = check_clips(dit_json_get(&file, "clips"), path, error);
    if (status == MCSA_OK) c->clips = cJSON_DetachItemFromObjectCaseSensitive(file.root, "clips");
    cJSON_Delete(file.root);
    return status;
}

mcsa_status comparison_open(comparison *c, cJSON *settings, const char *path, mcsa_error *error)
{
    *c = (comparison){ .settings = settings };
    mcsa_status status = MCSA_OK;
    if (path && (access(path, F_OK) == 0 || errno != ENOENT))
        status = take_clips(c, path, error);
    else
        c->clips = cJSON_CreateArray();
    if (status == MCSA_OK && !c->clips)
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for a list of clips");
    if (status != MCSA_OK) comparison_close(c);
    return status;
}

void comparison_close(comparison *c)
{
    cJSON_Delete(c->settings);
    cJSON_Delete(c->clips);
    *c = (comparison){ 0 };
}

/* 2^64 - 1 does not fit the double of a JSON number, so a seed is text. */
static void seed_text(uint64_t seed, char text[24])
{
    snprintf(text, 24, "%llu", (unsigned long long)seed);
}

static cJSON *find(const comparison *c, const plan *p, clip_place at)
{
    const plan_run *run = &p->run[at.run];
    char seed[24];
    seed_text(p->seeds.seed[at.seed], seed);
    for (cJSON *clip = c->clips->child; clip; clip = clip->next)
        if (strcmp(text_of(clip, "caption"), p->captions.line[at.caption].text) == 0 &&
            strcmp(text_of(clip, "seed"), seed) == 0 && strcmp(text_of(clip, "settings"), run->settings) == 0)
            return clip;
    return NULL;
}

int comparison_find(const comparison *c, const plan *p, clip_place at, clip_numbers *out)
{
    const cJSON *clip = find(c, p, at);
    if (clip && out) read_numbers(clip, out);
    return clip != NULL;
}

mcsa_status comparison_put(comparison *c, const plan *p, clip_place at, const clip_numbers *numbers,
                           mcsa_error *error)
{
    const plan_run *run = &p->run[at.run];
    char seed[24], date[24];
    seed_text(p->seeds.seed[at.seed], seed);
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));

    cJSON_Delete(cJSON_DetachItemViaPointer(c->clips, find(c, p, at)));
    cJSON *clip = cJSON_CreateObject();
    cJSON_AddStringToObject(clip, "caption", p->captions.line[at.caption].text);
    cJSON_AddStringToObject(clip, "seed", seed);
    cJSON_AddStringToObject(clip, "run", run->name);
    cJSON_AddStringToObject(clip, "method", run->attention.method);
    cJSON_AddStringToObject(clip, "settings", run->settings);
    cJSON_AddStringToObject(clip, "date", date);
    add_numbers(clip, numbers);
    if (cJSON_AddItemToArray(c->clips, clip)) return MCSA_OK;
    return mcsa_fail(error, MCSA_ENOMEM, "no memory for the numbers of a clip");
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

static double mean(const double *values, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++) sum += values[i];
    return sum / count;
}

/* Half a point of density: what may be called the density asked. */
static int misses_density(const clip_numbers *numbers)
{
    return numbers->reuse > 0 && !(fabs(numbers->density_executed - numbers->density_requested) <= 0.005);
}

/* found: [count]; values: [count], scratch. */
static void summarize(run_summary *out, clip_numbers *found, int count, double *values)
{
    *out = (run_summary){ .clips = count, .psnr_low = INFINITY, .psnr_high = -INFINITY };
    if (!count) return;
    for (int f = 0; f < FIELDS; f++) {
        for (int i = 0; i < count; i++) values[i] = *field_of(&found[i], f);
        *field_of(&out->typical, f) = fields[f].median ? median(values, count) : mean(values, count);
    }
    for (int i = 0; i < count; i++) {
        out->psnr_low = fmin(out->psnr_low, found[i].psnr_db);
        out->psnr_high = fmax(out->psnr_high, found[i].psnr_db);
    }
    out->density_missed = misses_density(&out->typical);
}

/* means: [count], the mean PSNR of each complete seed. */
static void spread_over_seeds(run_summary *out, const double *means, int count)
{
    double square = 0.0;
    out->seeds = count;
    out->seed_low = INFINITY;
    out->seed_high = -INFINITY;
    for (int i = 0; i < count; i++) {
        double from_mean = means[i] - mean(means, count);
        square += from_mean * from_mean;
        out->seed_low = fmin(out->seed_low, means[i]);
        out->seed_high = fmax(out->seed_high, means[i]);
    }
    out->seed_deviation = count > 1 ? sqrt(square / (count - 1)) : 0.0;
}

/* The clips of a run that were made, seed by seed, into found [captions x seeds]; the mean PSNR of complete
 * seeds into means [seeds]. */
static int collect(const comparison *c, const plan *p, int run, clip_numbers *found, double *means,
                   int *seeds)
{
    int count = 0;
    *seeds = 0;
    for (int seed = 0; seed < p->seeds.count; seed++) {
        double sum = 0.0;
        int first = count;
        for (int caption = 0; caption < p->captions.count; caption++) {
            if (!comparison_find(c, p, (clip_place){ caption, seed, run }, &found[count])) continue;
            sum += found[count++].psnr_db;
        }
        if (count - first == p->captions.count) means[(*seeds)++] = sum / p->captions.count;
    }
    return count;
}

mcsa_status comparison_summary(const comparison *c, const plan *p, int run, run_summary *out,
                               mcsa_error *error)
{
    size_t most = (size_t)p->captions.count * (size_t)p->seeds.count;
    clip_numbers *found = malloc(most * sizeof *found);
    double *values = malloc(most * sizeof *values), *means = malloc((size_t)p->seeds.count * sizeof *means);
    mcsa_status status = MCSA_OK;
    if (found && values && means) {
        int seeds, count = collect(c, p, run, found, means, &seeds);
        summarize(out, found, count, values);
        spread_over_seeds(out, means, seeds);
    } else {
        status = mcsa_fail(error, MCSA_ENOMEM, "no memory for the numbers of %zu clips", most);
    }
    free(found);
    free(values);
    free(means);
    return status;
}

static void add_summary(cJSON *run, const run_summary *summary)
{
    add_numbers(run, &summary->typical);
    add_number(run, "psnr_db_low", summary->psnr_low);
    add_number(run, "psnr_db_high", summary->psnr_high);
    cJSON_AddNumberToObject(run, "seeds", summary->seeds);
    add_number(run, "psnr_db_seed_low", summary->seed_low);
    add_number(run, "psnr_db_seed_high", summary->seed_high);
    add_number(run, "psnr_db_seed_deviation", summary->seed_deviation);
    cJSON_AddBoolToObject(run, "density_missed", summary->density_missed);
}

static mcsa_status add_runs(cJSON *root, const comparison *c, const plan *p, mcsa_error *error)
{
    cJSON *runs = cJSON_AddArrayToObject(root, "runs");
    for (int i = 0; i < p->runs; i++) {
        run_summary summary;
        TRY(comparison_summary(c, p, i, &summary, error));
        cJSON *run = cJSON_CreateObject();
        cJSON_AddItemToArray(runs, run);
        cJSON_AddStringToObject(run, "name", p->run[i].name);
        cJSON_AddStringToObject(run, "method", p->run[i].attention.method);
        cJSON_AddStringToObject(run, "settings", p->run[i].settings);
        cJSON_AddNumberToObject(run, "clips", summary.clips);
        if (summary.clips) add_summary(run, &summary);
    }
    return MCSA_OK;
}

/* To be freed with cJSON_free; NULL when out of memory. */
static char *print(const comparison *c, const plan *p, mcsa_error *error)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", mcsa_version());
    cJSON_AddItemReferenceToObject(root, "settings", c->settings);
    char *text = NULL;
    if (add_runs(root, c, p, error) == MCSA_OK) {
        cJSON_AddItemReferenceToObject(root, "clips", c->clips);
        text = cJSON_Print(root);
    }
    cJSON_Delete(root);
    return text;
}

mcsa_status comparison_write(const comparison *c, const plan *p, const char *path, mcsa_error *error)
{
    staged file;
    FILE *stream = NULL;
    TRY(staged_name(&file, path, error));
    char *text = print(c, p, error);
    if (!text) return mcsa_fail(error, MCSA_ENOMEM, "no memory for the report");
    mcsa_status status = staged_open(&file, &stream, error);
    if (status == MCSA_OK) {
        fprintf(stream, "%s\n", text);
        status = staged_close(&file, stream, MCSA_OK, error);
    }
    cJSON_free(text);
    return status;
}
