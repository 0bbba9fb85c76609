/* processor.c - see processor.h. */
#include "processor.h"

#include <stdio.h>
#include <string.h>

void processor_name(char *name, size_t bytes)
{
    snprintf(name, bytes, "unknown");
    FILE *stream = fopen("/proc/cpuinfo", "r");
    if (!stream) return;
    char line[512];
    while (fgets(line, sizeof line, stream)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, bytes, "%s", colon + 1 + (colon[1] == ' '));
        break;
    }
    fclose(stream);
}
