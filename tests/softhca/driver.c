#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool load(softDriver *driver, void *library) {
#define X(name, symbol, arguments)                                                                 \
  *(void **)&driver->name = dlsym(library, #symbol);                                               \
  if (!driver->name) {                                                                             \
    fprintf(stderr, "softhca: libcuda.so.1 has no %s: no memory of GPUs\n", #symbol);              \
    return false;                                                                                  \
  }
  CU_CALLS(X)
#undef X
  return true;
}

/* Whoever has memory of a GPU has loaded the driver: nothing is loaded, let alone initialized, for
 * programs that have none. */
const softDriver *softDriverGet(void) {
  static softDriver driver;
  static enum { UNKNOWN, USABLE, UNUSABLE } state = UNKNOWN;
  pthread_mutex_lock(&lock);
  if (state == UNKNOWN) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library) state = load(&driver, library) ? USABLE : UNUSABLE;
  }
  bool usable = state == USABLE;
  pthread_mutex_unlock(&lock);
  return usable ? &driver : NULL;
}
