/* Which libnccl.so.2 a program would load, and what MPI and UCX here were built for. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "doctor/command.h"
#include "doctor/machine.h"

#define TOOL_MS    10000
#define PYTHON_MS  60000 /* importing PyTorch takes its time */
#define TOOL_BYTES (1 << 20)

/* ---- MPI and UCX ---------------------------------------------------------------------------- */

/* The rest of the line behind `key` in a text; false: it is not there. */
static bool lineBehind(const char *text, const char *key, char *value, size_t size) {
  const char *at = strstr(text, key);
  if (at == NULL) return false;
  at += strlen(key);
  at += strspn(at, " \t");
  snprintf(value, size, "%.*s", (int)strcspn(at, "\n"), at);
  return true;
}

static tuttiResult_t askOpenMpi(tuttiMachine *m, char *out) {
  char *const argv[] = {"ompi_info", "--parsable", "--all", NULL};
  char version[64], cuda[64];
  if (!tuttiCommandRun(argv, NULL, out, TOOL_BYTES, TOOL_MS)) return tuttiSuccess;
  if (lineBehind(out, "ompi:version:full:", version, sizeof version))
    TUTTI_TRY(tuttiMachineTell(m, version, "mpi.openmpi"));
  if (lineBehind(out, "mpi_built_with_cuda_support:value:", cuda, sizeof cuda))
    TUTTI_TRY(tuttiMachineTell(m, cuda, "mpi.openmpi.cuda"));
  return tuttiSuccess;
}

static tuttiResult_t askMvapich(tuttiMachine *m, char *out) {
  char *const argv[] = {"mpiname", "-a", NULL};
  char version[64];
  if (!tuttiCommandRun(argv, NULL, out, TOOL_BYTES, TOOL_MS)) return tuttiSuccess;
  snprintf(version, sizeof version, "%.*s", (int)strcspn(out, "\n"), out);
  TUTTI_TRY(tuttiMachineTell(m, version, "mpi.mvapich2"));
  return tuttiMachineTell(m, strstr(out, "--enable-cuda") ? "true" : "false", "mpi.mvapich2.cuda");
}

static tuttiResult_t askUcx(tuttiMachine *m, char *out) {
  static const char *const names[] = {"cuda_copy", "cuda_ipc", "gdr_copy"};
  char *const argv[] = {"ucx_info", "-d", NULL};
  char found[64] = "", key[64];
  if (!tuttiCommandRun(argv, NULL, out, TOOL_BYTES, TOOL_MS)) return tuttiSuccess;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(key, sizeof key, "Transport: %s", names[i]);
    if (strstr(out, key)) tuttiAppend(found, sizeof found, "%s%s", found[0] ? " " : "", names[i]);
  }
  return tuttiMachineTell(m, found, "ucx.cuda");
}

/* ---- libnccl.so.2 --------------------------------------------------------------------------- */

/* Imports PyTorch if it is there, as that brings its own; else lets the loader search. Then it
 * prints what is mapped. */
static const char python[] =
    "import ctypes, importlib.util\n"
    "try:\n"
    "  if importlib.util.find_spec('torch'):\n"
    "    import torch\n"
    "  else:\n"
    "    ctypes.CDLL('libnccl.so.2')\n"
    "except Exception:\n"
    "  pass\n"
    "print(*{l.split()[-1] for l in open('/proc/self/maps') if '/libnccl.so' in l}, sep='\\n')\n";

/* The path of libnccl.so.2 in what the loader lists: "libnccl.so.2 => /usr/lib/... (0x...)", or
 * "/usr/lib/.../libnccl.so.2 (0x...)" where LD_PRELOAD names it. */
static void pathOf(const char *listed, char *path, size_t size) {
  const char *at = strstr(listed, "libnccl.so.2");
  path[0] = '\0';
  if (!at) return;
  while (at > listed && at[-1] != '\n')
    at--;
  at += strspn(at, " \t");
  if (strncmp(at, "libnccl.so.2 => ", 16) == 0) at += 16;
  snprintf(path, size, "%.*s", (int)strcspn(at, " \n"), at);
  if (path[0] != '/') path[0] = '\0'; /* "not found" */
}

/* Opens it in a child, which may end as it likes: what the library does when it is loaded is not
 * known. Prints its version, and whose it is. */
static void describe(const char *path, char *out, size_t size) {
  char self[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return;
  self[n] = '\0';
  char *const argv[] = {self, "doctor", "--library", (char *)path, NULL};
  if (!tuttiCommandRun(argv, NULL, out, size, TOOL_MS)) snprintf(out, size, "cannot be loaded");
  out[strcspn(out, "\n")] = '\0';
}

void tuttiDescribeLibrary(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  int version = 0;
  if (library == NULL) {
    printf("cannot be loaded: %s\n", dlerror());
    return;
  }
  int (*get)(int *out);
  *(void **)&get = dlsym(library, "ncclGetVersion");
  if (get == NULL || get(&version) != 0)
    puts("has no ncclGetVersion");
  else
    printf("%s %d.%d.%d\n", dlsym(library, "tuttiGetVersion") ? "tutti, as NCCL" : "NCCL",
           version / 10000, version / 100 % 100, version % 100);
}

static tuttiResult_t tellProgram(tuttiMachine *m, const char *program, char *out) {
  const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
  char *const script[] = {(char *)program, "-c", (char *)python, NULL};
  char *const plain[] = {(char *)program, NULL};
  char path[512] = "", said[256] = "";
  bool isPython = strncmp(name, "python", 6) == 0;
  /* With that variable the loader lists what it would load, and runs nothing. */
  bool ran = isPython
                 ? tuttiCommandRun(script, NULL, out, TOOL_BYTES, PYTHON_MS)
                 : tuttiCommandRun(plain, "LD_TRACE_LOADED_OBJECTS=1", out, TOOL_BYTES, TOOL_MS);
  TUTTI_TRY(tuttiMachineTell(m, name, "program.name"));
  if (!ran) return tuttiMachineTell(m, "cannot be run", "program.state");
  if (isPython)
    snprintf(path, sizeof path, "%.*s", (int)strcspn(out, "\n"), out);
  else
    pathOf(out, path, sizeof path);
  TUTTI_TRY(tuttiMachineTell(m, "ok", "program.state"));
  TUTTI_TRY(tuttiMachineTell(m, path, "program.nccl"));
  if (path[0]) describe(path, said, sizeof said);
  return path[0] ? tuttiMachineTell(m, said, "program.nccl.what") : tuttiSuccess;
}

tuttiResult_t tuttiAskPrograms(tuttiMachine *m, const char *program) {
  TUTTI_FRESH(char, out, TOOL_BYTES, "the output of a program", NULL);
  TUTTI_TRY(askOpenMpi(m, out));
  TUTTI_TRY(askMvapich(m, out));
  TUTTI_TRY(askUcx(m, out));
  return program ? tellProgram(m, program, out) : tuttiSuccess;
}
