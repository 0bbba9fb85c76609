/* command.h - the subcommands of `mcsa` and what they return to the shell.
 *
 * A command gets the arguments after its own name, prints results on standard output and errors on
 * standard error as one line "mcsa NAME: sentence", and returns one of the three exit codes. */
#ifndef MCSA_CLI_COMMAND_H
#define MCSA_CLI_COMMAND_H

#include "base/status.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Says what went wrong, when something did, and gives the exit code: the table of options, the library and the
 * transformer all say MCSA_EINVAL of what was typed.  canceled: what to say after MCSA_ECANCELED. */
int command_end(const char *name, mcsa_status status, const mcsa_error *error, const char *canceled);

int cmd_analyze(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_info(int argc, char **argv);

#endif
