/* test_layers.c - layers as a user names them. */
#include "layers.h"

#include "scratch.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 12 };

static void expect_named(const char *text, const char *expected)
{
    unsigned char named[LAYERS];
    mcsa_error error = { "" };
    memset(named, 7, sizeof named);
    assert_int_equal(layers_read(text, LAYERS, NULL, &error), MCSA_OK);
    assert_int_equal(layers_read(text, LAYERS, named, &error), MCSA_OK);
    for (int l = 0; l < LAYERS; l++) assert_int_equal(named[l], expected[l] == 'x');
}

static void layers_are_named(void **state)
{
    (void)state;
    expect_named("0", "............");
    expect_named("2", "xx..........");
    expect_named("12", "xxxxxxxxxxxx");
    expect_named("list:0", "x...........");
    expect_named("list:2", "..x.........");
    expect_named("list:0,1,7", "xx.....x....");
    expect_named("list:3,10,11", "...x......xx");
}

static void refuse(const char *text, const char *sentence)
{
    unsigned char named[LAYERS];
    mcsa_error error = { "" };
    assert_int_equal(layers_read(text, LAYERS, named, &error), MCSA_EINVAL);
    assert_string_equal(error.text, sentence);
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    static const char *const none[] = { "",
                                        "x",
                                        "-1",
                                        "+1",
                                        " 1",
                                        "1 ",
                                        "2x",
                                        "1,7",
                                        "list:",
                                        "list",
                                        "list:,1",
                                        "list:1,",
                                        "list:1;",
                                        "list:-1",
                                        "list:1,1",
                                        "list:2,1",
                                        "list:1,,2",
                                        "list: 1",
                                        "List:1",
                                        "0x1",
                                        "1000001",
                                        "list:1.5",
                                        "99999999999999999999" };
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        char sentence[200];
        snprintf(sentence, sizeof sentence, "layers are N, the first N, or list:A,B,C, ascending, not '%s'", none[i]);
        refuse(none[i], sentence);
    }
    refuse("13", "the first 13 layers are named; there are 12");
    refuse("list:0,12", "layer 12 is named; there are 12, the first is 0");
    mcsa_error error = { "" };
    assert_int_equal(layers_read("list:0,12", INT_MAX, NULL, &error), MCSA_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_named),
        cmocka_unit_test(other_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
