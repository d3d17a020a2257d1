/* Writes a recording: only what is listed here goes into it, and of that nothing which tells one
 * machine or its place in a network from others of its kind. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "doctor/machine.h"
#include "doctor/recording.h"
#include "transport/ib/wire.h"

#define SEEN_GIDS    1024
#define PCI_BYTES    4096 /* of a configuration */
#define PCI_EXTENDED 0x100
#define PCI_FIRST    0x34 /* place of the first of the older capabilities */
#define PCI_EXPRESS  0x10
#define PCI_ACS      0x0d
#define PCI_ATS      0x0f

typedef struct {
  char dir[TUTTI_RECORDING_PATH], name[NAME_MAX + 1];
  char mark[3];
  char *value;
} entry;

typedef struct {
  char digits[2 * 8 + 1];
} hardwareAddress;

typedef struct {
  const tuttiMachine *m;
  entry *entries;
  int count, capacity;
  char (*gids)[40]; /* [ngids] those seen so far: the place is what replaces them */
  int ngids;
  hardwareAddress *addresses; /* [naddresses], in order, those in names; so are their numbers */
  int naddresses, addressesCapacity;
} recorder;

/* How a path is recorded: nothing is done about one that is not there. */
typedef tuttiResult_t (*recordPath)(recorder *r, const char *dir, const char *name);

/* ---- entries -------------------------------------------------------------------------------- */

static tuttiResult_t add(recorder *r, const char *dir, const char *name, const char *mark,
                         const char *value) {
  if (strlen(dir) >= TUTTI_RECORDING_PATH || strlen(name) > NAME_MAX) return tuttiSuccess;
  TUTTI_TRY(tuttiGrow((void **)&r->entries, r->count, &r->capacity, sizeof *r->entries,
                      "lines of a recording", NULL));
  entry *e = &r->entries[r->count];
  snprintf(e->dir, sizeof e->dir, "%s", dir);
  snprintf(e->name, sizeof e->name, "%s", name);
  snprintf(e->mark, sizeof e->mark, "%s", mark);
  TUTTI_NEW(e->value, strlen(value) + 1, "a line of a recording", NULL);
  snprintf(e->value, strlen(value) + 1, "%s", value);
  r->count++;
  return tuttiSuccess;
}

static int byPlace(const void *a, const void *b) {
  const entry *x = a, *y = b;
  int order = strcmp(x->dir, y->dir);
  return order ? order : strcmp(x->name, y->name);
}

/* ---- kinds of files ------------------------------------------------------------------------- */

/* "DIR/NAME" in the machine. */
static const char *join(const char *dir, const char *name, char path[PATH_MAX]) {
  if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX) path[0] = '\0';
  return path;
}

static tuttiResult_t recordText(recorder *r, const char *dir, const char *name) {
  char path[PATH_MAX], text[TUTTI_RECORDING_TEXT / 2];
  if (!tuttiMachineRead(r->m, join(dir, name, path), text, sizeof text)) return tuttiSuccess;
  for (char *c = text; *c; c++)
    if (((unsigned char)*c < ' ' && *c != '\n' && *c != '\t') || (unsigned char)*c >= 0x7f)
      *c = '?';
  return add(r, dir, name, "=", text);
}

/* What is a device, or a file of which only its presence counts. */
static tuttiResult_t recordAccess(recorder *r, const char *dir, const char *name) {
  char path[PATH_MAX], number[16];
  int err = tuttiMachineAccess(r->m, join(dir, name, path));
  if (err == ENOENT) return tuttiSuccess;
  snprintf(number, sizeof number, "%d", err);
  return err ? add(r, dir, name, "!", number) : add(r, dir, name, "=", "");
}

/* A link, from the directory where it really lies to what it really means. */
static tuttiResult_t recordLink(recorder *r, const char *dir, const char *name) {
  char path[PATH_MAX], full[PATH_MAX], real[PATH_MAX], target[PATH_MAX] = "";
  size_t root = strlen(r->m->root), same = 0;
  if (!tuttiMachineLink(r->m, join(dir, name, path), target, sizeof target) ||
      realpath(tuttiMachinePath(r->m, path, full), real) == NULL ||
      strncmp(real, r->m->root, root) != 0 || real[root] != '/')
    return tuttiSuccess;
  const char *to = real + root + 1;
  for (size_t i = 0; dir[i] == to[i] || (dir[i] == '\0' && to[i] == '/'); i++) {
    if (to[i] == '/') same = i + 1;
    if (dir[i] == '\0') break;
  }
  target[0] = '\0';
  if (same <= strlen(dir)) tuttiAppend(target, sizeof target, "../");
  for (const char *c = dir + (same <= strlen(dir) ? same : strlen(dir)); *c; c++)
    if (*c == '/') tuttiAppend(target, sizeof target, "../");
  tuttiAppend(target, sizeof target, "%s", to + same);
  return add(r, dir, name, "->", target);
}

/* ---- what must not be told ------------------------------------------------------------------ */

/* Of an address its kind is kept; the rest becomes a number, the same for the same address. */
static tuttiResult_t recordGid(recorder *r, const char *dir, const char *name) {
  char path[PATH_MAX], attributes[PATH_MAX], gid[48], shown[48];
  if (!tuttiMachineRead(r->m, join(dir, name, path), gid, sizeof gid) || strlen(gid) != 39 ||
      strspn(gid, "0:") == 39 || strcmp(gid + 20, "0000:0000:0000:0000") == 0)
    return tuttiSuccess; /* an empty row */
  int number = 0;
  while (number < r->ngids && strcmp(r->gids[number], gid) != 0)
    number++;
  if (number == SEEN_GIDS) return tuttiSuccess;
  if (number == r->ngids) memcpy(r->gids[r->ngids++], gid, sizeof *r->gids);
  number++;
  if (strncmp(gid, "0000:0000:0000:0000:0000:ffff:", 30) == 0)
    snprintf(shown, sizeof shown, "0000:0000:0000:0000:0000:ffff:%s:%04x",
             strncmp(gid + 30, "a9fe", 4) == 0 ? "a9fe" : "0a00", (unsigned)number);
  else
    snprintf(shown, sizeof shown, "%s:0000:0000:0000:0000:0000:0000:%04x",
             strncmp(gid, "fe80", 4) == 0 ? "fe80" : "fd00", (unsigned)number);
  TUTTI_TRY(add(r, dir, name, "=", shown));
  for (size_t i = 0; i < 2; i++) {
    snprintf(attributes, sizeof attributes, "%.*s/gid_attrs/%s", (int)(strrchr(dir, '/') - dir),
             dir, i ? "ndevs" : "types");
    TUTTI_TRY(recordText(r, attributes, name));
  }
  return tuttiSuccess;
}

/* The digits of the next hardware address in a text that is part of a name, as systemd and
 * rdma-core give them: "enx0a1b2c3d4e5f", "rocex0a1b2c3d4e5f6071", also where the library cuts
 * that. NULL: there is none. */
static char *addressIn(char *text, size_t *length) {
  static const char *const kinds[] = {"en", "wl", "ww", "sl", "ib", "roce", "iw", "opa"};
  for (char *x = strchr(text, 'x'); x != NULL; x = strchr(x + 1, 'x')) {
    char *kind = x;
    while (kind > text && isalnum((unsigned char)kind[-1]))
      kind--;
    *length = strspn(x + 1, "0123456789abcdef");
    bool cut = (size_t)(x - kind) + 1 + *length == sizeof((tuttiIbPort *)0)->device - 1;
    bool whole = *length == 12 || *length == 16;
    if ((!whole && !cut) || isalnum((unsigned char)x[1 + *length])) continue;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
      if (strlen(kinds[i]) == (size_t)(x - kind) && strncmp(kind, kinds[i], strlen(kinds[i])) == 0)
        return x + 1;
  }
  return NULL;
}

/* The shorter ones first, so that a recording of a recording has the same order. */
static int byDigits(const void *a, const void *b) {
  const hardwareAddress *x = a, *y = b;
  size_t length = strlen(x->digits), other = strlen(y->digits);
  return length == other ? strcmp(x->digits, y->digits) : length < other ? -1 : 1;
}

static tuttiResult_t noteAddresses(recorder *r, char *text) {
  size_t length;
  for (char *at = text; (at = addressIn(at, &length)) != NULL; at += length) {
    hardwareAddress new;
    snprintf(new.digits, sizeof new.digits, "%.*s", (int)length, at);
    int i = r->naddresses;
    while (i > 0 && byDigits(&r->addresses[i - 1], &new) > 0)
      i--;
    if (i > 0 && byDigits(&r->addresses[i - 1], &new) == 0) continue;
    TUTTI_TRY(tuttiGrow((void **)&r->addresses, r->naddresses, &r->addressesCapacity,
                        sizeof *r->addresses, "addresses in names", NULL));
    memmove(&r->addresses[i + 1], &r->addresses[i],
            (size_t)(r->naddresses - i) * sizeof *r->addresses);
    r->addresses[i] = new;
    r->naddresses++;
  }
  return tuttiSuccess;
}

/* Puts their numbers in the place of addresses: at the front, so that those of names that are cut
 * stay, and with zeros behind, so that all names keep their lengths and their order. */
static void hideAddresses(const recorder *r, char *text) {
  size_t length;
  char number[16];
  for (char *at = text; (at = addressIn(at, &length)) != NULL; at += length) {
    int i = r->naddresses - 1; /* from the longest on: a cut one has the number of the whole */
    while (i > 0 && strncmp(r->addresses[i].digits, at, length) != 0)
      i--;
    snprintf(number, sizeof number, "%04d", i + 1);
    memset(at, '0', length);
    memcpy(at, number, strlen(number));
  }
}

static tuttiResult_t hideNames(recorder *r) {
  for (int i = 0; i < r->m->nanswers; i++) {
    TUTTI_TRY(noteAddresses(r, r->m->answers[i].key));
    TUTTI_TRY(noteAddresses(r, r->m->answers[i].value));
  }
  for (int i = 0; i < r->count; i++) {
    TUTTI_TRY(noteAddresses(r, r->entries[i].dir));
    TUTTI_TRY(noteAddresses(r, r->entries[i].name));
    TUTTI_TRY(noteAddresses(r, r->entries[i].value));
  }
  for (int i = 0; i < r->count; i++) {
    hideAddresses(r, r->entries[i].dir);
    hideAddresses(r, r->entries[i].name);
    hideAddresses(r, r->entries[i].value);
  }
  return tuttiSuccess;
}

static void keep(uint8_t *to, const uint8_t *from, size_t at, size_t bytes) {
  if (at + bytes <= PCI_BYTES) memcpy(to + at, from + at, bytes);
}

/* Copies what the doctor and the library look at: the chains of capabilities, and of PCI Express,
 * ACS and ATS the control words. A device's serial number is a capability, too. */
static void keepCapabilities(uint8_t *to, const uint8_t *from) {
  keep(to, from, PCI_FIRST, 1);
  for (size_t at = from[PCI_FIRST], steps = 0; at >= 0x40 && at < PCI_EXTENDED && steps < 48;
       at = from[at + 1], steps++) {
    keep(to, from, at, 2);
    if (from[at] == PCI_EXPRESS) keep(to, from, at, 20);
  }
  for (size_t at = PCI_EXTENDED, next; at >= PCI_EXTENDED && at <= PCI_BYTES - 8; at = next) {
    uint32_t head;
    memcpy(&head, from + at, sizeof head);
    keep(to, from, at, sizeof head);
    if ((head & 0xffff) == PCI_ACS || (head & 0xffff) == PCI_ATS) keep(to, from, at, 8);
    next = head >> 20 > at ? head >> 20 : 0;
  }
}

static tuttiResult_t recordConfig(recorder *r, const char *dir, const char *name) {
  char path[PATH_MAX], full[PATH_MAX], text[TUTTI_RECORDING_TEXT / 2] = "";
  uint8_t config[PCI_BYTES] = {0}, kept[PCI_BYTES] = {0};
  join(dir, name, path);
  TUTTI_CLOSED int fd = open(tuttiMachinePath(r->m, path, full), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || tuttiReadAll(fd, config, sizeof config) <= 64) return tuttiSuccess;
  keepCapabilities(kept, config);
  for (size_t i = 0; i < sizeof kept; i++) {
    if (kept[i] == 0) continue;
    if (i == 0 || kept[i - 1] == 0)
      tuttiAppend(text, sizeof text, "%s%zx:%02x", text[0] ? " " : "", i, kept[i]);
    else
      tuttiAppend(text, sizeof text, " %02x", kept[i]);
  }
  return text[0] ? add(r, dir, name, ":", text) : tuttiSuccess;
}

/* ---- what is recorded ----------------------------------------------------------------------- */

#define PORT "sys/class/infiniband/*/ports/*/"
static const struct {
  const char *pattern;
  recordPath record;
} files[] = {
    {"sys/class/infiniband/*", recordLink},
    {"sys/class/infiniband/*/device", recordLink},
    {"sys/class/infiniband/*/node_type", recordText},
    {"sys/class/infiniband/*/fw_ver", recordText},
    {"sys/class/infiniband/*/board_id", recordText},
    {"sys/class/infiniband/*/hca_type", recordText},
    {PORT "state", recordText},
    {PORT "phys_state", recordText},
    {PORT "rate", recordText},
    {PORT "link_layer", recordText},
    {PORT "lid", recordText},
    {PORT "sm_lid", recordText},
    {PORT "counters/*", recordText},
    {PORT "hw_counters/*", recordText},
    {PORT "gids/*", recordGid},
    {"sys/class/net/*", recordLink},
    {"sys/class/net/*/device", recordLink},
    {"sys/class/net/*/speed", recordText},
    {"sys/class/net/*/carrier", recordText},
    {"sys/class/net/*/operstate", recordText},
    {"sys/class/net/*/mtu", recordText},
    {"sys/class/net/*/type", recordText},
    {"sys/class/net/*/ecn/roce_*/enable/*", recordText},
    {"sys/devices/system/node/node*/cpulist", recordText},
    {"sys/devices/system/cpu/online", recordText},
    {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", recordText},
    {"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", recordText},
    {"sys/module/nvidia*/version", recordText},
    {"sys/module/nv_peer_mem/version", recordText},
    {"sys/module/gdrdrv/version", recordText},
    {"sys/module/ib_uverbs/refcnt", recordText},
    {"sys/module/mlx*_core/version", recordText},
    {"sys/module/bnxt_re/version", recordText},
    {"sys/module/irdma/version", recordText},
    {"sys/kernel/mm/memory_peers/*/version", recordText},
    {"proc/driver/nvidia/version", recordText},
    {"proc/sys/kernel/numa_balancing", recordText},
    {"proc/sys/kernel/yama/ptrace_scope", recordText},
    {"proc/sys/vm/max_map_count", recordText},
    {"dev/infiniband/*", recordAccess},
    {"dev/nvidia*", recordAccess},
};

/* Of a PCI function; config is that of all but the last, which ends the line of bridges. */
static const struct {
  const char *file;
  recordPath record;
} functionFiles[] = {
    {"class", recordText},
    {"vendor", recordText},
    {"device", recordText},
    {"numa_node", recordText},
    {"current_link_speed", recordText},
    {"current_link_width", recordText},
    {"max_link_speed", recordText},
    {"max_link_width", recordText},
    {"driver", recordLink},
    {"iommu_group", recordLink},
    {"iommu_group/type", recordText},
    {"config", recordConfig},
};

/* Records a path where its directory really lies. */
static tuttiResult_t recordAt(recorder *r, const char *path, recordPath record) {
  char full[PATH_MAX], dir[PATH_MAX], real[PATH_MAX];
  const char *slash = strrchr(path, '/');
  snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 0, path);
  size_t root = strlen(r->m->root);
  if (slash == NULL) /* in the root, which has no name */
    return tuttiSuccess;
  if (realpath(tuttiMachinePath(r->m, dir, full), real) == NULL ||
      strncmp(real, r->m->root, root) != 0 || real[root] != '/')
    return tuttiSuccess;
  return record(r, real + root + 1, slash + 1);
}

static tuttiResult_t recordPattern(recorder *r, const char *pattern, recordPath record) {
  char full[PATH_MAX];
  glob_t found;
  tuttiResult_t result = tuttiSuccess;
  if (glob(tuttiMachinePath(r->m, pattern, full), 0, NULL, &found) != 0) return tuttiSuccess;
  for (size_t i = 0; i < found.gl_pathc && result == tuttiSuccess; i++)
    result = recordAt(r, found.gl_pathv[i] + strlen(r->m->root) + 1, record);
  globfree(&found);
  return result;
}

/* Only the functions on the way to GPUs and NICs, those of the topology. */
static tuttiResult_t recordFunctions(recorder *r, const tuttiTopology *t) {
  char dir[PATH_MAX], path[PATH_MAX];
  for (int i = 0; i < t->count; i++) {
    const tuttiNode *n = &t->nodes[i];
    if (n->kind != tuttiNodePci && n->kind != tuttiNodeSwitch && n->kind != tuttiNodeGpu) continue;
    snprintf(dir, sizeof dir, "sys/bus/pci/devices/%.31s", n->name);
    TUTTI_TRY(recordLink(r, "sys/bus/pci/devices", n->name));
    for (size_t f = 0; f < sizeof functionFiles / sizeof *functionFiles; f++)
      TUTTI_TRY(recordAt(r, join(dir, functionFiles[f].file, path), functionFiles[f].record));
  }
  return tuttiSuccess;
}

static tuttiResult_t collect(recorder *r) {
  tuttiTopology *t;
  TUTTI_TRY(tuttiMachineTopology(r->m, &t));
  tuttiResult_t result = recordFunctions(r, t);
  tuttiTopologyFree(t);
  for (size_t i = 0; i < sizeof files / sizeof *files && result == tuttiSuccess; i++)
    result = recordPattern(r, files[i].pattern, files[i].record);
  return result;
}

/* ---- output --------------------------------------------------------------------------------- */

static void printEntry(FILE *out, const entry *e) {
  fprintf(out, "%s %s%s", e->name, e->mark, e->value[0] ? " " : "");
  for (const char *c = e->value; *c; c++) {
    putc(*c, out);
    if (*c == '\n') putc('\t', out);
  }
  putc('\n', out);
}

static void print(const recorder *r, FILE *out) {
  const char *dir = "";
  fputs(TUTTI_RECORDING_HEAD "\n", out);
  for (int i = 0; i < r->m->nanswers; i++) {
    tuttiAnswer a = r->m->answers[i];
    hideAddresses(r, a.key);
    hideAddresses(r, a.value);
    if (strncmp(a.key, "program.", 8) != 0) /* paths of a user */
      fprintf(out, "? %s = %s\n", a.key, a.value);
  }
  for (int i = 0; i < r->count; i++) {
    const entry *e = &r->entries[i];
    if (i > 0 && byPlace(e, e - 1) == 0) continue; /* found by two ways */
    if (strcmp(e->dir, dir) != 0) fprintf(out, "at %s\n", e->dir);
    dir = e->dir;
    printEntry(out, e);
  }
}

static tuttiResult_t save(const recorder *r, const char *recording) {
  FILE *out = fopen(recording, "we");
  if (out != NULL) print(r, out);
  bool failed = out == NULL || ferror(out);
  if (out != NULL && fclose(out) != 0) failed = true;
  if (failed)
    return TUTTI_FAIL(tuttiSystemError, "cannot write %s: %s", recording, tuttiErrnoText(errno));
  return tuttiSuccess;
}

tuttiResult_t tuttiMachineRecord(const tuttiMachine *m, const char *recording) {
  recorder r = {.m = m};
  TUTTI_FRESH(char, gids, SEEN_GIDS * sizeof *r.gids, "addresses", NULL);
  r.gids = (char(*)[40])gids;
  tuttiResult_t result = collect(&r);
  if (result == tuttiSuccess) result = hideNames(&r);
  if (result == tuttiSuccess) {
    qsort(r.entries, (size_t)r.count, sizeof *r.entries, byPlace);
    result = save(&r, recording);
  }
  for (int i = 0; i < r.count; i++)
    tuttiFree(r.entries[i].value);
  tuttiFree(r.entries);
  tuttiFree(r.addresses);
  return result;
}
