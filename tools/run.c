/* tutti run: a command with tutti's libnccl.so.2 in the place of NVIDIA's. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

#define COMMAND "tutti run"

static const char help[] = "Usage: tutti run [--] COMMAND [ARGUMENT]...\n"
                           "Runs COMMAND, a program made for NCCL, with tutti's libnccl.so.2 in "
                           "the place of NVIDIA's: sets\n"
                           "LD_PRELOAD and LD_LIBRARY_PATH, which its children inherit.\n"
                           "\n"
                           "  -h, --help  this text\n";

/* Beside this command as installed, or in the folder of a build. */
static bool findLibrary(char path[PATH_MAX]) {
  static const char *const places[] = {TUTTI_NCCL_INSTALLED, "../src/tutti/libnccl.so.2"};
  char own[PATH_MAX], place[PATH_MAX + 64];
  ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
  if (n < 0) return false;
  own[n] = '\0';
  *strrchr(own, '/') = '\0';
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    snprintf(place, sizeof place, "%s/%s", own, places[i]);
    if (realpath(place, path)) return true;
  }
  fprintf(stderr, COMMAND ": no libnccl.so.2 at %s/%s; install tutti with `cmake --install`\n", own,
          places[0]);
  return false;
}

/* Puts `value` before what the variable holds. */
static bool prepend(const char *variable, const char *value) {
  const char *before = getenv(variable);
  bool alone = before == NULL || before[0] == '\0';
  char *both = NULL;
  if (asprintf(&both, "%s%s%s", value, alone ? "" : ":", alone ? "" : before) < 0) return false;
  bool done = setenv(variable, both, 1) == 0;
  free(both);
  return done;
}

int tuttiToolRun(int argc, char **argv) {
  char path[PATH_MAX];
  int at = 1;
  if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
    fputs(help, stdout);
    return tuttiFlushed(stdout, COMMAND, "the help") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
  }
  if (argc > 1 && strcmp(argv[1], "--") == 0)
    at = 2;
  else if (argc > 1 && *argv[1] == '-')
    return tuttiUsage(COMMAND, "unknown option '%s'", argv[1]);
  if (at == argc) return tuttiUsage(COMMAND, "a command to run is missing");
  if (!findLibrary(path)) return TUTTI_EXIT_FAILED;
  if (strpbrk(path, ": ") != NULL) {
    fprintf(stderr,
            COMMAND ": LD_PRELOAD cannot hold %s: move tutti to a path without ':' and "
                    "spaces\n",
            path);
    return TUTTI_EXIT_FAILED;
  }
  if (prepend("LD_PRELOAD", path)) {
    *strrchr(path, '/') = '\0';
    if (prepend("LD_LIBRARY_PATH", path)) execvp(argv[at], &argv[at]);
  }
  fprintf(stderr, COMMAND ": cannot run %s: %s\n", argv[at], strerror(errno));
  return TUTTI_EXIT_FAILED;
}
