#include "base/error.h"
#include "socket/key.h"

tuttiResult_t tuttiSetEncryption(const char *psk) {
  tuttiErrorScope(__func__, NULL, 0, 0);
  return tuttiKeySet(psk);
}
