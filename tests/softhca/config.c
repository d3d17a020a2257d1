/* The configuration file: a word per line that says what it is, then name=value pairs.
 *
 *   fabric NAME | seed N | dmabuf yes|no
 *   device NAME [link=ib|roce] [ports=N] [subnet=HEX] [gbps=F] [latency_us=F]
 *               [down_ms=F] [up_ms=F] [removed_ms=F]     (down and up: its first port)
 *   fault lost|late|rnr|flip|refuse p=F [us=F] */
#include "hca.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quit(const char *file, int line, const char *what) {
  fprintf(stderr, "softhca: %s:%d: %s\n", file, line, what);
  exit(2);
}

static uint64_t after(double ms) {
  return ms > 0 ? (uint64_t)(ms * 1e6) : 0;
}

static bool deviceOption(softDeviceConfig *d, const char *name, const char *value) {
  if (strcmp(name, "link") == 0)
    d->roce = strcmp(value, "roce") == 0;
  else if (strcmp(name, "ports") == 0)
    d->nports = atoi(value);
  else if (strcmp(name, "removed_ms") == 0)
    d->removedAt = after(atof(value));
  else if (strcmp(name, "down_ms") == 0)
    d->ports[0].downAt = after(atof(value));
  else if (strcmp(name, "up_ms") == 0)
    d->ports[0].upAt = after(atof(value));
  else
    for (int i = 0; i < SOFT_MAX_PORTS; i++) {
      softPortConfig *p = &d->ports[i];
      if (strcmp(name, "subnet") == 0)
        p->subnet = strtoull(value, NULL, 16);
      else if (strcmp(name, "gbps") == 0)
        p->gbps = atof(value);
      else if (strcmp(name, "latency_us") == 0)
        p->latency = (uint64_t)(atof(value) * 1e3);
      else
        return false;
    }
  return d->nports >= 1 && d->nports <= SOFT_MAX_PORTS;
}

static softDeviceConfig *addDevice(softConfig *config, const char *name) {
  softDeviceConfig *d = &config->devices[config->ndevices++];
  *d = (softDeviceConfig){.nports = 1};
  snprintf(d->name, sizeof d->name, "%s", name);
  for (int i = 0; i < SOFT_MAX_PORTS; i++)
    d->ports[i].subnet = 0xfe80000000000000;
  return d;
}

static bool faultOption(softFaults *faults, const char *fault, const char *name, double value) {
  static const struct {
    const char *name;
    size_t at;
  } all[] = {{.name = "lost", .at = offsetof(softFaults, lost)},
             {.name = "late", .at = offsetof(softFaults, late)},
             {.name = "rnr", .at = offsetof(softFaults, rnr)},
             {.name = "flip", .at = offsetof(softFaults, flip)},
             {.name = "refuse", .at = offsetof(softFaults, refuse)}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(fault, all[i].name) != 0) continue;
    if (strcmp(name, "us") == 0)
      faults->lateBy = (uint64_t)(value * 1e3);
    else if (strcmp(name, "p") == 0)
      *(double *)((char *)faults + all[i].at) = value;
    else
      return false;
    return true;
  }
  return false;
}

/* One line, without its end; false: it says nothing that is known. */
static bool readLine(softConfig *config, char *line) {
  char *rest = NULL, *word = strtok_r(line, " \t", &rest), *second = strtok_r(NULL, " \t", &rest);
  softDeviceConfig *device = NULL;
  if (!word || *word == '#') return true;
  if (!second) return false;
  if (strcmp(word, "fabric") == 0) {
    snprintf(config->fabric, sizeof config->fabric, "%s", second);
  } else if (strcmp(word, "seed") == 0) {
    config->seed = strtoull(second, NULL, 0);
  } else if (strcmp(word, "dmabuf") == 0) {
    config->dmabuf = strcmp(second, "yes") == 0;
  } else if (strcmp(word, "peermem") == 0) {
    config->peermem = strcmp(second, "yes") == 0;
  } else if (strcmp(word, "direct") == 0) {
    config->direct = strcmp(second, "yes") == 0;
  } else if (strcmp(word, "movers") == 0) {
    config->movers = atoi(second);
  } else if (strcmp(word, "device") == 0) {
    if (config->ndevices == SOFT_MAX_DEVICES) return false;
    device = addDevice(config, second);
  } else if (strcmp(word, "fault") != 0) {
    return false;
  }
  for (char *option; (option = strtok_r(NULL, " \t", &rest));) {
    char *value = strchr(option, '=');
    if (!value) return false;
    *value++ = '\0';
    if (device ? !deviceOption(device, option, value)
               : !faultOption(&config->faults, second, option, atof(value)))
      return false;
  }
  return true;
}

void softConfigRead(softConfig *config) {
  const char *path = getenv("SOFTHCA_CONFIG");
  char line[512];
  *config = (softConfig){
      .fabric = "default", .seed = 1, .dmabuf = true, .movers = 1, .ringBytes = 4 << 20};
  FILE *file = path ? fopen(path, "re") : NULL;
  if (path && !file) quit(path, 0, "cannot be read");
  for (int n = 1; file && fgets(line, sizeof line, file); n++) {
    line[strcspn(line, "\n")] = '\0';
    if (!readLine(config, line)) quit(path, n, "is not understood");
  }
  if (file) fclose(file);
  if (config->ndevices == 0) addDevice(config, "softhca0");
}
