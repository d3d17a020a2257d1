/* What the fuzz targets share. A target is one file; its bytes come from libFuzzer, which keeps
 * those that reach something new. What is wrong ends the process: a sanitizer's finding, or CHECK.
 */
#ifndef TUTTI_TESTS_FUZZ_FUZZ_H_
#define TUTTI_TESTS_FUZZ_FUZZ_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition,                  \
              tuttiErrorText());                                                                   \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

/* Changes what is valid by the input's bytes: none leave it as it is, and each touches one byte, so
 * that structures with lengths and counts are not lost at once. */
template <class T> void change(T *valid, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < std::min(size, sizeof(T)); i++)
    ((uint8_t *)valid)[i] ^= data[i];
}

#endif
