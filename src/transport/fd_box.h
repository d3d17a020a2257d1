/* Descriptors handed from one process to another, for those that cannot be opened through /proc
 * (peer_fd.h), as they are of no file: what a driver exports of a GPU's memory. They go by a Unix
 * socket, which takes no right to look into a process (as pidfd_getfd would: Yama's default forbids
 * it among processes that did not start each other), and both must be in one network namespace. */
#ifndef TUTTI_TRANSPORT_FD_BOX_H_
#define TUTTI_TRANSPORT_FD_BOX_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/atomic.h"
#include "base/mac.h"

__BEGIN_DECLS

/* The abstract address ("@tutti-..." in ss -x) of a socket with this number; returns its length. */
socklen_t tuttiUnixAddress(uint64_t id, struct sockaddr_un *out);
/* Puts a descriptor into a message that has room for one, and takes the first out of one that came,
 * closing any other; -1: there is none. */
void tuttiFdAttach(struct msghdr *message, int fd);
int tuttiFdDetach(struct msghdr *message);

/* How to send to a box. Whoever sends repeats the key, which only those have who were told it. */
typedef struct {
  uint64_t id; /* 0: there is no box */
  uint8_t key[TUTTI_MAC_BYTES];
} tuttiFdAddress;

/* Where descriptors come in, in any order. */
typedef struct {
  int fd; /* -1: none */
  tuttiFdAddress address;
} tuttiFdBox;

/* Makes one; 0 or an errno, and then out->fd is -1. */
int tuttiFdBoxOpen(tuttiFdBox *out);
/* Drops what is still in it. May be called again. */
void tuttiFdBoxClose(tuttiFdBox *box);

/* What comes with a descriptor. */
typedef struct {
  int32_t rank;   /* who sent it */
  uint32_t round; /* which of that rank's */
} tuttiFdLabel;

/* Sends a descriptor by way of the own box, without waiting: 0 or an errno, EAGAIN if the other one
 * is full. */
int tuttiFdBoxSend(const tuttiFdBox *own, const tuttiFdAddress *to, tuttiFdLabel label, int fd);
/* Takes one out, close-on-exec and the caller's; 0 or an errno, EAGAIN if there is none. What has
 * not the key is dropped. */
int tuttiFdBoxTake(const tuttiFdBox *box, tuttiFdLabel *label, int *fd);

/* A descriptor that is to go to another box, or to come from one. */
typedef struct {
  const tuttiFdAddress *to; /* NULL: it is to come */
  tuttiFdLabel label;       /* with which it goes or must come */
  int fd;                   /* going: stays the caller's. Come: the caller's; -1: not yet */
  bool open;                /* it has neither gone nor come; false at first: leave it out */
  int error;                /* why it could not go, an errno; 0: nothing has failed */
} tuttiFdParcel;
/* Sends and takes by turns, so that no two boxes wait for each other, until no parcel is open, `ms`
 * have passed or *failed is not 0. What has another label is dropped. */
void tuttiFdBoxTrade(const tuttiFdBox *box, tuttiFdParcel *parcels, int n, int64_t ms,
                     const tuttiAtomic32 *failed);

__END_DECLS

#endif
