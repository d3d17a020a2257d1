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
#include "base/os.h"

#define PREFIX        "TUTTI_"
#define NCCL_PREFIX   "NCCL_"
#define CONF_VARIABLE "NCCL_CONF_FILE"
#define DEFAULT       "default"
#define FAULT_TEXT    512

#define INT_DEFAULT(value)     .dflt = (value), .dfltString = ""
#define BOOL_DEFAULT(value)    INT_DEFAULT(value)
#define SIZE_DEFAULT(value)    INT_DEFAULT(value)
#define SECONDS_DEFAULT(value) INT_DEFAULT(value)
#define STRING_DEFAULT(value)  .dfltString = (value)
#define FILE_DEFAULT(value)    STRING_DEFAULT(value)

const tuttiSettingRow tuttiSettingTable[TUTTI_SETTING_COUNT] = {
#define SETTING(ident, settingName, settingType, value, least, most, nccl, text)                   \
  [TUTTI_SETTING_##ident] = {.name = (settingName),                                                \
                             .variable = PREFIX settingName,                                       \
                             .ncclName = (nccl),                                                   \
                             .help = (text),                                                       \
                             .type = TUTTI_SETTING_##settingType,                                  \
                             .min = (least),                                                       \
                             .max = (most),                                                        \
                             settingType##_DEFAULT(value)},
#include "base/settings.def"
#undef SETTING
};

/* ---- strings that are accepted by some settings only ---------------------------------------- */

static const char *checkDevice(const char *text) {
  bool known = !strcmp(text, "auto") || !strcmp(text, "host") || !strcmp(text, "cuda");
  return known ? NULL : "accepted: auto, host or cuda";
}

static const char *checkFamily(const char *text) {
  bool known = !strcmp(text, "AF_INET") || !strcmp(text, "AF_INET6");
  return known ? NULL : "accepted: AF_INET or AF_INET6";
}

static const char *checkLevel(const char *text) {
  static const char words[] = "LOC PIX PXB PHB SYS";
  bool word = strlen(text) == 3 && strchr(text, ' ') == NULL && strstr(words, text) != NULL;
  bool number = isdigit((unsigned char)text[0]) && text[1] == '\0';
  return word || number ? NULL : "accepted: LOC, PIX, PXB, PHB or SYS, or NCCL's 0 to 4 for these";
}

static const char *checkGdr(const char *text) {
  bool known = !strcmp(text, "auto") || !strcmp(text, "off") || !strcmp(text, "require");
  return known ? NULL : "accepted: auto, off or require";
}

static const char *checkRead(const char *text) {
  bool known = !strcmp(text, "auto") || !strcmp(text, "0") || !strcmp(text, "1");
  return known ? NULL : "accepted: 0, 1 or auto";
}

static const char *checkFlush(const char *text) {
  bool known = !strcmp(text, "auto") || !strcmp(text, "on") || !strcmp(text, "off");
  return known ? NULL : "accepted: auto, on or off";
}

static const char *checkOrder(const char *text) {
  bool known = !strcmp(text, "auto") || !strcmp(text, "writes") || !strcmp(text, "immediate");
  return known ? NULL : "accepted: auto, writes or immediate";
}

/* NCCL's 2 is auto. */
static const char *checkRelaxed(const char *text) {
  bool known = !strcmp(text, "auto") || (strchr("012", text[0]) && text[0] && !text[1]);
  return known ? NULL : "accepted: 0, 1 or auto";
}

static const char *checkNet(const char *text) {
  bool known = !strcasecmp(text, "IB") || !strcasecmp(text, "Socket");
  return known ? NULL : "accepted: IB or Socket";
}

/* What libnccl.so.2 can say: it has the calls of all of these. */
static const char *checkNcclVersion(const char *text) {
  int major, minor, patch, end = 0;
  bool version = sscanf(text, "%1d.%2d.%2d%n", &major, &minor, &patch, &end) == 3 && !text[end];
  bool digits = strspn(text, "0123456789.") == strlen(text);
  int code = version && digits && major == 2 ? minor * 100 + patch : 0;
  return code >= 1400 && code <= 3203 ? NULL : "accepted: 2.14.0 to 2.32.3";
}

/* Returns NULL, or what is accepted. */
static const char *(*const stringChecks[TUTTI_SETTING_COUNT])(const char *text) = {
    [TUTTI_SETTING_DEBUG] = tuttiLogCheckLevel,
    [TUTTI_SETTING_DEBUG_SUBSYS] = tuttiLogCheckSubsystems,
    [TUTTI_SETTING_DEVICE] = checkDevice,
    [TUTTI_SETTING_IB_ADDR_FAMILY] = checkFamily,
    [TUTTI_SETTING_IB_ORDER] = checkOrder,
    [TUTTI_SETTING_NCCL_VERSION] = checkNcclVersion,
    [TUTTI_SETTING_NET] = checkNet,
    [TUTTI_SETTING_NET_GDR] = checkGdr,
    [TUTTI_SETTING_NET_GDR_FLUSH] = checkFlush,
    [TUTTI_SETTING_NET_GDR_LEVEL] = checkLevel,
    [TUTTI_SETTING_NET_GDR_READ] = checkRead,
    [TUTTI_SETTING_IB_PCI_RELAXED_ORDERING] = checkRelaxed,
    [TUTTI_SETTING_SOCKET_FAMILY] = checkFamily,
};

/* ---- numbers -------------------------------------------------------------------------------- */

/* How numbers of each type are written. A bare number is in the first unit. */
typedef struct {
  const char *wrong, *what, *also;
  bool isSigned, hasDecimals;
  struct {
    const char *suffix;
    int64_t factor;
  } units[8];
} notation;

static const notation notations[] = {
    [TUTTI_SETTING_INT] = {.wrong = "is not a whole number",
                           .what = "a whole number",
                           .also = "",
                           .isSigned = true,
                           .units = {{"", 1}}},
    [TUTTI_SETTING_BOOL] = {.wrong = "is not a whole number",
                            .what = "a whole number",
                            .also = "",
                            .isSigned = true,
                            .units = {{"", 1}}},
    [TUTTI_SETTING_SIZE] = {.wrong = "is not a size",
                            .what = "bytes",
                            .also = ", also with K, M or G",
                            .units = {{"", 1},
                                      {"K", 1 << 10},
                                      {"k", 1 << 10},
                                      {"M", 1 << 20},
                                      {"m", 1 << 20},
                                      {"G", 1 << 30},
                                      {"g", 1 << 30}}},
    [TUTTI_SETTING_SECONDS] = {.wrong = "is not a time",
                               .what = "seconds",
                               .also = ", with decimals, or with a unit: 500ms, 30s, 10m",
                               .hasDecimals = true,
                               .units = {{"", 1000}, {"s", 1000}, {"ms", 1}, {"m", 60000}}},
};
static const char outOfRange[] = "is out of range";

static const char *skipSpace(const char *p) {
  while (*p == ' ' || *p == '\t')
    p++;
  return p;
}

/* Takes the decimal digits at *p as *value and moves *p behind them. Not strtoll and strtod: these
 * follow the locale of the program and take more than a number. False on overflow. */
static bool readDigits(const char **p, int64_t *value) {
  for (*value = 0; isdigit((unsigned char)**p); (*p)++)
    if (__builtin_mul_overflow(*value, 10, value) ||
        __builtin_add_overflow(*value, **p - '0', value))
      return false;
  return true;
}

/* The factor of the unit that p ends with; 0 if it is none. */
static int64_t unitAt(const notation *n, const char *p) {
  size_t length = strcspn(p, " \t");
  if (*skipSpace(p + length) != '\0') return 0;
  for (int i = 0; n->units[i].suffix != NULL; i++)
    if (strlen(n->units[i].suffix) == length && strncmp(p, n->units[i].suffix, length) == 0)
      return n->units[i].factor;
  return 0;
}

/* A number as it is written: whole + decimals / scale, and its sign. */
typedef struct {
  bool negative;
  int64_t whole, decimals, scale;
} writtenNumber;

#define MAX_DECIMALS 9

/* Takes ".25", which need not be there, and moves *p behind it. Returns NULL, or what is wrong. */
static const char *readDecimals(const notation *n, const char **p, writtenNumber *number) {
  number->decimals = 0;
  number->scale = 1;
  if (!n->hasDecimals || **p != '.') return NULL;
  const char *first = ++*p;
  if (!readDigits(p, &number->decimals) || *p - first > MAX_DECIMALS)
    return "has too many decimals";
  if (*p == first) return n->wrong;
  for (; first < *p; first++)
    number->scale *= 10;
  return NULL;
}

/* Takes sign, digits and decimals at *p and moves *p behind them. Returns NULL, or what is wrong.
 */
static const char *readNumber(const notation *n, const char **p, writtenNumber *number) {
  number->negative = n->isSigned && **p == '-';
  if (number->negative || (n->isSigned && **p == '+')) (*p)++;
  if (!isdigit((unsigned char)**p)) return n->wrong;
  if (!readDigits(p, &number->whole)) return outOfRange;
  return readDecimals(n, p, number);
}

/* The number times `unit`, rounded up to a millisecond, so that a short time does not become 0,
 * which means none. False on overflow. */
static bool inUnits(const writtenNumber *n, int64_t unit, int64_t *value) {
  int64_t rest = (n->decimals * unit + n->scale - 1) / n->scale; /* under 1e9 * 6e4 + 1e9 */
  if (__builtin_mul_overflow(n->whole, unit, value)) return false;
  if (__builtin_add_overflow(*value, rest, value)) return false;
  if (n->negative) *value = -*value;
  return true;
}

const char *tuttiSettingParse(const tuttiSettingRow *row, const char *text, int64_t *out) {
  if (tuttiSettingIsText(row)) {
    *out = 0;
    return NULL;
  }
  const notation *n = &notations[row->type];
  const char *p = skipSpace(text);
  writtenNumber number = {0}; /* -O3 takes it for read before it is set */
  const char *wrong = readNumber(n, &p, &number);
  if (wrong != NULL) return wrong;
  int64_t value, unit = unitAt(n, p);
  if (unit == 0) return n->wrong;
  if (!inUnits(&number, unit, &value)) return outOfRange;
  if (value < row->min || value > row->max) return outOfRange;
  *out = value;
  return NULL;
}

/* Says what a row of numbers accepts. */
static void describeAccepted(const tuttiSettingRow *row, char *out, size_t size) {
  const notation *n = &notations[row->type];
  if (row->type == TUTTI_SETTING_BOOL)
    snprintf(out, size, "accepted: 0 or 1");
  else
    snprintf(out, size, "accepted: %s from %lld to %lld%s", n->what,
             (long long)(row->min / n->units[0].factor), (long long)(row->max / n->units[0].factor),
             n->also);
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

/* The lines NCCL_NAME=value of nccl.conf, kept texts, as at the last load; under the lock. */
#define CONF_LINES 128
#define CONF_BYTES (64 << 10) /* of a file */
static const char *confLines[CONF_LINES];
static int confCount;
/* What is wrong with the user's file and with the machine's, to be told when the log is set up. */
static char confFaults[2][FAULT_TEXT];

static bool isOfVariable(const char *entry, const char *name) {
  size_t length = strlen(name);
  return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

static bool isNccl(const char *name) {
  return strncmp(name, NCCL_PREFIX, strlen(NCCL_PREFIX)) == 0;
}

/* What names files is the business of whoever owns the rights. */
static bool isRefused(const tuttiSettingRow *row) {
  return row->type == TUTTI_SETTING_FILE && tuttiPrivileged();
}

/* One of the names of a row. NULL: it is not set, or empty. The environment comes before nccl.conf.
 */
static const char *setVariable(const tuttiSettingRow *row, const char *name) {
  const char *text = name[0] != '\0' && !isRefused(row) ? getenv(name) : NULL;
  if (text != NULL) return text[0] != '\0' ? text : NULL;
  for (int i = 0; i < confCount && isNccl(name); i++)
    if (isOfVariable(confLines[i], name)) return strchr(confLines[i], '=') + 1;
  return NULL;
}

static bool hasControl(const char *text) {
  while (*text != '\0' && !iscntrl((unsigned char)*text))
    text++;
  return *text != '\0';
}

/* Takes `text` of `variable` into *value, or says in `fault` what is wrong with it. */
static tuttiResult_t takeText(tuttiSettingId id, const char *variable, const char *text,
                              settingValue *value, char fault[FAULT_TEXT]) {
  int64_t number = 0;
  char range[128];
  const tuttiSettingRow *row = &tuttiSettingTable[id];
  const char *accepted = range, *wrong = tuttiSettingParse(row, text, &number);
  if (wrong != NULL) describeAccepted(row, range, sizeof(range));
  if (row->type == TUTTI_SETTING_STRING && hasControl(text)) {
    snprintf(fault, FAULT_TEXT, "%s has a control character; accepted: printable text", variable);
    return tuttiInvalidArgument;
  }
  if (stringChecks[id] != NULL && (accepted = stringChecks[id](text)) != NULL) wrong = "is unknown";
  if (wrong != NULL) {
    snprintf(fault, FAULT_TEXT, "%s=\"%.100s\" %s; %s", variable, text, wrong, accepted);
    return tuttiInvalidArgument;
  }
  bool isNew;
  const char *kept = intern(text, &isNew);
  if (kept == NULL) {
    snprintf(fault, FAULT_TEXT, "cannot keep %s: no memory for %zu bytes", variable, strlen(text));
    return tuttiSystemError;
  }
  *value = (settingValue){.number = number, .string = kept, .origin = variable};
  return tuttiSuccess;
}

/* What the environment says of one row; the default where it says nothing usable. If that is for a
 * malformed variable, `fault` is set; *own tells whether it is the TUTTI_ one. */
static tuttiResult_t readRow(tuttiSettingId id, settingValue *value, bool *own,
                             char fault[FAULT_TEXT]) {
  const tuttiSettingRow *row = &tuttiSettingTable[id];
  *value = (settingValue){.number = row->dflt, .string = row->dfltString, .origin = DEFAULT};
  const char *text = setVariable(row, row->variable);
  *own = text != NULL;
  if (!*own) text = setVariable(row, row->ncclName);
  if (text == NULL) return tuttiSuccess;
  return takeText(id, *own ? row->variable : row->ncclName, text, value, fault);
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
__attribute__((format(printf, 1, 2))) static void warnOnce(const char *fmt, ...) {
  char text[FAULT_TEXT + 64];
  bool isNew;
  if (!tuttiLogEnabled(TUTTI_LOG_WARN, 0)) return;
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof(text), fmt, args);
  va_end(args);
  intern(text, &isNew);
  if (isNew) TUTTI_WARN(ENV, "%s", text);
}

/* Variables with our prefix that others read: the Python package. */
static bool isOfOthers(const char *name) {
  return strcmp(name, "LIBRARY") == 0 || strcmp(name, "ENABLE") == 0;
}

static void warnOfUnknown(void) {
  for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
    if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0) continue;
    const char *start = *entry + strlen(PREFIX);
    char name[NAME_LENGTH + 1];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(start, "="), start);
    if (isOfOthers(name)) continue;
    const char *meant = nearestSetting(name);
    if (meant == NULL)
      warnOnce(PREFIX "%s is no setting; `tutti env` lists them", name);
    else if (strcmp(meant, name) != 0)
      warnOnce(PREFIX "%s is no setting; did you mean " PREFIX "%s?", name, meant);
  }
}

/* ---- nccl.conf ------------------------------------------------------------------------------ */

/* Keeps the lines NCCL_NAME=value of the `size` bytes, and says in `fault` where another is. The
 * file may be any: nothing of it is told but where. */
static void takeConf(const char *path, char *text, size_t size, char fault[FAULT_TEXT]) {
  int line = 0, wrong = 0, first = 0;
  bool isNew;
  for (char *start = text, *end; start < text + size && confCount < CONF_LINES; start = end + 1) {
    line++;
    end = memchr(start, '\n', (size_t)(text + size - start));
    if (end == NULL) end = text + size; /* where a terminator is */
    *end = '\0';
    char *entry = (char *)skipSpace(start), *last = entry + strlen(entry);
    while (last > entry && isspace((unsigned char)last[-1]))
      *--last = '\0';
    if (entry[0] == '\0' || entry[0] == '#') continue;
    if (isNccl(entry) && strchr(entry, '=') != NULL) {
      if ((confLines[confCount] = intern(entry, &isNew)) != NULL) confCount++;
    } else if (wrong++ == 0) {
      first = line;
    }
  }
  if (wrong > 0)
    snprintf(fault, FAULT_TEXT, "%.300s:%d is no NCCL_NAME=value%s; ignored", path, first,
             wrong > 1 ? ", and there are more such lines" : "");
}

/* What is wrong is told later, when the log is set up; that there is no file only if it was
 * `named`. */
static void readConf(const char *path, bool named, char fault[FAULT_TEXT]) {
  char why[TUTTI_WHY];
  size_t size;
  fault[0] = '\0';
  TUTTI_CLOSED int fd = tuttiOpenRegular(path, CONF_BYTES, &size, why);
  char *text = fd >= 0 ? malloc(size + 1) : NULL;
  if (text != NULL) {
    ssize_t got = tuttiReadAll(fd, text, size);
    if (got > 0) {
      text[got] = '\0';
      takeConf(path, text, (size_t)got, fault);
    }
    free(text);
  } else if (fd < 0 && (named || access(path, F_OK) == 0)) {
    snprintf(fault, FAULT_TEXT, "%s%.300s%s; not read", named ? CONF_VARIABLE "=" : "", path, why);
  }
}

static void warnOfConf(void) {
  for (int i = 0; i < 2; i++)
    if (confFaults[i][0] != '\0') warnOnce("%s", confFaults[i]);
}

/* The first file that names a variable counts: that of NCCL_CONF_FILE, or else of the user, then
 * the machine's. A program with more rights than its user reads the last alone. */
static void readConfs(void) {
  const char *named = getenv(CONF_VARIABLE), *home = getenv("HOME");
  char own[512];
  confCount = 0;
  confFaults[0][0] = '\0';
  snprintf(own, sizeof(own), "%s/.nccl.conf", home != NULL ? home : "");
  if (!tuttiPrivileged()) readConf(named != NULL ? named : own, named != NULL, confFaults[0]);
  readConf("/etc/nccl.conf", false, confFaults[1]);
}

/* One line about all that the environment may not say. */
static void warnOfRefused(void) {
  char names[FAULT_TEXT] = "";
  if (!tuttiPrivileged()) return;
  if (getenv(CONF_VARIABLE) != NULL) tuttiAppend(names, sizeof(names), CONF_VARIABLE);
  for (int id = 0; id < 2 * TUTTI_SETTING_COUNT; id++) {
    const tuttiSettingRow *row = &tuttiSettingTable[id / 2];
    const char *name = id % 2 == 0 ? row->variable : row->ncclName;
    if (name[0] == '\0' || !isRefused(row) || getenv(name) == NULL) continue;
    tuttiAppend(names, sizeof(names), "%s%s", names[0] != '\0' ? ", " : "", name);
  }
  if (names[0] != '\0')
    warnOnce("this program has more rights than its user (set-user-ID?), who may not name files: "
             "ignored are %s",
             names);
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
  bool isNew;
  if (!tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(ENV))) return;
  for (int i = 0; i < confCount || (environ != NULL && environ[i - confCount] != NULL); i++) {
    const char *entry = i < confCount ? confLines[i] : environ[i - confCount];
    if (meansNothing(entry))
      tuttiAppend(text, sizeof text, "%s%.*s", *text ? ", " : "", (int)strcspn(entry, "="), entry);
  }
  if (text[0] == '\0' || intern(text, &isNew) == NULL || !isNew) return;
  TUTTI_INFO(ENV, "set, but without a meaning here: %s; `tutti env` lists what is honoured", text);
}

/* ---- loading -------------------------------------------------------------------------------- */

/* A malformed NCCL_ variable may be meant for another library, so it is no failure. */
static void warnOfIgnored(void) {
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    settingValue value;
    bool own;
    char fault[FAULT_TEXT];
    if (readRow((tuttiSettingId)id, &value, &own, fault) != tuttiSuccess && !own)
      warnOnce("%s; ignored, %s has its default", fault, tuttiSettingTable[id].variable);
  }
}

/* Reads the environment, under the lock. Returns the fault of the first malformed TUTTI_ variable;
 * its row has the default if `tolerant`, else nothing changes. */
static tuttiResult_t load(bool tolerant, char fault[FAULT_TEXT]) {
  settingValue values[TUTTI_SETTING_COUNT];
  tuttiResult_t result = tuttiSuccess;
  readConfs();
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    bool own;
    char later[FAULT_TEXT];
    tuttiResult_t code =
        readRow((tuttiSettingId)id, &values[id], &own, result == tuttiSuccess ? fault : later);
    if (own && result == tuttiSuccess) result = code;
  }
  if (result != tuttiSuccess && !tolerant) return result;
  publish(values);
  warnOfIgnored();
  warnOfUnknown();
  warnOfConf();
  warnOfRefused();
  tellOfUseless();
  return result;
}

/* First use, where no failure can be returned: what is malformed has its default until
 * tuttiSettingsLoad, which every communicator calls, reports it. The log is set up in any case, so
 * that the report is seen. */
static void ensureLoaded(void) {
  char fault[FAULT_TEXT];
  if (tuttiLoadAcquire32(&loaded) != 0) return;
  TUTTI_LOCKED(&lock);
  if (tuttiLoadAcquire32(&loaded) == 0) load(true, fault);
}

__attribute__((constructor)) static void configureLogOnFirstUse(void) {
  tuttiLogConfigurator(ensureLoaded);
}

tuttiResult_t tuttiSettingsLoad(void) {
  char fault[FAULT_TEXT];
  ensureLoaded();
  TUTTI_LOCKED(&lock);
  tuttiResult_t result = load(false, fault);
  return result == tuttiSuccess ? tuttiSuccess : TUTTI_FAIL(result, "%s", fault);
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
