#include "watch/frame.h"

#include <stdio.h>
#include <string.h>

/* Payload sizes by type. Type 0 is none: nothing fits its row. */
static const struct {
  uint32_t min, max;
} frameSizes[] = {
    [0] = {1, 0},
    [tuttiFrameHeartbeat] = {0, TUTTI_WATCH_STATE},
    [tuttiFrameFailure] = {offsetof(tuttiFailureFrame, text) + 1, sizeof(tuttiFailureFrame)},
    [tuttiFrameGoodbye] = {0, 0},
    [tuttiFrameGoodbyeSeen] = {0, 0},
};
#define FRAME_TYPES (sizeof(frameSizes) / sizeof(frameSizes[0]))

int tuttiFrameParse(const void *data, size_t have, tuttiFrame *out) {
  tuttiFrameHead head;
  if (have < sizeof(head)) return 0;
  memcpy(&head, data, sizeof(head));
  if (head.mark != TUTTI_FRAME_MARK || head.type >= FRAME_TYPES) return -1;
  if (head.bytes < frameSizes[head.type].min || head.bytes > frameSizes[head.type].max) return -1;
  if (have - sizeof(head) < head.bytes) return 0;
  *out = (tuttiFrame){.type = (tuttiFrameType)head.type,
                      .payload = (const uint8_t *)data + sizeof(head),
                      .bytes = head.bytes};
  return (int)(sizeof(head) + head.bytes);
}

size_t tuttiFrameWrite(void *out, size_t room, tuttiFrameType type, const void *payload,
                       size_t bytes) {
  const tuttiFrameHead head = {
      .mark = TUTTI_FRAME_MARK, .type = (uint16_t)type, .bytes = (uint32_t)bytes};
  if (room < sizeof(head) || room - sizeof(head) < bytes) return 0;
  memcpy(out, &head, sizeof(head));
  if (bytes > 0) memcpy((uint8_t *)out + sizeof(head), payload, bytes);
  return sizeof(head) + bytes;
}

size_t tuttiFailureFill(tuttiFailureFrame *out, tuttiResult_t code, int origin, int dead,
                        const char *text) {
  out->code = code;
  out->origin = origin;
  out->dead = dead;
  snprintf(out->text, sizeof(out->text), "%s", text);
  return offsetof(tuttiFailureFrame, text) + strlen(out->text) + 1;
}

bool tuttiFailureRead(const tuttiFrame *frame, int nranks, tuttiFailureFrame *out) {
  if (frame->type != tuttiFrameFailure || frame->bytes > sizeof(*out)) return false;
  memset(out, 0, sizeof(*out));
  memcpy(out, frame->payload, frame->bytes);
  out->text[sizeof(out->text) - 1] = '\0';
  if (out->code <= tuttiSuccess || out->code >= tuttiNumResults || out->code == tuttiInProgress)
    return false;
  if (out->dead < TUTTI_DEAD_MAYBE || out->dead >= nranks) return false;
  return out->origin >= 0 && out->origin < nranks && out->text[0] != '\0';
}

/* What an honest neighbour says of a rank: anything but that the rank itself said it. */
static bool isHearsay(const tuttiWatchAnswer *a) {
  bool known = a->answered >= TUTTI_ANSWER_NONE && a->answered <= TUTTI_ANSWER_LEFT;
  return known && a->answered != TUTTI_ANSWER_OWN && a->bytes <= sizeof(a->state);
}

bool tuttiAnswerValid(const tuttiAnswer *a, uint64_t hash, int rank) {
  return a->hash == hash && a->rank == rank && a->self.answered == TUTTI_ANSWER_OWN &&
         a->self.bytes <= sizeof(a->self.state) && isHearsay(&a->previous) && isHearsay(&a->next);
}

/* Keeps what is known better: from the rank itself, then that it has left, then the younger. */
static void note(tuttiWatchAnswer *answer, const tuttiWatchAnswer *heard) {
  if (heard->answered == TUTTI_ANSWER_NONE || answer->answered == TUTTI_ANSWER_OWN) return;
  bool known = answer->answered == TUTTI_ANSWER_HEARSAY || answer->answered == TUTTI_ANSWER_LEFT;
  if (heard->answered == TUTTI_ANSWER_HEARSAY && known && answer->ageMs <= heard->ageMs) return;
  *answer = *heard;
}

void tuttiAnswerNote(const tuttiAnswer *told, int nranks, tuttiWatchAnswer *answers) {
  note(&answers[told->rank], &told->self);
  note(&answers[(told->rank + nranks - 1) % nranks], &told->previous);
  note(&answers[(told->rank + 1) % nranks], &told->next);
}

bool tuttiReportValid(const tuttiReportAnswer *a, uint64_t hash, int rank) {
  return tuttiAnswerValid(&a->answer, hash, rank) && a->bytes <= sizeof(a->report);
}

void tuttiReportNote(const tuttiReportAnswer *told, int nranks, tuttiWatchReport *reports) {
  const tuttiAnswer *a = &told->answer;
  tuttiWatchReport *own = &reports[a->rank];
  own->bytes = told->bytes;
  memcpy(own->report, told->report, told->bytes);
  note(&own->answer, &a->self);
  note(&reports[(a->rank + nranks - 1) % nranks].answer, &a->previous);
  note(&reports[(a->rank + 1) % nranks].answer, &a->next);
}
