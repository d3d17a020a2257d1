/* Which libnccl.so.2 a program would load, and what MPI and UCX here were built for. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "doctor/command.h"
#include "doctor/machine.h"

#define TOOL_MS    10000
#define PYTHON_MS  60000 /* importing PyTorch takes its time */
#define TOOL_BYTES (1 << 20)
#define SCRIPTS    6 /* that the kernel follows, one the interpreter of the other, and more */

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
 * prints what is mapped; of several first the one that a call binds to, if that can be told. */
static const char python[] =
    "import ctypes, importlib.util, os\n"
    "try:\n"
    "  if importlib.util.find_spec('torch'):\n"
    "    import torch\n"
    "  else:\n"
    "    ctypes.CDLL('libnccl.so.2')\n"
    "except Exception:\n"
    "  pass\n"
    "maps = [l.split()[-1] for l in open('/proc/self/maps') if '/libnccl.so' in l]\n"
    "found = list(dict.fromkeys(maps))\n"
    "class Place(ctypes.Structure):\n"
    "  _fields_ = [(name, ctypes.c_char_p if name == 'file' else ctypes.c_void_p)\n"
    "              for name in ('file', 'base', 'symbol', 'at')]\n"
    "try:\n"
    "  if len(found) > 1:\n"
    "    call, place = ctypes.CDLL(None), Place()\n"
    "    if call.dladdr(call.ncclGetVersion, ctypes.byref(place)):\n"
    "      found.insert(0, os.path.realpath(os.fsdecode(place.file)))\n"
    "except Exception:\n"
    "  pass\n"
    "print(*found, sep='\\n')\n";

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

/* ---- the loader ----------------------------------------------------------------------------- */

/* Where PATH has a program. */
static void findProgram(const char *program, char path[PATH_MAX]) {
  const char *dir = getenv("PATH");
  if (dir == NULL) dir = "/bin:/usr/bin";
  snprintf(path, PATH_MAX, "%s", program);
  if (strchr(program, '/')) return;
  for (const char *end; *dir; dir = *end ? end + 1 : end) {
    end = dir + strcspn(dir, ":");
    snprintf(path, PATH_MAX, "%.*s/%s", (int)(end - dir), dir, program);
    if (access(path, X_OK) == 0) return;
  }
}

/* The loader that a 64-bit program names; false: it names none, and runs without one. */
static bool loaderOf(int fd, char loader[PATH_MAX]) {
  Elf64_Ehdr head;
  Elf64_Phdr part;
  if (pread(fd, &head, sizeof head, 0) != sizeof head ||
      memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64)
    return false;
  for (int i = 0; i < head.e_phnum; i++) {
    off_t at = (off_t)head.e_phoff + (off_t)i * head.e_phentsize;
    if (pread(fd, &part, sizeof part, at) != sizeof part) return false;
    if (part.p_type != PT_INTERP || part.p_filesz == 0 || part.p_filesz > PATH_MAX) continue;
    ssize_t size = pread(fd, loader, part.p_filesz, (off_t)part.p_offset);
    if (size != (ssize_t)part.p_filesz) return false;
    loader[size - 1] = '\0';
    return true;
  }
  return false;
}

/* Whether LD_TRACE_LOADED_OBJECTS keeps a program, or what a script names as its own, from being
 * run: the loader of glibc heeds it. Also true of what cannot be read, or is neither. */
static bool isLoaded(const char *program) {
  char path[PATH_MAX], text[PATH_MAX] = "";
  findProgram(program, path);
  for (int depth = 0; depth < SCRIPTS; depth++) {
    TUTTI_CLOSED int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (size < SELFMAG) return true;
    text[size] = '\0';
    if (strncmp(text, "#!", 2) != 0)
      return memcmp(text, ELFMAG, SELFMAG) != 0 || (loaderOf(fd, path) && !strstr(path, "musl"));
    const char *name = text + 2 + strspn(text + 2, " \t");
    snprintf(path, sizeof path, "%.*s", (int)strcspn(name, " \t\n"), name);
  }
  return false;
}

static tuttiResult_t tellProgram(tuttiMachine *m, const char *program, char *out) {
  const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
  char *const script[] = {(char *)program, "-c", (char *)python, NULL};
  char *const plain[] = {(char *)program, NULL};
  char path[512] = "", said[256] = "";
  bool isPython = strncmp(name, "python", 6) == 0;
  TUTTI_TRY(tuttiMachineTell(m, name, "program.name"));
  if (!isPython && !isLoaded(program)) return tuttiMachineTell(m, "not loaded", "program.state");
  /* With that variable the loader lists what it would load, and runs nothing. */
  bool ran = isPython
                 ? tuttiCommandRun(script, NULL, out, TOOL_BYTES, PYTHON_MS)
                 : tuttiCommandRun(plain, "LD_TRACE_LOADED_OBJECTS=1", out, TOOL_BYTES, TOOL_MS);
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
