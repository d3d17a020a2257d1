/* tutti topo: the topology of a host, and the rings, trees and paths over ranks. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "collectives/graph.h"
#include "tool.h"
#include "topo.h"
#include "topology/topology.h"
#include "wireup/plan.h"

#define COMMAND "tutti topo"

typedef struct {
  const char *sysfs, *xml, *dump;              /* topology */
  const char *hosts, *graph, *graphDump, *svg; /* graph */
  int ranks, channels;                         /* 0: not given */
  int paths;                                   /* of this rank; -1: not given */
  bool gpus;                                   /* the ranks are on them */
  size_t traffic;                              /* bytes; 0: not given */
} topoOptions;

static const char usage[] =
    "Usage: tutti topo [OPTION]...\n"
    "Prints the topology of this host: NUMA nodes, PCI, NICs and GPUs. With --ranks or --hosts,\n"
    "prints the rings and trees over these ranks instead; with --paths also what would connect\n"
    "them in host memory if every host were like this one and every rank a process. With --gpus\n"
    "each rank is on a GPU of its host, and all hosts are like this one or that of --xml.\n"
    "\n";

/* Rings and trees are shown instead of the topology. */
static bool wantsGraph(const topoOptions *o) {
  return o->ranks > 0 || o->hosts != NULL;
}

/* NULL, or which options do not go together; with and without rings and trees. */
static const char *conflictOfGraph(const topoOptions *o) {
  if (o->dump || (!o->gpus && (o->sysfs || o->xml)))
    return "--sysfs, --xml and --dump go without --ranks and --hosts, the first two but for --gpus";
  if (o->gpus && (o->graph || o->paths >= 0)) return "--gpus goes without --graph and --paths";
  if (o->graph && o->channels > 0) return "--channels and --graph exclude each other";
  return NULL;
}
static const char *conflict(const topoOptions *o) {
  bool file = o->graph || o->graphDump || o->svg;
  if (!wantsGraph(o) && (o->channels > 0 || o->gpus || o->paths >= 0 || file))
    return "--channels, --gpus, --traffic, --paths, --graph, --graph-dump and --svg need --ranks "
           "or --hosts";
  if (o->sysfs && o->xml) return "--sysfs and --xml exclude each other";
  return wantsGraph(o) ? conflictOfGraph(o) : NULL;
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
      {"gpus", NULL, "the ranks are on GPUs, and channels use the NICs near them",
       .flag = &o->gpus},
      {"traffic", "SIZE", "print what each NIC carries in collectives of SIZE; implies --gpus",
       .size = &o->traffic},
      {"paths", "RANK", "print the paths from RANK to all others, and why these",
       .number = &o->paths, .min = 0, .max = TUTTI_TOPO_PATHS - 1},
      {"graph", "FILE", "read the rings and trees from FILE and check them", .text = &o->graph},
      {"graph-dump", "FILE", "write the rings and trees to FILE as XML", .text = &o->graphDump},
      {"svg", "FILE", "write a picture of the rings and trees to FILE", .text = &o->svg},
  };
  int code = tuttiParseOptions(COMMAND, usage, options, sizeof options / sizeof options[0], "",
                               argc, argv);
  if (code >= 0) return code;
  o->gpus |= o->traffic > 0;
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

static tuttiResult_t readTopology(const topoOptions *o, tuttiTopology **t) {
  return o->xml ? tuttiTopologyParseXml(NULL, 0, o->xml, t) : tuttiTopologyDetect(o->sysfs, t);
}

static tuttiResult_t findRails(const topoOptions *o, int nranks, tuttiTopoRails *rails) {
  tuttiTopology *t = NULL;
  TUTTI_TRY(readTopology(o, &t));
  tuttiResult_t result = tuttiTopoRailed(t, hostIds, nranks, rails);
  tuttiTopologyFree(t);
  return result;
}

static tuttiResult_t makeGraph(const topoOptions *o, int nranks, const tuttiTopoRails *rails,
                               tuttiGraph **g) {
  const tuttiGraphRails over = {.nrails = rails->rails.nrails, .distance = rails->rails.distance};
  int channels = o->channels > 0 ? o->channels : 2;
  if (o->graph) return tuttiGraphParseXml(NULL, 0, o->graph, hostIds, nranks, g);
  if (o->gpus && o->channels == 0) channels = tuttiWireupChannels(tuttiDeviceCuda, 2, 0, 0);
  return tuttiGraphCreate(hostIds, nranks, o->gpus ? &over : NULL, channels, g);
}

static tuttiResult_t writeGraph(const topoOptions *o, const tuttiTopoRails *rails,
                                const tuttiGraph *g) {
  if (o->gpus) tuttiTopoPrintRails(rails, g);
  tuttiGraphPrint(g, stdout);
  if (o->traffic) TUTTI_TRY(tuttiTopoTraffic(rails, g, o->traffic));
  if (o->graphDump) TUTTI_TRY(tuttiGraphWriteXml(g, o->graphDump, "--graph-dump"));
  if (o->svg) TUTTI_TRY(tuttiGraphWriteSvg(g, o->svg, "--svg"));
  return o->paths >= 0 ? tuttiTopoPaths(g, hostIds, o->paths) : tuttiSuccess;
}

static int showGraph(const topoOptions *o) {
  tuttiGraph *g = NULL;
  tuttiTopoRails rails = {0};
  int nranks = 0, code = placeRanks(o, &nranks);
  if (code >= 0) return code;
  if (o->paths >= 0 && (o->paths >= nranks || nranks > TUTTI_TOPO_PATHS))
    return tuttiUsage(COMMAND, "--paths is %d; it must be one of the ranks, at most %d, not %d",
                      o->paths, TUTTI_TOPO_PATHS, nranks);
  tuttiResult_t result = o->gpus ? findRails(o, nranks, &rails) : tuttiSuccess;
  if (result == tuttiSuccess) result = makeGraph(o, nranks, &rails, &g);
  if (result == tuttiSuccess) result = writeGraph(o, &rails, g);
  tuttiGraphFree(g);
  tuttiTopoRailsFree(&rails);
  return result == tuttiSuccess ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

static int showTopology(const topoOptions *o) {
  tuttiTopology *t = NULL;
  tuttiResult_t result = readTopology(o, &t);
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
