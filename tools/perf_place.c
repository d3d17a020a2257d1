/* Which rank this process is. The only place of the tool that reads the environment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sys/socket.h>
#include <unistd.h>

#include "base/os.h"
#include "perf.h"
#include "tool.h"

#define FIRST_PORT 20000 /* derived ports lie below the ephemeral ones of Linux */
#define PORTS      12000

/* Variables that a launcher sets for each rank that it starts. NULL: it does not say. Those of a
 * Slurm job, such as SLURM_NTASKS, are also there in a batch script, which is no rank. */
typedef struct {
  const char *name, *rank, *size;
  const char *localRank, *localSize; /* of the ranks on this host */
  const char *nodes;                 /* number of hosts */
  const char *job[2];                /* what tells two jobs of one host apart */
  const char *proxy; /* a socket to the process that started the ranks on this host */
} launcher;

/* clang-format off */
static const launcher launchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, {"PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"}, NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL,
     {"TORCHELASTIC_RUN_ID"}, NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_NUM_NODES",
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}, NULL},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL,
     {"PMI_ID"}, "PMI_FD"},
    {"PMIx", "PMIX_RANK", "PMIX_SIZE", NULL, NULL, NULL, {"PMIX_NAMESPACE"}, NULL},
};
/* clang-format on */

/* Set and not empty, or NULL; also for a NULL name. */
static const char *variable(const char *name) {
  const char *value = name != NULL ? getenv(name) : NULL;
  return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Sets what the user has not set. */
static bool provide(const char *name, const char *value) {
  return variable(name) != NULL || setenv(name, value, 1) == 0 ||
         PERF_FAIL("cannot set %s: %s\n", name, strerror(errno));
}

static const launcher *findLauncher(const char **rank, const char **size) {
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
    const launcher *l = &launchers[i];
    *rank = variable(l->rank);
    *size = variable(l->size);
    if (*rank != NULL && *size != NULL) return l;
  }
  return NULL;
}

static bool oneHost(const launcher *l, int nranks) {
  int64_t n;
  const char *local = variable(l->localSize), *nodes = variable(l->nodes);
  if (local != NULL && tuttiParseInt(local, 1, PERF_MAX_RANKS, &n)) return n == nranks;
  return nodes != NULL && tuttiParseInt(nodes, 1, PERF_MAX_RANKS, &n) && n == 1;
}

/* The first host of a Slurm node list such as "gpu[003-007,9],login": rank 0 runs there. */
static bool firstSlurmHost(char *host, size_t size) {
  const char *list = variable("SLURM_STEP_NODELIST");
  if (list == NULL) return false;
  size_t prefix = strcspn(list, "[,");
  int n = snprintf(host, size, "%.*s", (int)prefix, list);
  if (list[prefix] == '[') {
    const char *number = list + prefix + 1, *close = strchr(number, ']');
    if (close == NULL) return false;
    n = snprintf(host, size, "%.*s%.*s%.*s", (int)prefix, list, (int)strcspn(number, "-,]"), number,
                 (int)strcspn(close + 1, "[,"), close + 1);
  }
  return n > 0 && (size_t)n < size;
}

/* The process that started the ranks on this host, another one for each job; where its socket has
 * been closed, as programs between them and this one may do, this process's parent. */
static int proxyOf(const launcher *l) {
  int64_t fd;
  struct ucred peer;
  socklen_t size = sizeof peer;
  const char *text = variable(l->proxy);
  bool found = text != NULL && tuttiParseInt(text, 0, INT32_MAX, &fd) &&
               getsockopt((int)fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0 &&
               peer.pid != getpid();
  return found ? peer.pid : getppid();
}

static int derivedPort(const launcher *l, int nranks) {
  char job[512];
  const char *first = variable(l->job[0]), *second = variable(l->job[1]);
  if (l->proxy != NULL && first == NULL && oneHost(l, nranks)) /* each host has its own proxy */
    snprintf(job, sizeof job, "%d", proxyOf(l));
  else
    snprintf(job, sizeof job, "%s/%s", first ?: "", second ?: "");
  return FIRST_PORT + (int)(tuttiHash(job, strlen(job)) % PORTS);
}

/* host:port where rank 0 will listen; false if that cannot be known. */
static bool meetingPoint(const launcher *l, const perfOptions *o, int nranks, char *text,
                         size_t size) {
  char host[256];
  int port = o->port;
  int64_t masterPort;
  const char *master = variable("MASTER_ADDR"), *portText = variable("MASTER_PORT");
  if (master != NULL) {
    snprintf(host, sizeof host, "%s", master);
    if (port == 0 && portText != NULL && tuttiParseInt(portText, 1, 65535, &masterPort))
      port = masterPort < 65535 ? (int)masterPort + 1 : (int)masterPort - 1;
  } else if (oneHost(l, nranks)) {
    snprintf(host, sizeof host, "127.0.0.1");
  } else if (strcmp(l->name, "Slurm") != 0 || !firstSlurmHost(host, sizeof host)) {
    return false;
  }
  if (port == 0) port = derivedPort(l, nranks);
  const char *form = strchr(host, ':') != NULL && host[0] != '[' ? "[%s]:%d" : "%s:%d";
  int n = snprintf(text, size, form, host, port);
  return n > 0 && (size_t)n < size;
}

/* Tells the library, and NCCL's, which reads its own name alone, where the ranks meet; what the
 * user has set stays. */
static bool provideMeetingPoint(const launcher *l, const perfOptions *o, int nranks) {
  char point[300];
  const char *id = variable("TUTTI_COMM_ID") ?: variable("NCCL_COMM_ID");
  if (id == NULL && nranks == 1) return true;
  if (id == NULL && !meetingPoint(l, o, nranks, point, sizeof point)) {
    fprintf(stderr,
            "%s: cannot tell where the %d ranks of %s meet, as they are on several "
            "hosts: set TUTTI_COMM_ID=host:port for all of them, host being rank 0's "
            "and port free there\n",
            o->command, nranks, l->name);
    return false;
  }
  if (id == NULL) id = point;
  return provide("TUTTI_COMM_ID", id) && (!o->lib || provide("NCCL_COMM_ID", id));
}

static int takePlace(const launcher *l, const char *rankText, const char *sizeText,
                     const perfOptions *o, perfPlace *place) {
  int64_t rank, size;
  if (!tuttiParseInt(sizeText, 1, INT32_MAX, &size) ||
      !tuttiParseInt(rankText, 0, size - 1, &rank)) {
    fprintf(stderr, "%s: %s says rank '%s' of '%s' (%s), which is no rank\n", o->command, l->name,
            rankText, sizeText, l->rank);
    return TUTTI_EXIT_FAILED;
  }
  bool local = o->threads || (o->ranks != 0 && o->ranks != size);
  if (local && size == 1) return -1; /* a shell that a launcher gave us, not a job of ranks */
  if (local)
    return tuttiUsage(o->command,
                      "%s started this process as one of %d ranks: leave --ranks and --threads "
                      "out, or run the command without %s",
                      l->name, (int)size, l->name);
  if (!provideMeetingPoint(l, o, (int)size)) return TUTTI_EXIT_FAILED;
  *place = (perfPlace){.rank = (int)rank, .nranks = (int)size, .launcher = l->name, .placed = true};
  if (variable(l->localRank)) tuttiParseInt(variable(l->localRank), 0, size - 1, &rank);
  place->localRank = (int)rank;
  return -1;
}

int perfFindPlace(const perfOptions *o, perfPlace *place) {
  const char *rank, *size;
  *place = (perfPlace){.nranks = o->ranks > 0 ? o->ranks : 4,
                       .launcher = o->threads ? "threads" : "processes"};
  const launcher *l = findLauncher(&rank, &size);
  return l != NULL ? takePlace(l, rank, size, o, place) : -1;
}
