/* Rates of ports: what all processes of a fabric send through a port shares its rate. When the port
 * is free again stands in shared memory. Its name stays while a process uses it: each holds a
 * shared lock on the file, and whoever can have it alone at his end was the last. */
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef _Atomic uint64_t Times[SOFT_MAX_DEVICES * SOFT_MAX_PORTS];

static Times own; /* where there can be no shared one */
static Times *times = &own;
static int file = -1;

static bool limited(void) {
  for (int i = 0; i < hca.config.ndevices; i++)
    for (uint64_t port = 0; port < hca.config.devices[i].nports; port++)
      if (hca.config.devices[i].ports[port].gbps > 0) return true;
  return false;
}

static void nameOf(char *name, size_t size) {
  snprintf(name, size, "/softhca-%s-%u", hca.config.fabric, (unsigned)getuid());
}

/* Opened and locked, and still what the name stands for; -1: errno says why not. */
static int openFile(const char *name) {
  struct stat mine, named;
  for (;;) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_SH) == 0 && ftruncate(fd, sizeof(Times)) == 0 && fstat(fd, &mine) == 0) {
      int again = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
      bool same = again >= 0 && fstat(again, &named) == 0 && named.st_ino == mine.st_ino;
      if (again >= 0) close(again);
      if (same) return fd;
    }
    close(fd); /* its last user took the name away meanwhile */
  }
}

void softRateStart(void) {
  char name[80];
  if (!limited()) return;
  nameOf(name, sizeof name);
  file = openFile(name);
  void *shared = MAP_FAILED;
  if (file >= 0) shared = mmap(NULL, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared != MAP_FAILED)
    times = shared;
  else
    fprintf(stderr, "softhca: no shared memory for rates: each process has them for itself\n");
}

void softRateStop(void) {
  char name[80];
  if (times != &own) munmap(times, sizeof(Times));
  times = &own;
  nameOf(name, sizeof name);
  if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) shm_unlink(name);
  if (file >= 0) close(file);
  file = -1;
}

uint64_t softRateFree(uint16_t portId) {
  return atomic_load_explicit(&(*times)[portId], memory_order_relaxed);
}

uint64_t softRateSend(uint16_t portId, double gbps, size_t bytes, uint64_t now) {
  _Atomic uint64_t *free = &(*times)[portId];
  uint64_t before = atomic_load_explicit(free, memory_order_relaxed), after;
  uint64_t takes =
      (uint64_t)((double)bytes / gbps); /* 10^9 bytes a second are bytes a nanosecond */
  do
    after = (before > now ? before : now) + takes;
  while (!atomic_compare_exchange_weak_explicit(free, &before, after, memory_order_relaxed,
                                                memory_order_relaxed));
  return after;
}
