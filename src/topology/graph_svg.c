/* The picture of a graph: every host is a column; on top the rings as arcs between neighbours, even
 * channels above and odd ones below the ranks, then one panel for each different tree. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "topology/graph.h"
#include "topology/xml.h"
#include "transport/transport.h"

/* In pixels. */
enum {
  MARGIN = 28,
  TITLE = 52,  /* height of a panel's title */
  RADIUS = 17, /* of a rank */
  CELL = 60,   /* between ranks of a host */
  PAD = 12,    /* inside a host's box, beside the ranks */
  GAP = 20,    /* between hosts */
  LABEL = 30,  /* height of a host's label */
  LEVEL = 78,  /* between the levels of a tree */
  KEY = 104    /* width of one entry of the rings' key */
};

static const char *const colours[] = {"#2563eb", "#ea580c", "#059669", "#9333ea",
                                      "#dc2626", "#0891b2", "#ca8a04", "#db2777"};
#define COLOURS (int)(sizeof colours / sizeof colours[0])

typedef struct {
  const tuttiGraph *g;
  double *x, *y;                    /* [nranks]: of the ranks in the panel at hand */
  double *left, *right;             /* [nhosts]: of the columns */
  double *top, *bottom;             /* [nhosts]: of the boxes in the panel at hand */
  int *first, *next, *stack;        /* [nranks], [nranks], [2 * nranks]: scratch of placeTree */
  int *slots;                       /* [nhosts]: scratch */
  double width, reach;              /* of the picture; of the highest arc */
  int sameTree[TUTTI_MAX_CHANNELS]; /* the first channel that has the same tree */
} picture;

static const int32_t *parents(const tuttiGraph *g, int channel) {
  return g->parent + (size_t)channel * g->nranks;
}

/* Next free place in the column of r's host. */
static double nextSlot(picture *p, int r) {
  int h = p->g->host[r];
  return p->left[h] + PAD + CELL * (p->slots[h]++ + 0.5);
}

static void clearSlots(picture *p) {
  memset(p->slots, 0, (size_t)p->g->nhosts * sizeof *p->slots);
}

static void placeColumns(picture *p) {
  const tuttiGraph *g = p->g;
  clearSlots(p);
  for (int r = 0; r < g->nranks; r++)
    p->slots[g->host[r]]++;
  double x = MARGIN;
  for (int h = 0; h < g->nhosts; h++) {
    p->left[h] = x;
    p->right[h] = x + 2 * PAD + CELL * p->slots[h];
    x = p->right[h] + GAP;
  }
  int keys = g->nchannels < COLOURS ? g->nchannels : COLOURS;
  p->width = fmax(x - GAP + MARGIN, 2 * MARGIN + 90 + KEY * keys);
}

/* How far the arc from rank a to rank b rises; channels above each other are spread. */
static double arcHeight(const picture *p, int channel, int a, int b) {
  int pair = channel / 2;
  return 16 + 3.6 * sqrt(fabs(p->x[a] - p->x[b])) + 7 * pair;
}

/* Places the ranks of the rings' panel in a line, in the order of the first ring. */
static void placeRings(picture *p, double y) {
  const tuttiGraph *g = p->g;
  clearSlots(p);
  for (int i = 0; i < g->nranks; i++)
    p->x[g->ring[i]] = nextSlot(p, g->ring[i]);
  p->reach = 0;
  for (int c = 0; c < g->nchannels; c++) {
    const int32_t *ring = g->ring + (size_t)c * g->nranks;
    for (int i = 0; i < g->nranks; i++)
      p->reach = fmax(p->reach, arcHeight(p, c, ring[i], ring[(i + 1) % g->nranks]));
  }
  p->reach = 0.75 * p->reach + RADIUS + 10; /* where a cubic with these handles has its top */
  for (int r = 0; r < g->nranks; r++)
    p->y[r] = y + LABEL + p->reach;
  for (int h = 0; h < g->nhosts; h++) {
    p->top[h] = y;
    p->bottom[h] = y + LABEL + 2 * p->reach;
  }
}

/* Places the ranks of a host in the order in which they are met walking its part of the tree from
 * left to right, so that a parent stands between its children; their depth gives the height. */
static void placeHostTree(picture *p, int root) {
  int depth = 0;
  p->stack[depth++] = root;
  while (depth > 0) {
    int v = p->stack[--depth];
    if (v < 0) { /* what is left of it has its place */
      p->x[-v - 1] = nextSlot(p, -v - 1);
      continue;
    }
    int left = p->first[v];
    int base = depth;
    for (int c = left < 0 ? -1 : p->next[left]; c >= 0; c = p->next[c])
      p->stack[depth++] = c;
    for (int i = base, j = depth - 1; i < j; i++, j--) { /* the first on top */
      int c = p->stack[i];
      p->stack[i] = p->stack[j];
      p->stack[j] = c;
    }
    p->stack[depth++] = -v - 1;
    if (left >= 0) p->stack[depth++] = left;
  }
}

static void placeTree(picture *p, int channel, double y) {
  const tuttiGraph *g = p->g;
  const int32_t *parent = parents(g, channel);
  clearSlots(p);
  for (int r = 0; r < g->nranks; r++)
    p->first[r] = -1;
  for (int r = g->nranks - 1; r >= 0; r--) {
    if (parent[r] < 0 || g->host[parent[r]] != g->host[r]) continue;
    p->next[r] = p->first[parent[r]];
    p->first[parent[r]] = r;
  }
  for (int h = 0; h < g->nhosts; h++) {
    p->top[h] = INFINITY;
    p->bottom[h] = 0;
  }
  for (int r = 0; r < g->nranks; r++) {
    int depth = 0, h = g->host[r];
    for (int up = parent[r]; up >= 0; up = parent[up])
      depth++;
    p->y[r] = y + LABEL + PAD + RADIUS + LEVEL * depth;
    p->top[h] = fmin(p->top[h], p->y[r] - RADIUS - PAD - LABEL);
    p->bottom[h] = fmax(p->bottom[h], p->y[r] + RADIUS + PAD);
    if (parent[r] < 0 || g->host[parent[r]] != h) placeHostTree(p, r);
  }
}

static void drawHosts(const picture *p, FILE *out) {
  for (int h = 0; h < p->g->nhosts; h++)
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"10\" "
            "class=\"host\"/>\n",
            p->left[h], p->top[h], p->right[h] - p->left[h], p->bottom[h] - p->top[h]);
}

/* Ranks and labels come last, over the edges. */
static void drawRanks(const picture *p, FILE *out) {
  for (int r = 0; r < p->g->nranks; r++)
    fprintf(out,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" class=\"rank\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" class=\"number\">%d</text>\n",
            p->x[r], p->y[r], RADIUS, p->x[r], p->y[r] + 4.5, r);
  for (int h = 0; h < p->g->nhosts; h++)
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"label\">host %d</text>\n", p->left[h] + PAD,
            p->top[h] + 20, h);
}

static void drawArc(const picture *p, int channel, int a, int b, FILE *out) {
  double side = channel % 2 ? 1 : -1, along = -5 * side; /* in and out beside each other */
  double x1 = p->x[a] + along, x2 = p->x[b] - along;
  double y = p->y[a] + side * (RADIUS + 2), tip = y + side * arcHeight(p, channel, a, b);
  fprintf(out,
          "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\" class=\"arc\" stroke=\"%s\" "
          "marker-end=\"url(#arrow%d)\"/>\n",
          x1, y, x1, tip, x2, tip, x2, y + side * 3, colours[channel % COLOURS], channel % COLOURS);
}

static void drawRings(picture *p, double y, FILE *out) {
  const tuttiGraph *g = p->g;
  int keys = g->nchannels < COLOURS ? g->nchannels : COLOURS;
  fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"title\">Rings</text>\n", MARGIN, y + 32);
  for (int c = 0; c < keys; c++) {
    double x = MARGIN + 90 + KEY * c;
    fprintf(out,
            "<path d=\"M%.1f %.1fh20\" class=\"arc\" stroke=\"%s\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" class=\"label\">channel %d%s</text>\n",
            x, y + 27, colours[c], x + 26, y + 31, c, g->nchannels > c + COLOURS ? " ..." : "");
  }
  drawHosts(p, out);
  for (int c = 0; c < g->nchannels && g->nranks > 1; c++) {
    const int32_t *ring = g->ring + (size_t)c * g->nranks;
    for (int i = 0; i < g->nranks; i++)
      drawArc(p, c, ring[i], ring[(i + 1) % g->nranks], out);
  }
  drawRanks(p, out);
}

/* "Tree  channels 0, 2; depth 3" */
static void drawTreeTitle(const picture *p, int channel, double y, FILE *out) {
  const tuttiGraph *g = p->g;
  int same = 0;
  for (int c = 0; c < g->nchannels; c++)
    same += p->sameTree[c] == channel;
  fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"title\">Tree <tspan class=\"label\">channel%s ",
          MARGIN, y + 32, same > 1 ? "s" : "");
  for (int c = channel; c < g->nchannels; c++)
    if (p->sameTree[c] == channel) fprintf(out, c > channel ? ", %d" : "%d", c);
  fprintf(out, "; depth %d</tspan></text>\n", tuttiGraphTreeDepth(g, channel));
}

static double treeHeight(const tuttiGraph *g, int channel) {
  return TITLE + LABEL + 2 * (PAD + RADIUS) + LEVEL * tuttiGraphTreeDepth(g, channel);
}

static void drawTree(picture *p, int channel, double y, FILE *out) {
  const tuttiGraph *g = p->g;
  const int32_t *parent = parents(g, channel);
  drawTreeTitle(p, channel, y, out);
  placeTree(p, channel, y + TITLE);
  drawHosts(p, out);
  for (int r = 0; r < g->nranks; r++) {
    int up = parent[r];
    if (up < 0) continue;
    fprintf(out, "<path d=\"M%.1f %.1fL%.1f %.1f\" class=\"%s\"/>\n", p->x[up], p->y[up], p->x[r],
            p->y[r], g->host[up] == g->host[r] ? "inside" : "between");
  }
  drawRanks(p, out);
}

static void putHead(const picture *p, double height, FILE *out) {
  fprintf(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
          "viewBox=\"0 0 %.0f %.0f\">\n"
          "<title>Rings and trees of %d ranks on %d hosts</title>\n<style>\n"
          "text { font-family: Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif }\n"
          ".title { font-size: 19px; font-weight: 600; fill: #0f172a }\n"
          ".label { font-size: 13px; font-weight: 400; fill: #64748b }\n"
          ".number { font-size: 13px; font-weight: 600; fill: #0f172a; text-anchor: middle }\n"
          ".host { fill: #f8fafc; stroke: #cbd5e1 }\n"
          ".rank { fill: #ffffff; stroke: #334155; stroke-width: 1.5 }\n"
          ".arc { fill: none; stroke-width: 2 }\n"
          ".inside { stroke: #94a3b8; stroke-width: 2 }\n"
          ".between { stroke: #334155; stroke-width: 2.5 }\n"
          "</style>\n<defs>\n",
          p->width, height, p->width, height, p->g->nranks, p->g->nhosts);
  for (int i = 0; i < COLOURS; i++)
    fprintf(out,
            "<marker id=\"arrow%d\" viewBox=\"0 0 8 8\" refX=\"6\" refY=\"4\" markerWidth=\"5\" "
            "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"%s\"/></marker>\n",
            i, colours[i]);
  fputs("</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", out);
}

static void writePicture(FILE *out, const void *object) {
  picture p = *(const picture *)object;
  const tuttiGraph *g = p.g;
  placeColumns(&p);
  placeRings(&p, 0.5 * MARGIN + TITLE);
  double height = p.bottom[0];
  for (int c = 0; c < g->nchannels; c++)
    if (p.sameTree[c] == c) height += GAP + treeHeight(g, c);
  putHead(&p, height + MARGIN, out);
  drawRings(&p, 0.5 * MARGIN, out);
  double y = p.bottom[0];
  for (int c = 0; c < g->nchannels; c++) {
    if (p.sameTree[c] != c) continue;
    drawTree(&p, c, y + GAP, out);
    y += GAP + treeHeight(g, c);
  }
  fputs("</svg>\n", out);
}

static void findSameTrees(picture *p) {
  const tuttiGraph *g = p->g;
  size_t bytes = (size_t)g->nranks * sizeof *g->parent;
  for (int c = 0; c < g->nchannels; c++) {
    int same = 0;
    while (memcmp(parents(g, c), parents(g, same), bytes) != 0)
      same++;
    p->sameTree[c] = same;
  }
}

tuttiResult_t tuttiGraphWriteSvg(const tuttiGraph *g, const char *path) {
  picture p = {.g = g};
  size_t nranks = (size_t)g->nranks, nhosts = (size_t)g->nhosts;
  TUTTI_TRY(tuttiAlloc((void **)&p.x, 2 * nranks + 4 * nhosts, sizeof *p.x, "picture", NULL));
  tuttiResult_t result =
      tuttiAlloc((void **)&p.first, 4 * nranks + nhosts, sizeof *p.first, "picture", NULL);
  if (result == tuttiSuccess) {
    p.y = p.x + nranks;
    p.left = p.y + nranks;
    p.right = p.left + nhosts;
    p.top = p.right + nhosts;
    p.bottom = p.top + nhosts;
    p.next = p.first + nranks;
    p.stack = p.next + nranks;
    p.slots = p.stack + 2 * nranks;
    findSameTrees(&p);
    result = tuttiSaveFile(path, "the picture", writePicture, &p);
    tuttiFree(p.first);
  }
  tuttiFree(p.x);
  return result;
}
