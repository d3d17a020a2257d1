/* nccl.conf: any bytes at all. What it says is taken, ignored or told, and never ends a program. */
#include "fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int fd = -1;
  if (fd < 0) {
    fd = memfd_create("nccl.conf", MFD_CLOEXEC);
    std::string path = "/proc/self/fd/" + std::to_string(fd);
    setenv("NCCL_CONF_FILE", path.c_str(), 1);
    setenv("TUTTI_DEBUG", "INFO", 1);
    setenv("TUTTI_DEBUG_FILE", "/dev/null", 1);
  }
  CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
  CHECK(tuttiSettingsLoad() == tuttiSuccess);
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    const tuttiSettingRow *row = &tuttiSettingTable[id];
    const char *text = tuttiSettingString((tuttiSettingId)id);
    int64_t number = tuttiSettingInt((tuttiSettingId)id);
    CHECK(text != nullptr);
    CHECK(tuttiSettingIsText(row) || (number >= row->min && number <= row->max));
  }
  return 0;
}
