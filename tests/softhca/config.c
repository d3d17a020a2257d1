/* The configuration: a word per line that says what it is, then name=value pairs (README.md). */
#include "hca.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values --------------------------------------------------------------------------------- */

typedef enum {
  FLAG,
  COUNT,
  HEX,
  REAL,
  MICROSECONDS,
  MILLISECONDS,
  MEBIBYTES,
  LINK,
  SPEED,
  PKEYS,
  TEXT
} Kind;

/* A named value of some struct. */
typedef struct {
  const char *name;
  Kind kind;
  size_t at;
  double least, most;
} Option;

static bool readCount(const char *text, int base, const Option *o, uint64_t *out) {
  char *end;
  errno = 0;
  *out = strtoull(text, &end, base);
  return *text && *text != '-' && !*end && !errno && (double)*out >= o->least &&
         (double)*out <= o->most;
}

static bool readReal(const char *text, const Option *o, double *out) {
  char *end;
  *out = strtod(text, &end);
  return *text && !*end && isfinite(*out) && *out >= o->least && *out <= o->most;
}

/* One of two words, as a bool. */
static bool readChoice(const char *text, const char *no, const char *yes, bool *out) {
  *out = strcmp(text, yes) == 0;
  return *out || strcmp(text, no) == 0;
}

static bool readSpeed(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    uint64_t code;
  } speeds[] = {{"sdr", 1},  {"ddr", 2},  {"qdr", 4},  {"fdr10", 8},
                {"fdr", 16}, {"edr", 32}, {"hdr", 64}, {"ndr", 128}};
  for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
    if (strcmp(text, speeds[i].name) == 0) {
      *out = speeds[i].code;
      return true;
    }
  return false;
}

/* Keys in hexadecimal, with commas between them. */
static bool readPkeys(const char *text, softPkeys *out) {
  out->n = 0;
  for (const char *at = text;; at++) {
    char *end;
    unsigned long key = strtoul(at, &end, 16);
    if (end == at || *at == '-' || !(key & 0x7fff) || key > 0xffff || out->n == SOFT_MAX_PKEYS)
      return false;
    out->key[out->n++] = (uint16_t)key;
    if (!*end) return true;
    if (*end != ',') return false;
    at = end;
  }
}

static bool readTime(const char *text, const Option *o, double unit, uint64_t *out) {
  double value;
  if (!readReal(text, o, &value)) return false;
  *out = (uint64_t)(value * unit);
  return true;
}

static bool readValue(const Option *o, const char *text, void *base) {
  void *to = (char *)base + o->at;
  uint64_t count;
  switch (o->kind) {
  case FLAG:
    return readChoice(text, "no", "yes", to);
  case LINK:
    return readChoice(text, "ib", "roce", to);
  case COUNT:
    return readCount(text, 10, o, to);
  case HEX:
    return readCount(text, 16, o, to);
  case REAL:
    return readReal(text, o, to);
  case MICROSECONDS:
    return readTime(text, o, 1e3, to);
  case MILLISECONDS:
    return readTime(text, o, 1e6, to);
  case MEBIBYTES:
    if (!readCount(text, 10, o, &count)) return false;
    *(uint64_t *)to = count << 20;
    return true;
  case SPEED:
    return readSpeed(text, to);
  case PKEYS:
    return readPkeys(text, to);
  case TEXT:
    return snprintf(to, (size_t)o->most, "%s", text) < (int)o->most;
  }
  return false;
}

/* ---- what there is -------------------------------------------------------------------------- */

#define LONG 1e9 /* microseconds or milliseconds; no test waits so long */

static const Option globals[] = {
    {"fabric", TEXT, offsetof(softConfig, fabric), 0, sizeof((softConfig *)0)->fabric},
    {"counters", TEXT, offsetof(softConfig, counters), 0, sizeof((softConfig *)0)->counters},
    {"seed", COUNT, offsetof(softConfig, seed), 0, 1e18},
    {"dmabuf", FLAG, offsetof(softConfig, dmabuf), 0, 0},
    {"peermem", FLAG, offsetof(softConfig, peermem), 0, 0},
    {"direct", FLAG, offsetof(softConfig, direct), 0, 0},
    {"offload", FLAG, offsetof(softConfig, offload), 0, 0},
    {"movers", COUNT, offsetof(softConfig, movers), 1, SOFT_MAX_MOVERS},
    {"staging_mib", MEBIBYTES, offsetof(softConfig, staging), 1, 1024},
    {"reorder_us", MICROSECONDS, offsetof(softConfig, reorder), 0, LONG},
    {"relaxing", FLAG, offsetof(softConfig, relaxing), 0, 0},
    {"relaxed_us", MICROSECONDS, offsetof(softConfig, relaxed), 0, LONG},
    {"invisible_ms", MILLISECONDS, offsetof(softConfig, invisible), 0, LONG},
};

static const Option deviceOptions[] = {
    {"link", LINK, offsetof(softDeviceConfig, roce), 0, 0},
    {"ports", COUNT, offsetof(softDeviceConfig, nports), 1, SOFT_MAX_PORTS},
    {"max_inline", COUNT, offsetof(softDeviceConfig, maxInline), 0, SOFT_MAX_INLINE},
    {"max_cqe", COUNT, offsetof(softDeviceConfig, maxCqe), 1, SOFT_MAX_CQE},
    {"pci", TEXT, offsetof(softDeviceConfig, pci), 0, sizeof((softDeviceConfig *)0)->pci},
    {"model", COUNT, offsetof(softDeviceConfig, model), 0, UINT32_MAX},
    {"numa", COUNT, offsetof(softDeviceConfig, numa), 0, 1023},
    {"removed_ms", MILLISECONDS, offsetof(softDeviceConfig, removedAt), 0, LONG},
    {"removed_frames", COUNT, offsetof(softDeviceConfig, removedFrames), 1, 1e18},
    {"removed_calls", COUNT, offsetof(softDeviceConfig, removedCalls), 1, 1e18},
};

static const Option portOptions[] = {
    {"subnet", HEX, offsetof(softPortConfig, subnet), 0, 2e19},
    {"lid", COUNT, offsetof(softPortConfig, lid), 1, 0xbfff},
    {"gids", COUNT, offsetof(softPortConfig, gids), 1, SOFT_MAX_GIDS},
    {"pkeys", PKEYS, offsetof(softPortConfig, pkeys), 0, 0},
    {"mtu", COUNT, offsetof(softPortConfig, mtu), 256, 4096},
    {"speed", SPEED, offsetof(softPortConfig, speed), 0, 0},
    {"width", COUNT, offsetof(softPortConfig, width), 1, 12},
    {"gbps", REAL, offsetof(softPortConfig, gbps), 0, 1e6},
    {"latency_us", MICROSECONDS, offsetof(softPortConfig, latency), 0, LONG},
    {"down_ms", MILLISECONDS, offsetof(softPortConfig, downAt), 0, LONG},
    {"down_frames", COUNT, offsetof(softPortConfig, downFrames), 1, 1e18},
    {"up_ms", MILLISECONDS, offsetof(softPortConfig, upAt), 0, LONG},
};

static const Option faultOptions[] = {
    {"p", REAL, offsetof(softFault, p), 0, 1},
    {"nth", COUNT, offsetof(softFault, nth), 1, 1e18},
    {"us", MICROSECONDS, offsetof(softFault, by), 0, LONG},
    {"icrc", FLAG, offsetof(softFault, icrc), 0, 0},
    {"bytes", COUNT, offsetof(softFault, least), 1, 1e18},
};

/* The names of faults; the other members tell nothing. */
static const Option faults[] = {
    {"lost", TEXT, offsetof(softFaults, lost), 0, 0},
    {"late", TEXT, offsetof(softFaults, late), 0, 0},
    {"flip", TEXT, offsetof(softFaults, flip), 0, 0},
    {"rnr", TEXT, offsetof(softFaults, rnr), 0, 0},
    {"refuse", TEXT, offsetof(softFaults, refuse), 0, 0},
    {"cut", TEXT, offsetof(softFaults, cut), 0, 0},
    {"completion", TEXT, offsetof(softFaults, completion), 0, 0},
    {"poll", TEXT, offsetof(softFaults, poll), 0, 0},
    {"completion_lost", TEXT, offsetof(softFaults, completionLost), 0, 0},
    {"completion_again", TEXT, offsetof(softFaults, completionAgain), 0, 0},
};

static const Option *find(const Option *options, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(options[i].name, name) == 0) return &options[i];
  return NULL;
}
#define FIND(options, name) find(options, sizeof(options) / sizeof *(options), name)

/* ---- lines ---------------------------------------------------------------------------------- */

/* What a line's name=value pairs are set in: those of `table` once, those of ports in each port. */
typedef struct {
  const Option *table;
  size_t n;
  void *base;
  softPortConfig *ports;
  size_t nports;
} Target;

static bool setPair(const Target *t, char *pair) {
  char *value = strchr(pair, '=');
  if (!value) return false;
  *value++ = '\0';
  const Option *o = find(t->table, t->n, pair);
  if (o) return readValue(o, value, t->base);
  o = t->nports ? FIND(portOptions, pair) : NULL;
  for (size_t i = 0; o && i < t->nports; i++)
    if (!readValue(o, value, &t->ports[i])) return false;
  return o;
}

/* The device of that name, which a second line about it says more of. */
static softDeviceConfig *addDevice(softConfig *config, const char *name) {
  for (int i = 0; i < config->ndevices; i++)
    if (strcmp(config->devices[i].name, name) == 0) return &config->devices[i];
  if (config->ndevices == SOFT_MAX_DEVICES) return NULL;
  softDeviceConfig *d = &config->devices[config->ndevices++];
  *d =
      (softDeviceConfig){.nports = 1, .maxInline = 256, .maxCqe = SOFT_MAX_CQE, .numa = UINT64_MAX};
  snprintf(d->name, sizeof d->name, "%s", name);
  for (int i = 0; i < SOFT_MAX_PORTS; i++)
    d->ports[i] = (softPortConfig){
        .subnet = 0xfe80000000000000, .pkeys = {1, {0xffff}}, .mtu = 4096, .width = 4};
  return d;
}

/* The port of a device that is there: NAME/N. */
static softPortConfig *findPort(softConfig *config, char *name) {
  char *number = strchr(name, '/');
  if (!number) return NULL;
  *number++ = '\0';
  for (int i = 0; i < config->ndevices; i++) {
    softDeviceConfig *d = &config->devices[i];
    int port = atoi(number);
    if (strcmp(d->name, name) == 0)
      return port >= 1 && (uint64_t)port <= d->nports ? &d->ports[port - 1] : NULL;
  }
  return NULL;
}

#define TARGET(table_, base_)                                                                      \
  .table = (table_), .n = sizeof(table_) / sizeof *(table_), .base = (base_)

/* What a line that begins so is about; false: nothing that is known. */
static bool aim(softConfig *config, const char *word, char *name, Target *t) {
  if (strcmp(word, "device") == 0) {
    softDeviceConfig *d = addDevice(config, name);
    if (!d) return false;
    *t = (Target){TARGET(deviceOptions, d), .ports = d->ports, .nports = SOFT_MAX_PORTS};
    return true;
  }
  if (strcmp(word, "port") == 0) {
    softPortConfig *p = findPort(config, name);
    *t = (Target){TARGET(portOptions, p)};
    return p;
  }
  const Option *fault = strcmp(word, "fault") == 0 ? FIND(faults, name) : NULL;
  if (fault) *t = (Target){TARGET(faultOptions, (char *)&config->faults + fault->at)};
  return fault;
}

/* One line, without its end. */
static bool readLine(softConfig *config, char *line) {
  char *rest = NULL, *word = strtok_r(line, " \t", &rest), *second = strtok_r(NULL, " \t", &rest);
  Target target;
  if (!word || *word == '#') return true;
  if (!second) return false;
  const Option *global = FIND(globals, word);
  if (global) return readValue(global, second, config) && !strtok_r(NULL, " \t", &rest);
  if (!aim(config, word, second, &target)) return false;
  for (char *pair; (pair = strtok_r(NULL, " \t", &rest));)
    if (!setPair(&target, pair)) return false;
  return true;
}

static void readOrQuit(softConfig *config, const char *where, int number, const char *text) {
  char line[512];
  if (snprintf(line, sizeof line, "%s", text) < (int)sizeof line && readLine(config, line)) return;
  fprintf(stderr, "softhca: %s:%d: not understood: %s\n", where, number, text);
  exit(2);
}

static void readFile(softConfig *config, const char *path) {
  char line[512];
  FILE *file = fopen(path, "re");
  if (!file) {
    fprintf(stderr, "softhca: %s: %s\n", path, strerror(errno));
    exit(2);
  }
  for (int n = 1; fgets(line, sizeof line, file); n++) {
    line[strcspn(line, "\n")] = '\0';
    readOrQuit(config, path, n, line);
  }
  fclose(file);
}

void softConfigRead(softConfig *config) {
  const char *path = getenv("SOFTHCA_CONFIG"), *more = getenv("SOFTHCA_MORE");
  *config = (softConfig){.fabric = "default",
                         .seed = 1,
                         .dmabuf = true,
                         .relaxing = true,
                         .movers = 1,
                         .staging = 4 << 20};
  if (path) readFile(config, path);
  char *copy = more ? strdup(more) : NULL, *rest = NULL;
  for (char *line = copy ? strtok_r(copy, ";", &rest) : NULL; line;
       line = strtok_r(NULL, ";", &rest))
    readOrQuit(config, "SOFTHCA_MORE", 1, line);
  free(copy);
  if (config->ndevices == 0) addDevice(config, "softhca0");
}
