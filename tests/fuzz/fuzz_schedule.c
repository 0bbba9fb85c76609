/* fuzz_schedule.c - a schedule: two bytes for the number of steps, the rest its text. */
#include "fuzz.h"

#include <string.h>

enum { CANARY = 77 };

/* Dense steps, an anchor, and from there anchors and reuse. */
static void check_actions(const mcsa_action *actions, int steps)
{
    int first = 0;
    while (first < steps && actions[first] == MCSA_DENSE) first++;
    REQUIRE(first < steps && actions[first] == MCSA_ANCHOR);
    for (int t = first; t < steps; t++) REQUIRE(actions[t] == MCSA_ANCHOR || actions[t] == MCSA_REUSE);
    REQUIRE(actions[steps] == (mcsa_action)CANARY);
}

/* Every schedule is also a list of its anchors. */
static void check_list(const mcsa_action *actions, int steps, mcsa_action *again)
{
    char *text = malloc(5 + 6 * (size_t)steps + 1), *end = text;
    REQUIRE(text);
    end += sprintf(end, "list:");
    for (int t = 0; t < steps; t++)
        if (actions[t] == MCSA_ANCHOR) end += sprintf(end, end[-1] == ':' ? "%d" : ",%d", t);
    REQUIRE(mcsa_schedule_fill(text, steps, again, NULL, 0) == MCSA_OK);
    REQUIRE(!memcmp(actions, again, (size_t)steps * sizeof *actions));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    int steps = data[0] | data[1] << 8;
    mcsa_error error = { "" };
    char *text = fuzz_text(data + 2, size - 2);
    mcsa_action *actions = calloc((size_t)steps + 1, sizeof *actions);
    mcsa_action *again = calloc((size_t)steps + 1, sizeof *again);
    REQUIRE(actions && again);
    actions[steps] = (mcsa_action)CANARY;
    mcsa_status status = mcsa_schedule_fill(text, steps, actions, error.text, sizeof error.text);
    if (status == MCSA_OK) {
        check_actions(actions, steps);
        check_list(actions, steps, again);
        fuzz_accepted();
    } else {
        REQUIRE(status == MCSA_EINVAL);
        fuzz_refused(status, &error);
    }
    free(actions);
    free(again);
    free(text);
    return 0;
}
