#include "ras/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct {
  const char *word; /* of a command: the line is this, or begins with it and a space */
  /* Takes what follows and answers; NULL of a command that only asks, for the wish: */
  void (*take)(const char *rest, tuttiRasRequest *request, char *answer, size_t size);
  tuttiRasWish wish;
  tuttiRasFormat format; /* of its own; tuttiRasText: the one that was set */
  bool takes, verbose;   /* takes: something follows the word */
} command;

static void takeProtocol(const char *rest, tuttiRasRequest *request, char *answer, size_t size) {
  (void)rest;
  (void)request;
  snprintf(answer, size, "SERVER PROTOCOL %d\n", TUTTI_RAS_PROTOCOL);
}

static void takeTimeout(const char *rest, tuttiRasRequest *request, char *answer, size_t size) {
  char *end;
  long seconds = strtol(rest, &end, 10);
  if (end == rest || *end || seconds < 0 || seconds > TUTTI_RAS_LONGEST) {
    snprintf(answer, size, "ERROR: Invalid timeout value %s\n", rest);
    return;
  }
  request->timeoutMs = (int)(seconds == 0 ? TUTTI_RAS_LONGEST : seconds) * 1000;
  snprintf(answer, size, "OK\n");
}

static void takeFormat(const char *rest, tuttiRasRequest *request, char *answer, size_t size) {
  static const char *const names[] = {[tuttiRasText] = "text", [tuttiRasJson] = "json"};
  for (int i = 0; i < 2; i++) {
    if (strcasecmp(rest, names[i]) != 0) continue;
    request->format = (tuttiRasFormat)i;
    snprintf(answer, size, "OK\n");
    return;
  }
  snprintf(answer, size, "ERROR: Invalid format %s\n", rest);
}

static void takeMonitor(const char *rest, tuttiRasRequest *request, char *answer, size_t size) {
  char groups[TUTTI_RAS_LINE], *rest_;
  snprintf(groups, sizeof groups, "%s", rest);
  for (char *g = strtok_r(groups, ", ", &rest_); g; g = strtok_r(NULL, ", ", &rest_)) {
    if (strcasecmp(g, "lifecycle") == 0 || strcasecmp(g, "trace") == 0 || strcasecmp(g, "all") == 0)
      continue;
    snprintf(answer, size, "ERROR: Invalid event group '%s'\n", g);
    return;
  }
  request->wish = tuttiRasEvents;
  snprintf(answer, size, "OK\n");
}

static void ask(const command *c, tuttiRasRequest *request) {
  request->wish = c->wish;
  if (c->format != tuttiRasText) request->format = c->format;
  if (c->verbose) request->verbose = true;
}

static const command commands[] = {
    {"client protocol", .takes = true, .take = takeProtocol},
    {"timeout", .takes = true, .take = takeTimeout},
    {"set format", .takes = true, .take = takeFormat},
    {"monitor", .takes = true, .take = takeMonitor},
    {"monitor", .take = takeMonitor},
    {"status", .wish = tuttiRasReport},
    {"verbose status", .wish = tuttiRasReport, .verbose = true},
    {"prometheus", .wish = tuttiRasReport, .format = tuttiRasPrometheus},
    {"trace", .wish = tuttiRasReport, .format = tuttiRasTrace},
    {"facts", .wish = tuttiRasReport, .format = tuttiRasFacts},
    {"local facts", .wish = tuttiRasLocal, .format = tuttiRasFacts},
};

void tuttiRasLineTake(const char *line, tuttiRasRequest *request,
                      char answer[TUTTI_RAS_LINE + 64]) {
  const size_t size = TUTTI_RAS_LINE + 64;
  answer[0] = 0;
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
    const command *c = &commands[i];
    size_t n = strlen(c->word);
    if (strncasecmp(line, c->word, n) != 0) continue;
    if (c->takes ? line[n] != ' ' : line[n] != 0) continue;
    if (c->take)
      c->take(c->takes ? line + n + 1 : "", request, answer, size);
    else
      ask(c, request);
    return;
  }
  snprintf(answer, size, "ERROR: Unknown command %s\n", line);
}

int tuttiRasLineFind(char *bytes, size_t have) {
  char *end = memchr(bytes, '\n', have < TUTTI_RAS_LINE ? have : TUTTI_RAS_LINE);
  if (!end) return have >= TUTTI_RAS_LINE ? -1 : 0;
  *end = 0;
  if (end > bytes && end[-1] == '\r') end[-1] = 0;
  return (int)(end - bytes) + 1;
}
