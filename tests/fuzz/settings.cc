/* Values of settings of every type: the first byte says which row, the rest is the text. */
#include "fuzz/fuzz.h"

#include "base/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  const tuttiSettingRow *row = &tuttiSettingTable[data[0] % TUTTI_SETTING_COUNT];
  std::string text((const char *)data + 1, size - 1);
  int64_t value = INT64_MIN;
  const char *wrong = tuttiSettingParse(row, text.c_str(), &value);
  CHECK((wrong == nullptr) == (value != INT64_MIN));
  if (wrong == nullptr && !tuttiSettingIsText(row)) {
    CHECK(value >= row->min && value <= row->max);
  }
  static const char *const words[] = {"TIMEOUT", "ALGO", "BUFFSIZE"};
  tuttiNearest(text.c_str(), words, 3);
  return 0;
}
