#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "topology/graph.h"
#include "topology/graph_internal.h"
#include "topology/xml.h"
#include "transport/transport.h"

/* <graph version="1" channels="2" hosts="0 0 1 1">
 *   <channel>
 *     <ring ranks="0 1 2 3"/>        the rank at each position
 *     <tree parents="2 0 -1 2"/>     the parent of each rank
 *   </channel> ... */

static void putList(FILE *out, const char *name, const int32_t *values, int count) {
  fprintf(out, " %s=\"", name);
  for (int i = 0; i < count; i++)
    fprintf(out, i > 0 ? " %d" : "%d", values[i]);
  fputc('"', out);
}

static void writeGraph(FILE *out, const void *object) {
  const tuttiGraph *g = object;
  fprintf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<graph version=\"1\" channels=\"%d\"",
          g->nchannels);
  putList(out, "hosts", g->host, g->nranks);
  fputs(">\n", out);
  for (int c = 0; c < g->nchannels; c++) {
    fputs("  <channel>\n    <ring", out);
    putList(out, "ranks", g->ring + (size_t)c * g->nranks, g->nranks);
    fputs("/>\n    <tree", out);
    putList(out, "parents", g->parent + (size_t)c * g->nranks, g->nranks);
    fputs("/>\n  </channel>\n", out);
  }
  fputs("</graph>\n", out);
}

tuttiResult_t tuttiGraphWriteXml(const tuttiGraph *g, const char *path) {
  return tuttiSaveFile(path, "the graph", writeGraph, g);
}

typedef enum { OUTSIDE, IN_GRAPH, IN_CHANNEL, IN_RING, IN_TREE } place;

typedef struct {
  const uint64_t *hostIds;
  int nranks;
  tuttiGraph *g; /* made when its number of channels is read */
  int32_t *list; /* [nranks]: scratch */
  place at;
  int channels; /* number of the channels that have begun */
  bool hasRing, hasTree;
} reading;

/* Fills r->list from an attribute that holds one number within min and nranks - 1 per rank. */
static tuttiResult_t readList(const reading *r, const tuttiXml *xml, const char *attribute,
                              long min) {
  const char *text = tuttiXmlGet(xml, attribute);
  if (text == NULL) return tuttiXmlFail(xml, "attribute \"%s\" is missing", attribute);
  int count = 0;
  for (;; count++) {
    char *end;
    text += strspn(text, " ");
    if (*text == '\0') break;
    long value = strtol(text, &end, 10);
    if (end == text || (*end != ' ' && *end != '\0'))
      return tuttiXmlFail(xml, "%s: \"%.16s\" is not a number", attribute, text);
    if (value < min || value >= r->nranks)
      return tuttiXmlFail(xml, "%s: %ld is not within %ld to %d", attribute, value, min,
                          r->nranks - 1);
    if (count < r->nranks) r->list[count] = (int32_t)value;
    text = end;
  }
  if (count != r->nranks)
    return tuttiXmlFail(xml, "%s has %d entries for %d ranks", attribute, count, r->nranks);
  return tuttiSuccess;
}

static tuttiResult_t openGraph(reading *r, const tuttiXml *xml) {
  static const char *const known[] = {"version", "channels", "hosts", NULL};
  int64_t version = 0, channels = 0;
  TUTTI_TRY(tuttiXmlOnly(xml, known));
  TUTTI_TRY(tuttiXmlNumber(xml, "version", 1, 1, &version));
  if (version == 0) return tuttiXmlFail(xml, "graph without version=\"1\"");
  TUTTI_TRY(tuttiXmlNumber(xml, "channels", 1, TUTTI_MAX_CHANNELS, &channels));
  if (channels == 0) return tuttiXmlFail(xml, "graph without channels");
  TUTTI_TRY(tuttiGraphNew(r->hostIds, r->nranks, (int)channels, &r->g));
  TUTTI_TRY(readList(r, xml, "hosts", 0));
  for (int i = 0; i < r->nranks; i++)
    if (r->list[i] != r->g->host[i])
      return tuttiXmlFail(xml,
                          "rank %d is on host %d of the file but on host %d of this job; use a "
                          "graph made for the same placement of ranks",
                          i, r->list[i], r->g->host[i]);
  r->at = IN_GRAPH;
  return tuttiSuccess;
}

static tuttiResult_t openChannel(reading *r, const tuttiXml *xml) {
  static const char *const known[] = {NULL};
  TUTTI_TRY(tuttiXmlOnly(xml, known));
  if (r->channels == r->g->nchannels)
    return tuttiXmlFail(xml, "more than the %d channels announced", r->g->nchannels);
  r->channels++;
  r->hasRing = r->hasTree = false;
  r->at = IN_CHANNEL;
  return tuttiSuccess;
}

static tuttiResult_t openRing(reading *r, const tuttiXml *xml) {
  static const char *const known[] = {"ranks", NULL};
  size_t base = (size_t)(r->channels - 1) * (size_t)r->nranks;
  int32_t *position = r->g->position + base;
  if (r->hasRing) return tuttiXmlFail(xml, "a second ring in channel %d", r->channels - 1);
  TUTTI_TRY(tuttiXmlOnly(xml, known));
  TUTTI_TRY(readList(r, xml, "ranks", 0));
  for (int i = 0; i < r->nranks; i++)
    position[i] = -1;
  for (int i = 0; i < r->nranks; i++) {
    if (position[r->list[i]] >= 0)
      return tuttiXmlFail(xml, "rank %d is in the ring of channel %d twice", r->list[i],
                          r->channels - 1);
    position[r->list[i]] = i;
  }
  memcpy(r->g->ring + base, r->list, (size_t)r->nranks * sizeof *r->list);
  r->hasRing = true;
  r->at = IN_RING;
  return tuttiSuccess;
}

static tuttiResult_t openTree(reading *r, const tuttiXml *xml) {
  static const char *const known[] = {"parents", NULL};
  int32_t *parent = r->g->parent + (size_t)(r->channels - 1) * (size_t)r->nranks;
  int channel = r->channels - 1, root = -1;
  if (r->hasTree) return tuttiXmlFail(xml, "a second tree in channel %d", channel);
  TUTTI_TRY(tuttiXmlOnly(xml, known));
  TUTTI_TRY(readList(r, xml, "parents", -1));
  memcpy(parent, r->list, (size_t)r->nranks * sizeof *parent);
  int32_t *neighbours = r->list;
  memset(neighbours, 0, (size_t)r->nranks * sizeof *neighbours);
  for (int i = 0; i < r->nranks; i++) {
    if (parent[i] < 0 && root >= 0)
      return tuttiXmlFail(xml, "ranks %d and %d are both roots of channel %d's tree", root, i,
                          channel);
    if (parent[i] < 0) {
      root = i;
      continue;
    }
    neighbours[i]++;
    neighbours[parent[i]]++;
  }
  for (int i = 0; i < r->nranks; i++)
    if (neighbours[i] > TUTTI_MAX_FAN)
      return tuttiXmlFail(xml,
                          "rank %d has %d neighbours in channel %d's tree; at most %d are "
                          "possible",
                          i, neighbours[i], channel, TUTTI_MAX_FAN);
  bool tree;
  TUTTI_TRY(tuttiGraphMeasureTree(r->g, channel, &tree));
  if (!tree) return tuttiXmlFail(xml, "the parents of channel %d go round in a circle", channel);
  r->hasTree = true;
  r->at = IN_TREE;
  return tuttiSuccess;
}

static tuttiResult_t onOpen(void *context, tuttiXml *xml, const char *element) {
  reading *r = context;
  if (r->at == OUTSIDE && strcmp(element, "graph") == 0) return openGraph(r, xml);
  if (r->at == IN_GRAPH && strcmp(element, "channel") == 0) return openChannel(r, xml);
  if (r->at == IN_CHANNEL && strcmp(element, "ring") == 0) return openRing(r, xml);
  if (r->at == IN_CHANNEL && strcmp(element, "tree") == 0) return openTree(r, xml);
  return tuttiXmlFail(xml, "element <%.64s> is not expected here", element);
}

static tuttiResult_t onClose(void *context, tuttiXml *xml, const char *element) {
  reading *r = context;
  (void)element;
  if (r->at == IN_RING || r->at == IN_TREE) {
    r->at = IN_CHANNEL;
    return tuttiSuccess;
  }
  if (r->at == IN_CHANNEL) {
    r->at = IN_GRAPH;
    if (r->hasRing && r->hasTree) return tuttiSuccess;
    return tuttiXmlFail(xml, "channel %d has no %s", r->channels - 1, r->hasRing ? "tree" : "ring");
  }
  if (r->channels < r->g->nchannels)
    return tuttiXmlFail(xml, "%d channels announced, %d present", r->g->nchannels, r->channels);
  return tuttiSuccess;
}

tuttiResult_t tuttiGraphParseXml(const char *text, size_t size, const char *name,
                                 const uint64_t *hostIds, int nranks, tuttiGraph **out) {
  static const tuttiXmlHandler handler = {.open = onOpen, .close = onClose};
  reading r = {.hostIds = hostIds, .nranks = nranks};
  if (nranks < 1) return TUTTI_FAIL(tuttiInvalidArgument, "%s: a graph of %d ranks", name, nranks);
  TUTTI_TRY(tuttiAlloc((void **)&r.list, (size_t)nranks, sizeof *r.list, "list of ranks", NULL));
  tuttiResult_t result = tuttiXmlParse(text, size, name, &handler, &r);
  if (result == tuttiSuccess)
    *out = r.g;
  else
    tuttiGraphFree(r.g);
  tuttiFree(r.list);
  return result;
}

tuttiResult_t tuttiGraphReadXml(const char *path, const uint64_t *hostIds, int nranks,
                                tuttiGraph **out) {
  char *text;
  size_t size;
  TUTTI_TRY(tuttiXmlLoad(path, &text, &size));
  tuttiResult_t result = tuttiGraphParseXml(text, size, path, hostIds, nranks, out);
  tuttiFree(text);
  return result;
}
