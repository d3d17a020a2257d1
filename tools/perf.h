/* tutti perf, its parts:
 *   perf_options.c     the command line
 *   perf_place.c       which rank this process is, and where the ranks meet
 *   perf_launch.c      local ranks as processes
 *   perf_collective.c  the table of collectives, buffers of one row
 *   perf_library.c     the calls of tutti, or of another library
 *   perf_device.c      the memory of host or GPU, streams and graphs
 *   perf_pattern.c     inputs and the reference results
 *   perf_check.c       filling buffers and finding wrong elements
 *   perf_rank.c        what one rank runs
 *   perf_output.c      table, JSON lines, progress bar (rank 0) */
#ifndef TUTTI_TOOLS_PERF_H_
#define TUTTI_TOOLS_PERF_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

#define PERF_COMMAND "tutti perf"

/* Says on stderr what failed; the value is false. */
#define PERF_FAIL(...) (fprintf(stderr, PERF_COMMAND ": " __VA_ARGS__), false)

/* ---- the library under test, as a table of its calls ----------------------------------------- */

/* clang-format off */
#define PERF_CALLS(X)                                                                              \
  X(GetVersion) X(GetErrorString) X(GetLastError) X(GetUniqueId)                                   \
  X(CommInitRankConfig) X(CommDestroy) X(CommAbort) X(CommCuDevice)                                \
  X(CommRegister) X(CommDeregister) X(MemAlloc) X(MemFree)                                         \
  X(AllReduce) X(Broadcast) X(Reduce) X(AllGather) X(ReduceScatter) X(AlltoAll) X(Gather)          \
  X(Scatter) X(Send) X(Recv) X(GroupStart) X(GroupEnd)
/* clang-format on */

typedef struct {
#define X(name) __typeof__(&tutti##name) name; // NOLINT(bugprone-macro-parentheses)
  PERF_CALLS(X)
#undef X
  bool foreign; /* not tutti: takes no tuttiConfig_t */
  /* NULL: has none */
  __typeof__(&tuttiCommWindowRegister) windowRegister;
  __typeof__(&tuttiCommWindowDeregister) windowDeregister;
  __typeof__(&tuttiPutSignal) putSignal;
  __typeof__(&tuttiWaitSignal) waitSignal;
} perfLibrary;

extern const perfLibrary perfTutti;
/* Loads a library with the ABI of NCCL. False: it cannot be used; that is said on stderr. */
bool perfLibraryOpen(const char *path, perfLibrary *library);
/* Loads a copy of it that no other rank has, and lets it take this rank for a host of its own: what
 * it asks once in a process, it asks for each copy. Not thread-safe. */
bool perfLibraryOpenApart(const char *path, int rank, perfLibrary *library);

/* ---- memory under test ---------------------------------------------------------------------- */

typedef struct {
  bool cuda;
  int gpu;
  tuttiStream_t stream;
  struct CUgraphExec_st *graph;
} perfDevice;

/* The GPU of this rank (local rank modulo their number), else host memory. The functions that
 * return false (or NULL) have said why on stderr. */
bool perfDeviceOpen(perfDevice *d, tuttiDevice_t kind, int localRank);
/* For another thread than the one that opened it, or one that has opened others since. */
bool perfDeviceEnter(const perfDevice *d);
void perfDeviceClose(perfDevice *d);
void *perfDeviceAlloc(const perfDevice *d, size_t bytes);
void perfDeviceFree(const perfDevice *d, void *memory);
bool perfDeviceCopy(const perfDevice *d, void *to, const void *from, size_t bytes);
bool perfDeviceSync(const perfDevice *d);
/* What is enqueued in between becomes a graph. */
bool perfGraphBegin(perfDevice *d);
bool perfGraphEnd(perfDevice *d);
bool perfGraphRun(const perfDevice *d);
/* What a captured call holds of its communicator goes with the graph. */
void perfGraphFree(perfDevice *d);

/* ---- collectives ----------------------------------------------------------------------------- */

struct perfCall;

typedef struct {
  const char *name;
  int factorPeers; /* busbw = algbw * (factorPeers * (nranks - 1) / nranks); algbw if it is 0 */
  tuttiResult_t (*run)(const perfLibrary *library, const struct perfCall *call);
  bool sendsChunks; /* the input is `nranks` chunks of `count` elements, else one */
  bool recvsChunks; /* the same for the output */
  bool fromRoot;    /* only the root has an input */
  bool toRoot;      /* only the root has an output */
  bool reduces;
  bool inPlace; /* has an in-place form */
  bool puts;    /* into windows, whatever the rank that has them is at */
} perfCollective;

extern const perfCollective perfCollectives[];
extern const int perfCollectiveCount;
/* Dashes and underscores are the same; NULL if there is none. */
const perfCollective *perfCollectiveFind(const char *name);
double perfBusFactor(const perfCollective *collective, int nranks);

/* ---- patterns --------------------------------------------------------------------------------
 * Inputs of the check and what a collective must make of them, computed without the library.
 *
 * An input element is a function of (seed, rank, index modulo PERF_PERIOD), so that what is large
 * is made and compared at the speed of memory: only one period of it is drawn. What is only copied,
 * and integers that wrap, are random bits. What is averaged, and floats to be added or multiplied,
 * are chosen so that every partial result is exactly representable in the element type, whatever
 * the order and the rounding of the algorithm; so a result is right or wrong, with no tolerance. */

/* A prime: data that end up at another place by any chunk or slot are not those that belong there.
 */
#define PERF_PERIOD 65521u

typedef enum { PERF_SIGNED, PERF_UNSIGNED, PERF_FLOAT } perfKind;

typedef struct {
  const char *aliases[3]; /* NULL where there is none */
  int size;               /* bytes */
  perfKind kind;
  int mantissaBits; /* of a float, without the hidden bit */
} perfType;

extern const perfType perfTypes[tuttiNumTypes];

/* -1 if there is none. */
int perfTypeFind(const char *name);

typedef struct {
  const perfType *type;
  tuttiRedOp_t op;
  bool reduces;
  bool addends; /* small whole numbers: no sum of them is rounded or overflows */
  bool factors; /* 1 or -1, but for one rank, of each element another */
  int nranks;
  uint64_t seed;
  int active;          /* ranks whose addend of an element is not 0 */
  uint64_t limit;      /* greatest magnitude of an addend */
  uint64_t sign, mask; /* of the type's bits: the highest, and all */
  uint64_t one;        /* the bits of 1 */
} perfPattern;

void perfPatternInit(perfPattern *pattern, tuttiDataType_t type, tuttiRedOp_t op, bool reduces,
                     int nranks, uint64_t seed);

/* Writes elements [first, first + n) of `rank`'s input to `out`. */
void perfPatternFill(const perfPattern *pattern, int rank, size_t first, size_t n, void *out);

typedef struct {
  uint64_t wrong;     /* elements */
  size_t first;       /* index in `data` of the first wrong one */
  uint64_t got, want; /* its bits */
} perfMismatch;

#define PERF_REDUCED (-1)
/* Compares data[0..n) with elements [first, first + n) of `rank`'s input, bit by bit, or with their
 * reduction over all ranks (PERF_REDUCED), by value. */
perfMismatch perfPatternCompare(const perfPattern *pattern, int rank, size_t first, size_t n,
                                const void *data);

/* ---- one row of the table, seen by one rank -------------------------------------------------- */

typedef struct {
  const perfCollective *collective;
  tuttiDataType_t type;
  tuttiRedOp_t op;
  int root, rank, nranks;
  size_t count; /* elements of one chunk: the call's argument */
  bool inPlace;
} perfRow;

/* What a row's calls are made with. */
typedef struct perfCall {
  const perfRow *row;
  const void *send;
  void *recv;
  tuttiWindow_t
      window; /* of the memory from windowBase on, which has `recv`; NULL: there is none */
  const unsigned char *windowBase;
  tuttiComm_t comm;
  tuttiStream_t stream;
} perfCall;

/* The count that makes it a row of about `bytes` bytes; at least one. */
size_t perfRowCount(const perfRow *row, size_t bytes);
/* The size shown: bytes of the larger of input and output on the rank that has both. */
size_t perfRowBytes(const perfRow *row);
size_t perfSendBytes(const perfRow *row); /* 0 where the rank has no input */
size_t perfRecvBytes(const perfRow *row); /* 0 where the rank has no output */

/* ---- buffers and their check ----------------------------------------------------------------- */

#define PERF_GUARD  4096 /* bytes before and behind the part that a row uses */
#define PERF_POISON 0xa5

/* PERF_GUARD bytes, room for any row's data, and PERF_GUARD bytes. */
typedef struct {
  unsigned char *send, *recv; /* in place: recv alone */
} perfBuffers;

const void *perfSendPointer(const perfRow *row, const perfBuffers *buffers);
void *perfRecvPointer(const perfRow *row, const perfBuffers *buffers);

/* Poisons outputs and guard zones and writes this rank's input. */
void perfPrepare(const perfRow *row, const perfPattern *pattern, const perfBuffers *buffers);

#define PERF_FAULT_TEXT 256
/* Counts wrong elements of the output, changed elements of an input out of place, writes to an
 * output that this rank does not have, and damaged bytes of guard zones. `fault` is set to a
 * description of the first one, or "". */
uint64_t perfVerify(const perfRow *row, const perfPattern *pattern, const perfBuffers *buffers,
                    char fault[PERF_FAULT_TEXT]);

/* ---- options --------------------------------------------------------------------------------- */

#define PERF_MAX_RANKS 16384

typedef enum { perfPlain, perfRegistered, perfWindow } perfBufferKind;

typedef struct {
  const char *command;  /* for messages: "tutti perf" */
  uint32_t collectives; /* those of perfCollectives to run, a bit for each */
  int ranks;            /* 0: not given */
  bool threads;
  int device; /* tuttiDevice_t */
  size_t begin, end;
  int factor;
  int type; /* -1: all */
  int op;   /* -1: all */
  int root;
  int iters;  /* 0: by time */
  int warmup; /* -1: by size */
  bool check, inPlace, graph, apart;
  int checks;                 /* calls that are verified of each row, if `check` */
  int kind;                   /* perfBufferKind of the buffers */
  const char *lib;            /* NULL: tutti */
  const perfLibrary *library; /* of `lib`; set by whoever opens it */
  const char *json;           /* NULL: none; "-": instead of the table */
  int port;                   /* of the rendezvous that a launcher's ranks meet at; 0: derived */
} perfOptions;

/* Returns -1 to go on, or the exit code. */
int perfParse(int argc, char **argv, perfOptions *options);

/* ---- places ---------------------------------------------------------------------------------- */

typedef struct {
  int rank, nranks;
  int localRank;        /* among those of this host, as far as the launcher tells; else rank */
  const char *launcher; /* "processes", "threads", "Open MPI", ... */
  bool placed;          /* by a launcher, to meet at TUTTI_COMM_ID; else this starts the ranks */
  tuttiUniqueId id;     /* if not placed */
} perfPlace;

/* Reads this process's place from what its launcher left in the environment, and sets
 * TUTTI_COMM_ID, for --lib also NCCL_COMM_ID, where that is what the ranks meet at. Returns -1 to
 * go on, or the exit code. */
int perfFindPlace(const perfOptions *options, perfPlace *place);

/* The id for local ranks. False: that failed, and is said on stderr. */
bool perfMakeId(const perfLibrary *library, tuttiUniqueId *id);

/* Runs place->nranks ranks as processes and waits for them; returns the exit code. Ends all when
 * one fails, or on SIGINT, SIGTERM and SIGHUP. No thread may have been started before. */
int perfLaunch(const perfOptions *options, const perfPlace *place);

/* ---- running --------------------------------------------------------------------------------- */

/* What one rank does from init to destroy. On a failure it has said so on stderr. Returns the exit
 * code. */
int perfRunRank(const perfLibrary *library, const perfOptions *options, const perfPlace *place);

/* ---- output, of rank 0 ----------------------------------------------------------------------- */

typedef struct {
  char host[64];
  int32_t pid;
  int32_t device; /* -1: host memory */
} perfIdentity;

typedef struct {
  const perfRow *row;
  double seconds; /* per call, of the slowest rank */
  int iters;
  uint64_t wrong; /* over all ranks; 0 without --check */
} perfResult;

typedef struct {
  const perfOptions *options;
  const perfPlace *place;
  FILE *json;
  bool table, progress, failed;
  size_t rows, done;
  double busSum;
  uint64_t wrong;
} perfOutput;

/* False if the JSON file cannot be written; that is said on stderr. */
bool perfOutputOpen(perfOutput *out, const perfOptions *options, const perfPlace *place,
                    size_t rows);
void perfOutputHeader(perfOutput *out, int version, const perfIdentity *ranks);
void perfOutputCollective(perfOutput *out, const perfCollective *collective);
/* Shows, on a terminal, how far the rows are, and what is being done with this one. */
void perfOutputProgress(const perfOutput *out, const perfRow *row, const char *phase);
void perfOutputRow(perfOutput *out, const perfResult *result);
/* Prints the summary if `complete`; returns the exit code. */
int perfOutputClose(perfOutput *out, bool complete);

__END_DECLS

#endif
