/* The picture of a graph: hosts are columns of ranks in the order of the first ring; on top the
 * rings as arcs between neighbours, even channels above and odd ones below the ranks, then one
 * panel for each different tree. */
#include "collectives/graph.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "topology/xml.h"

/* In pixels. */
enum {
  MARGIN = 28,
  TITLE = 52,   /* height of a panel's title */
  RADIUS = 17,  /* of a rank */
  CELL = 60,    /* between ranks of a host */
  PAD = 12,     /* inside a host's box, beside the ranks */
  GAP = 20,     /* between hosts, and between panels */
  LABEL = 30,   /* height of a host's label */
  LEVEL = 78,   /* between the levels of a tree */
  KEY = 104,    /* width of one entry of the rings' key */
  KEY_RAIL = 44 /* that the rail adds to it */
};

static const char *const colours[] = {"#2563eb", "#ea580c", "#059669", "#9333ea",
                                      "#dc2626", "#0891b2", "#ca8a04", "#db2777"};
#define COLOURS (int)(sizeof colours / sizeof colours[0])

typedef struct {
  const tuttiGraph *g;
  double *x;    /* [nranks] */
  double *left; /* [nhosts + 1] of the columns; the last one is where the next would be */
  double *next; /* [nhosts]: scratch */
  double reach; /* of the highest arc, with what is around it */
} picture;

static const int32_t *ringOf(const tuttiGraph *g, int channel) {
  return g->ring + (size_t)channel * g->nranks;
}

static const int32_t *parentsOf(const tuttiGraph *g, int channel) {
  return g->parent + (size_t)channel * g->nranks;
}

/* How far the arc from rank a to rank b rises; channels above each other are spread. */
static double arcHeight(const picture *p, int channel, int a, int b) {
  int pair = channel / 2;
  return 16 + 3.6 * sqrt(fabs(p->x[a] - p->x[b])) + 7 * pair;
}

static void place(picture *p) {
  const tuttiGraph *g = p->g;
  for (int r = 0; r < g->nranks; r++)
    p->left[g->host[r] + 1] += CELL;
  p->left[0] = MARGIN;
  for (int h = 0; h < g->nhosts; h++) {
    p->left[h + 1] += p->left[h] + 2 * PAD + GAP;
    p->next[h] = p->left[h] + PAD + 0.5 * CELL;
  }
  for (int i = 0; i < g->nranks; i++) {
    int r = g->ring[i], h = g->host[r];
    p->x[r] = p->next[h];
    p->next[h] += CELL;
  }
  for (int c = 0; c < g->nchannels; c++)
    for (int i = 0; i < g->nranks; i++)
      p->reach =
          fmax(p->reach, arcHeight(p, c, ringOf(g, c)[i], ringOf(g, c)[(i + 1) % g->nranks]));
  p->reach = 0.75 * p->reach + RADIUS + 10; /* where a cubic with these handles has its top */
}

static void drawHosts(const picture *p, double y, double height, FILE *out) {
  for (int h = 0; h < p->g->nhosts; h++)
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"10\" "
            "class=\"host\"/>\n<text x=\"%.1f\" y=\"%.1f\" class=\"label\">host %d</text>\n",
            p->left[h], y, p->left[h + 1] - p->left[h] - GAP, height, p->left[h] + PAD, y + 20, h);
}

static void drawRank(const picture *p, int r, double y, FILE *out) {
  fprintf(out,
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" class=\"rank\"/>"
          "<text x=\"%.1f\" y=\"%.1f\" class=\"number\">%d</text>\n",
          p->x[r], y, RADIUS, p->x[r], y + 4.5, r);
}

/* ---- rings ---------------------------------------------------------------------------------- */

static void drawArc(const picture *p, int channel, int a, int b, double y, FILE *out) {
  double side = channel % 2 ? 1 : -1, along = -5 * side; /* in and out beside each other */
  double x1 = p->x[a] + along, x2 = p->x[b] - along;
  y += side * (RADIUS + 2);
  double tip = y + side * arcHeight(p, channel, a, b);
  fprintf(out,
          "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\" class=\"arc\" stroke=\"%s\" "
          "marker-end=\"url(#arrow%d)\"/>\n",
          x1, y, x1, tip, x2, tip, x2, y + side * 3, colours[channel % COLOURS], channel % COLOURS);
}

/* ", rail 3" of a channel that has one, else ""; returns buf. */
static const char *railText(const tuttiGraph *g, int channel, char *buf, size_t size) {
  buf[0] = '\0';
  if (g->nrails > 0) snprintf(buf, size, ", rail %d", g->treeRail[channel]);
  return buf;
}

static int keyWidth(const tuttiGraph *g) {
  return g->nrails > 0 ? KEY + KEY_RAIL : KEY;
}

static int keyCount(const tuttiGraph *g) {
  return g->nchannels < COLOURS ? g->nchannels : COLOURS;
}

/* Returns where the next panel begins. */
static double drawRings(const picture *p, double y, FILE *out) {
  const tuttiGraph *g = p->g;
  fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"title\">Rings</text>\n", MARGIN, y + 32);
  for (int c = 0; c < keyCount(g); c++) {
    char rail[24];
    double x = MARGIN + 90 + keyWidth(g) * c;
    fprintf(out,
            "<path d=\"M%.1f %.1fh20\" class=\"arc\" stroke=\"%s\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" class=\"label\">channel %d%s%s</text>\n",
            x, y + 27, colours[c], x + 26, y + 31, c, railText(g, c, rail, sizeof rail),
            g->nchannels > c + COLOURS ? " ..." : "");
  }
  double height = LABEL + 2 * p->reach, middle = y + TITLE + LABEL + p->reach;
  drawHosts(p, y + TITLE, height, out);
  for (int c = 0; c < g->nchannels && g->nranks > 1; c++)
    for (int i = 0; i < g->nranks; i++)
      drawArc(p, c, ringOf(g, c)[i], ringOf(g, c)[(i + 1) % g->nranks], middle, out);
  for (int r = 0; r < g->nranks; r++)
    drawRank(p, r, middle, out);
  return y + TITLE + height + GAP;
}

/* ---- trees ---------------------------------------------------------------------------------- */

static bool sameTree(const tuttiGraph *g, int a, int b) {
  return g->treeRail[a] == g->treeRail[b] &&
         memcmp(parentsOf(g, a), parentsOf(g, b), (size_t)g->nranks * sizeof *g->parent) == 0;
}

static bool isNew(const tuttiGraph *g, int channel) {
  for (int c = 0; c < channel; c++)
    if (sameTree(g, c, channel)) return false;
  return true;
}

static double treeHeight(const tuttiGraph *g, int channel) {
  return LABEL + 2 * (PAD + RADIUS) + LEVEL * g->depth[channel];
}

/* The tree of this channel and of all that have the same; returns where the next panel begins. */
static double drawTree(const picture *p, int channel, double y, FILE *out) {
  const tuttiGraph *g = p->g;
  const int32_t *parent = parentsOf(g, channel);
  fprintf(out, "<text x=\"%d\" y=\"%.1f\" class=\"title\">Tree <tspan class=\"label\">of channel",
          MARGIN, y + 32);
  for (int c = channel; c < g->nchannels; c++)
    if (sameTree(g, c, channel)) fprintf(out, c > channel ? ", %d" : " %d", c);
  char rail[24];
  fprintf(out, "%s; depth %d</tspan></text>\n", railText(g, channel, rail, sizeof rail),
          g->depth[channel]);
  y += TITLE;
  drawHosts(p, y, treeHeight(g, channel), out);
  for (int r = 0; r < g->nranks; r++) {
    double at = y + LABEL + PAD + RADIUS;
    int up = parent[r];
    for (int above = up; above >= 0; above = parent[above])
      at += LEVEL;
    double from = at - LEVEL + RADIUS, to = at - RADIUS, middle = at - 0.5 * LEVEL;
    if (up >= 0)
      fprintf(out, "<path d=\"M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f\" class=\"%s\"/>\n",
              p->x[up], from, p->x[up], middle, p->x[r], middle, p->x[r], to,
              g->host[up] == g->host[r] ? "inside" : "between");
    drawRank(p, r, at, out);
  }
  return y + treeHeight(g, channel) + GAP;
}

/* ---- the file ------------------------------------------------------------------------------- */

static void putHead(const picture *p, FILE *out) {
  const tuttiGraph *g = p->g;
  double width =
      fmax(p->left[g->nhosts] - GAP + MARGIN, 2 * MARGIN + 90 + keyWidth(g) * keyCount(g));
  double height = 1.5 * MARGIN + TITLE + LABEL + 2 * p->reach;
  for (int c = 0; c < g->nchannels; c++)
    if (isNew(g, c)) height += GAP + TITLE + treeHeight(g, c);
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
          ".inside { fill: none; stroke: #94a3b8; stroke-width: 2 }\n"
          ".between { fill: none; stroke: #334155; stroke-width: 2.5 }\n"
          "</style>\n<defs>\n",
          width, height, width, height, g->nranks, g->nhosts);
  for (int i = 0; i < COLOURS; i++)
    fprintf(out,
            "<marker id=\"arrow%d\" viewBox=\"0 0 8 8\" refX=\"6\" refY=\"4\" markerWidth=\"5\" "
            "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"%s\"/></marker>\n",
            i, colours[i]);
  fputs("</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n", out);
}

static void writePicture(FILE *out, const void *object) {
  const picture *p = object;
  putHead(p, out);
  double y = drawRings(p, 0.5 * MARGIN, out);
  for (int c = 0; c < p->g->nchannels; c++)
    if (isNew(p->g, c)) y = drawTree(p, c, y, out);
  fputs("</svg>\n", out);
}

tuttiResult_t tuttiGraphWriteSvg(const tuttiGraph *g, const char *path, const char *asked) {
  size_t nranks = (size_t)g->nranks, nhosts = (size_t)g->nhosts;
  TUTTI_FRESH(double, numbers, nranks + 2 * nhosts + 1, "picture", NULL);
  picture p = {
      .g = g, .x = numbers, .left = numbers + nranks, .next = numbers + nranks + nhosts + 1};
  place(&p);
  return tuttiSaveFile(path, asked, "the picture", writePicture, &p);
}
