/* How the ranks of a communicator stay in touch. One thread per process serves the watches of all
 * its communicators: it notices that a ring neighbour died (its socket closed without a goodbye, or
 * its host fell silent), passes failures round the ring in both directions, and answers questions
 * about this rank's state. */
#ifndef TUTTI_WATCH_WATCH_H_
#define TUTTI_WATCH_WATCH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/mem.h"
#include "bootstrap/bootstrap.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_WATCH_STATE  160
#define TUTTI_WATCH_REPORT 8192
typedef struct {
  int32_t rank;
  char host[64];
  int32_t pid;
} tuttiWho;

typedef struct {
  void *ctx;
  /* All are called from the watch thread, and must neither block nor call a watch.
   *
   * A failure that another rank reported or that the watch noticed: code and full text. Called at
   * most once, and not after this rank's own tuttiWatchFail has gone out. */
  void (*failed)(void *ctx, tuttiResult_t code, const char *text);
  /* The same of a rank that ends the communicator, which may have come of a death: if so, that is
   * told as well, before or soon. */
  void (*ended)(void *ctx, tuttiResult_t code, const char *text);
  /* A rank has died. Once for each, before a failure that comes of it, and also after another
   * failure. */
  void (*died)(void *ctx, int rank, const char *text);
  /* Writes up to TUTTI_WATCH_STATE bytes of this rank's state (what it is doing); sent with every
   * heartbeat and as answer to questions. Also called within tuttiWatchStart, tuttiWatchAsk and
   * tuttiWatchStop, by their thread. */
  size_t (*state)(void *ctx, void *out);
  /* Writes up to TUTTI_WATCH_REPORT bytes of all that this rank can tell of itself, as answer to an
   * inquiry. Also called within tuttiInquiryStart, by its thread. */
  size_t (*report)(void *ctx, void *out);
} tuttiWatchCalls;

typedef struct tuttiWatch tuttiWatch;

/* The init of this rank fails, with `code` and this thread's last error, before it has a watch:
 * tells the neighbours on the ring that have one already. */
void tuttiWatchDecline(const tuttiBootstrap *b, tuttiResult_t code);

/* Takes over the ring sockets and the listener; reads the rest of `b` as long as it lives. `who`
 * has nranks entries and is copied. */
tuttiResult_t tuttiWatchStart(tuttiBootstrap *b, const tuttiWho *who, const tuttiWatchCalls *calls,
                              tuttiMemAccount *memory, tuttiWatch **out);
/* Tells every other rank: their `failed` is called with this code and text, unless another failure
 * has reached them before. Any thread but the watch's; the text is then with the kernel, so that a
 * process which exits at once still tells its reason, but for a neighbour that has read nothing for
 * long. Only the first failure of a watch counts. */
void tuttiWatchFail(tuttiWatch *w, tuttiResult_t code, const char *text);

/* The same of a rank that ends the communicator: `ended` is called there. */
void tuttiWatchEnd(tuttiWatch *w, tuttiResult_t code, const char *text);

/* From whom the state of a rank is known. The numbers travel between ranks. */
enum {
  TUTTI_ANSWER_NONE = 0,    /* it is not */
  TUTTI_ANSWER_OWN = 1,     /* from the rank itself */
  TUTTI_ANSWER_HEARSAY = 2, /* from a neighbour: what the rank's last heartbeat said */
  TUTTI_ANSWER_LEFT = 3,    /* likewise, with its last words, and it has said goodbye since */
  TUTTI_ANSWER_REFUSED = 4  /* nobody listens there any more; no rank says this of another */
};

/* What is known of the state of one rank. */
typedef struct {
  int32_t answered; /* TUTTI_ANSWER_... */
  uint32_t ageMs;   /* of the state */
  uint32_t bytes;
  uint8_t state[TUTTI_WATCH_STATE];
} tuttiWatchAnswer;

/* It listens no more, or is known to have said goodbye. */
static inline bool tuttiAnswerIsGone(const tuttiWatchAnswer *a) {
  return a->answered == TUTTI_ANSWER_LEFT || a->answered == TUTTI_ANSWER_REFUSED;
}

/* Asks one rank, or with -1 every rank at once, for its state, for at most `ms`, and hardly
 * beyond the first failure if that comes meanwhile; answers[nranks]. A stopped rank does not
 * answer; its ring neighbours then tell what its last heartbeat said. */
tuttiResult_t tuttiWatchAsk(tuttiWatch *w, int rank, int ms, tuttiWatchAnswer *answers);

/* What an inquiry has of one rank. */
typedef struct {
  tuttiWatchAnswer answer;
  uint32_t bytes; /* of the report; 0: none has come */
  uint8_t report[TUTTI_WATCH_REPORT];
} tuttiWatchReport;
/* A question to all ranks at once for all that they can tell, that goes on in steps: by the watch's
 * thread, which must not wait, or by one that does. */
typedef struct tuttiInquiry tuttiInquiry;
/* It is over after `ms` at the latest; a rank that has not answered a second after it was asked
 * makes room for the next. It lives no longer than the watch. */
tuttiResult_t tuttiInquiryStart(tuttiWatch *w, int ms, tuttiInquiry **out);
/* Goes on as far as it can without waiting; true: it is over. */
bool tuttiInquiryStep(tuttiInquiry *q);
/* Waits until it is over. */
void tuttiInquiryRun(tuttiInquiry *q);
/* What has come so far, [nranks], until it is closed. */
tuttiWatchReport *tuttiInquiryReports(tuttiInquiry *q);
void tuttiInquiryClose(tuttiInquiry *q); /* NULL is allowed */

/* Somebody else whom the thread of the watches serves, beside them: one of a process. */
typedef struct {
  int fd; /* when it has something to read, `serve` is called */
  void *ctx;
  /* From the thread, like a watch's calls: must not block. Returns when to be called again at the
   * latest (tuttiNow() clock), or as soon as it has had a rest: forty times as long as the call
   * took, a millisecond at least and half a second at most. May step inquiries. */
  uint64_t (*serve)(void *ctx);
} tuttiWatchLodger;
/* From here to Evict the thread runs, with or without watches. */
tuttiResult_t tuttiWatchLodge(const tuttiWatchLodger *lodger);
/* After it returns `serve` is not running and will not be called. */
void tuttiWatchEvict(void);

/* Says goodbye to the neighbours (so that they don't take the closing sockets for a death) and
 * frees. Waits for no peer longer than 100 ms. After it returns no callback runs; no other call on
 * the watch may be running. NULL is allowed. */
void tuttiWatchStop(tuttiWatch *w);

__END_DECLS

#endif
