/** @file
 * tutti: collective communication for GPU clusters and for host memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * This is the only header a user includes. It needs no CUDA header and compiles as C11 and C++17.
 *
 * Terms. A *communicator* joins `nranks` *ranks*, numbered from 0. A rank is a process or a thread
 * that owns one communicator handle. Every rank must call the same collectives in the same order
 * with the same count, type, reduction and root; a rank that does not ends the call with
 * tuttiInvalidUsage on every rank, and the last error names both calls.
 *
 * Errors. Every call returns a tuttiResult_t. On any code other than tuttiSuccess and
 * tuttiInProgress the text of the failure is at tuttiGetLastError(): it names the call, the
 * argument or object, the ranks, and what to do. Outputs are written only on success.
 *
 * Threads. Different communicators may be used from different threads at once. One communicator is
 * used by one thread at a time, except for tuttiCommAbort, tuttiCommRevoke, tuttiCommDump,
 * tuttiCommRegister, tuttiCommDeregister, tuttiCommGetAsyncError and tuttiGetLastError, which any
 * thread may call at any time.
 *
 * Buffers. Counts are in elements unless the name says bytes. Buffers belong to the caller, must be
 * aligned to the size of their element, and must stay untouched by the caller until the operation
 * is done: on a host communicator that is when the call (or the outermost tuttiGroupEnd) returns;
 * on a CUDA communicator when the stream reaches that point. A host communicator ignores `stream`.
 * The calls of a CUDA communicator may be captured in a CUDA graph; replays must be ordered with
 * other calls of it by the user.
 *
 * The names, meanings and enum values are NCCL's, so a port is a search and replace.
 */
#ifndef TUTTI_H_
#define TUTTI_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_MAJOR 0 /**< of this header's version */
#define TUTTI_MINOR 1 /**< of this header's version */
#define TUTTI_PATCH 0 /**< of this header's version */
/** major * 10000 + minor * 100 + patch, as tuttiGetVersion returns it. */
#define TUTTI_VERSION_CODE (TUTTI_MAJOR * 10000 + TUTTI_MINOR * 100 + TUTTI_PATCH)

#if defined(__GNUC__)
#define TUTTI_API __attribute__((visibility("default")))
#else
#define TUTTI_API
#endif

/** A communicator handle; opaque. */
typedef struct tuttiComm *tuttiComm_t;
#define TUTTI_COMM_NULL NULL /**< no communicator */

/** A CUDA stream (cudaStream_t has this very type). Ignored by host communicators. */
typedef struct CUstream_st *tuttiStream_t;

#define TUTTI_UNIQUE_ID_BYTES 128 /**< size of a tuttiUniqueId */
/** What tuttiGetUniqueId makes and every rank of one communicator must be given unchanged. */
typedef struct {
  char internal[TUTTI_UNIQUE_ID_BYTES]; /**< opaque */
} tuttiUniqueId;

/** Result of every call. */
typedef enum {
  tuttiSuccess = 0,            /**< done */
  tuttiUnhandledCudaError = 1, /**< a CUDA call failed */
  tuttiSystemError = 2,        /**< a system call failed: socket, memory, file */
  tuttiInternalError = 3,      /**< a bug in tutti */
  tuttiInvalidArgument = 4,    /**< an argument is wrong on this rank */
  tuttiInvalidUsage = 5,       /**< calls do not fit together, here or between ranks */
  tuttiRemoteError = 6,        /**< a peer died, failed or aborted */
  tuttiInProgress = 7,         /**< a non-blocking communicator is still working */
  tuttiTimeout = 8,            /**< a deadline passed; the last error names who is late */
  tuttiNumResults = 9
} tuttiResult_t;

/** Element types. */
typedef enum {
  tuttiInt8 = 0,
  tuttiChar = 0,
  tuttiUint8 = 1,
  tuttiInt32 = 2,
  tuttiInt = 2,
  tuttiUint32 = 3,
  tuttiInt64 = 4,
  tuttiUint64 = 5,
  tuttiFloat16 = 6,
  tuttiHalf = 6,
  tuttiFloat32 = 7,
  tuttiFloat = 7,
  tuttiFloat64 = 8,
  tuttiDouble = 8,
  tuttiBfloat16 = 9,
  tuttiFloat8e4m3 = 10,
  tuttiFloat8e5m2 = 11,
  tuttiNumTypes = 12
} tuttiDataType_t;

/** Reductions. Handles from tuttiRedOpCreatePreMulSum are tuttiNumOps and above.
 *
 * float16, bfloat16 and both float8 types are accumulated in float32. The direct algorithms round
 * once per result; a ring or a tree rounds once per hop, because partial sums travel in the
 * element type. Integer sums and products wrap. tuttiAvg divides the sum by nranks (integers:
 * towards zero). tuttiMin and tuttiMax return NaN when any operand is NaN. */
typedef enum {
  tuttiSum = 0,
  tuttiProd = 1,
  tuttiMax = 2,
  tuttiMin = 3,
  tuttiAvg = 4,
  tuttiNumOps = 5,
  tuttiMaxRedOp = 0x7fffffff
} tuttiRedOp_t;

/** Where the scalar of tuttiRedOpCreatePreMulSum lives. */
typedef enum {
  tuttiScalarDevice = 0,       /**< memory that the communicator's device reads when the op runs */
  tuttiScalarHostImmediate = 1 /**< host memory, read before the call returns */
} tuttiScalarResidence_t;

/** Which memory a communicator works on. */
typedef enum {
  tuttiDeviceAuto = 0, /**< CUDA if this process has a usable GPU, else host */
  tuttiDeviceHost = 1,
  tuttiDeviceCuda = 2
} tuttiDevice_t;

#define TUTTI_CONFIG_UNDEF_INT INT_MIN /**< an undefined int of tuttiConfig_t */
#define TUTTI_CONFIG_UNDEF_PTR NULL    /**< an undefined pointer of tuttiConfig_t */
#define TUTTI_SPLIT_NOCOLOR    (-1)    /**< tuttiCommSplit: this rank gets no communicator */

/** Options of one communicator. Start from TUTTI_CONFIG_INITIALIZER. Ranks must agree on all of
 * them but commName. A field left undefined takes its setting (see `tutti env`) or default. */
typedef struct {
  size_t size;          /**< sizeof(tuttiConfig_t) of the caller; set by the initializer */
  unsigned int magic;   /**< set by the initializer */
  unsigned int version; /**< TUTTI_VERSION_CODE of the caller; set by the initializer */
  int blocking;         /**< 1 (default): calls block; 0: init and operations return
                             tuttiInProgress, others of all ranks (split, windows) still wait */
  int minCTAs;          /**< least number of channels */
  int maxCTAs;          /**< greatest number of channels, and of thread blocks of a kernel */
  int splitShare;       /**< 1: a split may share its parent's resources */
  int trafficClass;     /**< RDMA traffic class, 0 to 255 */
  const char *netName;  /**< network to use, e.g. "Socket"; copied */
  const char *commName; /**< name shown in logs and errors, to 63 bytes; copied */
  int device;           /**< a tuttiDevice_t */
  int timeoutMs;        /**< deadline of every wait, in ms; 0: none */
  int numRmaCtx;        /**< contexts of one-sided operations, 0 to 64; default 1 */
  int numRmaSig;        /**< signals of each context, 1 (default) to 1024 */
} tuttiConfig_t;

#define TUTTI_CONFIG_MAGIC 0x7a771c0fu /**< tells a tuttiConfig_t from other memory */
/** The start of every tuttiConfig_t: all options undefined. */
#define TUTTI_CONFIG_INITIALIZER                                                                   \
  {                                                                                                \
    sizeof(tuttiConfig_t), TUTTI_CONFIG_MAGIC, TUTTI_VERSION_CODE, TUTTI_CONFIG_UNDEF_INT,         \
        TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT,                    \
        TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_PTR, TUTTI_CONFIG_UNDEF_PTR,                    \
        TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT,                    \
        TUTTI_CONFIG_UNDEF_INT                                                                     \
  }

/* ---- version, errors ------------------------------------------------------------------------ */

/** Writes TUTTI_VERSION_CODE of the library to *version. */
TUTTI_API tuttiResult_t tuttiGetVersion(int *version);

/** A short constant description of a code; never NULL. */
TUTTI_API const char *tuttiGetErrorString(tuttiResult_t result);

/** The text of the last failure: of this communicator if it has one (also one that another thread
 * or rank caused), else of this thread. Never NULL; "" when there was none. The text stays valid
 * until this thread's next tutti call. `comm` may be NULL. */
TUTTI_API const char *tuttiGetLastError(tuttiComm_t comm);

/* ---- communicators -------------------------------------------------------------------------- */

/** Makes an id for one new communicator and starts, in this process, the root that its ranks will
 * meet at. Give the id to every rank (any means will do, a fork too), and let this process live
 * until they all have joined. The root ends after that, or at the timeout. */
TUTTI_API tuttiResult_t tuttiGetUniqueId(tuttiUniqueId *uniqueId);

/** Encrypts all TCP connections of the ids and communicators that this process makes from now on
 * (TLS 1.3), with a key of 16 to 4096 bytes that all processes of the job must give; it is copied,
 * and comes before TUTTI_PSK_FILE. All ranks of a communicator must encrypt with one key, or none:
 * else its init fails on all. NULL: takes the key back; not if TUTTI_ENCRYPT=1 asks for encryption.
 * Needs OpenSSL 3 (libssl.so.3), which is loaded here. Any thread. */
TUTTI_API tuttiResult_t tuttiSetEncryption(const char *psk);

/** Joins a new communicator as `rank` of `nranks`. Blocks until all ranks have joined or the
 * timeout has passed, in which case the last error lists the ranks that never came. Within a group
 * the work is done at tuttiGroupEnd, but *comm is written here; a failed init leaves it dead. */
TUTTI_API tuttiResult_t tuttiCommInitRank(tuttiComm_t *comm, int nranks, tuttiUniqueId commId,
                                          int rank);

/** tuttiCommInitRank with options; `config` may be NULL. With config->blocking == 0 it returns
 * tuttiInProgress and *comm is usable once tuttiCommGetAsyncError reports tuttiSuccess. */
TUTTI_API tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t *comm, int nranks, tuttiUniqueId commId,
                                                int rank, tuttiConfig_t *config);

/** tuttiCommInitRankConfig with `nId` ids made by as many different ranks, whose roots share the
 * work of the rendezvous. Every rank passes the same ids in the same order. */
TUTTI_API tuttiResult_t tuttiCommInitRankScalable(tuttiComm_t *newcomm, int nranks, int myrank,
                                                  int nId, tuttiUniqueId *commIds,
                                                  tuttiConfig_t *config);

/** Makes communicators for `ndev` ranks driven by this process alone: comms[i] is rank i, on device
 * devlist[i] (NULL: i). On host memory the devices are only numbers. Calls on several of them from
 * one thread must be inside a group. */
TUTTI_API tuttiResult_t tuttiCommInitAll(tuttiComm_t *comms, int ndev, const int *devlist);

/** Splits `comm` into one new communicator per `color` (>= 0), ranks ordered by `key`, then by old
 * rank. TUTTI_SPLIT_NOCOLOR takes part but gets NULL. A collective call of `comm`. `config` NULL:
 * the parent's. */
TUTTI_API tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t *newcomm,
                                       tuttiConfig_t *config);

#define TUTTI_SHRINK_DEFAULT 0x00 /**< the communicator is healthy and idle */
#define TUTTI_SHRINK_ABORT   0x01 /**< first ends its operations; it may have failed */

/** Makes a communicator of the ranks of `comm` that are not among the `excludeRanksCount` ranks of
 * `excludeRanksList`; the others keep their order. Every rank that stays calls it with the same
 * list; the excluded ones do not, and may be dead. After TUTTI_SHRINK_ABORT `comm` can only be
 * destroyed, aborted or shrunk again; with TUTTI_SHRINK_DEFAULT it goes on. `config` NULL: the
 * parent's. */
TUTTI_API tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int *excludeRanksList,
                                        int excludeRanksCount, tuttiComm_t *newcomm,
                                        tuttiConfig_t *config, int shrinkFlags);

/** tuttiGetUniqueId for tuttiCommGrow of `comm`, on the rank that will be the root of the growth.
 */
TUTTI_API tuttiResult_t tuttiCommGetUniqueId(tuttiComm_t comm, tuttiUniqueId *uniqueId);

/** Makes a communicator of all ranks of `comm`, which keep their numbers, and of new ones up to
 * `nRanks`. Ranks of `comm` pass `rank` -1, and `uniqueId` NULL but for one, which passes an id of
 * tuttiCommGetUniqueId. New ranks pass `comm` NULL, the same id and their number. `comm` goes on
 * beside the new one. `config` NULL: the parent's, or for new ranks the settings. */
TUTTI_API tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId *uniqueId,
                                      int rank, tuttiComm_t *newcomm, tuttiConfig_t *config);

#define TUTTI_REVOKE_DEFAULT 0x00 /**< the only flag of tuttiCommRevoke */

/** Ends all operations of `comm` on every rank: those under way and later ones return
 * tuttiInvalidUsage. Returns when nothing of this rank is under way. What may follow is
 * tuttiCommShrink with TUTTI_SHRINK_ABORT, tuttiCommDestroy and tuttiCommAbort. Any thread may call
 * it. */
TUTTI_API tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags);

/** Completes all outstanding work, so that tuttiCommDestroy frees without waiting. */
TUTTI_API tuttiResult_t tuttiCommFinalize(tuttiComm_t comm);

/** Finalizes if that was not done and frees the communicator. The handle is dead afterwards. */
TUTTI_API tuttiResult_t tuttiCommDestroy(tuttiComm_t comm);

/** Ends all work of `comm` at once, in every thread, without waiting for any peer, and frees it.
 * Peers that wait for this rank, or call `comm` next, see tuttiRemoteError. Calls of other threads
 * that are inside `comm` return before it is freed. On a GPU that waits for all kernels of the
 * device: abort the communicators that share one in a group, where their work ends now and they are
 * freed at tuttiGroupEnd. */
TUTTI_API tuttiResult_t tuttiCommAbort(tuttiComm_t comm);

/** Writes the state of `comm` to *asyncError: tuttiSuccess, tuttiInProgress while a non-blocking
 * call runs, or the failure that ended it. On GPUs, where operations go on when their calls have
 * returned, that another rank has ended `comm` by a call is none as long as nothing of this rank
 * waits for it: what had come of that rank is there. */
TUTTI_API tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t *asyncError);

/** Writes the last operations of this rank to the file `path`, whole or not at all: a trace for
 * Perfetto or chrome://tracing. `tutti trace merge` joins those of several ranks on one clock. All
 * operations have their times with TUTTI_TRACE=1, one collective in 16 without. Any thread may call
 * it at any time after the init, also while an operation hangs. */
TUTTI_API tuttiResult_t tuttiCommDump(tuttiComm_t comm, const char *path);

/** The number of ranks of `comm`. */
TUTTI_API tuttiResult_t tuttiCommCount(const tuttiComm_t comm, int *count);
/** The CUDA device of `comm`, or -1 on host memory. */
TUTTI_API tuttiResult_t tuttiCommCuDevice(const tuttiComm_t comm, int *device);
/** The rank of this handle in `comm`. */
TUTTI_API tuttiResult_t tuttiCommUserRank(const tuttiComm_t comm, int *rank);
/** Bytes of memory (heap and mappings) that this rank holds for `comm` now. Buffers of messages
 * count from the first message that touches them; what ranks of a host share counts once, with the
 * rank that made it. */
TUTTI_API tuttiResult_t tuttiCommMemUsed(const tuttiComm_t comm, size_t *bytes);

/** What tuttiCommQueryProperties tells. Start from TUTTI_COMM_PROPERTIES_INITIALIZER. */
typedef struct {
  size_t size;          /**< sizeof(tuttiCommProperties_t) of the caller; set by the initializer */
  unsigned int magic;   /**< set by the initializer */
  unsigned int version; /**< TUTTI_VERSION_CODE of the caller; set by the initializer */
  int rank;             /**< as tuttiCommUserRank */
  int nRanks;           /**< as tuttiCommCount */
  int cudaDev;          /**< as tuttiCommCuDevice */
  int hostRmaSupport;   /**< 1: tuttiPutSignal and its like work between all ranks; 0: not all */
  int numRmaCtx;        /**< contexts of one-sided operations */
  int numRmaSig;        /**< signals of each context */
  uint64_t commHash;    /**< the same on all ranks, and different from any other communicator's */
  int deviceApiSupport; /**< 1: tuttiDevCommCreate works */
  int nLsaTeams;        /**< local teams, of nRanks / nLsaTeams ranks each */
  int cores;        /**< that this rank may use, by its affinity and its control group's quota */
  int ranksOnCores; /**< that share these: of this communicator, or of the one with the most of
                         them that this process had when this one was made */
} tuttiCommProperties_t;

#define TUTTI_COMM_PROPERTIES_MAGIC 0x9209e271u /**< tells it from other memory */
/** The start of every tuttiCommProperties_t. */
#define TUTTI_COMM_PROPERTIES_INITIALIZER                                                          \
  {                                                                                                \
    sizeof(tuttiCommProperties_t), TUTTI_COMM_PROPERTIES_MAGIC, TUTTI_VERSION_CODE, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0                                                                           \
  }

/** Writes what is so of `comm` on this rank to *properties, as far as the caller's `size` reaches.
 * While a non-blocking init runs it is refused. */
TUTTI_API tuttiResult_t tuttiCommQueryProperties(tuttiComm_t comm,
                                                 tuttiCommProperties_t *properties);

#define TUTTI_SUSPEND_MEM 0x01 /**< gives back memory that a later use takes again */

/** Gives back what memory `comm` can do without until tuttiCommResume; nothing else may be done
 * with it until then but asking, destroying and aborting. A collective call. On host memory the
 * buffers of messages go, unless one that this rank has sent waits to be received; on GPUs nothing
 * yet. `flags`: TUTTI_SUSPEND_MEM. */
TUTTI_API tuttiResult_t tuttiCommSuspend(tuttiComm_t comm, int flags);
/** Makes a suspended communicator usable again. */
TUTTI_API tuttiResult_t tuttiCommResume(tuttiComm_t comm);

/** What tuttiCommMemStats tells, in bytes but for tuttiStatGpuMemSuspended. The names are NCCL's:
 * of a host communicator it is host memory. */
typedef enum {
  tuttiStatGpuMemSuspend = 0,   /**< what tuttiCommSuspend would give back */
  tuttiStatGpuMemSuspended = 1, /**< 1: suspended, 0: not */
  tuttiStatGpuMemPersist = 2,   /**< what it would not */
  tuttiStatGpuMemTotal = 3      /**< both, as tuttiCommMemUsed */
} tuttiCommMemStat_t;
/** Writes one statistic of this rank's memory for `comm` to *value. */
TUTTI_API tuttiResult_t tuttiCommMemStats(tuttiComm_t comm, tuttiCommMemStat_t stat,
                                          uint64_t *value);

/* ---- memory --------------------------------------------------------------------------------- */

/** Allocates `size` bytes that every transport can reach without a copy where the machine allows
 * it; aligned to 4096. On a machine without CUDA it is host memory; else it is memory of the
 * current GPU, in units of 2 MiB where the driver can map it for other processes, and of all GPUs
 * of this process that reach it. */
TUTTI_API tuttiResult_t tuttiMemAlloc(void **ptr, size_t size);
/** Frees memory of tuttiMemAlloc, when its GPU is idle. NULL is allowed. */
TUTTI_API tuttiResult_t tuttiMemFree(void *ptr);

/** Registers [buff, buff + size) with `comm`, which may then move it without a copy. *handle is for
 * tuttiCommDeregister; what is not deregistered goes with the communicator. Networks read and write
 * it by themselves: deregister it, and free it, when all operations that use it are done, and no
 * graph that has them is launched any more. */
TUTTI_API tuttiResult_t tuttiCommRegister(const tuttiComm_t comm, void *buff, size_t size,
                                          void **handle);
/** Undoes one tuttiCommRegister of the same communicator. */
TUTTI_API tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void *handle);

/** A window: a range of memory on every rank of one communicator. The host does not look into it.
 * On a CUDA communicator it may be the address of a struct tuttiWindow in GPU memory, for kernels:
 * see tuttiDevCommCreate. */
typedef struct tuttiWindow *tuttiWindow_t;

#define TUTTI_WIN_DEFAULT         0x00 /**< any memory */
#define TUTTI_WIN_COLL_SYMMETRIC  0x01 /**< all ranks call with buffers at the same offsets */
#define TUTTI_WIN_STRICT_ORDERING 0x02 /**< accepted; tutti always keeps the order */

/** Makes [buff, buff + size) of every rank one window, which operations may then use without a
 * copy. A collective call: every rank calls it with the same `size` (bytes) and `winFlags` (of
 * TUTTI_WIN_*), or all get tuttiInvalidUsage. Within a group the work is done and *win written at
 * tuttiGroupEnd. The memory must stay allocated until tuttiCommWindowDeregister; windows that are
 * left go with the communicator. Host memory of tuttiMemAlloc is made shared, page by page: during
 * the call no thread may write to the pages that hold `buff`, and no operation use them; those
 * beside them may be in use. */
TUTTI_API tuttiResult_t tuttiCommWindowRegister(tuttiComm_t comm, void *buff, size_t size,
                                                tuttiWindow_t *win, int winFlags);
/** Undoes tuttiCommWindowRegister on this rank; no operation that uses the window may be under way.
 * On GPUs, peers in other processes may keep the memory mapped until the next registration or the
 * end of the communicator. NULL is allowed. */
TUTTI_API tuttiResult_t tuttiCommWindowDeregister(tuttiComm_t comm, tuttiWindow_t win);
/** Writes the address that this rank gave to tuttiCommWindowRegister to *outUserPtr. */
TUTTI_API tuttiResult_t tuttiWinGetUserPtr(tuttiComm_t comm, tuttiWindow_t win, void **outUserPtr);

/* ---- kernels of the user --------------------------------------------------------------------
 *
 * Kernels load from and store to the memory of other GPUs by themselves, among the ranks of a local
 * team: GPUs of one host that reach each other's memory (P2P). Teams are the largest ones that are
 * equally large and have ranks that follow each other: tuttiCommQueryProperties tells this rank's.
 * The layouts are those of NCCL's device code, which libnccl.so.2 serves by this. */

/** How kernels see a window whose memory is of tuttiMemAlloc on all ranks of the local team, and
 * begins at the same offset in it: rank p of the team has its part at
 * lsaBase + ((uint64_t)p * stride4G << 32), for kernels of this rank. Windows of other memory are
 * none for kernels; the log says so at INFO. */
struct tuttiWindow {
  void *host;         /**< NULL */
  char *lsaBase;      /**< the part of the team's rank 0 */
  int lsaRank;        /**< this rank's number in its team */
  int worldRank;      /**< as tuttiCommUserRank */
  uint32_t stride4G;  /**< from one part to the next, in 4 GiB */
  uint32_t unused[2]; /**< 0 */
  void *unusedToo[4]; /**< NULL */
};

/** Memory that kernels of a local team share. For kernels, which it may be handed to by value. */
typedef struct {
  const void *windows;     /**< this communicator's windows by address, as NCCL lists them */
  tuttiWindow_t window;    /**< the memory, as a window that kernels alone know */
  struct tuttiWindow seen; /**< what `window` points to */
} tuttiDevComm_t;

/** Makes `bytes` of zeroed GPU memory on each rank that kernels of all ranks of its local team
 * reach by *devComm, for flags and small buffers of their own. A collective call: all ranks call it
 * with the same `bytes`, and a `tag` of their own choice that must be the same, too, or all get
 * tuttiInvalidUsage; so they do on host memory and where a rank has no team. Within a group the
 * work is done and *devComm written at tuttiGroupEnd. What is left goes with the communicator; its
 * end waits until the GPU is idle, so kernels that wait for other ranks must have been ended
 * before. */
TUTTI_API tuttiResult_t tuttiDevCommCreate(tuttiComm_t comm, size_t bytes, uint64_t tag,
                                           tuttiDevComm_t *devComm);
/** Gives back this rank's part of what tuttiDevCommCreate has made, which `window` of it names. No
 * kernel of this rank may use it any more, nor may one of another rank wait for it. */
TUTTI_API tuttiResult_t tuttiDevCommDestroy(tuttiComm_t comm, tuttiWindow_t window);
/** Writes where kernels of this rank find byte `offset` of the part of rank `peer`, of the whole
 * communicator, to *outPtr: NULL if that is in another local team. tuttiInvalidUsage for windows
 * that are none for kernels; the last error says why. */
TUTTI_API tuttiResult_t tuttiWinGetPeerPtr(tuttiWindow_t win, size_t offset, int peer,
                                           void **outPtr);
/** The communicator of a live window. */
TUTTI_API tuttiResult_t tuttiWinGetComm(tuttiWindow_t win, tuttiComm_t *comm);

/* ---- reductions ----------------------------------------------------------------------------- */

/** Makes a reduction that multiplies each rank's input by *scalar (of type `datatype`), then sums.
 * The scalar may differ between ranks. The handle belongs to `comm`. */
TUTTI_API tuttiResult_t tuttiRedOpCreatePreMulSum(tuttiRedOp_t *op, void *scalar,
                                                  tuttiDataType_t datatype,
                                                  tuttiScalarResidence_t residence,
                                                  tuttiComm_t comm);
/** Frees a handle of tuttiRedOpCreatePreMulSum; built-in reductions are refused. */
TUTTI_API tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm);

/* ---- collectives ------------------------------------------------------------------------------
 * In place means that the buffers coincide as each call states. Any other overlap is refused. */

/** recvbuff[i] on every rank = reduction over ranks of sendbuff[i], i < count.
 * In place: sendbuff == recvbuff. */
TUTTI_API tuttiResult_t tuttiAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                                       tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                                       tuttiStream_t stream);

/** recvbuff on every rank = sendbuff of `root`. sendbuff is read on root only.
 * In place: sendbuff == recvbuff. */
TUTTI_API tuttiResult_t tuttiBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                                       tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                       tuttiStream_t stream);
/** tuttiBroadcast in place. */
TUTTI_API tuttiResult_t tuttiBcast(void *buff, size_t count, tuttiDataType_t datatype, int root,
                                   tuttiComm_t comm, tuttiStream_t stream);

/** recvbuff on root = reduction over ranks of sendbuff. recvbuff is used on root only.
 * In place: sendbuff == recvbuff. */
TUTTI_API tuttiResult_t tuttiReduce(const void *sendbuff, void *recvbuff, size_t count,
                                    tuttiDataType_t datatype, tuttiRedOp_t op, int root,
                                    tuttiComm_t comm, tuttiStream_t stream);

/** recvbuff[r * sendcount + i] = sendbuff[i] of rank r; recvbuff holds nranks * sendcount.
 * In place: sendbuff == recvbuff + rank * sendcount. */
TUTTI_API tuttiResult_t tuttiAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                                       tuttiDataType_t datatype, tuttiComm_t comm,
                                       tuttiStream_t stream);

/** recvbuff[i] = reduction over ranks of sendbuff[rank * recvcount + i]; sendbuff holds
 * nranks * recvcount. In place: recvbuff == sendbuff + rank * recvcount. */
TUTTI_API tuttiResult_t tuttiReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                           tuttiDataType_t datatype, tuttiRedOp_t op,
                                           tuttiComm_t comm, tuttiStream_t stream);

/** recvbuff[r * count + i] = sendbuff[rank * count + i] of rank r; both hold nranks * count.
 * Not in place. */
TUTTI_API tuttiResult_t tuttiAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                                      tuttiDataType_t datatype, tuttiComm_t comm,
                                      tuttiStream_t stream);

/** On root, recvbuff[r * count + i] = sendbuff[i] of rank r. recvbuff is used on root only.
 * In place on root: sendbuff == recvbuff + root * count. */
TUTTI_API tuttiResult_t tuttiGather(const void *sendbuff, void *recvbuff, size_t count,
                                    tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                    tuttiStream_t stream);

/** recvbuff[i] on rank r = sendbuff[r * count + i] of root. sendbuff is read on root only.
 * In place on root: recvbuff == sendbuff + root * count. */
TUTTI_API tuttiResult_t tuttiScatter(const void *sendbuff, void *recvbuff, size_t count,
                                     tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                     tuttiStream_t stream);

/** Options of one collective. Start from TUTTI_COLL_CONFIG_INITIALIZER. Ranks must agree on all of
 * them but the tag and the event; a field left undefined takes that of the communicator. The struct
 * and its text are read before the call returns. */
typedef struct {
  size_t size;              /**< sizeof(tuttiCollConfig_t) of the caller; set by the initializer */
  unsigned int magic;       /**< set by the initializer */
  unsigned int version;     /**< TUTTI_VERSION_CODE of the caller; set by the initializer */
  int minCTAs;              /**< least number of channels, as far as the communicator has them */
  int maxCTAs;              /**< greatest number of channels, and of thread blocks of a kernel */
  const char *algSelection; /**< algorithms to choose from, as TUTTI_ALGO; NULL or "": any */
  int forceAlgSelection;    /**< 1: a selection that cannot be had is an error; 0: it is ignored */
  uint64_t userProfilerTag; /**< shown to profilers with the call, and in the log; 0: none */
  void *launchCompletionEvent; /**< a cudaEvent_t, recorded in the stream right before the kernel;
                                    NULL: none. Only for communicators of GPUs. */
} tuttiCollConfig_t;

#define TUTTI_COLL_CONFIG_MAGIC 0xc0c0ba5eu /**< tells a tuttiCollConfig_t from other memory */
/** The start of every tuttiCollConfig_t: all options undefined. */
#define TUTTI_COLL_CONFIG_INITIALIZER                                                              \
  {                                                                                                \
    sizeof(tuttiCollConfig_t), TUTTI_COLL_CONFIG_MAGIC, TUTTI_VERSION_CODE,                        \
        TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_PTR, 1, 0,              \
        TUTTI_CONFIG_UNDEF_PTR                                                                     \
  }

/** tuttiAllReduce with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count,
                                             tuttiDataType_t datatype, tuttiRedOp_t op,
                                             tuttiComm_t comm, tuttiStream_t stream,
                                             const tuttiCollConfig_t *config);
/** tuttiBroadcast with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count,
                                             tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                             tuttiStream_t stream, const tuttiCollConfig_t *config);
/** tuttiReduce with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiReduceConfig(const void *sendbuff, void *recvbuff, size_t count,
                                          tuttiDataType_t datatype, tuttiRedOp_t op, int root,
                                          tuttiComm_t comm, tuttiStream_t stream,
                                          const tuttiCollConfig_t *config);
/** tuttiAllGather with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiAllGatherConfig(const void *sendbuff, void *recvbuff, size_t sendcount,
                                             tuttiDataType_t datatype, tuttiComm_t comm,
                                             tuttiStream_t stream, const tuttiCollConfig_t *config);
/** tuttiReduceScatter with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiReduceScatterConfig(const void *sendbuff, void *recvbuff,
                                                 size_t recvcount, tuttiDataType_t datatype,
                                                 tuttiRedOp_t op, tuttiComm_t comm,
                                                 tuttiStream_t stream,
                                                 const tuttiCollConfig_t *config);
/** tuttiAlltoAll with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count,
                                            tuttiDataType_t datatype, tuttiComm_t comm,
                                            tuttiStream_t stream, const tuttiCollConfig_t *config);
/** tuttiGather with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiGatherConfig(const void *sendbuff, void *recvbuff, size_t count,
                                          tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                          tuttiStream_t stream, const tuttiCollConfig_t *config);
/** tuttiScatter with options; `config` may be NULL. */
TUTTI_API tuttiResult_t tuttiScatterConfig(const void *sendbuff, void *recvbuff, size_t count,
                                           tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                           tuttiStream_t stream, const tuttiCollConfig_t *config);

/** Sends to `peer`. Each tuttiSend meets one tuttiRecv of the same count and type, in order for
 * each pair of ranks. Sends and receives that depend on each other go into one group. */
TUTTI_API tuttiResult_t tuttiSend(const void *sendbuff, size_t count, tuttiDataType_t datatype,
                                  int peer, tuttiComm_t comm, tuttiStream_t stream);
/** Receives from `peer` what its tuttiSend sends; see there. */
TUTTI_API tuttiResult_t tuttiRecv(void *recvbuff, size_t count, tuttiDataType_t datatype, int peer,
                                  tuttiComm_t comm, tuttiStream_t stream);

/* ---- one-sided operations ---------------------------------------------------------------------
 * Writes into windows of other ranks, without a call of theirs, and signals by which they learn of
 * it, after a first window has been registered. On host memory each call is done when it returns,
 * on a non-blocking communicator too. On GPUs it is done in order of its stream, and can be
 * captured in a graph. In a group calls are done at tuttiGroupEnd, behind the collectives and
 * messages, and the waits behind the puts.
 *
 * A signal is known by who sends it, its index and its context (below numRmaSig and numRmaCtx of
 * the config); it is counted, never lost, and belongs to no window. */

/** Writes `count` elements to `peerWinOffset` bytes into the part of `peer` of the window
 * `peerWin`, which is this rank's handle of it; then sends the signal, which arrives after the
 * data. Puts and signals from one rank to another arrive in the order of the calls, on whatever
 * streams; those in a graph when that runs, which the user orders with what is on other streams.
 * Bounds are checked before anything is written. localbuff may be changed when the call is done;
 * the data may be on its way still. On GPUs it must not overlap with where it goes, and the
 * window's memory must stay as long as a put is on its way; between GPUs that store into each
 * other's memory (P2P) it must be of tuttiMemAlloc or cudaMalloc.
 * `flags` must be 0. */
TUTTI_API tuttiResult_t tuttiPutSignal(const void *localbuff, size_t count,
                                       tuttiDataType_t datatype, int peer, tuttiWindow_t peerWin,
                                       size_t peerWinOffset, int sigIdx, int ctx,
                                       unsigned int flags, tuttiComm_t comm, tuttiStream_t stream);

/** Sends a signal alone, behind all that this rank has put to `peer` before. `flags` must be 0. */
TUTTI_API tuttiResult_t tuttiSignal(int peer, int sigIdx, int ctx, unsigned int flags,
                                    tuttiComm_t comm, tuttiStream_t stream);

/** Which signals to wait for. */
typedef struct {
  int opCnt;  /**< how many */
  int peer;   /**< from this rank */
  int sigIdx; /**< with this index */
  int ctx;    /**< and this context */
} tuttiWaitSignalDesc_t;

/** Waits until so many signals of each descriptor have arrived that no earlier call has waited for,
 * at most the timeout of the communicator. What was put before the last of them is in the window
 * then. A call that fails takes none of them. On a GPU only the stream waits: puts that are called
 * later on another one pass it. There a timeout ends the communicator, as that of a collective
 * does. */
TUTTI_API tuttiResult_t tuttiWaitSignal(int nDesc, tuttiWaitSignalDesc_t *signalDescs,
                                        tuttiComm_t comm, tuttiStream_t stream);

/* ---- groups --------------------------------------------------------------------------------- */

/** Calls between tuttiGroupStart and tuttiGroupEnd of one thread are checked at once and carried
 * out together by the outermost tuttiGroupEnd. Groups nest. If a call in the group failed its
 * check, tuttiGroupEnd carries out none of the group's operations and returns that failure.
 * Operations of one group must not need each other's results: they run side by side, on GPUs the
 * sends and receives first. */
TUTTI_API tuttiResult_t tuttiGroupStart(void);
/** Ends a group of tuttiGroupStart; see there. */
TUTTI_API tuttiResult_t tuttiGroupEnd(void);

/** What tuttiGroupSimulateEnd tells. Start from TUTTI_SIM_INFO_INITIALIZER. */
typedef struct {
  size_t size;          /**< sizeof(tuttiSimInfo_t) of the caller; set by the initializer */
  unsigned int magic;   /**< set by the initializer */
  unsigned int version; /**< TUTTI_VERSION_CODE of the caller; set by the initializer */
  float estimatedTime; /**< what the group would take, in us, as the planner expects; -1: not set */
} tuttiSimInfo_t;

#define TUTTI_SIM_INFO_MAGIC 0x74685283u /**< tells a tuttiSimInfo_t from other memory */
/** The start of every tuttiSimInfo_t. */
#define TUTTI_SIM_INFO_INITIALIZER                                                                 \
  { sizeof(tuttiSimInfo_t), TUTTI_SIM_INFO_MAGIC, TUTTI_VERSION_CODE, -1.0f }

/** Ends a group like tuttiGroupEnd, but carries nothing out: fills *simInfo for the collectives and
 * messages of the group, and forgets them. Inner groups leave *simInfo as it is. */
TUTTI_API tuttiResult_t tuttiGroupSimulateEnd(tuttiSimInfo_t *simInfo);

/* ---- parameters -----------------------------------------------------------------------------
 * The settings in force, read only. A key is the name of a variable, TUTTI_... or the NCCL_... that
 * means the same (see `tutti env`). Times are in milliseconds, sizes in bytes. */

/** A setting; opaque, never freed. */
typedef struct tuttiParam *tuttiParamHandle_t;
/** Finds the setting of `key`. */
TUTTI_API tuttiResult_t tuttiParamBind(tuttiParamHandle_t *out, const char *key);
/** The number of a setting; tuttiInvalidArgument if it is a text or does not fit *out. */
TUTTI_API tuttiResult_t tuttiParamGetI8(tuttiParamHandle_t h, int8_t *out);
TUTTI_API tuttiResult_t tuttiParamGetI16(tuttiParamHandle_t h, int16_t *out);  /**< see I8 */
TUTTI_API tuttiResult_t tuttiParamGetI32(tuttiParamHandle_t h, int32_t *out);  /**< see I8 */
TUTTI_API tuttiResult_t tuttiParamGetI64(tuttiParamHandle_t h, int64_t *out);  /**< see I8 */
TUTTI_API tuttiResult_t tuttiParamGetU8(tuttiParamHandle_t h, uint8_t *out);   /**< see I8 */
TUTTI_API tuttiResult_t tuttiParamGetU16(tuttiParamHandle_t h, uint16_t *out); /**< see I8 */
TUTTI_API tuttiResult_t tuttiParamGetU32(tuttiParamHandle_t h, uint32_t *out); /**< see I8 */
TUTTI_API tuttiResult_t tuttiParamGetU64(tuttiParamHandle_t h, uint64_t *out); /**< see I8 */
/** The text of a setting, valid until this thread's next tuttiParam call. */
TUTTI_API tuttiResult_t tuttiParamGetStr(tuttiParamHandle_t h, const char **out);
/** Copies a setting to `out`, of `maxLen` bytes: a text with its 0, or a number as int64_t. *len is
 * what it takes; tuttiInvalidArgument if that is more. */
TUTTI_API tuttiResult_t tuttiParamGet(tuttiParamHandle_t h, void *out, int maxLen, int *len);
/** tuttiParamGetStr by key; *valueLen is its length, and `valueLen` may be NULL. */
TUTTI_API tuttiResult_t tuttiParamGetParameter(const char *key, const char **value, int *valueLen);
/** All keys: a constant table of *tableLen texts. */
TUTTI_API tuttiResult_t tuttiParamGetAllParameterKeys(const char ***table, int *tableLen);
/** Logs all settings at INFO. */
TUTTI_API void tuttiParamDumpAll(void);

#ifdef __cplusplus
}
#endif

#endif
