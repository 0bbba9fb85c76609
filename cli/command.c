/* command.c - how every command ends. */
#include "command.h"

#include <stdio.h>

int command_end(const char *name, mcsa_status status, const mcsa_error *error, const char *canceled)
{
    if (status == MCSA_OK) return EXIT_DONE;
    const char *sentence = status == MCSA_ECANCELED ? canceled : error->text;
    fprintf(stderr, "mcsa %s: %s\n", name, sentence[0] ? sentence : mcsa_status_name(status));
    return status == MCSA_EINVAL ? EXIT_USAGE : EXIT_FAILED;
}
