#include "topology/graph.h"
#include "topology/graph_internal.h"

void tuttiGraphPrint(const tuttiGraph *g, FILE *out) {
  char text[TUTTI_GRAPH_TREE_TEXT];
  fprintf(out, "%d rank%s on %d host%s, %d channel%s\n", g->nranks, g->nranks > 1 ? "s" : "",
          g->nhosts, g->nhosts > 1 ? "s" : "", g->nchannels, g->nchannels > 1 ? "s" : "");
  for (int c = 0; c < g->nchannels; c++) {
    fprintf(out, "Ring %02d :", c);
    for (int i = 0; i < g->nranks; i++)
      fprintf(out, " %d", g->ring[(size_t)c * g->nranks + i]);
    fputc('\n', out);
  }
  for (int c = 0; c < g->nchannels; c++)
    for (int r = 0; r < g->nranks; r++)
      fprintf(out, "Tree %02d : %s\n", c, tuttiGraphTreeText(g, c, r, text, sizeof text));
}
