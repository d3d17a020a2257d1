#include "collectives/graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "topology/xml.h"

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

tuttiResult_t tuttiGraphWriteXml(const tuttiGraph *g, const char *path, const char *asked) {
  return tuttiSaveFile(path, asked, "the graph", writeGraph, g);
}

typedef struct {
  const uint64_t *hostIds;
  int nranks;
  tuttiGraph *g;    /* made when its number of channels is read */
  int32_t *scratch; /* [nranks] */
  int channel;      /* the one that has begun last; -1 before the first */
  bool hasRing, hasTree;
} reading;

/* Fills list[nranks] from an attribute that holds one number within min and nranks - 1 per rank. */
static tuttiResult_t readList(const reading *r, const tuttiXml *xml, const char *attribute,
                              const char *text, long min, int32_t *list) {
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
    if (count < r->nranks) list[count] = (int32_t)value;
    text = end;
  }
  if (count != r->nranks)
    return tuttiXmlFail(xml, "%s has %d entries for %d ranks", attribute, count, r->nranks);
  return tuttiSuccess;
}

/* The same for an element that has this attribute alone. */
static tuttiResult_t readOnlyList(const reading *r, const tuttiXml *xml, const char *attribute,
                                  long min, int32_t *list) {
  const char *text = NULL;
  TUTTI_TRY(tuttiXmlTake(xml, &(tuttiXmlAttribute){attribute, .raw = &text}, 1));
  return readList(r, xml, attribute, text, min, list);
}

static tuttiResult_t openGraph(void *context, const tuttiXml *xml) {
  reading *r = context;
  int version = 0, channels = 0;
  const char *hosts = NULL;
  const tuttiXmlAttribute known[] = {
      {"version", .number = &version, .min = 1, .max = 1},
      {"channels", .number = &channels, .min = 1, .max = TUTTI_MAX_CHANNELS},
      {"hosts", .raw = &hosts},
  };
  TUTTI_TRY(tuttiXmlTake(xml, known, sizeof known / sizeof known[0]));
  if (version == 0) return tuttiXmlFail(xml, "graph without version=\"1\"");
  if (channels == 0) return tuttiXmlFail(xml, "graph without channels");
  TUTTI_TRY(tuttiGraphNew(r->hostIds, r->nranks, channels, &r->g));
  TUTTI_TRY(readList(r, xml, "hosts", hosts, 0, r->scratch));
  for (int i = 0; i < r->nranks; i++)
    if (r->scratch[i] != r->g->host[i])
      return tuttiXmlFail(xml,
                          "rank %d is on host %d of the file but on host %d of this job; use a "
                          "graph made for the same placement of ranks",
                          i, r->scratch[i], r->g->host[i]);
  return tuttiSuccess;
}

static tuttiResult_t closeGraph(void *context, const tuttiXml *xml) {
  const reading *r = context;
  if (r->channel + 1 == r->g->nchannels) return tuttiSuccess;
  return tuttiXmlFail(xml, "%d channels announced, %d present", r->g->nchannels, r->channel + 1);
}

static tuttiResult_t openChannel(void *context, const tuttiXml *xml) {
  reading *r = context;
  TUTTI_TRY(tuttiXmlTake(xml, NULL, 0));
  if (++r->channel == r->g->nchannels)
    return tuttiXmlFail(xml, "more than the %d channels announced", r->g->nchannels);
  r->hasRing = r->hasTree = false;
  return tuttiSuccess;
}

static tuttiResult_t closeChannel(void *context, const tuttiXml *xml) {
  const reading *r = context;
  if (r->hasRing && r->hasTree) return tuttiSuccess;
  return tuttiXmlFail(xml, "channel %d has no %s", r->channel, r->hasRing ? "tree" : "ring");
}

static tuttiResult_t openRing(void *context, const tuttiXml *xml) {
  reading *r = context;
  size_t base = (size_t)r->channel * (size_t)r->nranks;
  int32_t *ring = r->g->ring + base, *position = r->g->position + base;
  if (r->hasRing) return tuttiXmlFail(xml, "a second ring in channel %d", r->channel);
  TUTTI_TRY(readOnlyList(r, xml, "ranks", 0, ring));
  for (int i = 0; i < r->nranks; i++)
    position[i] = -1;
  for (int i = 0; i < r->nranks; i++) {
    if (position[ring[i]] >= 0)
      return tuttiXmlFail(xml, "rank %d is in the ring of channel %d twice", ring[i], r->channel);
    position[ring[i]] = i;
  }
  r->hasRing = true;
  return tuttiSuccess;
}

static tuttiResult_t openTree(void *context, const tuttiXml *xml) {
  reading *r = context;
  int channel = r->channel, root = -1;
  int32_t *parent = r->g->parent + (size_t)channel * (size_t)r->nranks, *neighbours = r->scratch;
  if (r->hasTree) return tuttiXmlFail(xml, "a second tree in channel %d", channel);
  TUTTI_TRY(readOnlyList(r, xml, "parents", -1, parent));
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
  TUTTI_TRY(tuttiGraphMeasureTree(r->g, channel));
  if (r->g->depth[channel] < 0)
    return tuttiXmlFail(xml, "the parents of channel %d go round in a circle", channel);
  r->hasTree = true;
  return tuttiSuccess;
}

tuttiResult_t tuttiGraphParseXml(const char *text, size_t size, const char *name,
                                 const uint64_t *hostIds, int nranks, tuttiGraph **out) {
  static const tuttiXmlElement elements[] = {
      {.element = "graph", .open = openGraph, .close = closeGraph},
      {.parent = "graph", .element = "channel", .open = openChannel, .close = closeChannel},
      {.parent = "channel", .element = "ring", .open = openRing, .close = tuttiXmlNothingToClose},
      {.parent = "channel", .element = "tree", .open = openTree, .close = tuttiXmlNothingToClose},
  };
  if (nranks < 1) return TUTTI_FAIL(tuttiInvalidArgument, "%s: a graph of %d ranks", name, nranks);
  TUTTI_FRESH(int32_t, scratch, nranks, "list of ranks", NULL);
  reading r = {.hostIds = hostIds, .nranks = nranks, .scratch = scratch, .channel = -1};
  tuttiResult_t result = tuttiXmlParse(text, size, name, elements, 4, &r);
  if (result == tuttiSuccess)
    *out = r.g;
  else
    tuttiGraphFree(r.g);
  return result;
}
