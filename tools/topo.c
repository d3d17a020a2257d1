/* tutti topo: the topology of a host, and the rings, trees and paths over ranks. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "collectives/graph.h"
#include "tool.h"
#include "topo.h"
#include "topology/topology.h"

#define COMMAND "tutti topo"

typedef struct {
  const char *sysfs, *xml, *dump;              /* topology */
  const char *hosts, *graph, *graphDump, *svg; /* graph */
  int ranks, channels;                         /* 0: not given */
  int paths;                                   /* of this rank; -1: not given */
} topoOptions;

static const char usage[] =
    "Usage: tutti topo [OPTION]...\n"
    "Prints the topology of this host: NUMA nodes, PCI, NICs and GPUs. With --ranks or --hosts,\n"
    "prints the rings and trees over these ranks instead; with --paths also what would connect\n"
    "them in host memory if every host were like this one and every rank a process.\n"
    "\n";

/* Rings and trees are shown instead of the topology. */
static bool wantsGraph(const topoOptions *o) {
  return o->ranks > 0 || o->hosts != NULL;
}

/* NULL, or which options do not go together. */
static const char *conflict(const topoOptions *o) {
  bool ofTopology = o->sysfs || o->xml || o->dump;
  bool ofGraph = o->channels > 0 || o->paths >= 0 || o->graph || o->graphDump || o->svg;
  if (!wantsGraph(o) && ofGraph)
    return "--channels, --paths, --graph, --graph-dump and --svg need --ranks or --hosts";
  if (wantsGraph(o) && ofTopology)
    return "--sysfs, --xml and --dump go without --ranks and --hosts";
  if (o->sysfs && o->xml) return "--sysfs and --xml exclude each other";
  if (o->graph && o->channels > 0) return "--channels and --graph exclude each other";
  return NULL;
}

static int parse(int argc, char **argv, topoOptions *o) {
  const tuttiOption options[] = {
      {.help = "Topology:"},
      {"sysfs", "DIR", "read the sysfs at DIR instead of /sys", .text = &o->sysfs},
      {"xml", "FILE", "read the topology from FILE instead", .text = &o->xml},
      {"dump", "FILE", "write the topology to FILE as XML", .text = &o->dump},
      {.help = "Rings and trees:"},
      {"ranks", "N", "N ranks, on one host unless --hosts places them", .number = &o->ranks,
       .min = 1, .max = TUTTI_GRAPH_MAX_RANKS},
      {"hosts", "A,B,...", "A ranks on the first host, B on the second, ...", .text = &o->hosts},
      {"channels", "C", "number of channels (default 2)", .number = &o->channels, .min = 1,
       .max = TUTTI_MAX_CHANNELS},
      {"paths", "RANK", "print the paths from RANK to all others, and why these",
       .number = &o->paths, .min = 0, .max = TUTTI_TOPO_PATHS - 1},
      {"graph", "FILE", "read the rings and trees from FILE and check them", .text = &o->graph},
      {"graph-dump", "FILE", "write the rings and trees to FILE as XML", .text = &o->graphDump},
      {"svg", "FILE", "write a picture of the rings and trees to FILE", .text = &o->svg},
  };
  int code = tuttiParseOptions(COMMAND, usage, options, sizeof options / sizeof options[0], "",
                               argc, argv);
  if (code >= 0) return code;
  const char *wrong = conflict(o);
  if (wrong != NULL) return tuttiUsage(COMMAND, "%s", wrong);
  if (optind < argc) return tuttiUsage(COMMAND, "unexpected argument '%s'", argv[optind]);
  return -1;
}

/* A host number per rank. */
static uint64_t hostIds[TUTTI_GRAPH_MAX_RANKS];

static int placeRanks(const topoOptions *o, int *nranks) {
  int total = o->hosts != NULL ? 0 : o->ranks;
  const char *at = o->hosts;
  for (uint64_t host = 0; at != NULL; host++) {
    char item[16];
    int64_t count = 0;
    size_t length = strcspn(at, ",");
    snprintf(item, sizeof item, "%.*s", (int)length, at);
    if (length >= sizeof item || !tuttiParseInt(item, 1, TUTTI_GRAPH_MAX_RANKS - total, &count))
      return tuttiUsage(
          COMMAND, "--hosts is '%s'; it must be a list of numbers of ranks like 4,4,2", o->hosts);
    while (count-- > 0)
      hostIds[total++] = host;
    at = at[length] == ',' ? at + length + 1 : NULL;
  }
  if (o->ranks > 0 && o->ranks != total)
    return tuttiUsage(COMMAND, "--ranks %d differs from the sum of --hosts %s", o->ranks, o->hosts);
  *nranks = total;
  return -1;
}

static int showGraph(const topoOptions *o) {
  tuttiGraph *g = NULL;
  int nranks = 0, code = placeRanks(o, &nranks);
  if (code >= 0) return code;
  if (o->paths >= 0 && (o->paths >= nranks || nranks > TUTTI_TOPO_PATHS))
    return tuttiUsage(COMMAND, "--paths is %d; it must be one of the ranks, at most %d, not %d",
                      o->paths, TUTTI_TOPO_PATHS, nranks);
  tuttiResult_t result =
      o->graph != NULL
          ? tuttiGraphParseXml(NULL, 0, o->graph, hostIds, nranks, &g)
          : tuttiGraphCreate(hostIds, nranks, NULL, o->channels > 0 ? o->channels : 2, &g);
  if (result == tuttiSuccess) tuttiGraphPrint(g, stdout);
  if (result == tuttiSuccess && o->graphDump)
    result = tuttiGraphWriteXml(g, o->graphDump, "--graph-dump");
  if (result == tuttiSuccess && o->svg) result = tuttiGraphWriteSvg(g, o->svg, "--svg");
  if (result == tuttiSuccess && o->paths >= 0) result = tuttiTopoPaths(g, hostIds, o->paths);
  tuttiGraphFree(g);
  return result == tuttiSuccess ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

static int showTopology(const topoOptions *o) {
  tuttiTopology *t = NULL;
  tuttiResult_t result =
      o->xml ? tuttiTopologyParseXml(NULL, 0, o->xml, &t) : tuttiTopologyDetect(o->sysfs, &t);
  if (result == tuttiSuccess) tuttiTopologyPrint(t, stdout);
  if (result == tuttiSuccess && o->dump) result = tuttiTopologyWriteXml(t, o->dump, "--dump");
  tuttiTopologyFree(t);
  return result == tuttiSuccess ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

int tuttiToolTopo(int argc, char **argv) {
  topoOptions o = {.paths = -1};
  int code = parse(argc, argv, &o);
  if (code >= 0) return code;
  code = wantsGraph(&o) ? showGraph(&o) : showTopology(&o);
  if (code == TUTTI_EXIT_FAILED && tuttiErrorText()[0] != '\0')
    fprintf(stderr, COMMAND ": %s\n", tuttiErrorText());
  if (code == TUTTI_EXIT_OK && !tuttiFlushed(stdout, COMMAND, "the output"))
    code = TUTTI_EXIT_FAILED;
  return code;
}
