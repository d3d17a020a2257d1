/* Heap memory and mappings, counted per owner, so that a communicator can say what it holds. */
#ifndef TUTTI_BASE_MEM_H_
#define TUTTI_BASE_MEM_H_

#include <stddef.h>
#include <sys/cdefs.h>

#include "base/atomic.h"
#include "tutti.h"

__BEGIN_DECLS

/* Bytes held by one owner (a communicator). Zero-initialized. */
typedef struct {
  tuttiAtomic64 bytes;
} tuttiMemAccount;

/* Zeroed memory, aligned to 64; `account` may be NULL. A product count * size that overflows or
 * memory that is not to be had fails with tuttiSystemError naming `what`. */
tuttiResult_t tuttiAlloc(void **ptr, size_t count, size_t size, const char *what,
                         tuttiMemAccount *account);
/* Allocates `n` of what `pointer` points to; returns from the caller on failure. */
#define TUTTI_NEW(pointer, n, what, account)                                                       \
  TUTTI_TRY(tuttiAlloc((void **)&(pointer), (size_t)(n), sizeof *(pointer), (what), (account)))
/* Makes room in an array of tuttiAlloc, NULL at first, that has `*capacity` elements, of which
 * `used` are in use: doubles it when these are all. */
tuttiResult_t tuttiGrow(void **array, int used, int *capacity, size_t size, const char *what,
                        tuttiMemAccount *account);
/* Frees and uncounts memory of tuttiAlloc; NULL is allowed. */
void tuttiFree(void *ptr);
/* `TUTTI_FREED int *p = NULL;` is freed where its block ends. */
#define TUTTI_FREED __attribute__((cleanup(tuttiFreeAt)))
static inline void tuttiFreeAt(void *pointer) {
  tuttiFree(*(void **)pointer);
}

/* Declares and allocates one or an array, freed where its block ends unless it is NULL by then. */
#define TUTTI_FRESH(type, name, n, what, account)                                                  \
  TUTTI_FREED type *(name) = NULL;                                                                 \
  TUTTI_NEW(name, n, what, account)

/* Puts an item in front of a list, linked by `next`. */
#define TUTTI_LINK(list, item)                                                                     \
  do {                                                                                             \
    (item)->next = (list);                                                                         \
    (list) = (item);                                                                               \
  } while (0)

/* Takes an item that is in it out of such a list. */
#define TUTTI_UNLINK(list, item)                                                                   \
  do {                                                                                             \
    __typeof__(item) *at_ = &(list);                                                               \
    while (*at_ != (item))                                                                         \
      at_ = &(*at_)->next;                                                                         \
    *at_ = (item)->next;                                                                           \
  } while (0)

/* Maps `size` bytes (rounded up to pages) shared from `fd`, or private anonymous when fd < 0. A
 * forked child does not have them. */
tuttiResult_t tuttiMap(void **ptr, size_t size, int fd, const char *what, tuttiMemAccount *account);
/* The same of a part of `fd` that begins `offset` bytes, whole pages, behind its start. */
tuttiResult_t tuttiMapPart(void **ptr, size_t offset, size_t size, int fd, const char *what,
                           tuttiMemAccount *account);
void tuttiUnmap(void *ptr, size_t size, tuttiMemAccount *account);
size_t tuttiPagesUp(size_t size); /* rounded up to pages */
/* Bytes of the pages of a private mapping that have been touched; 0 if the kernel does not tell. */
size_t tuttiResident(void *ptr, size_t size);

__END_DECLS

#endif
