/* main.c - `mcsa`: a table of subcommands; nothing else. */
#include "command.h"
#include "mcsa.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    { "generate", "make a video clip from a caption, dense, with MC-Sparse, or both", cmd_generate },
    { "compare", "set MC-Sparse and other methods against dense, over several captions", cmd_compare },
    { "analyze", "measure where sparse attention loses, and recommend settings", cmd_analyze },
    { "bench", "time the kernels here, after checking their answers", cmd_bench },
    { "info", "say what this machine offers and what mcsa can do on it", cmd_info },
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out)
{
    fputs("NAME\n    mcsa - text to video on a CPU with Meta-Cached Sparse Attention\n\n"
          "SYNOPSIS\n    mcsa COMMAND [options]\n    mcsa COMMAND --help\n\nCOMMANDS\n",
          out);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "    %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n    --help     print this page\n    --version  print the version\n\n"
          "EXAMPLE\n    mcsa generate --model models/tiny-t2v --compare \\\n"
          "        --prompt \"a red star orbits over a blue checker background, camera pans left\"\n",
          out);
}

static int unknown(const char *name)
{
    fprintf(stderr, "mcsa: unknown command '%s'; there are:", name);
    for (int i = 0; i < COMMANDS; i++) fprintf(stderr, "%s %s", i ? "," : "", commands[i].name);
    fputs(" (see mcsa --help)\n", stderr);
    return EXIT_USAGE;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("mcsa %s\n", mcsa_version());
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return EXIT_DONE;
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, argv[1]) == 0) return commands[i].run(argc - 2, argv + 2);
    return unknown(argv[1]);
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    /* A full disk or a closed pipe shows only when the buffer goes out. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "mcsa: cannot write to standard output: %s\n", strerror(errno));
        return code == EXIT_DONE ? EXIT_FAILED : code;
    }
    return code;
}
