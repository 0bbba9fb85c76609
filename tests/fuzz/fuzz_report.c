/* fuzz_report.c - a report that `mcsa compare` is to go on from, by a plan of two captions, one seed and two runs
 * under the settings {"steps":40}. */
#include "fuzz.h"

#include "comparison.h"

#include <string.h>

static mcsa_status open_report(comparison *c, const char *path, mcsa_error *error)
{
    cJSON *settings = cJSON_CreateObject();
    REQUIRE(settings && cJSON_AddNumberToObject(settings, "steps", 40));
    return comparison_open(c, settings, path, error);
}

static int clips_of(const comparison *c, const plan *p)
{
    int found = 0;
    for (int caption = 0; caption < p->captions.count; caption++)
        for (int run = 0; run < p->runs; run++) found += comparison_find(c, p, (clip_place){ caption, 0, run }, NULL);
    return found;
}

/* A clip more, and what was written is a report of the same plan again. */
static void check_report(comparison *c, const plan *p)
{
    const clip_numbers numbers = { .psnr_db = 30, .denoise_s = 2 };
    const clip_place place = { 1, 0, 1 };
    mcsa_error error = { "" };
    run_summary summary;
    clip_numbers found;
    comparison again;
    int known = comparison_find(c, p, place, NULL), clips = clips_of(c, p) + !known;
    char *path = fuzz_file("written.json", "", 0);
    REQUIRE(comparison_put(c, p, place, &numbers, &error) == MCSA_OK);
    for (int run = 0; run < p->runs; run++)
        REQUIRE(comparison_summary(c, p, run, &summary, &error) == MCSA_OK && summary.clips <= p->captions.count);
    REQUIRE(comparison_write(c, p, path, &error) == MCSA_OK);
    REQUIRE(open_report(&again, path, &error) == MCSA_OK);
    REQUIRE(clips_of(&again, p) >= clips);
    REQUIRE(comparison_find(&again, p, place, &found) && (known || found.psnr_db == 30));
    comparison_close(&again);
    free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    text_line captions[] = { { "a red star", 1 }, { "a blue ring", 2 } };
    plan_run runs[] = { { .name = "dense", .attention = { .method = "dense" } },
                        { .name = "half", .attention = { .method = "mc-sparse" }, .settings = "density=0.5" } };
    const plan p = { .captions = { captions, 2 }, .seeds = { .count = 1 }, .run = runs, .runs = 2 };
    comparison c;
    char *path = fuzz_file("report.json", data, size);
    mcsa_status status = open_report(&c, path, &error);
    if (status == MCSA_OK) {
        check_report(&c, &p);
        comparison_close(&c);
        fuzz_accepted();
    } else {
        fuzz_refused(status, &error);
        REQUIRE(!c.settings && !c.clips);
    }
    free(path);
    return 0;
}
