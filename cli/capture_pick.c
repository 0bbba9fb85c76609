/* capture_pick.c - see capture_pick.h. */
#include "capture_pick.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static mcsa_status refuse(const char *option, const char *text, mcsa_error *error)
{
    return mcsa_fail(error, MCSA_EINVAL, "--%s takes all, growing, spread:N or numbers like 0,5,10-19, not '%.64s'",
                     option, text);
}

/* A number of at most 7 digits at *text, which moves past it; -1 when there is none. */
static int take_number(const char **text)
{
    int number = 0, digits = 0;
    for (; isdigit((unsigned char)**text) && digits < 8; digits++, ++*text) number = 10 * number + (**text - '0');
    return digits >= 1 && digits <= 7 ? number : -1;
}

static void pick_spread(char *keep, int count, int wanted)
{
    if (wanted > count) wanted = count;
    for (int i = 0; i < wanted; i++) keep[wanted == 1 ? 0 : (int)((int64_t)i * (count - 1) / (wanted - 1))] = 1;
}

static mcsa_status pick_range(char *keep, const int *values, int count, int low, int high, const char *option,
                              mcsa_error *error)
{
    int found = 0;
    for (int i = 0; i < count; i++)
        if (values[i] >= low && values[i] <= high) {
            keep[i] = 1;
            found++;
        }
    if (found == high - low + 1) return MCSA_OK;
    return mcsa_fail(error, MCSA_EINVAL, "--%s: of %d to %d only %d are there, between %d and %d", option, low, high,
                     found, values[0], values[count - 1]);
}

static mcsa_status pick_numbers(char *keep, const int *values, int count, const char *option, const char *text,
                                mcsa_error *error)
{
    for (const char *at = text;; at++) {
        int low = take_number(&at), high = low;
        if (*at == '-') {
            at++;
            high = take_number(&at);
        }
        if (low < 0 || high < low || (*at && *at != ',')) return refuse(option, text, error);
        TRY(pick_range(keep, values, count, low, high, option, error));
        if (!*at) return MCSA_OK;
    }
}

mcsa_status capture_pick(char *keep, const int *values, int count, const char *option, const char *text,
                         mcsa_error *error)
{
    memset(keep, 0, (size_t)count);
    if (strcmp(text, "all") == 0) {
        memset(keep, 1, (size_t)count);
    } else if (strcmp(text, "growing") == 0) {
        for (int i = 0, gap = 1; i < count; i += gap++) keep[i] = 1;
    } else if (strncmp(text, "spread:", 7) == 0) {
        const char *at = text + 7;
        int wanted = take_number(&at);
        if (wanted < 1 || *at) return refuse(option, text, error);
        pick_spread(keep, count, wanted);
    } else {
        return pick_numbers(keep, values, count, option, text, error);
    }
    return MCSA_OK;
}
