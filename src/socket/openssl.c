#include "socket/openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define LIBRARY "libssl.so.3"
#define REMEDY                                                                                     \
  "install OpenSSL 3 (Debian and Ubuntu: libssl3, Red Hat and SUSE: openssl-libs, libopenssl3)"
/* The application, or another library, may use OpenSSL while the process ends, and so may threads
 * of this one. */
#define NO_ATEXIT 0x00080000u

tuttiOpensslTable tuttiOpenssl;
static char missing[300];

static void load(void) {
#define SYMBOL(name, result, arguments) #name,
  static const char *const symbols[] = {TUTTI_OPENSSL(SYMBOL)};
  void **table = (void **)&tuttiOpenssl;
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(missing, sizeof missing, "%.120s; %s", dlerror(), REMEDY);
    return;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    table[i] = dlsym(library, symbols[i]); /* those of libcrypto too, which it needs */
    if (table[i]) continue;
    snprintf(missing, sizeof missing, LIBRARY " has no %s; %s", symbols[i], REMEDY);
    return;
  }
  if (tuttiOpenssl.OPENSSL_init_ssl(NO_ATEXIT, NULL) != 1)
    snprintf(missing, sizeof missing, LIBRARY " does not start; see its openssl.cnf");
}

const char *tuttiOpensslLoad(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
  return missing[0] ? missing : NULL;
}
