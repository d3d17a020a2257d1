/* What clients of the RAS port say, line by line, and what is answered at once: NCCL's protocol,
 * and a few words of ours. Pure functions, so that they can be fuzzed. */
#ifndef TUTTI_RAS_PROTOCOL_H_
#define TUTTI_RAS_PROTOCOL_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

#define TUTTI_RAS_LINE     256 /* bytes of one, with its end */
#define TUTTI_RAS_PROTOCOL 2
#define TUTTI_RAS_TIMEOUT  5 /* seconds, unless the client says otherwise */
#define TUTTI_RAS_LONGEST  3600

typedef enum {
  tuttiRasText,
  tuttiRasJson,
  tuttiRasPrometheus,
  tuttiRasTrace,
  tuttiRasFacts
} tuttiRasFormat;

/* What a client waits for. */
typedef enum {
  tuttiRasNothing, /* its next line */
  tuttiRasReport,  /* what is known of all ranks, in its format */
  tuttiRasLocal,   /* what this process knows without asking, as facts */
  tuttiRasEvents,  /* whatever happens, until it leaves */
  tuttiRasEnd      /* it is sent away */
} tuttiRasWish;

/* What a client has said so far. */
typedef struct {
  tuttiRasWish wish;
  tuttiRasFormat format;
  bool verbose;
  int timeoutMs;
} tuttiRasRequest;

/* Takes a line without its end; the answer, in its whole with "\n", is "" where there is none yet.
 */
void tuttiRasLineTake(const char *line, tuttiRasRequest *request, char answer[TUTTI_RAS_LINE + 64]);

/* Finds the first line in `bytes`, which it ends with 0 ("\r" before the end is dropped); returns
 * how many bytes it had, 0 when there is no end yet, or -1 when no line may be so long. */
int tuttiRasLineFind(char *bytes, size_t have);

__END_DECLS

#endif
