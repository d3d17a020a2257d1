/* The library under test: tutti itself, or any that has the ABI of NCCL (--lib). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "perf.h"

const perfLibrary perfTutti = {
#define X(name) .name = tutti##name,
    PERF_CALLS(X)
#undef X
        .windowRegister = tuttiCommWindowRegister,
    .windowDeregister = tuttiCommWindowDeregister,
    .putSignal = tuttiPutSignal,
    .waitSignal = tuttiWaitSignal,
};

bool perfLibraryOpen(const char *path, perfLibrary *library) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) return PERF_FAIL("cannot load --lib %s: %s\n", path, dlerror());
  *library = (perfLibrary){.foreign = true};
#define X(name)                                                                                    \
  *(void **)&library->name = dlsym(handle, "nccl" #name);                                          \
  if (library->name == NULL) return PERF_FAIL("--lib %s has no nccl" #name "\n", path);
  PERF_CALLS(X)
#undef X
  *(void **)&library->windowRegister = dlsym(handle, "ncclCommWindowRegister");
  *(void **)&library->windowDeregister = dlsym(handle, "ncclCommWindowDeregister");
  if (library->windowDeregister == NULL) library->windowRegister = NULL;
  *(void **)&library->putSignal = dlsym(handle, "ncclPutSignal");
  *(void **)&library->waitSignal = dlsym(handle, "ncclWaitSignal");
  return true;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* In memory; -1: that failed, errno says why. */
static int copyOf(const char *path) {
  int from = open(path, O_RDONLY | O_CLOEXEC), to = -1;
  ssize_t n = -1;
  if (from >= 0) to = memfd_create("perf", MFD_CLOEXEC);
  while (to >= 0 && (n = sendfile(to, from, NULL, 1 << 30)) > 0)
    continue;
  int error = errno;
  if (from >= 0) close(from);
  if (to >= 0 && n < 0) close(to);
  errno = error;
  return n < 0 ? -1 : to;
}

/* A communicator of one rank makes the library ask for the host that it is on. */
static bool settle(const perfLibrary *library) {
  tuttiUniqueId id;
  tuttiComm_t comm = NULL;
  tuttiResult_t result = library->GetUniqueId(&id);
  if (result == tuttiSuccess) result = library->CommInitRankConfig(&comm, 1, id, 0, NULL);
  if (result == tuttiSuccess) result = library->CommDestroy(comm);
  return result == tuttiSuccess || PERF_FAIL("--apart: %s: %s\n", library->GetErrorString(result),
                                             library->GetLastError(NULL));
}

bool perfLibraryOpenApart(const char *path, int rank, perfLibrary *library) {
  char name[64], host[32];
  int fd = copyOf(path);
  if (fd < 0) return PERF_FAIL("cannot copy --lib %s: %s\n", path, strerror(errno));
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  snprintf(host, sizeof host, "host%d", rank);
  bool good = perfLibraryOpen(name, library);
  if (good && setenv("NCCL_HOSTID", host, 1) != 0) good = PERF_FAIL("%s\n", strerror(errno));
  return good &&
         settle(library); /* the descriptor stays open: dlopen(3) takes one name for one library */
}
