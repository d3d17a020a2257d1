/* What watches exchange: frames on the ring sockets, and the answer to a question. Pure functions
 * over bytes, so that they can be fuzzed; nothing a peer sends is believed before it has passed
 * them. Integers travel in host order, as in tuttiHello. */
#ifndef TUTTI_WATCH_FRAME_H_
#define TUTTI_WATCH_FRAME_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/error.h"
#include "watch/watch.h"

__BEGIN_DECLS

typedef enum {
  tuttiFrameHeartbeat = 1,  /* the sender's state, 0 to TUTTI_WATCH_STATE bytes */
  tuttiFrameFailure = 2,    /* tuttiFailureFrame, cut after its text */
  tuttiFrameGoodbye = 3,    /* the sender leaves; its socket closing is no death; empty */
  tuttiFrameGoodbyeSeen = 4 /* answer to a goodbye; empty */
} tuttiFrameType;

/* A neighbour from which no heartbeat comes (it is stopped, and reads nothing) is sent so many. */
#define TUTTI_HEARTBEAT_LIMIT 64

typedef struct {
  uint16_t mark;  /* TUTTI_FRAME_MARK */
  uint16_t type;  /* tuttiFrameType */
  uint32_t bytes; /* that follow */
} tuttiFrameHead;
#define TUTTI_FRAME_MARK 0x7477u

typedef struct {
  int32_t code;   /* tuttiResult_t */
  int32_t origin; /* rank that failed or noticed */
  int32_t dead;   /* rank that has died, or one of the two below */
  char text[TUTTI_ERROR_TEXT];
} tuttiFailureFrame;

#define TUTTI_DEAD_NONE  (-1)
#define TUTTI_DEAD_MAYBE (-2) /* a rank ends the communicator; that may have come of a death */

#define TUTTI_FRAME_MAX (sizeof(tuttiFrameHead) + sizeof(tuttiFailureFrame))

typedef struct {
  tuttiFrameType type;
  const uint8_t *payload; /* inside the parsed bytes, unaligned */
  size_t bytes;
} tuttiFrame;

/* Looks at the `have` bytes of a stream: returns the size of the frame at its beginning, 0 when
 * more bytes are needed, or -1 when these bytes are no frame. A frame whose size does not fit its
 * type is refused as soon as its head is there. */
int tuttiFrameParse(const void *data, size_t have, tuttiFrame *out);
/* Writes a frame; returns its size, or 0 when it does not fit into `room`. */
size_t tuttiFrameWrite(void *out, size_t room, tuttiFrameType type, const void *payload,
                       size_t bytes);

/* Fills *out and returns how many of its bytes travel. A text that is too long is cut. */
size_t tuttiFailureFill(tuttiFailureFrame *out, tuttiResult_t code, int origin, int dead,
                        const char *text);
/* False when the code is no failure's, the rank is none of nranks, or the text is empty. The text
 * of *out is terminated. */
bool tuttiFailureRead(const tuttiFrame *frame, int nranks, tuttiFailureFrame *out);

/* The answer to a question: all that its connection carries that way. */
typedef struct {
  uint64_t hash; /* of the communicator */
  int32_t rank;  /* who answers */
  tuttiWatchAnswer self, previous, next;
} tuttiAnswer;

/* False unless it is of this communicator and of `rank`, and says who knows how much of whom. */
bool tuttiAnswerValid(const tuttiAnswer *a, uint64_t hash, int rank);
/* Takes what is new into answers[nranks]: a rank's own answer beats a neighbour's report, a younger
 * report an older one. */
void tuttiAnswerNote(const tuttiAnswer *told, int nranks, tuttiWatchAnswer *answers);

/* The answer to an inquiry, likewise. */
typedef struct {
  tuttiAnswer answer;
  uint32_t bytes; /* of the report */
  uint32_t unused;
  uint8_t report[TUTTI_WATCH_REPORT];
} tuttiReportAnswer;

bool tuttiReportValid(const tuttiReportAnswer *a, uint64_t hash, int rank);
/* The answer of tuttiAnswerNote for an array of reports, and the report itself. */
void tuttiReportNote(const tuttiReportAnswer *told, int nranks, tuttiWatchReport *reports);

/* Asks the ranks from `first` to before `end`, but for this one, for at most `ms`, or until
 * `failed` is not 0, which is looked at now and then; it may be NULL. */
tuttiResult_t tuttiAskOthers(const tuttiBootstrap *b, int first, int end, int ms,
                             const tuttiAtomic32 *failed, tuttiMemAccount *memory,
                             tuttiWatchAnswer *answers);

/* An inquiry of `b` for tuttiInquiryStart, to which what is known here is to be added. */
tuttiResult_t tuttiInquiryNew(const tuttiBootstrap *b, int ms, tuttiMemAccount *memory,
                              tuttiInquiry **out);

__END_DECLS

#endif
