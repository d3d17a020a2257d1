#include "base/settings.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"

#define PREFIX        "TUTTI_"
#define NCCL_PREFIX   "NCCL_"
#define CONF_VARIABLE "NCCL_CONF_FILE"
#define DEFAULT       "default"
#define FAULT_TEXT    512

/* A row's default is a number or a string; the other one of the pair is 0 or "". */
#define INT_NUMBER(dflt)     dflt
#define BOOL_NUMBER(dflt)    dflt
#define SIZE_NUMBER(dflt)    dflt
#define SECONDS_NUMBER(dflt) dflt
#define STRING_NUMBER(dflt)  0
#define INT_TEXT(dflt)       ""
#define BOOL_TEXT(dflt)      ""
#define SIZE_TEXT(dflt)      ""
#define SECONDS_TEXT(dflt)   ""
#define STRING_TEXT(dflt)    dflt

const tuttiSettingRow tuttiSettingTable[TUTTI_SETTING_COUNT] = {
#define SETTING(ident, settingName, settingType, value, least, most, nccl, text)                   \
  [TUTTI_SETTING_##ident] = {.name = (settingName),                                                \
                             .ncclName = (nccl),                                                   \
                             .help = (text),                                                       \
                             .type = TUTTI_SETTING_##settingType,                                  \
                             .dflt = settingType##_NUMBER(value),                                  \
                             .min = (least),                                                       \
                             .max = (most),                                                        \
                             .dfltString = settingType##_TEXT(value)},
#include "base/settings.def"
#undef SETTING
};

static const char *const variables[TUTTI_SETTING_COUNT] = {
#define SETTING(ident, name, type, dflt, min, max, nccl, help) PREFIX name,
#include "base/settings.def"
#undef SETTING
};

/* ---- strings that are accepted by some settings only ---------------------------------------- */

static const char *checkDevice(const char *text) {
  bool known = strcmp(text, "auto") == 0 || strcmp(text, "host") == 0 || strcmp(text, "cuda") == 0;
  return known ? NULL : "accepted: auto, host or cuda";
}

static const char *checkFamily(const char *text) {
  bool known = strcmp(text, "AF_INET") == 0 || strcmp(text, "AF_INET6") == 0;
  return known ? NULL : "accepted: AF_INET or AF_INET6";
}

/* Returns NULL, or what is accepted. */
static const char *(*const stringChecks[TUTTI_SETTING_COUNT])(const char *text) = {
    [TUTTI_SETTING_DEBUG] = tuttiLogCheckLevel,
    [TUTTI_SETTING_DEBUG_SUBSYS] = tuttiLogCheckSubsystems,
    [TUTTI_SETTING_DEVICE] = checkDevice,
    [TUTTI_SETTING_SOCKET_FAMILY] = checkFamily,
};

/* ---- numbers -------------------------------------------------------------------------------- */

static const char notNumber[] = "is not a whole number";
static const char notSize[] = "is not a size";
static const char notSeconds[] = "is not a time";
static const char outOfRange[] = "is out of range";

/* Appends the decimal digits at *p to *value and moves *p behind them. Not strtoll and strtod:
 * these follow the locale of the program and take more than a number. False on overflow. */
static bool readDigits(const char **p, int64_t *value) {
  for (; isdigit((unsigned char)**p); (*p)++)
    if (__builtin_mul_overflow(*value, 10, value) ||
        __builtin_add_overflow(*value, **p - '0', value))
      return false;
  return true;
}

static const char *skipSpace(const char *p) {
  while (*p == ' ' || *p == '\t')
    p++;
  return p;
}

static const char *parseInt(const char *p, int64_t *out) {
  bool negative = *p == '-';
  if (*p == '-' || *p == '+') p++;
  if (!isdigit((unsigned char)*p)) return notNumber;
  int64_t value = 0;
  if (!readDigits(&p, &value)) return outOfRange;
  if (*skipSpace(p) != '\0') return notNumber;
  *out = negative ? -value : value;
  return NULL;
}

static const char *parseSize(const char *p, int64_t *out) {
  if (!isdigit((unsigned char)*p)) return notSize;
  static const char units[] = "KMG";
  int64_t value = 0, unit = 1;
  if (!readDigits(&p, &value)) return outOfRange;
  const char *found = *p != '\0' ? strchr(units, toupper((unsigned char)*p)) : NULL;
  if (found != NULL) unit = 1 << 10 * (found - units + 1);
  if (*skipSpace(p + (found != NULL)) != '\0') return notSize;
  return __builtin_mul_overflow(value, unit, out) ? outOfRange : NULL;
}

/* Milliseconds of the unit at p; 0 if it is none. */
static int64_t timeUnit(const char *p) {
  static const struct {
    const char *suffix;
    int64_t ms;
  } units[] = {{"", 1000}, {"s", 1000}, {"ms", 1}, {"m", 60000}};
  size_t length = strcspn(p, " \t");
  if (*skipSpace(p + length) != '\0') return 0;
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
    if (strlen(units[i].suffix) == length && strncmp(p, units[i].suffix, length) == 0)
      return units[i].ms;
  return 0;
}

#define MAX_DECIMALS 9

/* Rounds up to a millisecond, so that a short time does not become 0, which means none. */
static const char *parseSeconds(const char *p, int64_t *out) {
  if (!isdigit((unsigned char)*p)) return notSeconds;
  int64_t whole = 0, decimals = 0, scale = 1;
  if (!readDigits(&p, &whole)) return outOfRange;
  if (*p == '.') {
    const char *first = ++p;
    if (!readDigits(&p, &decimals) || p - first > MAX_DECIMALS) return "has too many decimals";
    if (p == first) return notSeconds;
    for (const char *digit = first; digit < p; digit++)
      scale *= 10;
  }
  int64_t unit = timeUnit(p);
  if (unit == 0) return notSeconds;
  int64_t rest = (decimals * unit + scale - 1) / scale; /* under 1e9 * 6e4 + 1e9 */
  if (__builtin_mul_overflow(whole, unit, &whole) || __builtin_add_overflow(whole, rest, out))
    return outOfRange;
  return NULL;
}

const char *tuttiSettingParse(const tuttiSettingRow *row, const char *text, int64_t *out) {
  const char *p = skipSpace(text);
  const char *fault = NULL;
  int64_t value = 0;
  switch (row->type) {
  case TUTTI_SETTING_INT:
  case TUTTI_SETTING_BOOL:
    fault = parseInt(p, &value);
    break;
  case TUTTI_SETTING_SIZE:
    fault = parseSize(p, &value);
    break;
  case TUTTI_SETTING_SECONDS:
    fault = parseSeconds(p, &value);
    break;
  case TUTTI_SETTING_STRING:
    *out = 0;
    return NULL;
  }
  if (fault == NULL && (value < row->min || value > row->max)) fault = outOfRange;
  if (fault == NULL) *out = value;
  return fault;
}

/* Says what a row of numbers accepts. */
static void describeAccepted(const tuttiSettingRow *row, char *out, size_t size) {
  long long min = row->min, max = row->max;
  switch (row->type) {
  case TUTTI_SETTING_INT:
    snprintf(out, size, "accepted: a whole number from %lld to %lld", min, max);
    break;
  case TUTTI_SETTING_BOOL:
    snprintf(out, size, "accepted: 0 or 1");
    break;
  case TUTTI_SETTING_SIZE:
    snprintf(out, size, "accepted: bytes from %lld to %lld, also with K, M or G", min, max);
    break;
  case TUTTI_SETTING_SECONDS:
    snprintf(out, size,
             "accepted: seconds from %lld to %lld, with decimals, or with a unit: 500ms, 30s, 10m",
             min / 1000, max / 1000);
    break;
  case TUTTI_SETTING_STRING:
    out[0] = '\0';
    break;
  }
}

/* ---- values in force ------------------------------------------------------------------------ */

/* Written under the lock, read by anyone. Each value is one word, so no reader sees half of it. */
static struct {
  tuttiAtomic64 number, string, origin; /* the latter two hold a const char * */
} inForce[TUTTI_SETTING_COUNT];
static tuttiAtomic32 loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
  int64_t number;
  const char *string, *origin;
} settingValue;

/* Strings handed out once stay for ever; the same text is kept once. */
typedef struct internedText {
  struct internedText *next;
  char text[];
} internedText;
static internedText *internedTexts;

/* The kept copy of `text`, NULL without memory. *isNew tells that it was not there before. */
static const char *intern(const char *text, bool *isNew) {
  *isNew = false;
  for (internedText *i = internedTexts; i != NULL; i = i->next)
    if (strcmp(i->text, text) == 0) return i->text;
  size_t size = strlen(text) + 1;
  internedText *added = malloc(sizeof(*added) + size);
  if (added == NULL) return NULL;
  memcpy(added->text, text, size);
  added->next = internedTexts;
  internedTexts = added;
  *isNew = true;
  return added->text;
}

/* The lines NCCL_NAME=value of nccl.conf, kept texts, as they were at the last load; under the
 * lock.
 */
#define CONF_LINES 128
static const char *confLines[CONF_LINES];
static int confCount;

static bool isOfVariable(const char *entry, const char *name) {
  size_t length = strlen(name);
  return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

static bool isNccl(const char *name) {
  return strncmp(name, NCCL_PREFIX, strlen(NCCL_PREFIX)) == 0;
}

/* NULL: it is not set, or empty. The environment comes before nccl.conf. */
static const char *setVariable(const char *name) {
  const char *text = name[0] != '\0' ? getenv(name) : NULL;
  if (text != NULL) return text[0] != '\0' ? text : NULL;
  for (int i = 0; i < confCount && isNccl(name); i++)
    if (isOfVariable(confLines[i], name)) return strchr(confLines[i], '=') + 1;
  return NULL;
}

typedef struct {
  tuttiResult_t code; /* tuttiSuccess: none */
  char text[FAULT_TEXT];
} settingFault;

static void setFault(settingFault *fault, tuttiResult_t code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void setFault(settingFault *fault, tuttiResult_t code, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(fault->text, sizeof(fault->text), fmt, args);
  va_end(args);
  fault->code = code;
}

/* Takes `text` of `variable` into *value; sets *fault instead if it is malformed. */
static void takeText(tuttiSettingId id, const char *variable, const char *text, settingValue *value,
                     settingFault *fault) {
  const tuttiSettingRow *row = &tuttiSettingTable[id];
  int64_t number = 0;
  const char *wrong = tuttiSettingParse(row, text, &number);
  if (wrong != NULL) {
    char accepted[128];
    describeAccepted(row, accepted, sizeof(accepted));
    setFault(fault, tuttiInvalidArgument, "%s=\"%.100s\" %s; %s", variable, text, wrong, accepted);
    return;
  }
  const char *acceptedWords = stringChecks[id] != NULL ? stringChecks[id](text) : NULL;
  if (acceptedWords != NULL) {
    setFault(fault, tuttiInvalidArgument, "%s=\"%.100s\" is unknown; %s", variable, text,
             acceptedWords);
    return;
  }
  bool isNew;
  const char *kept = intern(text, &isNew);
  if (kept == NULL)
    setFault(fault, tuttiSystemError, "cannot keep %s: no memory for its %zu bytes", variable,
             strlen(text));
  else
    *value = (settingValue){.number = number, .string = kept, .origin = variable};
}

/* What the environment says of one row; the default where it says nothing usable. *fault is set if
 * the TUTTI_ variable is malformed, *ncclFault if there is none and the NCCL_ variable is. */
static settingValue readRow(tuttiSettingId id, settingFault *fault, settingFault *ncclFault) {
  const tuttiSettingRow *row = &tuttiSettingTable[id];
  settingValue value = {.number = row->dflt, .string = row->dfltString, .origin = DEFAULT};
  const char *text;
  if ((text = setVariable(variables[id])) != NULL)
    takeText(id, variables[id], text, &value, fault);
  else if ((text = setVariable(row->ncclName)) != NULL)
    takeText(id, row->ncclName, text, &value, ncclFault);
  return value;
}

static void publish(const settingValue *values) {
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    tuttiStoreRelease(&inForce[id].number, (uint64_t)values[id].number);
    tuttiStoreRelease(&inForce[id].string, (uint64_t)(uintptr_t)values[id].string);
    tuttiStoreRelease(&inForce[id].origin, (uint64_t)(uintptr_t)values[id].origin);
  }
  tuttiLogConfigure(values[TUTTI_SETTING_DEBUG].string, values[TUTTI_SETTING_DEBUG_SUBSYS].string,
                    values[TUTTI_SETTING_DEBUG_FILE].string);
  tuttiStoreRelease32(&loaded, 1);
}

/* ---- unknown names -------------------------------------------------------------------------- */

#define NAME_LENGTH 64

/* Levenshtein distance without regard to case; names are cut at NAME_LENGTH. */
static int editDistance(const char *a, const char *b) {
  int lengthA = (int)strnlen(a, NAME_LENGTH), lengthB = (int)strnlen(b, NAME_LENGTH);
  int row[NAME_LENGTH + 1];
  for (int j = 0; j <= lengthB; j++)
    row[j] = j;
  for (int i = 1; i <= lengthA; i++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= lengthB; j++) {
      int differs = toupper((unsigned char)a[i - 1]) != toupper((unsigned char)b[j - 1]);
      int best = diagonal + differs;
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[lengthB];
}

const char *tuttiNearest(const char *word, const char *const *words, int n) {
  int least = (int)strnlen(word, NAME_LENGTH) / 2 + 1;
  const char *nearest = NULL;
  for (int i = 0; i < n; i++) {
    int distance = editDistance(word, words[i]);
    if (distance < least) least = distance, nearest = words[i];
  }
  return nearest;
}

/* The setting TUTTI_<name>, else the one that was meant; NULL if none is near. */
static const char *nearestSetting(const char *name) {
  const char *names[TUTTI_SETTING_COUNT], *alias = NULL;
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    const tuttiSettingRow *row = &tuttiSettingTable[id];
    names[id] = row->name;
    if (strcmp(row->name, name) == 0) return row->name;
    if (row->ncclName[0] != '\0' && strcasecmp(row->ncclName + strlen(NCCL_PREFIX), name) == 0)
      alias = row->name;
  }
  return alias != NULL ? alias : tuttiNearest(name, names, TUTTI_SETTING_COUNT);
}

/* Warns once of each different text that the log shows. */
static void warnOnce(const char *text) {
  if (!tuttiLogEnabled(TUTTI_LOG_WARN, 0)) return;
  bool isNew;
  intern(text, &isNew);
  if (isNew) TUTTI_WARN(ENV, "%s", text);
}

static void warnOfUnknown(void) {
  for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
    if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0) continue;
    const char *start = *entry + strlen(PREFIX);
    char name[NAME_LENGTH + 1], text[FAULT_TEXT];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(start, "="), start);
    const char *meant = nearestSetting(name);
    if (meant != NULL && strcmp(meant, name) == 0) continue;
    if (meant != NULL)
      snprintf(text, sizeof(text), PREFIX "%s is no setting; did you mean " PREFIX "%s?", name,
               meant);
    else
      snprintf(text, sizeof(text), PREFIX "%s is no setting; `tutti env` lists them", name);
    warnOnce(text);
  }
}

/* ---- nccl.conf ------------------------------------------------------------------------------ */

/* Keeps all lines but comments; what is malformed is told later, when the log is set up. */
static void readConf(const char *path) {
  char line[1024];
  bool isNew;
  FILE *file = fopen(path, "re");
  while (file != NULL && confCount < CONF_LINES && fgets(line, sizeof(line), file) != NULL) {
    char *start = (char *)skipSpace(line), *end = start + strlen(start);
    while (end > start && isspace((unsigned char)end[-1]))
      *--end = '\0';
    if (start[0] == '\0' || start[0] == '#') continue;
    if ((confLines[confCount] = intern(start, &isNew)) != NULL) confCount++;
  }
  if (file != NULL) fclose(file);
}

static void warnOfConf(void) {
  for (int i = 0; i < confCount; i++) {
    char text[FAULT_TEXT];
    if (isNccl(confLines[i]) && strchr(confLines[i], '=') != NULL) continue;
    snprintf(text, sizeof(text), "nccl.conf: \"%.100s\" is no NCCL_NAME=value; ignored",
             confLines[i]);
    warnOnce(text);
  }
}

/* The first file that names a variable counts: that of NCCL_CONF_FILE, or else of the user, then
 * the machine's. */
static void readConfs(void) {
  const char *named = getenv(CONF_VARIABLE), *home = getenv("HOME");
  char own[512];
  confCount = 0;
  snprintf(own, sizeof(own), "%s/.nccl.conf", home != NULL ? home : "");
  readConf(named != NULL ? named : own);
  readConf("/etc/nccl.conf");
}

static bool meansNothing(const char *entry) {
  if (!isNccl(entry)) return false;
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++)
    if (isOfVariable(entry, tuttiSettingTable[id].ncclName)) return false;
  return !isOfVariable(entry, CONF_VARIABLE);
}

/* One line about the NCCL_ variables that tutti has no use for. */
static void tellOfUseless(void) {
  char text[FAULT_TEXT] = "";
  size_t used = 0;
  bool isNew;
  if (!tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(ENV))) return;
  for (int i = 0; i < confCount || environ[i - confCount] != NULL; i++) {
    const char *entry = i < confCount ? confLines[i] : environ[i - confCount];
    if (!meansNothing(entry) || used >= sizeof(text)) continue;
    used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%.*s", used ? ", " : "",
                             (int)strcspn(entry, "="), entry);
  }
  if (used == 0 || intern(text, &isNew) == NULL || !isNew) return;
  TUTTI_INFO(ENV, "set, but without a meaning here: %s; `tutti env` lists what is honoured", text);
}

/* ---- loading -------------------------------------------------------------------------------- */

/* A malformed NCCL_ variable may be meant for another library, so it is no failure. */
static void warnOfIgnored(void) {
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    settingFault fault = {0}, ncclFault = {0};
    readRow((tuttiSettingId)id, &fault, &ncclFault);
    if (ncclFault.code == tuttiSuccess) continue;
    char text[FAULT_TEXT + 64];
    snprintf(text, sizeof(text), "%s; ignored, %s has its default", ncclFault.text, variables[id]);
    warnOnce(text);
  }
}

/* Reads the environment, under the lock. The first malformed TUTTI_ variable is told in *fault; its
 * row has the default if `tolerant`, else nothing changes. */
static void load(bool tolerant, settingFault *fault) {
  settingValue values[TUTTI_SETTING_COUNT];
  fault->code = tuttiSuccess;
  readConfs();
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    settingFault later, ncclFault;
    values[id] =
        readRow((tuttiSettingId)id, fault->code == tuttiSuccess ? fault : &later, &ncclFault);
  }
  if (fault->code != tuttiSuccess && !tolerant) return;
  publish(values);
  warnOfIgnored();
  warnOfUnknown();
  warnOfConf();
  tellOfUseless();
}

/* First use, where no failure can be returned: what is malformed has its default until
 * tuttiSettingsLoad, which every communicator calls, reports it. The log is set up in any case, so
 * that the report is seen. */
static void loadFirst(void) {
  settingFault fault;
  pthread_mutex_lock(&lock);
  if (tuttiLoadAcquire32(&loaded) == 0) load(true, &fault);
  pthread_mutex_unlock(&lock);
}

static void ensureLoaded(void) {
  if (tuttiLoadAcquire32(&loaded) == 0) loadFirst();
}

tuttiResult_t tuttiSettingsLoad(void) {
  settingFault fault;
  ensureLoaded();
  pthread_mutex_lock(&lock);
  load(false, &fault);
  pthread_mutex_unlock(&lock);
  return fault.code == tuttiSuccess ? tuttiSuccess : TUTTI_FAIL(fault.code, "%s", fault.text);
}

int64_t tuttiSettingInt(tuttiSettingId id) {
  ensureLoaded();
  return (int64_t)tuttiLoadAcquire(&inForce[id].number);
}

const char *tuttiSettingString(tuttiSettingId id) {
  ensureLoaded();
  return (const char *)(uintptr_t)tuttiLoadAcquire(&inForce[id].string);
}

const char *tuttiSettingOrigin(tuttiSettingId id) {
  ensureLoaded();
  return (const char *)(uintptr_t)tuttiLoadAcquire(&inForce[id].origin);
}
