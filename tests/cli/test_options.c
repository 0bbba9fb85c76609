/* test_options.c - every kind of option, its defaults and its refusals; and the help that is made from the
 * same table. */
#include "options.h"
#include "scratch.h"

#include <stdlib.h>
#include <string.h>

typedef struct settings {
    int count, loud, colour;
    uint64_t seed;
    float share, weight;
    const char *name;
    option_texts out;
} settings;

static const option_choice colours[] = { { "red", 7 }, { "green", 8 }, { "blue", 9 }, { 0 } };

#define FIELD(field) .offset = offsetof(settings, field)

/* clang-format off */
static const option table[] = {
    { .name = "Numbers", .kind = OPTION_HEADING },
    { .name = "count", .kind = OPTION_INT, FIELD(count), .value = "N", .fallback = "3", .min = 1, .max = 9,
      .help = "how many" },
    { .name = "seed", .kind = OPTION_SEED, FIELD(seed), .value = "N",
      .fallback = "5", .help = "of the noise" },
    { .name = "share", .kind = OPTION_REAL, FIELD(share), .value = "X",
      .fallback = "0.25", .min = 0, .max = 1,
      .above_min = 1, .help = "how much" },
    { .name = "weight", .kind = OPTION_REAL, FIELD(weight), .value = "X",
      .min = -1, .max = 1, .help = "how heavy" },
    { .name = "Words", .kind = OPTION_HEADING },
    { .name = "name", .kind = OPTION_TEXT, FIELD(name), .value = "TEXT", .help = "who" },
    { .name = "colour", .kind = OPTION_CHOICE, FIELD(colour), .choices = colours,
      .fallback = "green", .help = "which" },
    { .name = "out", .kind = OPTION_TEXTS, FIELD(out), .value = "FILE", .help = "where to" },
    { .name = "loud", .kind = OPTION_FLAG, FIELD(loud), .help = "say more" },
    { 0 },
};
/* clang-format on */

static const options_page page = {
    .command = "try me",
    .summary = "try things",
    .synopsis = "[options]",
    .description = "First.\n\nSecond.",
    .options = table,
    .examples = "    example\n",
};

static settings accept(int argc, const char *const *argv)
{
    settings set = { 0 };
    mcsa_error error = { "" };
    int help = -1;
    mcsa_status status = options_parse(&page, argc, (char **)argv, &set, &help, &error);
    if (status != MCSA_OK) fail_msg("%s", error.text);
    assert_int_equal(help, 0);
    return set;
}

static void refuse(int argc, const char *const *argv, const char *sentence)
{
    settings set = { 0 };
    mcsa_error error = { "" };
    int help;
    assert_int_equal(options_parse(&page, argc, (char **)argv, &set, &help, &error), MCSA_EINVAL);
    assert_string_equal(error.text, sentence);
}

/* clang-format off */
#define ARGV(...) \
    (int)(sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *)), (const char *[]){ __VA_ARGS__ }
/* clang-format on */

static void defaults_hold_without_arguments(void **state)
{
    (void)state;
    settings set = accept(0, NULL);
    assert_int_equal(set.count, 3);
    assert_true(set.seed == 5);
    assert_true(set.share == 0.25f);
    assert_true(set.weight == 0.0f);
    assert_int_equal(set.colour, 8);
    assert_null(set.name);
    assert_int_equal(set.out.count, 0);
    assert_int_equal(set.loud, 0);
}

static void values_come_after_a_blank_or_an_equals_sign(void **state)
{
    (void)state;
    settings set = accept(ARGV("--count", "9", "--seed=0xFfFFffffFFFFffff", "--share", "1", "--weight",
                               "-0.5", "--name=a=b", "--colour", "blue", "--loud"));
    assert_int_equal(set.count, 9);
    assert_true(set.seed == UINT64_MAX);
    assert_true(set.share == 1.0f);
    assert_true(set.weight == -0.5f);
    assert_string_equal(set.name, "a=b");
    assert_int_equal(set.colour, 9);
    assert_int_equal(set.loud, 1);
}

static void the_last_of_two_wins_and_lists_grow(void **state)
{
    (void)state;
    settings set = accept(ARGV("--count", "1", "--out", "a", "--count", "2", "--out=b"));
    assert_int_equal(set.count, 2);
    assert_int_equal(set.out.count, 2);
    assert_string_equal(set.out.text[0], "a");
    assert_string_equal(set.out.text[1], "b");
}

static void numbers_outside_the_limits_are_refused(void **state)
{
    (void)state;
    refuse(ARGV("--count", "0"), "--count takes a whole number from 1 to 9, not '0'");
    refuse(ARGV("--count", "10"), "--count takes a whole number from 1 to 9, not '10'");
    refuse(ARGV("--count", "4x"), "--count takes a whole number from 1 to 9, not '4x'");
    refuse(ARGV("--count", ""), "--count takes a whole number from 1 to 9, not ''");
    refuse(ARGV("--count", "99999999999999999999"),
           "--count takes a whole number from 1 to 9, not '99999999999999999999'");
    refuse(ARGV("--share", "0"), "--share takes a number above 0 and at most 1, not '0'");
    refuse(ARGV("--share", "nan"), "--share takes a number above 0 and at most 1, not 'nan'");
    refuse(ARGV("--share", "0.5%"), "--share takes a number above 0 and at most 1, not '0.5%'");
    refuse(ARGV("--weight", "-1.01"), "--weight takes a number of at least -1 and at most 1, not '-1.01'");
    refuse(ARGV("--weight", "inf"), "--weight takes a number of at least -1 and at most 1, not 'inf'");
}

static void seeds_are_whole_and_fit_64_bits(void **state)
{
    (void)state;
    const char *const wrong[] = { "-1", "1.5", "0x", "18446744073709551616", "", " 1" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char sentence[200];
        snprintf(sentence, sizeof sentence,
                 "--seed takes a whole number from 0 to 18446744073709551615 or 0x and hexadecimal digits, "
                 "not '%s'",
                 wrong[i]);
        refuse(ARGV("--seed", wrong[i]), sentence);
    }
    assert_true(accept(ARGV("--seed", "010")).seed == 10); /* no octal surprise */
}

static void words_are_checked_and_listed(void **state)
{
    (void)state;
    refuse(ARGV("--colour", "pink"), "--colour takes red, green or blue, not 'pink'");
    refuse(ARGV("--colour", "re"), "--colour takes red, green or blue, not 're'");
    refuse(ARGV("--name", ""), "--name takes TEXT, not an empty text");
    refuse(ARGV("--loud=yes"), "--loud takes no value, not 'yes'");
    refuse(ARGV("--name"), "--name needs a value: TEXT");
    refuse(ARGV("--out=a", "--out=b", "--out=c", "--out=d", "--out=e", "--out=f", "--out=g", "--out=h",
                "--out=i"),
           "--out may be given 8 times, not more");
}

static void unknown_options_get_a_suggestion(void **state)
{
    (void)state;
    refuse(ARGV("--cuont", "2"), "unknown option --cuont; did you mean --count?");
    refuse(ARGV("--color=red"), "unknown option --color; did you mean --colour?");
    refuse(ARGV("--elephant"), "unknown option --elephant; `try me --help` lists the options");
    refuse(ARGV("--Numbers"), "unknown option --Numbers; `try me --help` lists the options");
    refuse(ARGV("file"), "'file' is not an option; options start with -- (see `try me --help`)");
    refuse(ARGV("-c"), "'-c' is not an option; options start with -- (see `try me --help`)");
    refuse(ARGV("--"), "'--' is not an option; options start with -- (see `try me --help`)");
}

static void a_default_that_the_option_refuses_is_found(void **state)
{
    (void)state;
    const option wrong[] = { { .name = "count",
                               .kind = OPTION_INT,
                               FIELD(count),
                               .value = "N",
                               .fallback = "0",
                               .min = 1,
                               .max = 9,
                               .help = "" },
                             { 0 } };
    const options_page broken = { .command = "try", .options = wrong };
    settings set = { 0 };
    mcsa_error error;
    int help;
    assert_int_equal(options_parse(&broken, 0, NULL, &set, &help, &error), MCSA_EINVAL);
}

static void help_is_asked_for_before_anything_is_checked(void **state)
{
    (void)state;
    settings set = { 0 };
    mcsa_error error;
    int help = 0;
    char *argv[] = { "--count", "wrong", "--help" };
    assert_int_equal(options_parse(&page, 3, argv, &set, &help, &error), MCSA_OK);
    assert_int_equal(help, 1);
}

static void help_names_every_option_with_limits_and_default(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    options_help(&page, stream);
    fclose(stream);
    const char *const parts[] = {
        "NAME\n    try me - try things\n",
        "SYNOPSIS\n    try me [options]\n",
        "    First.\n\n    Second.\n",
        "\n  Numbers\n    --count N\n        how many (from 1 to 9; default 3)\n",
        "    --seed N\n        of the noise (default 5)\n",
        "    --share X\n        how much (above 0, at most 1; default 0.25)\n",
        "    --weight X\n        how heavy (at least -1, at most 1)\n",
        "    --name TEXT\n        who\n",
        "    --colour red|green|blue\n        which (default green)\n",
        "    --out FILE\n",
        "    --loud\n",
        "    --help\n",
        "EXAMPLES\n    example\n",
        "EXIT STATUS\n    0 ",
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("the help lacks \"%s\":\n%s", parts[i], text);
    free(text);
}

static void long_text_is_wrapped_at_80_columns(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    const char *prose = "seven letters and then more of them until the line is full, twice at least, so that "
                        "wrapping can be seen";
    for (int i = 0; i < 40; i++) options_wrap(prose, i, stream);
    fclose(stream);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_in_range(strlen(line), 1, 80);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_without_arguments),
        cmocka_unit_test(values_come_after_a_blank_or_an_equals_sign),
        cmocka_unit_test(the_last_of_two_wins_and_lists_grow),
        cmocka_unit_test(numbers_outside_the_limits_are_refused),
        cmocka_unit_test(seeds_are_whole_and_fit_64_bits),
        cmocka_unit_test(words_are_checked_and_listed),
        cmocka_unit_test(unknown_options_get_a_suggestion),
        cmocka_unit_test(a_default_that_the_option_refuses_is_found),
        cmocka_unit_test(help_is_asked_for_before_anything_is_checked),
        cmocka_unit_test(help_names_every_option_with_limits_and_default),
        cmocka_unit_test(long_text_is_wrapped_at_80_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
