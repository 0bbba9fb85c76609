/* fuzz_options.c - a command line, its arguments ended by bytes 0, to a table with every kind of option.  What
 * is accepted is in range, and typing the values that were understood gives the same settings again. */
#include "fuzz.h"

#include "options.h"

#include <inttypes.h>
#include <string.h>

enum { ARGUMENTS = 64, NUMBERS = 6, VALUE_BYTES = 16 + 19 * OPTION_SEEDS_MAX /* 0x, 16 digits and a comma */ };

typedef struct settings {
    int count, loud, colour;
    uint64_t seed;
    option_seeds seeds;
    float share, weight;
    const char *name;
    option_texts out;
} settings;

static const option_choice colours[] = { { "red", 7 }, { "green", 8 }, { "blue", 9 }, { 0 } };

#define FIELD(field) .offset = offsetof(settings, field)

/* clang-format off */
static const option table[] = {
    { .name = "Everything", .kind = OPTION_HEADING },
    { .name = "count", .kind = OPTION_INT, FIELD(count), .value = "N", .fallback = "3", .min = -9, .max = 2147483647,
      .help = "how many" },
    { .name = "seed", .kind = OPTION_SEED, FIELD(seed), .value = "N", .fallback = "5", .help = "of the noise" },
    { .name = "seeds", .kind = OPTION_SEEDS, FIELD(seeds), .value = "N,N", .fallback = "0", .help = "of noises" },
    { .name = "share", .kind = OPTION_REAL, FIELD(share), .value = "X", .fallback = "0.25", .min = 0, .max = 1,
      .above_min = 1, .help = "how much" },
    { .name = "weight", .kind = OPTION_REAL, FIELD(weight), .value = "X", .min = -1, .max = 1, .help = "how heavy" },
    { .name = "name", .kind = OPTION_TEXT, FIELD(name), .value = "TEXT", .help = "who" },
    { .name = "colour", .kind = OPTION_CHOICE, FIELD(colour), .choices = colours, .fallback = "green",
      .help = "which" },
    { .name = "out", .kind = OPTION_TEXTS, FIELD(out), .value = "FILE", .help = "where to" },
    { .name = "loud", .kind = OPTION_FLAG, FIELD(loud), .help = "say more" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "fuzz", .summary = "try", .synopsis = "[options]", .description = "Tries.", .options = table
};

static void check_settings(const settings *set)
{
    REQUIRE(set->count >= -9);
    REQUIRE(set->share > 0 && set->share <= 1);
    REQUIRE(set->weight >= -1 && set->weight <= 1);
    REQUIRE(set->colour >= 7 && set->colour <= 9);
    REQUIRE(set->loud == 0 || set->loud == 1);
    REQUIRE(set->seeds.count >= 1 && set->seeds.count <= OPTION_SEEDS_MAX);
    REQUIRE(!set->name || set->name[0]);
    REQUIRE(set->out.count >= 0 && set->out.count <= OPTION_TEXTS_MAX);
    for (int i = 0; i < set->out.count; i++) REQUIRE(set->out.text[i][0]);
}

static void check_again(const settings *set)
{
    static char values[NUMBERS][VALUE_BYTES];
    char *argv[NUMBERS + 1 + 2 + 2 * OPTION_TEXTS_MAX];
    settings again = { 0 };
    int argc = NUMBERS, help, length;
    snprintf(values[0], VALUE_BYTES, "--count=%d", set->count);
    snprintf(values[1], VALUE_BYTES, "--seed=0x%" PRIx64, set->seed);
    snprintf(values[2], VALUE_BYTES, "--share=%.9g", (double)set->share);
    snprintf(values[3], VALUE_BYTES, "--weight=%.9g", (double)set->weight);
    snprintf(values[4], VALUE_BYTES, "--colour=%s", colours[set->colour - 7].word);
    length = snprintf(values[5], VALUE_BYTES, "--seeds");
    for (int i = 0; i < set->seeds.count; i++)
        length += snprintf(values[5] + length, (size_t)(VALUE_BYTES - length), "%c0x%" PRIx64, i ? ',' : '=',
                           set->seeds.seed[i]);
    for (int i = 0; i < NUMBERS; i++) argv[i] = values[i];
    if (set->loud) argv[argc++] = "--loud";
    if (set->name) {
        argv[argc++] = "--name";
        argv[argc++] = (char *)set->name;
    }
    for (int i = 0; i < set->out.count; i++) {
        argv[argc++] = "--out";
        argv[argc++] = (char *)set->out.text[i];
    }
    REQUIRE(options_parse(&page, argc, argv, &again, &help, NULL) == MCSA_OK);
    REQUIRE(help || (again.count == set->count && again.seed == set->seed && again.share == set->share &&
                     again.weight == set->weight && again.colour == set->colour && again.loud == set->loud &&
                     again.name == set->name && !memcmp(&again.out, &set->out, sizeof set->out) &&
                     !memcmp(&again.seeds, &set->seeds, sizeof set->seeds)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mcsa_error error = { "" };
    settings set = { 0 };
    char *text = fuzz_text(data, size), *argv[ARGUMENTS];
    int argc = 0, help = -1;
    for (size_t at = 0; at < size && argc < ARGUMENTS; at += strlen(text + at) + 1) argv[argc++] = text + at;
    mcsa_status status = options_parse(&page, argc, argv, &set, &help, &error);
    REQUIRE(help == 0 || help == 1);
    if (status != MCSA_OK) {
        REQUIRE(status == MCSA_EINVAL);
        fuzz_refused(status, &error);
    } else if (!help) {
        check_settings(&set);
        check_again(&set);
        fuzz_accepted();
    }
    free(text);
    return 0;
}
