/* command.h - the subcommands of `mcsa` and what they return to the shell.
 *
 * A command gets the arguments after its own name, prints results on standard output and errors on
 * standard error as one line "mcsa NAME: sentence", and returns one of the three exit codes. */
#ifndef MCSA_CLI_COMMAND_H
#define MCSA_CLI_COMMAND_H

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int cmd_analyze(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_compare(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_info(int argc, char **argv);

#endif
