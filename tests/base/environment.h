/* The environment of a test: the variables it sets go, and the settings are read again, when it
 * ends. */
#ifndef TESTS_BASE_ENVIRONMENT_H_
#define TESTS_BASE_ENVIRONMENT_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/settings.h"

class EnvironmentTest : public testing::Test {
public:
  void SetUp() override {
    clear();
    tuttiErrorScope(nullptr, nullptr, 0, 0);
    tuttiErrorClear();
    ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess) << tuttiErrorText();
  }

  void TearDown() override {
    clear();
    ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess) << tuttiErrorText();
  }

  /* Sets one variable and reads the settings; the error text, "" on success. */
  static std::string load(const char *name, const std::string &value) {
    tuttiErrorClear();
    setenv(name, value.c_str(), 1);
    tuttiResult_t result = tuttiSettingsLoad();
    EXPECT_EQ(result != tuttiSuccess, tuttiErrorText()[0] != '\0');
    return tuttiErrorText();
  }

  static void clear() {
    std::vector<std::string> names;
    for (char **entry = environ; *entry != nullptr; entry++)
      if (strncmp(*entry, "TUTTI_", 6) == 0 || strncmp(*entry, "NCCL_", 5) == 0)
        names.emplace_back(*entry, strcspn(*entry, "="));
    for (const auto &name : names)
      unsetenv(name.c_str());
  }
};

#endif
