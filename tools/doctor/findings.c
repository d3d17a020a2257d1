#include "doctor/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define NAME(name, word) word,
const char *const tuttiSeverityNames[] = {TUTTI_SEVERITIES(NAME)};

/* The finding that differs from `new` in its subject alone; NULL: none. */
static tuttiFinding *twinOf(tuttiFindings *f, const tuttiFinding *new) {
  for (int i = 0; i < f->n; i++) {
    tuttiFinding *old = &f->list[i];
    if (strcmp(old->id, new->id) == 0 && old->severity == new->severity &&
        strcmp(old->sentence, new->sentence) == 0 && strcmp(old->remedy, new->remedy) == 0)
      return old;
  }
  return NULL;
}

void tuttiFind(tuttiFindings *f, tuttiSeverity severity, const char *id, const char *subject,
               const char *remedy, const char *sentence, ...) {
  tuttiFinding found = {.id = id, .severity = severity};
  va_list args;
  va_start(args, sentence);
  vsnprintf(found.sentence, sizeof found.sentence, sentence, args);
  va_end(args);
  snprintf(found.subject, sizeof found.subject, "%s", subject);
  snprintf(found.remedy, sizeof found.remedy, "%s", remedy);
  tuttiFinding *twin = twinOf(f, &found);
  if (twin)
    tuttiAppend(twin->subject, sizeof twin->subject, ", %s", subject);
  else if (f->n < TUTTI_MOST_FINDINGS)
    f->list[f->n++] = found;
  else
    f->lost++;
}

bool tuttiFound(const tuttiFindings *f, const char *id) {
  for (int i = 0; i < f->n; i++)
    if (strcmp(f->list[i].id, id) == 0 && f->list[i].severity > TUTTI_FOUND_OK) return true;
  return false;
}

tuttiSeverity tuttiWorst(const tuttiFindings *f) {
  tuttiSeverity worst = TUTTI_FOUND_OK;
  for (int i = 0; i < f->n; i++)
    if (f->list[i].severity > worst) worst = f->list[i].severity;
  return worst;
}

void tuttiFindingsSort(tuttiFindings *f) {
  for (int i = 1; i < f->n; i++) {
    tuttiFinding found = f->list[i];
    int at = i;
    for (; at > 0 && f->list[at - 1].severity < found.severity; at--)
      f->list[at] = f->list[at - 1];
    f->list[at] = found;
  }
}
