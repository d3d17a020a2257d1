/* The command line of tutti perf. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"
#include "text.h"
#include "tool.h"

static const char help[] =
    "Usage: tutti perf COLLECTIVE [OPTION]...\n"
    "Runs a collective over a range of sizes, prints times and bandwidths, and checks results.\n"
    "\n"
    "COLLECTIVE: all_reduce, broadcast, reduce, all_gather, reduce_scatter, alltoall, gather,\n"
    "scatter, sendrecv (a ring of send and receive), or all.\n"
    "\n"
    "Ranks:\n"
    "  --ranks N      start N local ranks (default 4); not needed under mpirun, srun or torchrun\n"
    "  --threads      ranks are threads of one process, not processes\n"
    "  --device D     memory to use: auto (default), host or cuda\n"
    "  --port P       port of rank 0 that the ranks of mpirun, srun or torchrun meet at (default:\n"
    "                 MASTER_PORT + 1 of torchrun, else derived from the job); "
    "TUTTI_COMM_ID=host:port\n"
    "                 overrides it and is needed for mpirun over several hosts\n"
    "Sizes, of the larger of input and output, with K, M or G:\n"
    "  --begin B      first size (default 8)\n"
    "  --end B        last size (default 64M)\n"
    "  --factor F     factor from one size to the next (default 2)\n"
    "What to run:\n"
    "  --dtype T      int8 uint8 int32 uint32 int64 uint64 float16 float32 (default) float64\n"
    "                 bfloat16 float8e4m3 float8e5m2, or all\n"
    "  --op O         sum (default) prod min max avg, or all\n"
    "  --root R       root of broadcast, reduce, gather and scatter (default 0)\n"
    "  --in-place     measure the in-place form (default: out of place)\n"
    "On GPUs:\n"
    "  --graph        measure replays of a CUDA graph of 20 calls\n"
    "  --buffers K    plain (default), registered with the communicator, or a window\n"
    "  --lib FILE     measure this library with the ABI of NCCL instead of tutti\n"
    "How:\n"
    "  --iters N      timed calls per row (default: for about 50 ms, 4 to 1000)\n"
    "  --warmup N     calls before (default: 5, from 1M on 2)\n"
    "  --check        verify every element, the inputs and the bytes around the buffers; a wrong\n"
    "                 one makes the exit code 1\n"
    "  --json FILE    write one JSON object per row to FILE; '-': to stdout, without the table\n"
    "  -h, --help     this text\n"
    "\n"
    "time is that of one call on the slowest rank, in us; algbw is size / time; busbw is what the\n"
    "links carry: algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter,\n"
    "alltoall, gather and scatter, 1 for the others. Both are in 1e9 bytes/s.\n"
    "\n"
    "Exit code: 0, 1 on wrong data or a failure, 2 on bad arguments.\n";

enum {
  RANKS = 256,
  THREADS,
  DEVICE,
  PORT,
  BEGIN,
  END,
  FACTOR,
  DTYPE,
  OP,
  ROOT,
  ITERS,
  WARMUP,
  CHECK,
  IN_PLACE,
  JSON,
  GRAPH,
  BUFFERS,
  LIB
};

static const struct option table[] = {
    {"ranks", required_argument, NULL, RANKS},
    {"threads", no_argument, NULL, THREADS},
    {"device", required_argument, NULL, DEVICE},
    {"port", required_argument, NULL, PORT},
    {"begin", required_argument, NULL, BEGIN},
    {"end", required_argument, NULL, END},
    {"factor", required_argument, NULL, FACTOR},
    {"dtype", required_argument, NULL, DTYPE},
    {"op", required_argument, NULL, OP},
    {"root", required_argument, NULL, ROOT},
    {"iters", required_argument, NULL, ITERS},
    {"warmup", required_argument, NULL, WARMUP},
    {"check", no_argument, NULL, CHECK},
    {"in-place", no_argument, NULL, IN_PLACE},
    {"json", required_argument, NULL, JSON},
    {"graph", no_argument, NULL, GRAPH},
    {"buffers", required_argument, NULL, BUFFERS},
    {"lib", required_argument, NULL, LIB},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int takeInt(const char *name, int64_t min, int64_t max, int *out) {
  int64_t value;
  if (!tuttiParseInt(optarg, min, max, &value))
    return tuttiUsage(PERF_COMMAND, "--%s is '%s'; it must be a number from %lld to %lld", name,
                      optarg, (long long)min, (long long)max);
  *out = (int)value;
  return -1;
}

static int takeSize(const char *name, size_t *out) {
  size_t value;
  if (!tuttiParseSize(optarg, &value) || value == 0 || value > SIZE_MAX / 4)
    return tuttiUsage(PERF_COMMAND, "--%s is '%s'; it must be a size like 8, 64K, 16M or 1G", name,
                      optarg);
  *out = value;
  return -1;
}

/* One of `names`, at the index that `found` says, -1 if none, or "all" if `all`. */
static int takeWord(const char *name, const char *const *names, int n, int found, bool all,
                    int *out) {
  if (found >= 0 || (all && strcmp(optarg, "all") == 0)) {
    *out = found;
    return -1;
  }
  const char *nearest = tuttiNearest(optarg, names, n);
  return tuttiUsage(PERF_COMMAND, "unknown --%s '%s'; did you mean '%s'?", name, optarg,
                    nearest != NULL ? nearest
                    : all           ? "all"
                                    : names[0]);
}

static int takeType(perfOptions *o) {
  const char *names[tuttiNumTypes];
  for (int t = 0; t < tuttiNumTypes; t++)
    names[t] = perfTypes[t].name;
  return takeWord("dtype", names, tuttiNumTypes, perfTypeFind(optarg), true, &o->type);
}

static int takeDevice(perfOptions *o) {
  static const char *const names[] = {
      [tuttiDeviceAuto] = "auto", [tuttiDeviceHost] = "host", [tuttiDeviceCuda] = "cuda"};
  int found = -1;
  for (int d = 0; d < 3; d++)
    if (strcmp(optarg, names[d]) == 0) found = d;
  int device = tuttiDeviceAuto, code = takeWord("device", names, 3, found, false, &device);
  o->device = (tuttiDevice_t)device;
  return code;
}

static int takeKind(perfOptions *o) {
  static const char *const names[] = {"plain", "registered", "window"};
  int found = -1, kind = 0;
  for (int k = 0; k < 3; k++)
    if (strcmp(optarg, names[k]) == 0) found = k;
  int code = takeWord("buffers", names, 3, found, false, &kind);
  o->kind = (perfBufferKind)kind;
  return code;
}

static int takeOption(int c, perfOptions *o) {
  switch (c) {
  case RANKS:
    return takeInt("ranks", 1, PERF_MAX_RANKS, &o->ranks);
  case DEVICE:
    return takeDevice(o);
  case PORT:
    return takeInt("port", 1, 65535, &o->port);
  case BEGIN:
    return takeSize("begin", &o->begin);
  case END:
    return takeSize("end", &o->end);
  case FACTOR:
    return takeInt("factor", 2, 1 << 20, &o->factor);
  case DTYPE:
    return takeType(o);
  case OP:
    return takeWord("op", perfOpNames, tuttiNumOps, perfOpFind(optarg), true, &o->op);
  case ROOT:
    return takeInt("root", 0, PERF_MAX_RANKS - 1, &o->root);
  case ITERS:
    return takeInt("iters", 1, 1000000000, &o->iters);
  case WARMUP:
    return takeInt("warmup", 0, 1000000000, &o->warmup);
  case THREADS:
    o->threads = true;
    return -1;
  case CHECK:
    o->check = true;
    return -1;
  case IN_PLACE:
    o->inPlace = true;
    return -1;
  case GRAPH:
    o->graph = true;
    return -1;
  case BUFFERS:
    return takeKind(o);
  case LIB:
    o->lib = optarg;
    return -1;
  default:
    o->json = optarg;
    return -1;
  }
}

static int takeCollective(const char *word, perfOptions *o) {
  const char *names[32] = {"all"};
  o->collective = perfCollectiveFind(word);
  if (o->collective != NULL || strcmp(word, "all") == 0) return -1;
  for (int i = 0; i < perfCollectiveCount; i++)
    names[i + 1] = perfCollectives[i].name;
  const char *nearest = tuttiNearest(word, names, perfCollectiveCount + 1);
  if (nearest == NULL) return tuttiUsage(PERF_COMMAND, "unknown collective '%s'", word);
  return tuttiUsage(PERF_COMMAND, "unknown collective '%s'; did you mean '%s'?", word, nearest);
}

static int checkTogether(const perfOptions *o) {
  if (o->begin > o->end)
    return tuttiUsage(PERF_COMMAND, "--begin (%zu bytes) is above --end (%zu bytes)", o->begin,
                      o->end);
  if (o->inPlace && o->collective != NULL && !o->collective->inPlace)
    return tuttiUsage(PERF_COMMAND, "%s has no in-place form", o->collective->name);
  return -1;
}

int perfParse(int argc, char **argv, perfOptions *o) {
  int c, code;
  *o = (perfOptions){.device = tuttiDeviceAuto,
                     .begin = 8,
                     .end = (size_t)64 << 20,
                     .factor = 2,
                     .type = tuttiFloat32,
                     .op = tuttiSum,
                     .warmup = -1};
  opterr = 0;
  while ((c = getopt_long(argc, argv, ":h", table, NULL)) != -1) {
    if (c == 'h') {
      fputs(help, stdout);
      return tuttiFlushed(stdout, PERF_COMMAND, "the help") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
    }
    if (c == '?' || c == ':') return tuttiUsageOption(PERF_COMMAND, table, argv);
    if ((code = takeOption(c, o)) >= 0) return code;
  }
  if (optind == argc)
    return tuttiUsage(PERF_COMMAND, "which collective? For example: tutti perf all_reduce");
  if (optind + 1 < argc)
    return tuttiUsage(PERF_COMMAND, "unexpected argument '%s'", argv[optind + 1]);
  if ((code = takeCollective(argv[optind], o)) >= 0) return code;
  return checkTogether(o);
}
