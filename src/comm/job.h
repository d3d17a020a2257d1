/* Work of a call that takes long. */
#ifndef TUTTI_COMM_JOB_H_
#define TUTTI_COMM_JOB_H_

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"
#include "tutti.h"

/* Something that takes long and must not wait for its likes: an init or a split. Within a group
 * each gets a thread at tuttiGroupEnd, but jobs that use one communicator follow each other. */
typedef struct tuttiJob {
  tuttiResult_t (*run)(struct tuttiJob *job);
  void (*discard)(struct tuttiJob *job); /* frees it, run or not; NULL: tuttiFree does */
  tuttiComm_t uses;                      /* NULL: none */
  struct tuttiJob *next;
  struct tuttiJob *then; /* the next one on the same thread */
  bool last;             /* in a group it goes behind those that are not */
  bool enqueues;         /* on a GPU's stream, and waits for nobody: it needs no thread */
  bool leads;            /* is not the `then` of any */
  pthread_t thread;
  bool started;
  tuttiResult_t result;
  char text[TUTTI_ERROR_TEXT];
} tuttiJob;

#endif
