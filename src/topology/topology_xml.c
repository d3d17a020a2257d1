#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "topology/internal.h"
#include "topology/xml.h"

#define MAX_LINK_MBS 1000000000 /* MB/s; far above any link */

/* <topology version="1" host="...">
 *   <node kind="Numa" name="numa0" numa="0" cpus="0-55">
 *     <node .../>
 * The topology element is the system; links are in MB/s. */

static void putNode(FILE *out, const tuttiNode *n) {
  char text[TUTTI_BUS_ID_TEXT];
  tuttiXmlPut(out, "kind", tuttiNodeKindNames[n->kind]);
  tuttiXmlPut(out, "name", n->name);
  if (n->busId != 0) tuttiXmlPut(out, "bus", tuttiBusIdText(n->busId, text, sizeof text));
  if (n->class_ != 0) fprintf(out, " class=\"0x%06x\"", n->class_);
  if (n->vendor != 0) fprintf(out, " vendor=\"0x%04x\"", n->vendor);
  if (n->device != 0) fprintf(out, " device=\"0x%04x\"", n->device);
  if (n->numa >= 0) fprintf(out, " numa=\"%d\"", n->numa);
  if (n->linkGBs > 0) fprintf(out, " link=\"%ld\"", lround((double)n->linkGBs * 1e3));
  if (n->links != 0) fprintf(out, " links=\"%d\" version=\"%d\"", n->links, n->version);
  if (n->up != 0) fputs(" up=\"1\"", out);
  if (n->driver[0] != '\0') tuttiXmlPut(out, "driver", n->driver);
  if (n->cpus[0] != '\0') tuttiXmlPut(out, "cpus", n->cpus);
}

static void writeTopology(FILE *out, const void *object) {
  const tuttiTopology *t = object;
  int depth = 1; /* open elements */
  fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<topology version=\"1\"", out);
  tuttiXmlPut(out, "host", t->host);
  fputs(">\n", out);
  /* Depth first: the next node is a child of this one or of one of the nodes it lies in. */
  for (int i = 1; i < t->count; i++) {
    bool leaf = i + 1 == t->count || t->nodes[i + 1].parent != i;
    fprintf(out, "%*s<node", 2 * depth, "");
    putNode(out, &t->nodes[i]);
    fputs(leaf ? "/>\n" : ">\n", out);
    if (!leaf) {
      depth++;
      continue;
    }
    int next = i + 1 == t->count ? 0 : t->nodes[i + 1].parent;
    for (int up = t->nodes[i].parent; up > next; up = t->nodes[up].parent)
      fprintf(out, "%*s</node>\n", 2 * --depth, "");
  }
  fputs("</topology>\n", out);
}

tuttiResult_t tuttiTopologyWriteXml(const tuttiTopology *t, const char *path, const char *asked) {
  return tuttiSaveFile(path, asked, "the topology", writeTopology, t);
}

typedef struct {
  tuttiTopology *t;
  int current; /* index of the open element's node */
} reading;

static tuttiResult_t openTopology(void *context, const tuttiXml *xml) {
  reading *r = context;
  tuttiNode system = {.kind = tuttiNodeSystem, .parent = -1, .name = "system", .numa = -1};
  int version = 0;
  const tuttiXmlAttribute known[] = {
      {"version", .number = &version, .min = 1, .max = 1},
      {"host", .text = r->t->host, .size = sizeof r->t->host},
  };
  TUTTI_TRY(tuttiXmlTake(xml, known, sizeof known / sizeof known[0]));
  if (version == 0) return tuttiXmlFail(xml, "topology without version=\"1\"");
  return tuttiTopologyAdd(r->t, &system);
}

static tuttiResult_t readKind(const tuttiXml *xml, const char *text, tuttiNodeKind *kind) {
  if (text == NULL) return tuttiXmlFail(xml, "node without kind");
  for (int k = tuttiNodeSystem + 1; k < tuttiNodeKindCount; k++) {
    if (strcmp(text, tuttiNodeKindNames[k]) != 0) continue;
    *kind = (tuttiNodeKind)k;
    return tuttiSuccess;
  }
  return tuttiXmlFail(xml, "kind=\"%.64s\" is no kind of node", text);
}

static tuttiResult_t openNode(void *context, const tuttiXml *xml) {
  reading *r = context;
  tuttiNode n = {.parent = r->current, .numa = -1};
  int link = 0;
  const char *kind = NULL, *bus = NULL;
  const tuttiXmlAttribute known[] = {
      {"kind", .raw = &kind},
      {"name", .text = n.name, .size = sizeof n.name},
      {"bus", .raw = &bus},
      {"class", .number = &n.class_, .max = 0xffffff},
      {"vendor", .number = &n.vendor, .max = 0xffff},
      {"device", .number = &n.device, .max = 0xffff},
      {"numa", .number = &n.numa, .min = -1, .max = 65535},
      {"link", .number = &link, .max = MAX_LINK_MBS},
      {"links", .number = &n.links, .max = 255},
      {"version", .number = &n.version, .max = 99},
      {"up", .number = &n.up, .max = 1},
      {"driver", .text = n.driver, .size = sizeof n.driver},
      {"cpus", .text = n.cpus, .size = sizeof n.cpus},
  };
  if (r->t->count == TUTTI_TOPOLOGY_MAX_NODES)
    return tuttiXmlFail(xml, "more than %d nodes", TUTTI_TOPOLOGY_MAX_NODES);
  TUTTI_TRY(tuttiXmlTake(xml, known, sizeof known / sizeof known[0]));
  TUTTI_TRY(readKind(xml, kind, &n.kind));
  if (n.name[0] == '\0') return tuttiXmlFail(xml, "node without name");
  if (bus != NULL && !tuttiBusIdParse(bus, &n.busId))
    return tuttiXmlFail(xml, "bus=\"%.64s\" is not of the form 0000:3b:00.0", bus);
  n.linkGBs = (float)((double)link / 1e3);
  r->current = r->t->count;
  return tuttiTopologyAdd(r->t, &n);
}

static tuttiResult_t closeNode(void *context, const tuttiXml *xml) {
  reading *r = context;
  (void)xml;
  r->current = r->t->nodes[r->current].parent;
  return tuttiSuccess;
}

tuttiResult_t tuttiTopologyParseXml(const char *text, size_t size, const char *name,
                                    tuttiTopology **out) {
  static const tuttiXmlElement elements[] = {
      {.element = "topology", .open = openTopology, .close = tuttiXmlNothingToClose},
      {.parent = "topology", .element = "node", .open = openNode, .close = closeNode},
      {.parent = "node", .element = "node", .open = openNode, .close = closeNode},
  };
  reading r = {0};
  TUTTI_NEW(r.t, 1, "topology", NULL);
  tuttiResult_t result = tuttiXmlParse(text, size, name, elements, 3, &r);
  if (result == tuttiSuccess)
    *out = r.t;
  else
    tuttiTopologyFree(r.t);
  return result;
}
