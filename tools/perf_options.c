/* The command line of tutti perf. */
#include <string.h>
#include <unistd.h>

#include "base/settings.h"
#include "collectives/signature.h"
#include "perf.h"
#include "tool.h"

static const char usage[] =
    "Usage: tutti perf COLLECTIVE... [OPTION]...\n"
    "Runs collectives over a range of sizes, prints times and bandwidths, and checks results.\n"
    "\n"
    "COLLECTIVE: all_reduce, broadcast, reduce, all_gather, reduce_scatter, alltoall, gather,\n"
    "scatter, sendrecv (a ring of send and receive), put_signal (a ring of puts into windows and\n"
    "waits for their signals, with --buffers window), or all of them that the buffers allow.\n"
    "\n";

static const char more[] =
    "\n"
    "time is that of one call on the slowest rank, in us; algbw is size / time; busbw is what the\n"
    "links carry: algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter,\n"
    "alltoall, gather and scatter, 1 for the others. Both are in 1e9 bytes/s.\n"
    "\n"
    "Exit code: 0, 1 on wrong data or a failure, 2 on bad arguments.\n";

static const char *const deviceNames[] = {
    [tuttiDeviceAuto] = "auto", [tuttiDeviceHost] = "host", [tuttiDeviceCuda] = "cuda"};
static const char *const bufferKinds[] = {
    [perfPlain] = "plain", [perfRegistered] = "registered", [perfWindow] = "window"};

/* Whether the buffers allow it. */
static bool canRun(const perfCollective *c, const perfOptions *o) {
  return (c->inPlace || !o->inPlace) && (!c->puts || o->kind == perfWindow);
}

/* Adds one to those to be run; returns -1 or the exit code. */
static int takeCollective(const char *word, perfOptions *o) {
  const char *names[32] = {"all"};
  const perfCollective *c = perfCollectiveFind(word);
  bool all = strcmp(word, "all") == 0;
  if (c != NULL && o->inPlace && !c->inPlace)
    return tuttiUsage(PERF_COMMAND, "%s has no in-place form", c->name);
  if (c != NULL && !canRun(c, o))
    return tuttiUsage(PERF_COMMAND, "%s needs --buffers window", c->name);
  for (int i = 0; i < perfCollectiveCount; i++)
    if (c == &perfCollectives[i] || (all && canRun(&perfCollectives[i], o)))
      o->collectives |= 1u << i;
  if (c != NULL || all) return -1;
  for (int i = 0; i < perfCollectiveCount; i++)
    names[i + 1] = perfCollectives[i].name;
  const char *nearest = tuttiNearest(word, names, perfCollectiveCount + 1);
  if (nearest == NULL) return tuttiUsage(PERF_COMMAND, "unknown collective '%s'", word);
  return tuttiUsage(PERF_COMMAND, "unknown collective '%s'; did you mean '%s'?", word, nearest);
}

/* Takes all options; returns -1 or the exit code. */
static int parseOptions(int argc, char **argv, perfOptions *o) {
  const tuttiOption options[] = {
      {.help = "Ranks:"},
      {"ranks", "N", "start N local ranks (default 4); not needed under mpirun, srun or torchrun",
       .number = &o->ranks, .min = 1, .max = PERF_MAX_RANKS},
      {"threads", NULL, "ranks are threads of one process, not processes", .flag = &o->threads},
      {"device", "D", "memory to use: auto, host or cuda (TUTTI_DEVICE)", .number = &o->device,
       .words = deviceNames, .nwords = 3},
      {"port", "P",
       "port of rank 0 that the ranks of mpirun, srun or torchrun meet at (default:\n"
       "MASTER_PORT + 1 of torchrun, else derived from the job); TUTTI_COMM_ID=host:port\n"
       "overrides it and is needed for mpirun over several hosts",
       .number = &o->port, .min = 1, .max = 65535},
      {.help = "Sizes, of the larger of input and output, with K, M or G:"},
      {"begin", "B", "first size (default 8)", .size = &o->begin},
      {"end", "B", "last size (default 64M)", .size = &o->end},
      {"factor", "F", "factor from one size to the next (default 2)", .number = &o->factor,
       .min = 2, .max = 1 << 20},
      {.help = "What to run:"},
      {"dtype", "T",
       "int8 uint8 int32 uint32 int64 uint64 float16 float32 (default) float64\n"
       "bfloat16 float8e4m3 float8e5m2, or all",
       .number = &o->type, .words = tuttiTypeNames, .nwords = tuttiNumTypes, .find = perfTypeFind,
       .all = true},
      {"op", "O", "sum (default) prod min max avg, or all", .number = &o->op,
       .words = tuttiRedOpNames, .nwords = tuttiNumOps, .all = true},
      {"root", "R", "root of broadcast, reduce, gather and scatter (default 0)", .number = &o->root,
       .max = PERF_MAX_RANKS - 1},
      {"in-place", NULL, "measure the in-place form (default: out of place)", .flag = &o->inPlace},
      {.help = "On GPUs:"},
      {"graph", NULL, "measure replays of a CUDA graph of 20 calls", .flag = &o->graph},
      {"buffers", "K", "plain (default), registered with the communicator, or a window",
       .number = &o->kind, .words = bufferKinds, .nwords = 3},
      {"lib", "FILE", "measure this library with the ABI of NCCL instead of tutti",
       .text = &o->lib},
      {"apart", NULL,
       "with --lib and --threads: a copy of the library for each rank, and to each its rank\n"
       "is a host of its own",
       .flag = &o->apart},
      {.help = "How:"},
      {"iters", "N", "timed calls per row (default: for about 50 ms, 4 to 1000, of GPUs 250)",
       .number = &o->iters, .min = 1, .max = 1000000000},
      {"warmup", "N", "calls before (default: 5, from 1M on 2)", .number = &o->warmup,
       .max = 1000000000},
      {"check", NULL,
       "verify every element, the inputs and the bytes around the buffers; a wrong\n"
       "one makes the exit code 1",
       .flag = &o->check},
      {"checks", "N",
       "calls of each row that --check verifies, no two of the same inputs (default 1)",
       .number = &o->checks, .min = 1, .max = 1000000000},
      {"json", "FILE", "write one JSON object per row to FILE; '-': to stdout, without the table",
       .text = &o->json},
  };
  return tuttiParseOptions(PERF_COMMAND, usage, options, sizeof options / sizeof options[0], more,
                           argc, argv);
}

/* What communicators take where nobody says otherwise, as the buffers have to be of that memory. */
static int deviceSetting(void) {
  if (tuttiSettingsLoad() != tuttiSuccess) return tuttiDeviceAuto; /* an init says what is wrong */
  const char *word = tuttiSettingString(TUTTI_SETTING_DEVICE);
  for (int device = tuttiDeviceCuda; device != tuttiDeviceAuto; device--)
    if (strcmp(deviceNames[device], word) == 0) return device;
  return tuttiDeviceAuto;
}

int perfParse(int argc, char **argv, perfOptions *o) {
  *o = (perfOptions){.command = PERF_COMMAND,
                     .device = deviceSetting(),
                     .begin = 8,
                     .end = (size_t)64 << 20,
                     .factor = 2,
                     .type = tuttiFloat32,
                     .op = tuttiSum,
                     .checks = 1,
                     .warmup = -1};
  int code = parseOptions(argc, argv, o);
  if (code >= 0) return code;
  if (optind == argc)
    return tuttiUsage(PERF_COMMAND, "which collective? For example: tutti perf all_reduce");
  for (int i = optind; i < argc; i++)
    if ((code = takeCollective(argv[i], o)) >= 0) return code;
  if (o->begin > o->end)
    return tuttiUsage(PERF_COMMAND, "--begin (%zu bytes) is above --end (%zu bytes)", o->begin,
                      o->end);
  if (o->apart && (o->lib == NULL || !o->threads))
    return tuttiUsage(PERF_COMMAND, "--apart needs --lib and --threads");
  return -1;
}
