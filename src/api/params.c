/* The public calls about parameters: the settings, read only. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/settings.h"
#include "comm/check.h"

static const char *keys[TUTTI_SETTING_COUNT] = {
#define SETTING(ident, name, type, dflt, min, max, nccl, help) "TUTTI_" name,
#include "base/settings.def"
#undef SETTING
};

/* What begins each call that writes a setting to `out`; a handle is a row of the table. */
static tuttiResult_t enter(const char *call, tuttiParamHandle_t h, const void *out,
                           tuttiSettingId *id) {
  tuttiErrorScope(call, NULL, 0, 0);
  for (int i = 0; i < TUTTI_SETTING_COUNT; i++) {
    *id = (tuttiSettingId)i;
    if ((const void *)h == &tuttiSettingTable[i]) return tuttiCheckOutput("out", out);
  }
  return TUTTI_FAIL(tuttiInvalidArgument, "argument h (%p) is no handle of tuttiParamBind",
                    (void *)h);
}

static const char *textOf(tuttiSettingId id) {
  static _Thread_local char number[24];
  if (tuttiSettingIsText(&tuttiSettingTable[id])) return tuttiSettingString(id);
  snprintf(number, sizeof number, "%" PRId64, tuttiSettingInt(id));
  return number;
}

static tuttiResult_t lookUp(const char *call, const char *key, tuttiSettingId *id) {
  tuttiErrorScope(call, NULL, 0, 0);
  TUTTI_TRY(tuttiCheckOutput("key", key));
  for (int i = 0; i < TUTTI_SETTING_COUNT; i++) {
    *id = (tuttiSettingId)i;
    const char *nccl = tuttiSettingTable[i].ncclName;
    if (!strcmp(key, keys[i]) || (nccl[0] && !strcmp(key, nccl))) return tuttiSuccess;
  }
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument key is %.64s, no setting; `tutti env` lists them", key);
}

tuttiResult_t tuttiParamBind(tuttiParamHandle_t *out, const char *key) {
  tuttiSettingId id;
  TUTTI_TRY(lookUp(__func__, key, &id));
  TUTTI_TRY(tuttiCheckOutput("out", out));
  *out = (tuttiParamHandle_t)(uintptr_t)&tuttiSettingTable[id];
  return tuttiSuccess;
}

/* What an integer type holds, of what a setting can be. */
typedef struct {
  const char *name;
  int64_t min, max;
} IntegerType;

/* The value of a setting that is a number and fits; sets *value on success. */
static tuttiResult_t getInteger(const char *call, tuttiParamHandle_t h, const void *out,
                                const IntegerType *type, int64_t *value) {
  tuttiSettingId id;
  TUTTI_TRY(enter(call, h, out, &id));
  int64_t number = tuttiSettingInt(id);
  if (tuttiSettingIsText(&tuttiSettingTable[id]) || number < type->min || number > type->max)
    return TUTTI_FAIL(tuttiInvalidArgument, "%s is '%.64s', which is no %s", keys[id], textOf(id),
                      type->name);
  *value = number;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetI8(tuttiParamHandle_t h, int8_t *out) {
  static const IntegerType type = {.name = "int8_t", .min = INT8_MIN, .max = INT8_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (int8_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetI16(tuttiParamHandle_t h, int16_t *out) {
  static const IntegerType type = {.name = "int16_t", .min = INT16_MIN, .max = INT16_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (int16_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetI32(tuttiParamHandle_t h, int32_t *out) {
  static const IntegerType type = {.name = "int32_t", .min = INT32_MIN, .max = INT32_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (int32_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetI64(tuttiParamHandle_t h, int64_t *out) {
  static const IntegerType type = {.name = "int64_t", .min = INT64_MIN, .max = INT64_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetU8(tuttiParamHandle_t h, uint8_t *out) {
  static const IntegerType type = {.name = "uint8_t", .min = 0, .max = UINT8_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (uint8_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetU16(tuttiParamHandle_t h, uint16_t *out) {
  static const IntegerType type = {.name = "uint16_t", .min = 0, .max = UINT16_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (uint16_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetU32(tuttiParamHandle_t h, uint32_t *out) {
  static const IntegerType type = {.name = "uint32_t", .min = 0, .max = UINT32_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (uint32_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetU64(tuttiParamHandle_t h, uint64_t *out) {
  static const IntegerType type = {.name = "uint64_t", .min = 0, .max = INT64_MAX};
  int64_t value;
  TUTTI_TRY(getInteger(__func__, h, out, &type, &value));
  *out = (uint64_t)value;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetStr(tuttiParamHandle_t h, const char **out) {
  tuttiSettingId id;
  TUTTI_TRY(enter(__func__, h, out, &id));
  *out = textOf(id);
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGet(tuttiParamHandle_t h, void *out, int maxLen, int *len) {
  tuttiSettingId id;
  TUTTI_TRY(enter(__func__, h, out, &id));
  TUTTI_TRY(tuttiCheckOutput("len", len));
  bool isText = tuttiSettingIsText(&tuttiSettingTable[id]);
  const char *text = textOf(id);
  int64_t number = tuttiSettingInt(id);
  size_t bytes = isText ? strlen(text) + 1 : sizeof number;
  if (maxLen < 0 || (size_t)maxLen < bytes)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument maxLen is %d; %s takes %zu bytes", maxLen,
                      keys[id], bytes);
  memcpy(out, isText ? (const void *)text : &number, bytes);
  *len = (int)bytes;
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetParameter(const char *key, const char **value, int *valueLen) {
  tuttiSettingId id;
  TUTTI_TRY(lookUp(__func__, key, &id));
  TUTTI_TRY(tuttiCheckOutput("value", value));
  *value = textOf(id);
  if (valueLen) *valueLen = (int)strlen(*value);
  return tuttiSuccess;
}

tuttiResult_t tuttiParamGetAllParameterKeys(const char ***table, int *tableLen) {
  tuttiErrorScope(__func__, NULL, 0, 0);
  TUTTI_TRY(tuttiCheckOutput("table", table));
  TUTTI_TRY(tuttiCheckOutput("tableLen", tableLen));
  *table = keys;
  *tableLen = TUTTI_SETTING_COUNT;
  return tuttiSuccess;
}

void tuttiParamDumpAll(void) {
  for (int i = 0; i < TUTTI_SETTING_COUNT; i++)
    TUTTI_INFO(ENV, "%s=%s (%s)", keys[i], textOf((tuttiSettingId)i),
               tuttiSettingOrigin((tuttiSettingId)i));
}
