/* Bytes that have arrived at a GPU and cannot be seen there yet, as writes over PCI Express may be
 * until something reads what they wrote. */
#include "control.h"
#include "hca.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct Kept {
  struct Kept *next;
  softJob job;
  uint32_t qpn;
  uint64_t due;
} Kept;

static Kept *first, *last;
static _Atomic uint32_t underWay[SOFT_MAX_GPUS];

void softHide(const softJob *job, uint32_t qpn) {
  Kept *kept = malloc(sizeof *kept);
  void *bytes = malloc(job->bytes);
  if (!kept || !bytes) { /* seen too early */
    free(kept);
    free(bytes);
    softMoverSubmit(job, qpn);
    return;
  }
  memcpy(bytes, (void *)(uintptr_t)job->from, job->bytes); /* NOLINT: the ABI's integer */
  *kept = (Kept){.job = *job, .qpn = qpn, .due = softNow() + softRandom(hca.config.invisible)};
  kept->job.from = (uintptr_t)bytes;
  kept->job.owned = bytes;
  kept->job.flight = NULL;
  if (job->mr) atomic_fetch_add(&job->mr->copies, 1);
  *(last ? &last->next : &first) = kept;
  last = kept;
}

static void handOver(Kept *kept) {
  kept->job.also = &underWay[kept->job.gpu];
  softMoverSubmit(&kept->job, kept->qpn);
  if (kept->job.mr) atomic_fetch_sub(&kept->job.mr->copies, 1); /* it is the mover's now */
  free(kept);
}

void softReveal(int gpu) {
  Kept **at = &first;
  last = NULL;
  while (*at) {
    Kept *kept = *at;
    if (gpu < 0 || kept->job.gpu == gpu) {
      *at = kept->next;
      handOver(kept);
    } else {
      last = kept;
      at = &kept->next;
    }
  }
}

/* In order: one that is late holds back those behind it. */
void softRevealDue(uint64_t now) {
  while (first && first->due <= now) {
    Kept *kept = first;
    first = kept->next;
    if (!first) last = NULL;
    handOver(kept);
  }
  if (first) softNext(first->due);
}

bool softRevealed(int gpu) {
  return atomic_load(&underWay[gpu]) == 0;
}

void softHcaReveal(void) {
  pthread_mutex_lock(&hca.lock);
  softReveal(-1);
  pthread_mutex_unlock(&hca.lock);
  for (int gpu = 0; gpu < SOFT_MAX_GPUS; gpu++)
    while (!softRevealed(gpu))
      sched_yield();
}
