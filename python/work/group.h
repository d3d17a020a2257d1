/* What the files of libtutti_work.so share. All fields below are guarded by the group's lock but
 * where it is said otherwise. */
#ifndef TUTTI_WORK_GROUP_H_
#define TUTTI_WORK_GROUP_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "work.h"

#define WORK_TEXT   2048 /* bytes of the text of a failure */
#define INLINE_SIZE 40   /* bytes of a message that travel with its header */
#define TICK_MS     50   /* how often the watchdog looks at deadlines */
#define IDLE_TICKS  20   /* before it sleeps: waking it costs more than a message takes */
#define HEADER_MARK 0x7a1ed0c5u

typedef struct Queue Queue;

struct tuttiWork {
  tuttiWorkGroup *group; /* constant; the work keeps it */
  Queue *queue;          /* NULL: a receive from anybody, until somebody's message comes */
  tuttiWork *next;       /* in its queue, or among the posted receives */
  tuttiWork *nextTimed;  /* among the works with a deadline */
  tuttiWork *nextEnded;  /* on `ends`; guarded by its lock */
  uint64_t deadline;     /* monotonic ms; 0: none */
  int timeoutMs;         /* by which that was set */
  bool done, late, timed;
  int refs;            /* the caller's and the group's */
  int fd;              /* an eventfd that the end is told to; -1: none */
  tuttiWorkEnds *ends; /* a list that it comes onto at its end; NULL: none */
  tuttiResult_t result;
  char *text;
  /* A message. */
  void *data;
  size_t bytes;
  int peer, tag;
  int nsteps; /* of the collectives; may be 0 */
  tuttiWorkStep steps[];
};

/* What arrived before anybody asked for it. */
typedef struct Message {
  struct Message *next;
  int peer, tag;
  size_t bytes;
  char data[];
} Message;

/* Works that one communicator carries out in order. */
struct Queue {
  tuttiWorkGroup *group;
  int peer;     /* of a lane; -1: the collectives */
  bool mail;    /* a lane that receives: its works are the group's posted receives */
  bool open;    /* comm may be used */
  bool running; /* somebody is at it, who alone calls comm */
  bool asleep;  /* its thread waits to be woken, rather than looks now and then */
  bool dead;    /* all works fail with `text` */
  bool threaded;
  tuttiComm_t comm;
  tuttiResult_t code; /* of a dead queue */
  char *text;
  tuttiWork *first, **last;
  uint64_t begun;      /* works, or messages of a lane that receives */
  pthread_cond_t more; /* wakes the thread; waits by the monotonic clock */
  pthread_t thread;
};

struct tuttiWorkGroup {
  pthread_mutex_t lock;
  pthread_cond_t done; /* some work has ended, or a queue is idle */
  pthread_cond_t tick; /* wakes the watchdog */
  int refs, nranks, rank, timeoutMs;
  int graceUs; /* how long a work is left to whoever may wait for it before the queue's thread takes
                  it */
  bool closing, watched, aborted;
  bool resting; /* the watchdog waits to be woken: it has seen no deadline for IDLE_TICKS */
  char name[64];
  char *text;   /* why nothing runs any more; NULL: it does */
  Queue all;    /* the collectives */
  Queue *sends; /* a lane for each rank */
  Queue *mails;
  tuttiWork *posted, **postedLast; /* receives, in the order of their posting */
  Message *early, **earlyLast;     /* messages, in the order of their arrival */
  tuttiWork *timed;
  pthread_t watchdog;
};

/* Ends a work: everyone who waits for it sees it. `text` is copied; the group's reference is let
 * go. */
void tuttiWorkFinish(tuttiWork *work, tuttiResult_t result, const char *text);
/* Ends a queue and all its works. */
void tuttiQueueKill(Queue *queue, tuttiResult_t code, const char *text);
/* Makes a work that belongs to the caller and, until it has ended, to the group. NULL: no memory.
 */
tuttiWork *tuttiWorkMake(tuttiWorkGroup *group, Queue *queue, int nsteps);
/* Gives it a deadline, that the watchdog looks at. False: there is no watchdog. */
bool tuttiWorkWatch(tuttiWork *work, int timeoutMs);
/* Puts it into its queue, whose thread is started and woken. Fails it if the queue is dead. */
void tuttiWorkEnqueue(tuttiWork *work);
/* Starts and wakes the queue's thread if there is something to do. */
void tuttiQueueWake(Queue *queue);
void tuttiWorkUnref(tuttiWork *work);        /* holds the lock */
void tuttiGroupUnref(tuttiWorkGroup *group); /* lets go of the lock */
uint64_t tuttiWorkNow(void);                 /* monotonic, ms */

/* Waits until the condition is told, or for so long, which is less than a second. Holds the lock,
 * lets it go meanwhile. */
void tuttiGroupLook(tuttiWorkGroup *group, pthread_cond_t *condition, long us);

/* Sets what tuttiWorkGroupText tells this thread. */
void tuttiWorkSetText(const char *text);

/* ends.c: puts a work that has ended onto the list. Holds the lock of the work's group. */
void tuttiWorkEndsPut(tuttiWorkEnds *ends, tuttiWork *work);

/* messages.c */

/* Is there a receive that this lane's next message may be for? */
bool tuttiMailWanted(const Queue *queue);
/* Takes one message from the lane: for a posted receive, or it is kept. The caller runs the queue
 * and holds the lock, which is let go meanwhile. */
void tuttiMailPull(Queue *queue);
/* Sends the work's message. Without the lock. */
tuttiResult_t tuttiMailSend(const tuttiWork *work);
/* Posts a receive, or gives it what has arrived already. */
void tuttiMailPost(tuttiWork *work);
/* Takes a receive back that nobody has begun to fill. False: it is none of the posted. */
bool tuttiMailUnpost(tuttiWork *work);
/* Fails the posted receives that may be from `peer`. */
void tuttiMailFail(tuttiWorkGroup *group, int peer, tuttiResult_t code, const char *text);
/* Frees what was kept. */
void tuttiMailFree(tuttiWorkGroup *group);

#endif
