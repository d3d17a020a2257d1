/* tutti topo: the topology of a host, and the rings and trees over ranks. */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tool.h"
#include "topology/graph.h"
#include "topology/topology.h"
#include "transport/transport.h"

enum { OK = 0, FAILED = 1, USAGE = 2 };

typedef struct {
  const char *sysfs, *xml, *dump;              /* topology */
  const char *hosts, *graph, *graphDump, *svg; /* graph */
  int ranks, channels;                         /* 0: not given */
} options;

static const char help[] =
    "Usage: tutti topo [OPTION]...\n"
    "Prints the topology of this host: NUMA nodes, PCI, NICs and GPUs. With --ranks or --hosts,\n"
    "prints the rings and trees over these ranks instead.\n"
    "\n"
    "Topology:\n"
    "  --sysfs DIR       read the sysfs at DIR instead of /sys\n"
    "  --xml FILE        read the topology from FILE instead\n"
    "  --dump FILE       write the topology to FILE as XML\n"
    "Rings and trees:\n"
    "  --ranks N         N ranks, on one host unless --hosts places them\n"
    "  --hosts A,B,...   A ranks on the first host, B on the second, ...\n"
    "  --channels C      number of channels (default 2)\n"
    "  --graph FILE      read the rings and trees from FILE and check them\n"
    "  --graph-dump FILE write the rings and trees to FILE as XML\n"
    "  --svg FILE        write a picture of the rings and trees to FILE\n"
    "\n"
    "  -h, --help        this text\n";

static int misuse(const char *text, const char *value) {
  fprintf(stderr, "tutti topo: %s%s%s\nTry 'tutti topo --help'.\n", text, value != NULL ? ": " : "",
          value != NULL ? value : "");
  return USAGE;
}

/* True if the number that *text begins with is within 1 and max and ends at `end` or the text's
 * end; *text then is behind it. */
static bool takeNumber(const char **text, char end, int max, int *value) {
  char *rest;
  if (**text < '0' || **text > '9') return false;
  errno = 0;
  long number = strtol(*text, &rest, 10);
  if (errno != 0 || number < 1 || number > max || (*rest != '\0' && *rest != end)) return false;
  *text = rest;
  *value = (int)number;
  return true;
}

static int parse(int argc, char **argv, options *o, bool *done) {
  enum { SYSFS = 256, XML, DUMP, RANKS, HOSTS, CHANNELS, GRAPH, GRAPH_DUMP, SVG };
  static const struct option table[] = {
      {"sysfs", required_argument, NULL, SYSFS},
      {"xml", required_argument, NULL, XML},
      {"dump", required_argument, NULL, DUMP},
      {"ranks", required_argument, NULL, RANKS},
      {"hosts", required_argument, NULL, HOSTS},
      {"channels", required_argument, NULL, CHANNELS},
      {"graph", required_argument, NULL, GRAPH},
      {"graph-dump", required_argument, NULL, GRAPH_DUMP},
      {"svg", required_argument, NULL, SVG},
      {"help", no_argument, NULL, 'h'},
      {NULL, 0, NULL, 0},
  };
  const char *text;
  int c;
  optind = 0; /* the tool's main may have used getopt before */
  while ((c = getopt_long(argc, argv, "h", table, NULL)) != -1) {
    text = optarg;
    switch (c) {
    case SYSFS:
      o->sysfs = optarg;
      break;
    case XML:
      o->xml = optarg;
      break;
    case DUMP:
      o->dump = optarg;
      break;
    case HOSTS:
      o->hosts = optarg;
      break;
    case GRAPH:
      o->graph = optarg;
      break;
    case GRAPH_DUMP:
      o->graphDump = optarg;
      break;
    case SVG:
      o->svg = optarg;
      break;
    case RANKS:
      if (!takeNumber(&text, '\0', TUTTI_GRAPH_MAX_RANKS, &o->ranks))
        return misuse("--ranks is not a number of ranks", optarg);
      break;
    case CHANNELS:
      if (!takeNumber(&text, '\0', TUTTI_MAX_CHANNELS, &o->channels))
        return misuse("--channels is not a number of channels", optarg);
      break;
    case 'h':
      fputs(help, stdout);
      *done = true;
      return OK;
    default: /* getopt_long has said what is wrong */
      return misuse("bad arguments", NULL);
    }
  }
  return optind < argc ? misuse("unexpected argument", argv[optind]) : OK;
}

static int check(const options *o) {
  bool graph = o->ranks > 0 || o->hosts != NULL;
  if (!graph && (o->channels > 0 || o->graph || o->graphDump || o->svg))
    return misuse("--channels, --graph, --graph-dump and --svg need --ranks or --hosts", NULL);
  if (graph && (o->sysfs || o->xml || o->dump))
    return misuse("--sysfs, --xml and --dump go without --ranks and --hosts", NULL);
  if (o->sysfs && o->xml) return misuse("--sysfs and --xml exclude each other", NULL);
  if (o->graph && o->channels > 0) return misuse("--channels and --graph exclude each other", NULL);
  return OK;
}

/* A host number per rank, in *hostIds for free(). */
static int placeRanks(const options *o, uint64_t **hostIds, int *nranks) {
  int total = 0;
  uint64_t *ids = calloc(o->hosts != NULL ? TUTTI_GRAPH_MAX_RANKS : (size_t)o->ranks, sizeof *ids);
  if (ids == NULL) {
    fputs("tutti topo: out of memory\n", stderr);
    return FAILED;
  }
  const char *text = o->hosts;
  for (uint64_t host = 0; text != NULL; host++) {
    int count;
    if (!takeNumber(&text, ',', TUTTI_GRAPH_MAX_RANKS - total, &count)) {
      free(ids);
      return misuse("--hosts is not a list of numbers of ranks like 4,4,2", o->hosts);
    }
    while (count-- > 0)
      ids[total++] = host;
    text = *text == ',' ? text + 1 : NULL;
  }
  if (o->hosts != NULL && o->ranks > 0 && o->ranks != total) {
    free(ids);
    return misuse("--ranks differs from the sum of --hosts", o->hosts);
  }
  *hostIds = ids;
  *nranks = o->hosts != NULL ? total : o->ranks;
  return OK;
}

static int showGraph(const options *o) {
  uint64_t *hostIds;
  tuttiGraph *g = NULL;
  int nranks, code = placeRanks(o, &hostIds, &nranks);
  if (code != OK) return code;
  tuttiResult_t result =
      o->graph != NULL ? tuttiGraphReadXml(o->graph, hostIds, nranks, &g)
                       : tuttiGraphCreate(hostIds, nranks, o->channels > 0 ? o->channels : 2, &g);
  if (result == tuttiSuccess) tuttiGraphPrint(g, stdout);
  if (result == tuttiSuccess && o->graphDump) result = tuttiGraphWriteXml(g, o->graphDump);
  if (result == tuttiSuccess && o->svg) result = tuttiGraphWriteSvg(g, o->svg);
  tuttiGraphFree(g);
  free(hostIds);
  return result == tuttiSuccess ? OK : FAILED;
}

static int showTopology(const options *o) {
  tuttiTopology *t = NULL;
  tuttiResult_t result = o->xml ? tuttiTopologyReadXml(o->xml, &t)
                                : tuttiTopologyDetect(o->sysfs ? o->sysfs : "/sys", &t);
  if (result == tuttiSuccess) tuttiTopologyPrint(t, stdout);
  if (result == tuttiSuccess && o->dump) result = tuttiTopologyWriteXml(t, o->dump);
  tuttiTopologyFree(t);
  return result == tuttiSuccess ? OK : FAILED;
}

int tuttiToolTopo(int argc, char **argv) {
  options o = {0};
  bool done = false;
  int code = parse(argc, argv, &o, &done);
  if (code == OK && !done) code = check(&o);
  if (code != OK || done) return code;
  code = o.ranks > 0 || o.hosts != NULL ? showGraph(&o) : showTopology(&o);
  if (code == FAILED && tuttiErrorText()[0] != '\0')
    fprintf(stderr, "tutti topo: %s\n", tuttiErrorText());
  if (code == OK && fflush(stdout) != 0) {
    fprintf(stderr, "tutti topo: cannot write the output: %s\n", strerror(errno));
    code = FAILED;
  }
  return code;
}
