/* tutti netcheck: whether the network between the hosts of a job does what it should. */
#include "netcheck/netcheck.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/handle.h"
#include "tool.h"

#define MEET_MS 240000 /* one host may start later than another */
#define LINE_MS 30000

static const char usage[] =
    "Usage: mpirun|srun|torchrun ... tutti netcheck [OPTION]...\n"
    "Checks the network between the hosts of a job: every two hosts, over every rail (port of a\n"
    "NIC) between them, exchange messages that are compared and timed, each rail alone and then\n"
    "all at once in both directions; by the library's own path, in GPU memory where there are\n"
    "GPUs. One process of each host takes part; start one for each host.\n"
    "\n";

static const char more[] =
    "\n"
    "A host is in one pair at a time, so n hosts take n - 1 rounds. GB/s are 1e9 bytes/s; line% "
    "is\n"
    "their share of the slower port's line rate; us is half a round trip of 8 bytes, with GPUs "
    "the\n"
    "launches included; `all` is what the rail carries in each direction while all rails do.\n"
    "\n"
    "Exit code: 0 all is well, 3 there are findings, 4 wrong bytes have come, 1 it could not be\n"
    "checked, 2 on bad arguments.\n";

static const char *const deviceNames[] = {
    [tuttiDeviceAuto] = "auto", [tuttiDeviceHost] = "host", [tuttiDeviceCuda] = "cuda"};

static int parse(int argc, char **argv, netOptions *o) {
  const tuttiOption options[] = {
      {"device", "D", "memory of the messages: auto (default), host or cuda", .number = &o->device,
       .words = deviceNames, .nwords = 3},
      {"size", "B", "bytes of a timed message, with K or M (default 16M)", .size = &o->bytes},
      {"least", "P", "percent of the line rate below which a rail is slow (default 80)",
       .number = &o->least, .max = 100},
      {"seconds", "S",
       "for a pair of hosts (default 60): no rail is begun later, and nothing waits\n"
       "for more than a quarter of it",
       .number = &o->seconds, .min = 1, .max = 86400},
      {"all", NULL, "show every rail also where there are more than 8 hosts", .flag = &o->all},
      {"json", "FILE",
       "write one JSON object per rail and direction to FILE; '-': to stdout,\n"
       "without the table",
       .text = &o->json},
      {"port", "P", "port of rank 0 that the ranks meet at, as of tutti perf", .number = &o->port,
       .min = 1, .max = 65535},
  };
  int code = tuttiParseOptions(NETCHECK_COMMAND, usage, options, sizeof options / sizeof options[0],
                               more, argc, argv);
  if (code >= 0) return code;
  if (optind < argc) return tuttiUsage(NETCHECK_COMMAND, "unexpected argument '%s'", argv[optind]);
  if (o->bytes < 1024 || o->bytes > (size_t)1 << 30)
    return tuttiUsage(NETCHECK_COMMAND, "--size takes 1K to 1G");
  o->bytes = o->bytes / 4 * 4;
  return -1;
}

/* ---- meeting --------------------------------------------------------------------------------- */

/* Lines take descriptors, some for each host. */
static void raiseLimit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* All ranks meet once, to see which hosts there are. */
static tuttiResult_t meetAll(const perfPlace *place, tuttiComm_t *comm) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  tuttiUniqueId id;
  config.device = tuttiDeviceHost;
  config.netName = "Socket";
  config.commName = "netcheck";
  config.timeoutMs = MEET_MS;
  TUTTI_TRY(tuttiGetUniqueId(&id));
  TUTTI_TRY(tuttiCommInitRankConfig(comm, place->nranks, id, place->rank, &config));
  unsetenv("TUTTI_COMM_ID"); /* ids made from now on are met at wherever they are made */
  unsetenv("NCCL_COMM_ID");
  return tuttiSuccess;
}

/* hosts[place->nranks] */
static tuttiResult_t listHosts(tuttiComm_t comm, netJob *job, netHost *hosts) {
  TUTTI_HELD tuttiCommunicator *c = NULL;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  job->nhosts = netHostsOf(c->wireup.peers, c->nranks, hosts);
  job->hosts = hosts;
  return tuttiSuccess;
}

/* Lines from the first host to all others, one after the other. */
static tuttiResult_t openLines(tuttiComm_t comm, const netJob *job, int host, netLine *lines) {
  tuttiUniqueId id;
  if (host > 0) {
    TUTTI_TRY(tuttiRecv(&id, sizeof id, tuttiUint8, 0, comm, NULL));
    (void)netLineOpen(&lines[0], &id, 1, tuttiDeadline(LINE_MS));
    return lines[0].comm ? tuttiSuccess : TUTTI_FAIL(tuttiRemoteError, "%s", lines[0].why);
  }
  for (int h = 1; h < job->nhosts; h++) {
    TUTTI_TRY(tuttiGetUniqueId(&id));
    TUTTI_TRY(tuttiSend(&id, sizeof id, tuttiUint8, job->hosts[h].rank, comm, NULL));
    (void)netLineOpen(&lines[h], &id, 0, tuttiDeadline(LINE_MS));
  }
  return tuttiSuccess;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static bool usesGpus(const netOptions *o) {
  perfDevice device;
  bool opened = perfDeviceOpen(&device, (tuttiDevice_t)o->device, 0), gpu = opened && device.cuda;
  if (opened) perfDeviceClose(&device);
  return gpu;
}

/* Which of the hosts this rank takes part for; -1: another rank does for its host. */
static int hostOf(const netJob *job) {
  int host = 0;
  while (host < job->nhosts && job->hosts[host].rank != job->place->rank)
    host++;
  return host < job->nhosts ? host : -1;
}

static tuttiResult_t takePart(tuttiComm_t *comm, netJob *job, int *code) {
  TUTTI_FRESH(netHost, hosts, job->place->nranks, "hosts", NULL);
  TUTTI_TRY(listHosts(*comm, job, hosts));
  TUTTI_FRESH(netLine, lines, job->nhosts, "lines between hosts", NULL);
  int host = hostOf(job);
  if (job->nhosts < 2) {
    (void)tuttiCommDestroy(*comm); /* or who is still in its init would take this one for dead */
    *comm = NULL;
    *code = TUTTI_EXIT_FAILED;
    return job->place->rank > 0 ? tuttiSuccess
                                : TUTTI_FAIL(tuttiInvalidUsage,
                                             "all %d ranks are on one host, %s: start one on each "
                                             "of the hosts",
                                             job->place->nranks, hosts[0].name);
  }
  if (host >= 0) TUTTI_TRY(openLines(*comm, job, host, lines));
  tuttiResult_t result = tuttiCommDestroy(*comm);
  *comm = NULL;
  if (result != tuttiSuccess || host < 0) return result;
  if (host == 0) netPrintHeader(job, usesGpus(job->options));
  *code = host == 0 ? netLead(job, lines) : netFollow(job, lines);
  return tuttiSuccess;
}

int tuttiToolNetcheck(int argc, char **argv) {
  netOptions o = {.bytes = (size_t)16 << 20, .least = 80, .seconds = 60};
  perfPlace place;
  int code = parse(argc, argv, &o);
  if (code >= 0) return code;
  const perfOptions launch = {.command = NETCHECK_COMMAND, .port = o.port};
  if ((code = perfFindPlace(&launch, &place)) >= 0) return code;
  if (!place.placed || place.nranks < 2)
    return tuttiUsage(NETCHECK_COMMAND,
                      "it is a job of one process on each of several hosts: start it by mpirun, "
                      "srun or torchrun");
  netJob job = {.options = &o, .place = &place};
  tuttiComm_t comm = NULL;
  code = TUTTI_EXIT_OK;
  raiseLimit();
  tuttiResult_t result = meetAll(&place, &comm);
  if (result == tuttiSuccess) result = takePart(&comm, &job, &code);
  if (result == tuttiSuccess) return code;
  fprintf(stderr, NETCHECK_COMMAND ": rank %d: %s\n", place.rank, tuttiErrorText());
  if (comm) (void)tuttiCommAbort(comm);
  return TUTTI_EXIT_FAILED;
}
