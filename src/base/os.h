/* Small wrappers of the operating system. */
#ifndef TUTTI_BASE_OS_H_
#define TUTTI_BASE_OS_H_

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>

#include "base/atomic.h"
#include "base/text.h"
#include "tutti.h"

__BEGIN_DECLS

/* CLOCK_MONOTONIC in ns. A deadline is a value of this clock; TUTTI_NO_DEADLINE never comes. */
uint64_t tuttiNow(void);
#define TUTTI_NO_DEADLINE UINT64_MAX
#define TUTTI_MS          1000000ull /* of it in a millisecond */
/* now + ms; ms <= 0 gives TUTTI_NO_DEADLINE. */
uint64_t tuttiDeadline(int64_t ms);
/* Milliseconds from one value of the clock to another. */
static inline double tuttiMs(uint64_t from, uint64_t to) {
  return (double)(to - from) / 1e6;
}
/* Milliseconds left for poll(2): 0 when passed, -1 when there is none. */
int tuttiDeadlinePollMs(uint64_t deadline);
/* How often this thread has left its core to another one. */
uint64_t tuttiSwitches(void);

/* 64-bit FNV-1a, for ids and checks; not for secrets. */
uint64_t tuttiHash(const void *data, size_t bytes);
/* A random number, the same for all of this process: tells its threads from other processes. */
uint64_t tuttiProcessId(void);
/* Cryptographic random bytes (getrandom). */
tuttiResult_t tuttiRandom(void *out, size_t bytes);

/* Reads fd to its end, at most `size` bytes; the number read, or -1 and errno. */
ssize_t tuttiReadAll(int fd, void *buf, size_t size);
/* Reads a small text file, without trailing white space, into buf. False (and buf is "") if it
 * cannot be read or does not fit. */
bool tuttiReadFile(const char *path, char *buf, size_t size);
/* Opens a regular file of at most `most` bytes for reading, and waits for nothing: neither for a
 * FIFO nor a device. Returns the fd, which is for tuttiFdClose, and sets *size; or -1, and `why`
 * says what is wrong, to follow the path: " is not a regular file". */
#define TUTTI_WHY 160
int tuttiOpenRegular(const char *path, size_t most, size_t *size, char why[TUTTI_WHY]);
/* True in a program that was started with more rights than its user has (AT_SECURE: set-user-ID,
 * set-group-ID, file capabilities). What the environment says is that user's. */
bool tuttiPrivileged(void);

/* Starts a thread of the library's own, which the application's signals never interrupt; `name` has
 * at most 15 characters. */
tuttiResult_t tuttiThreadStart(pthread_t *out, const char *name, void *(*run)(void *), void *arg);
/* The calling thread sleeps no longer than it asks for, as far as the kernel can. By default all
 * may sleep 50 us more, so that the kernel can wake several at once: for a nap of 10 us that is
 * much. */
void tuttiThreadWakesInTime(void);
/* Set in such threads that enter GPUs: they have none of their own to go back to. */
extern __thread bool tuttiThreadIsOwn;

/* A file descriptor that closes on exec, of anonymous shared memory (memfd) without any bytes. */
tuttiResult_t tuttiSharedFd(const char *what, int *fd);
/* Gives it `size` bytes and seals that: no holder of the descriptor can cut the memory from under
 * another. Of several processes that do so with one size, all succeed. */
tuttiResult_t tuttiSharedFdSeal(int fd, size_t size, const char *what);

/* True in a child forked after tuttiForkForbid, where no call may touch the library's state. */
bool tuttiForked(void);
void tuttiForkForbid(void);
/* Registers an fd that a forked child must close at once, so that a peer sees this process die even
 * while the child lives on. */
void tuttiForkCloseAdd(int fd);
void tuttiForkCloseRemove(int fd);
/* Closes an fd, registered or not, and sets it to -1; -1 is left alone. */
void tuttiFdClose(int *fd);
/* Has `closing` called by each tuttiFdClose from now on, before it closes; of one caller. */
void tuttiFdOnClose(void (*closing)(int fd));
/* `TUTTI_CLOSED int fd = open(...);` is closed where its block ends. */
#define TUTTI_CLOSED __attribute__((cleanup(tuttiFdClose)))
/* Takes an fd out of such a variable, for somebody who keeps it. */
static inline int tuttiFdTake(int *fd) {
  int taken = *fd;
  *fd = -1;
  return taken;
}

/* `TUTTI_LOCKED(&lock);` holds a mutex from there to the end of the block. */
#define TUTTI_LOCKED(mutex)                                                                        \
  __typeof__(mutex) locked_ __attribute__((cleanup(tuttiUnlockAt), unused)) = tuttiLock(mutex)
static inline pthread_mutex_t *tuttiLock(pthread_mutex_t *mutex) {
  pthread_mutex_lock(mutex);
  return mutex;
}
static inline void tuttiUnlockAt(pthread_mutex_t *const *mutex) {
  pthread_mutex_unlock(*mutex);
}

__END_DECLS

#endif
