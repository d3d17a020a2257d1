/* The library under test: tutti itself, or any that has the ABI of NCCL (--lib). */
#include <dlfcn.h>

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
