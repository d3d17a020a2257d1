/* What goes wrong in a job, in the process that it strikes: libc's send, sendmsg and close are
 * replaced there, so that a fault falls between two messages of the library, or on one. */
#ifndef TUTTI_TESTS_CHAOS_FAULT_H_
#define TUTTI_TESTS_CHAOS_FAULT_H_

#include <sys/types.h>

#include <cstdint>

namespace chaos {

enum FaultKind {
  kKill,    /* SIGKILL */
  kStop,    /* SIGSTOP, and SIGCONT after a while */
  kFreeze,  /* SIGSTOP for good */
  kCut,     /* a connection is shut in both directions */
  kDelay,   /* for a while, what is sent comes later, each message by as much */
  kDrop,    /* for a while nothing that is sent comes; after that all of it, as TCP repeats it */
  kReorder, /* for a while, connections overtake each other */
  kCorrupt, /* a byte of a message is changed */
  kFaultKinds
};
const char *nameOf(FaultKind kind);
/* After it, all goes on as if nothing had been. */
bool isHarmless(FaultKind kind);

struct Fault {
  FaultKind kind;
  int ms;        /* how long it lasts */
  uint32_t seed; /* of what else there is to choose */
};

/* What the struck process and its parent tell each other; in shared memory, all atomic. */
struct Strike {
  int fire;   /* by the parent: strike with the next send */
  int struck; /* somebody does, and nobody else will */
  pid_t peer; /* cut: whose process has the other end; 0: none of `pids` */
};

/* True for the first who asks: it strikes. */
bool mayStrike(Strike *strike);
/* From now on the sends of this process are counted in *sends; but not those over a TCP connection
 * that ends with fewer than `least`, which has come to nothing: another is made in its place. */
void countSends(int *sends, int least);
/* This is the process that `fault` strikes. `pids`: n processes that may be at the other end. */
void armFault(const Fault &fault, Strike *strike, const pid_t *pids, int n);
/* Strikes with the send that *sends counts as number `at`; 0: when the parent says so. */
void strikeAtSend(int at);
/* Nothing that was sent is under way any more. */
void landAll();

} // namespace chaos

#endif
