/* The `tutti` command: finds the subcommand and hands over. */
#include <stdio.h>
#include <string.h>

#include "base/settings.h"
#include "tool.h"
#include "tutti.h"

static int version(int argc, char **argv);
static int help(int argc, char **argv);

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *what;
} commands[] = {
    {"perf", tuttiToolPerf, "run, time and check collectives"},
    {"run", tuttiToolRun, "run a program made for NCCL on tutti"},
    {"topo", tuttiToolTopo, "show the topology of this host, rings and trees"},
    {"doctor", tuttiToolDoctor, "say what is wrong with this machine, and the remedies"},
    {"netcheck", tuttiToolNetcheck, "check the network between the hosts of a job, rail by rail"},
    {"status", tuttiToolStatus, "say what running jobs are doing, and what is wrong"},
    {"trace", tuttiToolTrace, "join the records of ranks into one timeline"},
    {"env", tuttiToolEnv, "list every setting with its value and origin"},
    {"version", version, "print the version"},
    {"help", help, "print this text, or the help of a command"},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static int printed(void) {
  return tuttiFlushed(stdout, "tutti", "the output") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

static int version(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--help") == 0) {
    puts("Usage: tutti version\nPrints the version.");
    return printed();
  }
  if (argc > 1) return tuttiUsage("tutti", "unexpected argument '%s'", argv[1]);
  int code;
  if (tuttiGetVersion(&code) != tuttiSuccess) return TUTTI_EXIT_FAILED;
  printf("tutti %d.%d.%d\n", code / 10000, code / 100 % 100, code % 100);
  return printed();
}

static int printHelp(void) {
  puts("Usage: tutti COMMAND [ARGUMENT]...\n"
       "Collective communication for GPU clusters and for host memory.\n"
       "\nCommands:");
  for (int i = 0; i < COMMANDS; i++)
    printf("  %-9s %s\n", commands[i].name, commands[i].what);
  puts("\n'tutti COMMAND --help' explains a command.\n"
       "A first run: tutti perf all_reduce --ranks 4 --check");
  return printed();
}

static int dispatch(const char *name, int argc, char **argv) {
  const char *names[COMMANDS];
  for (int i = 0; i < COMMANDS; i++) {
    names[i] = commands[i].name;
    if (strcmp(name, names[i]) == 0) return commands[i].run(argc, argv);
  }
  const char *nearest = tuttiNearest(name, names, COMMANDS);
  if (nearest == NULL) return tuttiUsage("tutti", "unknown command '%s'", name);
  return tuttiUsage("tutti", "unknown command '%s'; did you mean '%s'?", name, nearest);
}

static int help(int argc, char **argv) {
  char ask[] = "--help";
  if (argc < 2 || strcmp(argv[1], "help") == 0 || argv[1][0] == '-') return printHelp();
  char *arguments[] = {argv[1], ask, NULL};
  return dispatch(argv[1], 2, arguments);
}

int main(int argc, char **argv) {
  if (argc < 2) return tuttiUsage("tutti", "a command is missing");
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return printHelp();
  if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) return version(1, argv);
  return dispatch(argv[1], argc - 1, argv + 1);
}
