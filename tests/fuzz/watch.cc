/* What watches say to each other: a stream of frames, and the answers to a question and to an
 * inquiry. */
#include "fuzz/fuzz.h"

#include "watch/frame.h"

static void takeFrames(const uint8_t *data, size_t size) {
  size_t at = 0;
  tuttiFrame frame;
  tuttiFailureFrame failure;
  int bytes;
  while ((bytes = tuttiFrameParse(data + at, size - at, &frame)) > 0) {
    CHECK((size_t)bytes <= size - at && (size_t)bytes <= TUTTI_FRAME_MAX);
    CHECK(frame.payload + frame.bytes == data + at + bytes);
    if (tuttiFailureRead(&frame, 7, &failure)) {
      CHECK(failure.origin >= 0 && failure.origin < 7);
      CHECK(strnlen(failure.text, sizeof failure.text) < sizeof failure.text);
    }
    uint8_t again[TUTTI_FRAME_MAX];
    CHECK(tuttiFrameWrite(again, sizeof again, frame.type, frame.payload, frame.bytes) ==
          (size_t)bytes);
    CHECK(memcmp(again, data + at, (size_t)bytes) == 0);
    at += (size_t)bytes;
  }
  CHECK(bytes == 0 || bytes == -1);
}

static void takeAnswer(const uint8_t *data, size_t size) {
  enum { kRanks = 3 };
  tuttiAnswer answer;
  memset(&answer, 0, sizeof answer);
  answer.hash = 42;
  answer.rank = 1;
  answer.self.answered = TUTTI_ANSWER_OWN;
  answer.next.answered = TUTTI_ANSWER_HEARSAY;
  change(&answer, data, size);
  if (!tuttiAnswerValid(&answer, 42, 1)) return;
  tuttiWatchAnswer answers[kRanks] = {};
  tuttiAnswerNote(&answer, kRanks, answers);
  for (auto &a : answers) {
    CHECK(a.answered >= TUTTI_ANSWER_NONE && a.answered <= TUTTI_ANSWER_LEFT);
    CHECK(a.bytes <= sizeof a.state);
  }
  CHECK(answers[1].answered == TUTTI_ANSWER_OWN);
}

static void takeReport(const uint8_t *data, size_t size) {
  enum { kRanks = 3 };
  static tuttiReportAnswer told; /* most of it is the report, whose bytes are others' business */
  memset(&told, 0, sizeof told);
  told.answer.hash = 42;
  told.answer.rank = 1;
  told.answer.self.answered = TUTTI_ANSWER_OWN;
  told.answer.next.answered = TUTTI_ANSWER_HEARSAY;
  told.bytes = 8;
  change(&told, data, size);
  if (!tuttiReportValid(&told, 42, 1)) return;
  static tuttiWatchReport reports[kRanks];
  memset(reports, 0, sizeof reports);
  tuttiReportNote(&told, kRanks, reports);
  for (auto &r : reports) {
    CHECK(r.answer.answered >= TUTTI_ANSWER_NONE && r.answer.answered <= TUTTI_ANSWER_LEFT);
    CHECK(r.answer.bytes <= sizeof r.answer.state && r.bytes <= sizeof r.report);
  }
  CHECK(reports[1].answer.answered == TUTTI_ANSWER_OWN && reports[1].bytes == told.bytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  /* A copy of its exact size: a read past the end is found. */
  std::string exact((const char *)data + 1, size - 1);
  const uint8_t *bytes = (const uint8_t *)exact.data();
  if (data[0] % 2)
    takeFrames(bytes, exact.size());
  else if (data[0] % 4)
    takeReport(bytes, exact.size());
  else
    takeAnswer(bytes, exact.size());
  return 0;
}
