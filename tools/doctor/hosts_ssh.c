/* The doctor on other hosts, by ssh. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "doctor/command.h"
#include "doctor/hosts.h"

#define ANSWER_MS 180000

/* Several of them, that run at once. */
typedef struct {
  tuttiHostReport *hosts;
  tuttiCommand *commands;
  int n;
  char script[PATH_MAX + 128];
} fleet;

/* A name goes to ssh's command line: it must not look like an option. */
static const char *addHost(fleet *f, const char *name, size_t length) {
  tuttiHostReport *h = &f->hosts[f->n];
  if (f->n == TUTTI_MOST_HOSTS) return "it lists more than 1024 hosts";
  if (length == 0 || length >= sizeof h->name || name[0] == '-')
    return "it must be a list like h1,h2";
  for (size_t i = 0; i < length; i++)
    if (name[i] <= ' ' || (unsigned char)name[i] >= 0x7f) return "it must be a list like h1,h2";
  snprintf(h->name, sizeof h->name, "%.*s", (int)length, name);
  f->n++;
  return NULL;
}

static const char *addHosts(fleet *f, const char *list) {
  for (const char *at = list;;) {
    size_t length = strcspn(at, ",");
    const char *wrong = addHost(f, at, length);
    if (wrong) return wrong;
    if (at[length] == '\0') return NULL;
    at += length + 1;
  }
}

/* Runs this very file where the host has it in the same place, as with shared file systems. */
static bool makeScript(fleet *f, bool quick) {
  char self[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) return false;
  self[n] = '\0';
  if (strpbrk(self, "'\n") != NULL) snprintf(self, sizeof self, "tutti");
  return snprintf(
             f->script, sizeof f->script,
             "if [ -x '%s' ]; then exec '%s' doctor --lines%s; else exec tutti doctor --lines%s; "
             "fi",
             self, self, quick ? " --quick" : "", quick ? " --quick" : "") < (int)sizeof f->script;
}

/* How far the host's clock, which it told last, is from ours. */
static void readClock(tuttiHostReport *h, double endedAt) {
  const char *end = strstr(h->text, "\nend\t");
  if (end == NULL || endedAt <= 0) return;
  h->skew = strtod(end + 5, NULL) - endedAt;
  h->timed = h->skew > -1e9 && h->skew < 1e9;
}

static void judge(tuttiHostReport *h, const tuttiCommand *c) {
  readClock(h, c->endedAt);
  if (h->text[0] != '\0' || h->trouble[0]) return; /* what it sent is judged when it is read */
  if (WIFSIGNALED(c->status))
    snprintf(h->trouble, sizeof h->trouble, "it did not answer within %d s", ANSWER_MS / 1000);
  else if (WIFEXITED(c->status) && WEXITSTATUS(c->status) == 255)
    snprintf(h->trouble, sizeof h->trouble, "ssh cannot reach it without a password");
  else
    snprintf(h->trouble, sizeof h->trouble, "it has no tutti, or could not start it");
}

static tuttiResult_t runAll(fleet *f) {
  for (int i = 0; i < f->n; i++) {
    tuttiHostReport *h = &f->hosts[i];
    char *const argv[] = {"ssh", "-o",    "BatchMode=yes", "-o", "ConnectTimeout=10",
                          "--",  h->name, f->script,       NULL};
    TUTTI_NEW(h->text, TUTTI_HOST_BYTES, "what a host sends", NULL);
    if (!tuttiCommandStart(&f->commands[i], argv, NULL, true, h->text, TUTTI_HOST_BYTES))
      snprintf(h->trouble, sizeof h->trouble, "cannot start ssh");
  }
  tuttiCommandsAwait(f->commands, f->n, tuttiDeadline(ANSWER_MS));
  for (int i = 0; i < f->n; i++)
    judge(&f->hosts[i], &f->commands[i]);
  return tuttiSuccess;
}

bool tuttiHostsBySsh(const char *list, bool quick, FILE *out, tuttiSeverity *worst,
                     const char **wrong) {
  fleet f = {0};
  *worst = TUTTI_FOUND_FAILURE;
  *wrong = NULL;
  bool room = tuttiAlloc((void **)&f.hosts, TUTTI_MOST_HOSTS, sizeof *f.hosts, "hosts", NULL) ==
                  tuttiSuccess &&
              tuttiAlloc((void **)&f.commands, TUTTI_MOST_HOSTS, sizeof *f.commands, "hosts",
                         NULL) == tuttiSuccess;
  if (!room || !makeScript(&f, quick)) *wrong = "there is no memory, or no /proc";
  if (!*wrong) *wrong = addHosts(&f, list);
  if (!*wrong && runAll(&f) == tuttiSuccess) *worst = tuttiHostsCompare(f.hosts, f.n, out);
  for (int i = 0; i < f.n; i++)
    tuttiFree(f.hosts[i].text);
  tuttiFree(f.hosts);
  tuttiFree(f.commands);
  return *wrong == NULL;
}
