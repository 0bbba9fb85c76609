/* layers.c - see layers.h. */
#include "layers.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The number at *text, which then stands behind it; -1 when there is none, or none that an int holds. */
static int next_number(const char **text)
{
    char *end;
    if (!isdigit((unsigned char)**text)) return -1;
    errno = 0;
    long number = strtol(*text, &end, 10);
    *text = end;
    return errno || number > 1000000 ? -1 : (int)number;
}

static mcsa_status refuse(const char *text, mcsa_error *error)
{
    return mcsa_fail(error, MCSA_EINVAL, "layers are N, the first N, or list:A,B,C, ascending, not '%.64s'", text);
}

static mcsa_status read_first(const char *text, int layers, unsigned char *named, mcsa_error *error)
{
    const char *at = text;
    int first = next_number(&at);
    if (first < 0 || *at) return refuse(text, error);
    if (first > layers)
        return mcsa_fail(error, MCSA_EINVAL, "the first %d layers are named; there are %d", first, layers);
    if (named) memset(named, 1, (size_t)first);
    return MCSA_OK;
}

static mcsa_status read_list(const char *text, int layers, unsigned char *named, mcsa_error *error)
{
    const char *at = text + strlen("list:");
    for (int before = -1, layer;; before = layer, at++) {
        layer = next_number(&at);
        if (layer <= before || (*at && *at != ',')) return refuse(text, error);
        if (layer >= layers)
            return mcsa_fail(error, MCSA_EINVAL, "layer %d is named; there are %d, the first is 0", layer, layers);
        if (named) named[layer] = 1;
        if (!*at) return MCSA_OK;
    }
}

mcsa_status layers_read(const char *text, int layers, unsigned char *named, mcsa_error *error)
{
    if (named) memset(named, 0, (size_t)layers);
    return strncmp(text, "list:", 5) == 0 ? read_list(text, layers, named, error)
                                          : read_first(text, layers, named, error);
}
