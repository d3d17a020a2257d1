/* The topology of a host from its sysfs. Only what lies on the way to a NIC or a GPU becomes a
 * node: the real path of a device in sysfs names all the PCI functions above it. */
#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "topology/internal.h"

#define PCI_CLASS_VGA  0x0300
#define PCI_CLASS_3D   0x0302
#define PCI_VENDOR_GPU 0x10de

typedef struct {
  char sysfs[PATH_MAX]; /* real path */
  tuttiTopology *t;
} detection;

/* Calls visit for each entry of a directory below sysfs in version order that is a directory inside
 * sysfs too, with its real path; for none if it is unreadable. */
static tuttiResult_t forEach(detection *d, const char *dir,
                             tuttiResult_t (*visit)(detection *d, const char *path,
                                                    const char *name)) {
  char path[PATH_MAX], real[PATH_MAX];
  struct dirent **entries;
  struct stat st;
  tuttiResult_t result = tuttiSuccess;
  size_t length = strlen(d->sysfs);
  if (snprintf(path, sizeof path, "%s/%s", d->sysfs, dir) >= (int)sizeof path) return tuttiSuccess;
  int n = scandir(path, &entries, NULL, versionsort);
  if (n < 0) return tuttiSuccess;
  for (int i = 0; i < n; i++) {
    const char *name = entries[i]->d_name;
    if (result == tuttiSuccess && name[0] != '.' &&
        snprintf(path, sizeof path, "%s/%s/%s", d->sysfs, dir, name) < (int)sizeof path &&
        realpath(path, real) != NULL && strncmp(real, d->sysfs, length) == 0 &&
        real[length] == '/' && stat(real, &st) == 0 && S_ISDIR(st.st_mode))
      result = visit(d, real, name);
    free(entries[i]);
  }
  free(entries);
  return result;
}

/* What sysfs calls a thing may hold any byte but '/'; names go to terminals, logs and XML. `text`
 * may be `out`. */
static void copyText(char *out, size_t size, const char *text) {
  size_t i = 0;
  for (; i + 1 < size && text[i] != '\0'; i++)
    out[i] = text[i] > ' ' && text[i] < 0x7f ? text[i] : '?';
  out[i] = '\0';
}

bool tuttiReadText(const char *dir, const char *file, char *buf, size_t size) {
  char path[PATH_MAX];
  return snprintf(path, sizeof path, "%s/%s", dir, file) < (int)sizeof path &&
         tuttiReadFile(path, buf, size);
}

/* The number that a file begins with, or `missing` if it has none within min and max. */
static int readNumber(const char *dir, const char *file, int min, int max, int missing) {
  char text[64], *end;
  if (!tuttiReadText(dir, file, text, sizeof text)) return missing;
  long value = strtol(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
  return end == text || value < min || value > max ? missing : (int)value;
}

static void readDriver(const char *dir, const char *link, char *driver, size_t size) {
  char path[PATH_MAX], target[PATH_MAX];
  if (snprintf(path, sizeof path, "%s/%s", dir, link) >= (int)sizeof path) return;
  ssize_t length = readlink(path, target, sizeof target - 1);
  if (length <= 0) return;
  target[length] = '\0';
  const char *slash = strrchr(target, '/');
  copyText(driver, size, slash != NULL ? slash + 1 : target);
}

static float toGBs(double bytesPerSecond) {
  return (float)(round(bytesPerSecond / 1e6) / 1e3);
}

/* Payload of one direction: lanes times transfer rate, less the line code. */
static float pciGBs(const char *dir) {
  char text[64];
  int lanes = readNumber(dir, "current_link_width", 1, 32, 0);
  if (lanes == 0 || !tuttiReadText(dir, "current_link_speed", text, sizeof text)) return 0;
  double rate = strtod(text, NULL); /* "16.0 GT/s PCIe", "Unknown" */
  if (!(rate > 0 && rate < 1000)) return 0;
  double code = rate <= 5 ? 8.0 / 10 : rate <= 32 ? 128.0 / 130 : 242.0 / 256;
  return toGBs(rate * 1e9 * lanes * code / 8);
}

/* Of two children of one node, by kind, bus id, name: whether x stands before y. */
static bool isBefore(const tuttiNode *x, const tuttiNode *y) {
  if (x->kind != y->kind) return x->kind < y->kind;
  if (x->busId != y->busId) return x->busId < y->busId;
  return strverscmp(x->name, y->name) < 0;
}

tuttiResult_t tuttiTopologyInsert(tuttiTopology *t, const tuttiNode *n, int *index) {
  int at = n->parent + 1;
  for (; at < t->count && t->nodes[at].parent >= n->parent; at++) /* what lies below the parent */
    if (t->nodes[at].parent == n->parent && isBefore(n, &t->nodes[at])) break;
  TUTTI_TRY(tuttiTopologyAdd(t, n));
  for (int i = t->count - 1; i > at; i--) {
    t->nodes[i] = t->nodes[i - 1];
    if (t->nodes[i].parent >= at) t->nodes[i].parent++;
  }
  t->nodes[at] = *n;
  if (index) *index = at;
  return tuttiSuccess;
}

/* Index of the NUMA node with this number; of the only one if the number is not known; else of the
 * system. */
static int numaIndex(const tuttiTopology *t, int numa) {
  int only = -1, count = 0;
  for (int i = 0; i < t->count; i++) {
    if (t->nodes[i].kind != tuttiNodeNuma) continue;
    if (t->nodes[i].numa == numa) return i;
    only = i;
    count++;
  }
  return count == 1 ? only : 0;
}

/* Index of the host bridge `name` ("pci0000:3a"), made if it is new. It has no NUMA node of its own
 * in sysfs; `dir`, a function below it, has. */
static tuttiResult_t hostBridge(detection *d, const char *name, const char *dir, int *index) {
  *index = tuttiTopologyFind(d->t, name);
  if (*index >= 0) return tuttiSuccess;
  int parent = numaIndex(d->t, readNumber(dir, "numa_node", 0, 65535, -1));
  tuttiNode n = {.kind = tuttiNodeHostBridge, .parent = parent, .numa = d->t->nodes[parent].numa};
  copyText(n.name, sizeof n.name, name);
  return tuttiTopologyInsert(d->t, &n, index);
}

static bool isGpu(int vendor, int class) {
  return vendor == PCI_VENDOR_GPU && (class >> 8 == PCI_CLASS_VGA || class >> 8 == PCI_CLASS_3D);
}

/* Of the bridges one below the other, every second is the upstream port of a switch: root port,
 * upstream, downstream, upstream, ... */
static tuttiNodeKind pciKind(const tuttiTopology *t, const tuttiNode *n) {
  if (isGpu(n->vendor, n->class_)) return tuttiNodeGpu;
  if (n->class_ >> 8 != TUTTI_PCI_BRIDGE) return tuttiNodePci;
  bool belowPort = n->parent >= 0 && t->nodes[n->parent].kind == tuttiNodePci;
  return belowPort ? tuttiNodeSwitch : tuttiNodePci;
}

/* Index of the PCI function whose directory is `dir`, made if it is new. */
static tuttiResult_t pciFunction(detection *d, const char *dir, uint64_t busId, int parent,
                                 int *index) {
  tuttiNode n = {.parent = parent, .busId = busId};
  tuttiBusIdText(busId, n.name, sizeof n.name);
  *index = tuttiTopologyFind(d->t, n.name);
  if (*index >= 0) return tuttiSuccess;
  n.class_ = readNumber(dir, "class", 0, 0xffffff, 0);
  n.vendor = readNumber(dir, "vendor", 0, 0xffff, 0);
  n.device = readNumber(dir, "device", 0, 0xffff, 0);
  n.numa = readNumber(dir, "numa_node", 0, 65535, -1);
  if (n.numa < 0) n.numa = d->t->nodes[parent].numa;
  n.linkGBs = pciGBs(dir);
  readDriver(dir, "driver", n.driver, sizeof n.driver);
  n.kind = pciKind(d->t, &n);
  return tuttiTopologyInsert(d->t, &n, index);
}

/* Makes the nodes of the PCI functions on the way to `path`, the real path of a device. *index: the
 * last of them; 0, the system, if there is none (a virtual device). */
static tuttiResult_t pciPath(detection *d, const char *path, int *index) {
  char dir[PATH_MAX], bridge[64] = "pci";
  *index = 0;
  for (const char *c = path + strlen(d->sysfs); *c == '/';) {
    const char *end = strchrnul(c + 1, '/');
    uint64_t busId;
    snprintf(dir, sizeof dir, "%.*s", (int)(end - path), path);
    const char *name = strrchr(dir, '/') + 1;
    if (strncmp(name, "pci", 3) == 0 && strchr(name, ':') != NULL) {
      snprintf(bridge, sizeof bridge, "%.63s", name);
    } else if (tuttiBusIdParse(name, &busId)) {
      if (*index == 0) TUTTI_TRY(hostBridge(d, bridge, dir, index));
      TUTTI_TRY(pciFunction(d, dir, busId, *index, index));
    }
    c = end;
  }
  return tuttiSuccess;
}

static tuttiResult_t visitNuma(detection *d, const char *path, const char *name) {
  char *end;
  if (strncmp(name, "node", 4) != 0 || name[4] < '0' || name[4] > '9') return tuttiSuccess;
  long number = strtol(name + 4, &end, 10);
  if (*end != '\0' || number > 65535) return tuttiSuccess;
  tuttiNode n = {.kind = tuttiNodeNuma, .numa = (int)number};
  snprintf(n.name, sizeof n.name, "numa%ld", number);
  if (tuttiReadText(path, "cpulist", n.cpus, sizeof n.cpus))
    copyText(n.cpus, sizeof n.cpus, n.cpus);
  return tuttiTopologyInsert(d->t, &n, NULL);
}

static tuttiResult_t addNic(detection *d, const char *path, tuttiNode *n, const char *name) {
  TUTTI_TRY(pciPath(d, path, &n->parent));
  n->kind = tuttiNodeNic;
  n->numa = d->t->nodes[n->parent].numa;
  n->busId = d->t->nodes[n->parent].busId;
  copyText(n->name, sizeof n->name, name);
  readDriver(path, "device/driver", n->driver, sizeof n->driver);
  return tuttiTopologyInsert(d->t, n, NULL);
}

static tuttiResult_t visitNet(detection *d, const char *path, const char *name) {
  char state[32];
  tuttiNode n = {0};
  if (strcmp(name, "lo") == 0) return tuttiSuccess;
  n.linkGBs = toGBs(readNumber(path, "speed", 1, 100000000, 0) * 1e6 / 8); /* Mb/s */
  int carrier = readNumber(path, "carrier", 0, 1, -1); /* unreadable while the NIC is off */
  bool stated = tuttiReadText(path, "operstate", state, sizeof state);
  n.up = carrier >= 0 ? carrier == 1 : stated && strcmp(state, "up") == 0;
  return addNic(d, path, &n, name);
}

/* A device with several ports counts with its fastest one that is up, else with its fastest. */
static tuttiResult_t visitInfiniband(detection *d, const char *path, const char *name) {
  char ports[PATH_MAX + 32], text[64];
  tuttiNode n = {0};
  for (int port = 1; port <= 8; port++) {
    snprintf(ports, sizeof ports, "%s/ports/%d", path, port);
    if (!tuttiReadText(ports, "rate", text, sizeof text)) continue;
    double rate = strtod(text, NULL); /* "100 Gb/sec (4X EDR)" */
    float link = rate > 0 && rate < 1e6 ? toGBs(rate * 1e9 / 8) : 0;
    bool up = readNumber(ports, "state", 0, 15, 0) == 4; /* "4: ACTIVE" */
    if ((up && !n.up) || (up == n.up && link > n.linkGBs)) n.linkGBs = link;
    n.up = n.up || up;
  }
  return addNic(d, path, &n, name);
}

static tuttiResult_t visitPci(detection *d, const char *path, const char *name) {
  int index;
  (void)name;
  bool gpu =
      isGpu(readNumber(path, "vendor", 0, 0xffff, 0), readNumber(path, "class", 0, 0xffffff, 0));
  return gpu ? pciPath(d, path, &index) : tuttiSuccess;
}

/* A kernel without NUMA has no node directory; its CPUs are one node. */
static tuttiResult_t addNumaNodes(detection *d) {
  TUTTI_TRY(forEach(d, "devices/system/node", visitNuma));
  if (d->t->count > 1) return tuttiSuccess;
  tuttiNode n = {.kind = tuttiNodeNuma, .name = "numa0"};
  if (tuttiReadText(d->sysfs, "devices/system/cpu/online", n.cpus, sizeof n.cpus))
    copyText(n.cpus, sizeof n.cpus, n.cpus);
  return tuttiTopologyAdd(d->t, &n);
}

static tuttiResult_t detect(detection *d) {
  tuttiNode system = {.kind = tuttiNodeSystem, .parent = -1, .name = "system", .numa = -1};
  TUTTI_TRY(tuttiTopologyAdd(d->t, &system));
  TUTTI_TRY(addNumaNodes(d));
  TUTTI_TRY(forEach(d, "bus/pci/devices", visitPci));
  TUTTI_TRY(forEach(d, "class/net", visitNet));
  return forEach(d, "class/infiniband", visitInfiniband);
}

tuttiResult_t tuttiTopologyDetect(const char *sysfs, tuttiTopology **out) {
  detection d = {0};
  TUTTI_NEW(d.t, 1, "topology", NULL);
  copyText(d.t->host, sizeof d.t->host, tuttiHostname());
  const char *root = sysfs ? sysfs : "/sys";
  if (realpath(root, d.sysfs) == NULL) {
    TUTTI_INFO(GRAPH, "Topology: %s cannot be read, so PCI devices and NICs stay unknown", root);
    snprintf(d.sysfs, sizeof d.sysfs, "%.*s", PATH_MAX - 1, root);
  }
  tuttiResult_t result = detect(&d);
  if (result == tuttiSuccess && !sysfs) result = tuttiNvlinkDetect(d.t, "libnvidia-ml.so.1");
  if (result == tuttiSuccess)
    *out = d.t;
  else
    tuttiTopologyFree(d.t);
  return result;
}
