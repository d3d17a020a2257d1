/* Messages of two ranks, matched by their tags. A lane carries them in the order of sending: a
 * header with the first bytes, then the rest. Who receives takes from a lane only while somebody
 * asks for what may come from it, and keeps what is for others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group.h"

#define SENDER   0 /* the ranks of a lane */
#define RECEIVER 1

/* Goes over a communicator of ranks of one build, as the library's handshake makes sure. */
typedef struct {
  uint32_t mark;
  int32_t tag;
  uint64_t bytes;
  char start[INLINE_SIZE];
} Header;

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

tuttiResult_t tuttiMailSend(const tuttiWork *work) {
  tuttiComm_t comm = work->queue->comm;
  Header header = {.mark = HEADER_MARK, .tag = work->tag, .bytes = work->bytes};
  size_t first = least(work->bytes, INLINE_SIZE);
  if (first) memcpy(header.start, work->data, first);
  tuttiResult_t result = tuttiSend(&header, sizeof header, tuttiUint8, RECEIVER, comm, NULL);
  if (result != tuttiSuccess || work->bytes == first) return result;
  return tuttiSend((char *)work->data + first, work->bytes - first, tuttiUint8, RECEIVER, comm,
                   NULL);
}

static bool matches(const tuttiWork *work, int peer, int tag) {
  return (work->peer == TUTTI_WORK_ANY || work->peer == peer) && work->tag == tag;
}

/* Takes `*at` out of the posted receives. */
static tuttiWork *unlinkPosted(tuttiWorkGroup *group, tuttiWork **at) {
  tuttiWork *work = *at;
  *at = work->next;
  if (!*at) group->postedLast = at;
  work->next = NULL;
  return work;
}

static tuttiWork *takePosted(tuttiWorkGroup *group, int peer, int tag) {
  for (tuttiWork **at = &group->posted; *at; at = &(*at)->next)
    if (matches(*at, peer, tag)) return unlinkPosted(group, at);
  return NULL;
}

bool tuttiMailUnpost(tuttiWork *work) {
  for (tuttiWork **at = &work->group->posted; *at; at = &(*at)->next)
    if (*at == work) return unlinkPosted(work->group, at);
  return false;
}

bool tuttiMailWanted(const Queue *queue) {
  for (const tuttiWork *work = queue->group->posted; work; work = work->next)
    if (work->peer == TUTTI_WORK_ANY || work->peer == queue->peer) return true;
  return false;
}

static void failPosted(tuttiWorkGroup *group, tuttiWork **at, tuttiResult_t code,
                       const char *text) {
  tuttiWorkFinish(unlinkPosted(group, at), code, text);
}

void tuttiMailFail(tuttiWorkGroup *group, int peer, tuttiResult_t code, const char *text) {
  for (tuttiWork **at = &group->posted; *at;) {
    if ((*at)->peer == TUTTI_WORK_ANY || (*at)->peer == peer)
      failPosted(group, at, code, text);
    else
      at = &(*at)->next;
  }
}

/* Ends a receive with what has come from `peer`, if its size is right. */
static void deliver(tuttiWork *work, int peer, size_t bytes) {
  char text[256];
  work->peer = peer;
  if (bytes == work->bytes) {
    tuttiWorkFinish(work, tuttiSuccess, "");
    return;
  }
  snprintf(text, sizeof text,
           "rank %d sent %zu bytes with tag %d, but rank %d receives %zu: let both pass tensors of "
           "one size and type",
           peer, bytes, work->tag, work->group->rank, work->bytes);
  tuttiWorkFinish(work, tuttiInvalidUsage, text);
}

/* Reads a message into `data`, of header->bytes. */
static tuttiResult_t receiveRest(Queue *queue, const Header *header, char *data) {
  size_t first = least(header->bytes, INLINE_SIZE);
  if (first) memcpy(data, header->start, first);
  if (header->bytes == first) return tuttiSuccess;
  return tuttiRecv(data + first, header->bytes - first, tuttiUint8, SENDER, queue->comm, NULL);
}

/* A message that nobody waits for, or that does not fit who does. */
static Message *makeMessage(const Queue *queue, const Header *header) {
  Message *message = header->bytes < SIZE_MAX / 2 ? malloc(sizeof *message + header->bytes) : NULL;
  if (message)
    *message = (Message){.peer = queue->peer, .tag = header->tag, .bytes = header->bytes};
  return message;
}

/* Gives a message to a receive. */
static void hand(Message *message, tuttiWork *work) {
  if (message->bytes == work->bytes && message->bytes)
    memcpy(work->data, message->data, message->bytes);
  deliver(work, message->peer, message->bytes);
  free(message);
}

/* For whoever has asked for it while it came, or will ask. */
static void keep(tuttiWorkGroup *group, Message *message) {
  tuttiWork *work = takePosted(group, message->peer, message->tag);
  if (work) {
    hand(message, work);
    return;
  }
  *group->earlyLast = message;
  group->earlyLast = &message->next;
}

static void killByCall(Queue *queue, tuttiResult_t result, tuttiWork *work) {
  char text[WORK_TEXT];
  snprintf(text, sizeof text, "%s", tuttiGetLastError(queue->comm));
  if (work) tuttiWorkFinish(work, result, text);
  tuttiQueueKill(queue, result, text);
}

/* Takes the rest of a message whose header is there. Holds the lock, lets it go meanwhile. */
static void takeMessage(Queue *queue, const Header *header) {
  tuttiWorkGroup *group = queue->group;
  tuttiWork *work = takePosted(group, queue->peer, header->tag);
  bool fits = work && work->bytes == header->bytes;
  if (work) work->queue = queue; /* so that the watchdog knows what to end if this takes too long */
  pthread_mutex_unlock(&group->lock);
  Message *message = fits ? NULL : makeMessage(queue, header);
  tuttiResult_t result = tuttiSuccess;
  if (fits || message) result = receiveRest(queue, header, fits ? work->data : message->data);
  pthread_mutex_lock(&group->lock);
  if (!fits && !message) {
    char text[128];
    snprintf(text, sizeof text, "no memory for a message of %zu bytes from rank %d",
             (size_t)header->bytes, queue->peer);
    if (work) tuttiWorkFinish(work, tuttiSystemError, text);
    tuttiQueueKill(queue, tuttiSystemError, text);
  } else if (result != tuttiSuccess) {
    free(message);
    killByCall(queue, result, work);
  } else if (work) {
    deliver(work, queue->peer, header->bytes);
    free(message);
  } else {
    keep(group, message);
  }
}

void tuttiMailPull(Queue *queue) {
  Header header;
  pthread_mutex_unlock(&queue->group->lock);
  tuttiResult_t result = tuttiRecv(&header, sizeof header, tuttiUint8, SENDER, queue->comm, NULL);
  pthread_mutex_lock(&queue->group->lock);
  if (result != tuttiSuccess)
    killByCall(queue, result, NULL);
  else if (header.mark != HEADER_MARK)
    tuttiQueueKill(queue, tuttiInternalError, "what came over the lane is no message of tutti's");
  else
    takeMessage(queue, &header);
}

/* Gives a receive the first message that came early and matches it. */
static bool takeEarly(tuttiWork *work) {
  tuttiWorkGroup *group = work->group;
  for (Message **at = &group->early; *at; at = &(*at)->next) {
    Message *message = *at;
    if (!matches(work, message->peer, message->tag)) continue;
    *at = message->next;
    if (!*at) group->earlyLast = at;
    hand(message, work);
    return true;
  }
  return false;
}

void tuttiMailPost(tuttiWork *work) {
  tuttiWorkGroup *group = work->group;
  if (takeEarly(work)) return;
  if (group->text || (work->queue && work->queue->dead)) {
    const Queue *queue = work->queue;
    tuttiWorkFinish(work, group->text ? tuttiRemoteError : queue->code,
                    group->text ? group->text : queue->text);
    return;
  }
  *group->postedLast = work;
  group->postedLast = &work->next;
  for (int peer = 0; peer < group->nranks; peer++)
    if (work->peer == TUTTI_WORK_ANY || work->peer == peer) tuttiQueueWake(&group->mails[peer]);
}

void tuttiMailFree(tuttiWorkGroup *group) {
  while (group->early) {
    Message *message = group->early;
    group->early = message->next;
    free(message);
  }
  group->earlyLast = &group->early;
}
