/* test_progress.c - what the progress line says, and that Ctrl-C turns the next step into the last. */
#include "interrupt.h"
#include "progress.h"
#include "scratch.h"

#include <signal.h>

static void the_progress_line_estimates_the_rest(void **state)
{
    (void)state;
    progress line = { .label = "mcsa" };
    char text[120];
    const struct {
        dit_progress state;
        const char *text;
    } cases[] = {
        { { 0, 40, 0.0 }, "mcsa   step 0/40" },
        { { 10, 40, 5.0 }, "mcsa   step 10/40, 0.50 s/step, 15 s left" },
        { { 1, 40, 10.0 }, "mcsa   step 1/40, 10.00 s/step, 6 min 30 s left" },
        { { 1, 1000, 60.0 }, "mcsa   step 1/1000, 60.00 s/step, 16 h 39 min left" },
        { { 40, 40, 20.0 }, "mcsa   step 40/40, 0.50 s/step, 0 s left" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        progress_text(&line, &cases[i].state, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

static void an_interrupt_cancels_at_the_next_step(void **state)
{
    (void)state;
    progress line;
    dit_progress at = { 1, 4, 1.0 };
    progress_start(&line, "mcsa", 1);
    interrupt_watch();
    assert_int_equal(progress_step(&line, &at), 0);
    raise(SIGINT);
    assert_int_equal(progress_step(&line, &at), 1);
    interrupt_watch(); /* a new watch forgets the old interrupt, and catches again */
    assert_int_equal(progress_step(&line, &at), 0);
    raise(SIGTERM);
    assert_int_equal(progress_step(&line, &at), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_progress_line_estimates_the_rest),
        cmocka_unit_test(an_interrupt_cancels_at_the_next_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
