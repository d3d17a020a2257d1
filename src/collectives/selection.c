#include "collectives/selection.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/text.h"
#include "collectives/planner.h"

/* NCCL's, of any version. */
static const char *const otherAlgos[] = {"Collnet", "CollnetDirect", "CollnetChain",
                                         "NVLS",    "NVLSTree",      "PAT"};

const tuttiSelectionWords tuttiAlgoWords = {.has = tuttiAlgoNames,
                                            .nhas = tuttiAlgoCount,
                                            .others = otherAlgos,
                                            .nothers = sizeof otherAlgos / sizeof *otherAlgos};
const tuttiSelectionWords tuttiProtoWords = {.has = tuttiProtoNames, .nhas = tuttiProtoCount};

/* Where the parser stands in the text. */
typedef struct {
  const char *setting, *text, *at;
  const tuttiSelectionWords *words;
} Parser;

typedef struct {
  const char *start;
  size_t length;
} Word;

/* Takes what stands before the next of , ; : without the spaces around it. */
static Word takeWord(Parser *p) {
  p->at += strspn(p->at, " ");
  Word word = {p->at, strcspn(p->at, ",;:")};
  p->at += word.length;
  while (word.length > 0 && word.start[word.length - 1] == ' ')
    word.length--;
  return word;
}

static bool isWord(const Word *word, const char *name) {
  return strlen(name) == word->length && strncasecmp(name, word->start, word->length) == 0;
}

static int find(const Word *word, const char *const *names, int n) {
  for (int i = 0; i < n; i++)
    if (isWord(word, names[i])) return i;
  return -1;
}

static int findCollective(const Word *word) {
  for (int coll = 0; coll < tuttiCollSendRecv; coll++)
    if (isWord(word, tuttiCollName(coll))) return coll;
  return -1;
}

static void listNames(char *out, size_t size, const char *const *names, int n) {
  for (int i = 0; i < n; i++)
    tuttiAppend(out, size, "%s%s", i > 0 ? ", " : "", names[i]);
}

static int positionOf(const Parser *p, const char *at) {
  return (int)(at - p->text) + 1;
}

static tuttiResult_t unknownWord(const Parser *p, const Word *word) {
  char accepted[128] = "";
  listNames(accepted, sizeof accepted, p->words->has, p->words->nhas);
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "%s=\"%s\": \"%.*s\" at character %d is none of %s; give a list with commas, "
                    "with ^ before it to exclude, and for one collective behind its name and a "
                    "colon: ring;allreduce:tree",
                    p->setting, p->text, (int)word->length, word->start, positionOf(p, word->start),
                    accepted);
}

static tuttiResult_t unknownCollective(const Parser *p, const Word *word) {
  char accepted[160] = "";
  for (int coll = 0; coll < tuttiCollSendRecv; coll++)
    tuttiAppend(accepted, sizeof accepted, "%s%s", coll > 0 ? ", " : "", tuttiCollName(coll));
  return TUTTI_FAIL(
      tuttiInvalidArgument,
      "%s=\"%s\": \"%.*s\" at character %d, before a colon, is no collective; accepted: "
      "%s",
      p->setting, p->text, (int)word->length, word->start, positionOf(p, word->start), accepted);
}

/* Takes "^ring,tree" up to the next semicolon or the end. */
static tuttiResult_t takeList(Parser *p, uint32_t *mask) {
  uint32_t all = (1u << p->words->nhas) - 1, listed = 0;
  const char *start = p->at += strspn(p->at, " ");
  bool exclude = *p->at == '^', others = false;
  if (exclude) p->at++;
  for (bool more = true; more;) {
    Word word = takeWord(p);
    int i = find(&word, p->words->has, p->words->nhas);
    bool other = i < 0 && find(&word, p->words->others, p->words->nothers) >= 0;
    if (i < 0 && !other) return unknownWord(p, &word);
    if (i >= 0) listed |= 1u << i;
    others |= other;
    more = *p->at == ',';
    p->at += more;
  }
  *mask = exclude ? all & ~listed : listed;
  if (*mask != 0 || (others && !exclude)) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "%s=\"%s\": the part at character %d excludes everything; leave at least one",
                    p->setting, p->text, positionOf(p, start));
}

/* Takes one part, with the name of its collective if it has one. */
static tuttiResult_t takePart(Parser *p, tuttiSelection *selected) {
  Parser ahead = *p;
  Word word = takeWord(&ahead);
  int first = 0, last = tuttiCollCount - 1;
  if (*ahead.at == ':') {
    first = last = findCollective(&word);
    if (first < 0) return unknownCollective(p, &word);
    p->at = ahead.at + 1;
  }
  uint32_t mask = 0;
  TUTTI_TRY(takeList(p, &mask));
  for (int coll = first; coll <= last; coll++)
    selected->of[coll] = mask;
  if (*p->at != ':') return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "%s=\"%s\": the colon at character %d follows no collective; a part has one "
                    "colon, and parts stand between semicolons",
                    p->setting, p->text, positionOf(p, p->at));
}

tuttiResult_t tuttiSelectionParse(const char *setting, const char *text,
                                  const tuttiSelectionWords *words, tuttiSelection *out) {
  Parser p = {.setting = setting, .text = text, .at = text + strspn(text, " "), .words = words};
  tuttiSelection selected;
  for (int coll = 0; coll < tuttiCollCount; coll++)
    selected.of[coll] = (1u << words->nhas) - 1;
  for (bool more = *p.at != '\0'; more;) {
    TUTTI_TRY(takePart(&p, &selected));
    more = *p.at == ';';
    p.at += more;
  }
  *out = selected;
  return tuttiSuccess;
}
