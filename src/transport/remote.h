/* Copying out of another process's memory: one copy where a slot takes two. The kernel allows it
 * (process_vm_readv) where one process may trace the other; Yama, containers and undumpable
 * processes may rule it out, so whoever wants to read tries first. */
#ifndef TUTTI_TRANSPORT_REMOTE_H_
#define TUTTI_TRANSPORT_REMOTE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* A process as its readers know it. Pids are reused, and mean another process in another namespace:
 * the word at `offer` proves that this is the one. */
typedef struct {
  int32_t pid;    /* 0: none */
  int32_t thread; /* by which it was found when its first one had ended; 0: by `pid` */
  uint64_t offer; /* address of a word that holds `id`; 0: not to be read */
  uint64_t id;
} tuttiRemote;

/* This process's `offer`; 0 if it knows that nobody can read it, or by TUTTI_CMA_DISABLE. `id` is
 * the same on every call. */
uint64_t tuttiRemoteOffer(uint64_t id);
/* True if the memory of this very process can be read. */
bool tuttiRemoteReadable(tuttiRemote *process);
/* Copies `bytes` to address `to`; 0 or an errno, as the next. */
int tuttiRemoteWrite(tuttiRemote *process, const void *from, uint64_t to, size_t bytes);
/* Copies `bytes` from address `from`; 0 or an errno, ESRCH if the process is gone. */
int tuttiRemoteRead(tuttiRemote *process, void *to, uint64_t from, size_t bytes);

/* Times of a copy out of another process, and of what a slot takes instead, in us. */
typedef struct {
  float call;  /* of the call itself */
  float kib;   /* of 1 KiB that lies in this core's cache */
  float store; /* of 1 KiB that this core stores past its caches; 0: it has no such stores */
} tuttiRemoteCost;

/* What this kernel takes for it, measured by the first call of the process, in some 0.2 ms; zeros
 * if this process can't be read. `offer` as tuttiRemoteOffer(id) has returned it. Any thread. */
tuttiRemoteCost tuttiRemoteMeasure(uint64_t offer, uint64_t id);
/* It is one of a machine that exists. */
bool tuttiRemoteCostValid(const tuttiRemoteCost *cost);

__END_DECLS

#endif
