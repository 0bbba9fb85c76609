/* schedule.c - the presets and the explicit list, expanded to one action per step.
 *
 * An anchor costs a dense step and half of one more, so a schedule is judged by where it spends them: the output moves
 * fastest early, which is why `ramp` lets the gaps grow. */
#include "schedule.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* actions: dense before `first`, the anchor there, reuse after it. */
static void begin(mcsa_action *actions, int steps, int first)
{
    for (int t = 0; t < steps; t++) actions[t] = t < first ? MCSA_DENSE : MCSA_REUSE;
    actions[first] = MCSA_ANCHOR;
}

static int rounded_share(int steps, int percent)
{
    int share = (int)(((int64_t)steps * percent + 50) / 100);
    return share < 1 ? 1 : share;
}

/* Gap i is (i + 2) sqrt(steps / 40): with the number of steps both the anchors and their distances grow.  An anchor
 * that the next one follows at once serves no step, so that step is only dense; one with less than half of its gap left
 * to serve would cost more than it saves. */
static void fill_ramp(mcsa_action *actions, int steps)
{
    int at = rounded_share(steps, 10) - 1;
    begin(actions, steps, at);
    for (int i = 0;; i++) {
        int gap = (int)((i + 2) * sqrt(steps / 40.0) + 0.5);
        if (gap < 1) gap = 1;
        if (at + gap + (gap + 1) / 2 >= steps) return;
        if (gap == 1) actions[at] = MCSA_DENSE;
        at += gap;
        actions[at] = MCSA_ANCHOR;
    }
}

/* Three anchors, where the output moves most; none that would serve no step, or that the next one follows at once. */
static void fill_fast(mcsa_action *actions, int steps)
{
    const int later[] = { steps / 4, steps / 2 };
    int before = rounded_share(steps, 10) - 1;
    begin(actions, steps, before);
    for (int i = 0; i < 2; i++) {
        if (later[i] < before + 2 || later[i] >= steps - 1) continue;
        before = later[i];
        actions[before] = MCSA_ANCHOR;
    }
}

static void fill_paper(mcsa_action *actions, int steps)
{
    int warm = rounded_share(steps, 20);
    begin(actions, steps, warm - 1);
    int second = warm + (steps - warm) / 3;
    if (second < steps - 1) actions[second] = MCSA_ANCHOR;
}

static mcsa_status read_number(const char **text, int least, int most, const char *what, int *number, mcsa_error *error)
{
    char *end;
    errno = 0;
    long value = strtol(*text, &end, 10);
    if (end == *text || (**text < '0' || **text > '9'))
        return mcsa_fail(error, MCSA_EINVAL, "schedule: expected a number for %s at \"%.40s\"", what, *text);
    if (errno || value < least || value > most)
        return mcsa_fail(error, MCSA_EINVAL, "schedule: %s is %.*s; it must be %d to %d", what,
                         (int)(end - *text < 20 ? end - *text : 20), *text, least, most);
    *number = (int)value;
    *text = end;
    return MCSA_OK;
}

static mcsa_status parse_every(const char *text, int steps, mcsa_action *actions, mcsa_error *error)
{
    int every, warm = 1;
    TRY(read_number(&text, 1, INT_MAX, "N of every:N", &every, error));
    if (*text == ',') {
        text++;
        TRY(read_number(&text, 1, steps, "the warm-up W of every:N,W", &warm, error));
    }
    if (*text) return mcsa_fail(error, MCSA_EINVAL, "schedule: unexpected \"%.40s\" after every:N[,W]", text);
    begin(actions, steps, warm - 1);
    for (int64_t t = warm - 1 + (int64_t)every; t < steps; t += every) actions[t] = MCSA_ANCHOR;
    return MCSA_OK;
}

static mcsa_status parse_list(const char *text, int steps, mcsa_action *actions, mcsa_error *error)
{
    int before = -1, at;
    for (;; text++) {
        TRY(read_number(&text, 0, steps - 1, "an anchor of list:a,b,c", &at, error));
        if (at <= before)
            return mcsa_fail(error, MCSA_EINVAL, "schedule: anchor %d comes after %d; the list must ascend", at,
                             before);
        if (before < 0) begin(actions, steps, at);
        actions[at] = MCSA_ANCHOR;
        before = at;
        if (*text != ',') break;
    }
    if (*text) return mcsa_fail(error, MCSA_EINVAL, "schedule: unexpected \"%.40s\" after list:a,b,c", text);
    return MCSA_OK;
}

mcsa_status mcsa_schedule_parse(const char *text, int steps, mcsa_action *actions, mcsa_error *error)
{
    if (steps < 1 || steps > 1000000)
        return mcsa_fail(error, MCSA_EINVAL, "schedule: %d steps; 1 to 1000000 are possible", steps);
    if (strcmp(text, "ramp") == 0) {
        fill_ramp(actions, steps);
        return MCSA_OK;
    }
    if (strcmp(text, "fast") == 0) {
        fill_fast(actions, steps);
        return MCSA_OK;
    }
    if (strcmp(text, "paper") == 0) {
        fill_paper(actions, steps);
        return MCSA_OK;
    }
    if (strncmp(text, "every:", 6) == 0) return parse_every(text + 6, steps, actions, error);
    if (strncmp(text, "list:", 5) == 0) return parse_list(text + 5, steps, actions, error);
    return mcsa_fail(error, MCSA_EINVAL, "schedule \"%.40s\" is not ramp, fast, paper, every:N[,W] or list:a,b,c", text);
}

mcsa_status mcsa_schedule_fill(const char *text, int steps, mcsa_action *actions, char *error, size_t error_bytes)
{
    mcsa_error e = { "" };
    mcsa_status status = text && actions ? mcsa_schedule_parse(text, steps, actions, &e)
                                         : mcsa_fail(&e, MCSA_EINVAL, "schedule: text or actions is NULL");
    if (error && error_bytes) snprintf(error, error_bytes, "%s", e.text);
    return status;
}

int mcsa_schedule_anchor(const mcsa_action *actions, int step)
{
    while (step >= 0 && actions[step] != MCSA_ANCHOR) step--;
    return step;
}
