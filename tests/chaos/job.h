/* A job of some ranks, as processes: what they do follows from a seed, and a fault strikes one of
 * them at a moment that follows from it too. */
#ifndef TUTTI_TESTS_CHAOS_JOB_H_
#define TUTTI_TESTS_CHAOS_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "fault.h"
#include "tutti.h"

namespace chaos {

constexpr int kMaxRanks = 10, kMaxSteps = 8;

enum Kind { kInit, kAllReduce, kSplit, kShrink, kGrow, kLoop };
const char *nameOf(Kind kind);

/* One step, the same for all ranks, which are told apart by what their process is numbered. */
struct Step {
  Kind kind;
  int excluded = -1; /* shrink: this process stays behind */
  int joins = -1;    /* grow: this process comes */
  uint32_t colors;   /* split: bit of a process is its color */
};

struct Plan {
  /* `net`: all goes over this network, "Socket" or "IB"; "": a third of the seeds over sockets, the
   * others over shared memory. */
  Plan(uint64_t seed, FaultKind kind, const std::string &net);
  std::string text() const;

  uint64_t seed;
  int first, nprocesses; /* those that are there from the init on; and those that a step adds */
  std::vector<Step> steps;
  std::string network; /* "": shared memory */
  int victim;
  Fault fault;
  int killStep;    /* it strikes the victim in this step, */
  int killSends;   /* when it is about to send for the n-th time; or if that is 0, */
  int killMicros;  /* so long after it has begun, by its parent's hand */
  uint32_t aborts; /* bit of a process: it aborts the other communicators when one fails */
};

/* What a process tells, in memory that all share. */
struct Report {
  pid_t pid;
  int stage;  /* steps begun; atomic */
  int sends;  /* in this step; atomic */
  int ended;  /* it has nothing left to do: it has failed, or stayed behind; atomic */
  int result; /* of the call that failed; 0: none has */
  int step;   /* in which that was */
  double at;  /* when; seconds of the monotonic clock */
  int left;   /* descriptors that stayed after all was destroyed */
  int wrong;  /* 1: data were not what they should be */
  int nranks; /* how many numbers it has had: */
  int ranks[3 * kMaxSteps], victims[3 * kMaxSteps]; /* and those of the victim; -1: none */
  char text[1400];
  char kept[200]; /* what the descriptors that stayed are of */
};

struct Shared {
  Report reports[kMaxRanks];
  int made[kMaxSteps + 1]; /* ids[i] is there; atomic */
  tuttiUniqueId ids[kMaxSteps + 1];
  int over; /* the parent has seen all it wants; atomic */
  int go;   /* all have been started; atomic */
  int calm; /* the fault is over; atomic */
  Strike strike;
  pid_t pids[kMaxRanks]; /* as in the reports, by the parent */
};

double now();
/* What has not been heard of yet can't be missed: the send of an init that finds a rank seated at
 * its root. Before it come hello and confirm, and under TLS two that begin and end a handshake. */
int seatedSend();
/* TUTTI_TIMEOUT of its jobs, in seconds: beyond all that ends without it. */
int timeoutOf(FaultKind kind);

/* Runs process number `self`; ends with its exit. */
[[noreturn]] void runProcess(const Plan &plan, Shared *shared, int self);

} // namespace chaos

#endif
