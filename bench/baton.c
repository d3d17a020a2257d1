#include "baton.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 300 /* for a turn of another side: it has died, or whoever started both has */

/* What the file holds. A stage ends when so many processes as it has have come to its end. */
typedef struct {
  atomic_uint stage; /* 0: all meet; then turns, side after side; then all meet again */
  atomic_uint ended; /* processes that are through with it */
} baton;

static baton *shared; /* NULL: nobody to wait for */
static unsigned sides, side, ranks, turns;

static unsigned number(const char *name, unsigned most) {
  const char *text = getenv(name);
  unsigned long value = text ? strtoul(text, NULL, 10) : most + 1ul;
  if (value <= most) return (unsigned)value;
  fprintf(stderr, "%s is no number up to %u\n", name, most);
  exit(2);
}

static void await(unsigned stage) {
  const struct timespec limit = {.tv_sec = LIMIT_S};
  unsigned now;
  while ((now = atomic_load(&shared->stage)) < stage) {
    if (syscall(SYS_futex, &shared->stage, FUTEX_WAIT, now, &limit, NULL, 0) == 0) continue;
    if (errno != ETIMEDOUT) continue;
    fprintf(stderr, "no turn has ended for %d s\n", LIMIT_S);
    exit(1);
  }
}

static void finish(unsigned processes) {
  if (atomic_fetch_add(&shared->ended, 1) + 1 < processes) return;
  atomic_store(&shared->ended, 0);
  atomic_fetch_add(&shared->stage, 1);
  syscall(SYS_futex, &shared->stage, FUTEX_WAKE, 1 << 20, NULL, NULL, 0);
}

void batonJoin(int nranks) {
  const char *path = getenv("BATON_FILE");
  if (!path) return;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  void *at =
      fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    perror(path);
    exit(1);
  }
  close(fd);
  sides = number("BATON_SIDES", 16);
  side = number("BATON_SIDE", sides - 1);
  ranks = (unsigned)nranks;
  shared = at;
  finish(sides * ranks);
  await(1);
}

void batonTake(void) {
  if (shared) await(1 + turns * sides + side);
}

void batonPass(void) {
  if (!shared) return;
  turns++;
  finish(ranks);
}

void batonLeave(void) {
  if (!shared) return;
  await(1 + turns * sides);
  finish(sides * ranks);
  await(2 + turns * sides);
}
