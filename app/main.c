/* app/main.c - the command line: finds the command and returns its exit code. */
#include "app/commands.h"
#include "dist/comm.h"

#include <stdio.h>
#include <string.h>

static const struct Command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} commands[] = {
    {"run", cmd_run, "complete the rows of a JSONL file"},
    {"score", cmd_score, "log-probabilities of given texts or token ids"},
    {"perplexity", cmd_perplexity, "perplexity of a text file"},
    {"quantize", cmd_quantize, "write a checkpoint in another format"},
    {"inspect", cmd_inspect, "what a checkpoint is and what it takes"},
    {"pack", cmd_pack, "a checkpoint as one file that loads fast"},
    {"tokenize", cmd_tokenize, "texts to token ids and back"},
    {"bench", cmd_bench, "speed of a published shape with random weights, and of loading"},
    {"devices", cmd_devices, "the GPUs that are found, and which rank would take which"},
};

static int help(FILE *to)
{
    fputs("Usage: moebatch COMMAND [options], or mpirun -n RANKS moebatch COMMAND [options]\n\n",
          to);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].about);
    fputs("\nmoebatch COMMAND --help lists a command's options; moebatch --version says what is in "
          "this build.\n",
          to);
    return to == stderr ? 2 : 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (comm_launched_rank() > 0 && !freopen("/dev/null", "w", stdout)) /* rank 0 speaks for all */
        return 1;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help(stdout);
    if (strcmp(name, "--version") == 0)
        return cmd_version();
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (!app_speaks())
        return 2;
    if (*name)
        fprintf(stderr, "moebatch: unknown command \"%s\"\n", name);
    return help(stderr);
}
