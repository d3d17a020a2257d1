/* Work of a process group on host memory: operations that go on beside their caller, and messages
 * that are matched by tag. libtutti_work.so holds it, in terms of tutti.h alone, for whoever drives
 * collectives from a language whose threads cannot run at once; the package's PyTorch backend does.
 *
 * A group has one communicator for its collectives, and lanes for its messages: a communicator of
 * two ranks for each sender and receiver, so that no message waits for another pair's. Works of one
 * queue (the collectives, or a lane) run in the order of their submission.
 *
 * Every call may be made by any thread at any time, but for tuttiWorkGroupFree. Buffers belong to
 * the caller and stay untouched until the work is done. Texts are valid as long as what they were
 * asked of. */
#ifndef TUTTI_WORK_H_
#define TUTTI_WORK_H_

#include <stddef.h>
#include <stdint.h>

#include "tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  tuttiWorkCopy = 0, /* recv = send, `count` bytes, on this rank alone */
  tuttiWorkAllReduce = 1,
  tuttiWorkBroadcast = 2,
  tuttiWorkReduce = 3,
  tuttiWorkAllGather = 4,
  tuttiWorkReduceScatter = 5,
  tuttiWorkAllToAll = 6,
  tuttiWorkGather = 7,
  tuttiWorkScatter = 8,
  tuttiWorkSend = 9,
  tuttiWorkRecv = 10,
  tuttiWorkBarrier = 11, /* has no buffers */
  tuttiWorkKinds = 12
} tuttiWorkKind;

/* One call of tutti.h; neighbours that are no copies run as a group. Python's ctypes has this
 * layout. */
typedef struct {
  int32_t kind, type, op, peer; /* peer: root, destination or source */
  const void *send;
  void *recv;
  size_t count;
} tuttiWorkStep;

typedef struct tuttiWorkGroup tuttiWorkGroup;
typedef struct tuttiWork tuttiWork;
typedef struct tuttiWorkEnds tuttiWorkEnds;

#define TUTTI_WORK_ANY (-1) /* a receive from whoever sends first */

/* A group without communicators; NULL: no memory. `timeoutMs` is that of each work and each
 * rendezvous (0: none), `name` is shown in errors. */
TUTTI_API tuttiWorkGroup *tuttiWorkGroupMake(int nranks, int rank, int timeoutMs, const char *name);
/* Joins the communicator of the collectives; collective. */
TUTTI_API tuttiResult_t tuttiWorkGroupOpen(tuttiWorkGroup *group, const tuttiUniqueId *id);
/* Takes a communicator of the caller's as that of the collectives, instead of tuttiWorkGroupOpen.
 * It belongs to the group from then on. The caller may go on to use it while no work is under way.
 */
TUTTI_API tuttiResult_t tuttiWorkGroupAdopt(tuttiWorkGroup *group, tuttiComm_t comm);
/* Joins the lane to (sending != 0) or from `peer`; blocks until the peer does. What has been
 * submitted for the lane runs from then on, or fails as this does. Once for each lane. */
TUTTI_API tuttiResult_t tuttiWorkLaneOpen(tuttiWorkGroup *group, int sending, int peer,
                                          const tuttiUniqueId *id);
/* Says that the lane cannot be opened, and why: its works fail. */
TUTTI_API void tuttiWorkLaneFail(tuttiWorkGroup *group, int sending, int peer, const char *text);
/* The text of the failure that this thread's last call of this group returned; "": none. */
TUTTI_API const char *tuttiWorkGroupText(const tuttiWorkGroup *group);
/* Ends all works at once without waiting for any peer; they and all later ones fail with `text`. */
TUTTI_API void tuttiWorkGroupAbort(tuttiWorkGroup *group, const char *text);
/* Completes the collectives and sends that are under way, fails the receives, and leaves all
 * communicators. Later works fail. */
TUTTI_API void tuttiWorkGroupClose(tuttiWorkGroup *group);
/* Closes the group and forgets it; its works may outlive it. */
TUTTI_API void tuttiWorkGroupFree(tuttiWorkGroup *group);

/* Runs the steps after all that was submitted before, in this thread if none other is at it, and
 * returns when they are done. */
TUTTI_API tuttiResult_t tuttiWorkRun(tuttiWorkGroup *group, const tuttiWorkStep *steps, int nsteps);
/* tuttiWorkRun of one step, by its fields: less to make ready for small operations. */
TUTTI_API tuttiResult_t tuttiWorkRunOne(tuttiWorkGroup *group, int kind, const void *send,
                                        void *recv, size_t count, int type, int op, int peer);

/* Starts the steps on the group's own thread; NULL: no memory or no thread. `timeoutMs` 0: the
 * group's. The work belongs to the caller until tuttiWorkFree. */
TUTTI_API tuttiWork *tuttiWorkSubmit(tuttiWorkGroup *group, const tuttiWorkStep *steps, int nsteps,
                                     int timeoutMs);
/* Sends `bytes` to `peer`, or receives them from it (or TUTTI_WORK_ANY), where the other does its
 * part with the same tag. NULL as above, or there is no such rank. */
TUTTI_API tuttiWork *tuttiWorkPost(tuttiWorkGroup *group, int sending, void *data, size_t bytes,
                                   int peer, int tag);
/* Waits for the end of a work; if `timeoutMs` > 0 and passes first, the work is ended too, and
 * with it the queue. The result is the work's. */
TUTTI_API tuttiResult_t tuttiWorkWait(tuttiWork *work, int timeoutMs);
/* 1: it has ended, well or not. */
TUTTI_API int tuttiWorkDone(tuttiWork *work);
/* Lets the end of the work, which may have come already, add 1 to the eventfd `fd`; -1: no more.
 * Then nobody writes to the one before. */
TUTTI_API void tuttiWorkNotify(tuttiWork *work, int fd);
/* A list of works as they end, of any groups; NULL: no memory. */
TUTTI_API tuttiWorkEnds *tuttiWorkEndsMake(void);
/* Puts the work on the list when it ends, or at once if it has; on one list, and once. It must not
 * be let go of before tuttiWorkEndsNext has given it. */
TUTTI_API void tuttiWorkEndsAdd(tuttiWorkEnds *ends, tuttiWork *work);
/* Takes the first work off the list; blocks until there is one. NULL: the list has been closed. Any
 * number of threads may ask. */
TUTTI_API tuttiWork *tuttiWorkEndsNext(tuttiWorkEnds *ends);
/* Nothing is taken off it any more: those who wait for more get NULL. */
TUTTI_API void tuttiWorkEndsClose(tuttiWorkEnds *ends);
/* No thread is in a call with it, and no work still to come onto it. NULL: nothing. */
TUTTI_API void tuttiWorkEndsFree(tuttiWorkEnds *ends);
/* Of a work that has ended: its result, its text ("": it succeeded), and who sent what it received.
 */
TUTTI_API tuttiResult_t tuttiWorkResult(const tuttiWork *work);
TUTTI_API const char *tuttiWorkText(const tuttiWork *work);
TUTTI_API int tuttiWorkPeer(const tuttiWork *work);
/* Lets go of a work, which may still be under way. NULL: nothing. */
TUTTI_API void tuttiWorkFree(tuttiWork *work);

#ifdef __cplusplus
}
#endif

#endif
