#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "topology/internal.h"
#include "topology/xml.h"

const char *const tuttiNodeKindNames[] = {TUTTI_NODE_KINDS(TUTTI_NAME)};
#define DISTANCE_TEXT(name, between) #name " (" between ")",
const char *const tuttiDistanceTexts[] = {TUTTI_DISTANCES(DISTANCE_TEXT)};

void tuttiTopologyFree(tuttiTopology *t) {
  if (t == NULL) return;
  tuttiFree(t->nodes);
  tuttiFree(t);
}

tuttiResult_t tuttiTopologyAdd(tuttiTopology *t, const tuttiNode *node) {
  TUTTI_TRY(tuttiGrow((void **)&t->nodes, t->count, &t->capacity, sizeof *node,
                      "nodes of a topology", NULL));
  t->nodes[t->count++] = *node;
  return tuttiSuccess;
}

bool tuttiBusIdParse(const char *text, uint64_t *busId) {
  unsigned domain, bus, device, function;
  int end = 0; /* sscanf alone would take spaces, signs, and numbers of fewer digits */
  if (text[strspn(text, "0123456789abcdefABCDEF:.")] != '\0' ||
      sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 ||
      text[end] != '\0' || end < 12 || text[end - 5] != ':' || text[end - 8] != ':')
    return false;
  *busId = (uint64_t)domain << 24 | bus << 16 | device << 8 | function;
  return device <= 0x1f && function <= 7;
}

const char *tuttiBusIdText(uint64_t busId, char *buf, size_t size) {
  snprintf(buf, size, "%04" PRIx64 ":%02x:%02x.%x", busId >> 24, (unsigned)(busId >> 16 & 0xff),
           (unsigned)(busId >> 8 & 0xff), (unsigned)(busId & 0xff));
  return buf;
}

int tuttiTopologyFind(const tuttiTopology *t, const char *name) {
  for (int i = 0; i < t->count; i++)
    if (strcmp(t->nodes[i].name, name) == 0) return i;
  return -1;
}

tuttiDistance tuttiTopologyDistance(const tuttiTopology *t, int a, int b) {
  if (a < 0 || b < 0 || a >= t->count || b >= t->count) return TUTTI_DISTANCE_SYS;
  if (a == b) return TUTTI_DISTANCE_SELF;
  /* Parents come first, so stepping up from the later of the two meets at their nearest common
   * ancestor. */
  int switches = 0;
  while (a != b) {
    int *later = a > b ? &a : &b;
    switches += t->nodes[*later].kind == tuttiNodeSwitch;
    *later = t->nodes[*later].parent;
  }
  tuttiNodeKind meet = t->nodes[a].kind;
  if (meet == tuttiNodeSystem) return TUTTI_DISTANCE_SYS;
  if (meet == tuttiNodeNuma || meet == tuttiNodeCpu) return TUTTI_DISTANCE_NODE;
  if (meet == tuttiNodeHostBridge) return TUTTI_DISTANCE_PHB;
  return switches <= (meet != tuttiNodeSwitch) ? TUTTI_DISTANCE_PIX : TUTTI_DISTANCE_PXB;
}

static void printNode(const tuttiNode *n, int depth, FILE *out) {
  fprintf(out, "%*s%s", 2 * depth, "", n->name);
  if (n->kind == tuttiNodeNuma && n->cpus[0] != '\0') fprintf(out, "  CPUs %s", n->cpus);
  if (n->kind == tuttiNodeHostBridge) fputs("  PCI host bridge", out);
  if (n->kind == tuttiNodeSwitch) fputs("  PCI switch", out);
  if (n->kind == tuttiNodePci)
    fputs(n->class_ >> 8 == TUTTI_PCI_BRIDGE ? "  PCI port" : "  PCI device", out);
  if (n->kind == tuttiNodeGpu) fputs("  GPU", out);
  if (n->kind == tuttiNodeNic) fprintf(out, "  NIC, %s", n->up ? "up" : "down");
  if (n->kind == tuttiNodeNvlink) fprintf(out, "  %d links, v%.1f", n->links, n->version / 10.0);
  if (n->vendor != 0) fprintf(out, " %04x:%04x", n->vendor, n->device);
  if (n->linkGBs > 0) fprintf(out, ", %.3g GB/s", (double)n->linkGBs);
  if (n->driver[0] != '\0') fprintf(out, " (%s)", n->driver);
  fputc('\n', out);
}

void tuttiTopologyPrint(const tuttiTopology *t, FILE *out) {
  fprintf(out, "%s\n", t->host);
  for (int i = 1; i < t->count; i++) {
    int depth = 0;
    for (int up = t->nodes[i].parent; up >= 0; up = t->nodes[up].parent)
      depth++;
    printNode(&t->nodes[i], depth, out);
  }
}

/* ---- the host that this process runs on ------------------------------------------------------ */

/* One for each value that TUTTI_TOPO_FILE has had, with NVLinks and without, kept for ever, as
 * settings' strings are. */
typedef struct hostEntry {
  tuttiTopology *t;
  bool nvlinks;
  const char *file, *dumped;
  struct hostEntry *next;
} hostEntry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static hostEntry *hosts;

static tuttiResult_t readFile(const char *file, tuttiTopology **out) {
  TUTTI_FREED char *text = NULL;
  char name[512];
  size_t size;
  snprintf(name, sizeof name, "%s=%s", tuttiSettingOrigin(TUTTI_SETTING_TOPO_FILE), file);
  TUTTI_TRY(tuttiXmlLoad(file, name, &text, &size));
  return tuttiTopologyParseXml(text, size, name, out);
}

/* Under the lock. */
static tuttiResult_t load(const char *file, bool nvlinks, hostEntry **out) {
  TUTTI_FRESH(hostEntry, h, 1, "topology", NULL);
  TUTTI_TRY(file[0] ? readFile(file, &h->t) : tuttiTopologyDetect(nvlinks ? NULL : "/sys", &h->t));
  TUTTI_INFO(GRAPH, "topology of this host: %d nodes from %s", h->t->count,
             file[0]   ? file
             : nvlinks ? "sysfs and NVML"
                       : "sysfs");
  h->file = file;
  h->nvlinks = nvlinks || file[0];
  h->dumped = "";
  h->next = hosts;
  *out = hosts = h;
  h = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiTopologyHost(bool nvlinks, const tuttiTopology **out) {
  const char *file = tuttiSettingString(TUTTI_SETTING_TOPO_FILE);
  const char *dump = tuttiSettingString(TUTTI_SETTING_TOPO_DUMP_FILE);
  bool wanted = nvlinks || dump[0];
  TUTTI_LOCKED(&lock);
  hostEntry *h = hosts;
  while (h && (strcmp(h->file, file) != 0 || (wanted && !h->nvlinks)))
    h = h->next;
  if (!h) TUTTI_TRY(load(file, wanted, &h));
  if (dump[0] && strcmp(dump, h->dumped) != 0) {
    TUTTI_TRY(tuttiTopologyWriteXml(h->t, dump, tuttiSettingOrigin(TUTTI_SETTING_TOPO_DUMP_FILE)));
    h->dumped = dump;
  }
  *out = h->t;
  return tuttiSuccess;
}
