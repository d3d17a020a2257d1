/* What is known of ranks that have died, beyond the communicator in which it showed: one that is
 * being made of others needs the dead too, and another that holds them should say who died. */
#ifndef TUTTI_COMM_DEATHS_H_
#define TUTTI_COMM_DEATHS_H_

#include "comm/communicator.h"

/* Of which communicator another is made, and without whom. */
typedef struct {
  tuttiComm_t parent;      /* NULL: of none */
  const uint8_t *excluded; /* [nranks], nonzero: does not take part; NULL: all of them do */
  int nranks;              /* of the parent, where excluded is there */
  const int32_t *ranks;    /* [nranks of the child], of the parent; NULL: those that are not
                            * excluded, in the order of their numbers, and then newcomers */
  bool agreed; /* by all who take part, on a parent that has not failed: whoever finds that it has
                * does not come */
} tuttiOrigin;

/* The rank in the parent of a rank of the child; -1: it is none, or not known to be one. */
int tuttiOriginRank(const tuttiOrigin *origin, int rank);

/* A communicator whose init needs the ranks of another one; a variable of that init. */
typedef struct tuttiBirth {
  struct tuttiBirth *next;   /* of the parent */
  tuttiCommunicator *parent; /* NULL: none, or it has been freed */
  tuttiCommunicator *child;
  const uint8_t *excluded;
  bool agreed;
} tuttiBirth;

/* From here to End, within which the caller holds the child, a death among those of the parent who
 * take part, and one that is known already, fails the child at once with the parent's text. So does
 * a failure of the parent in which the birth was agreed on: a rank that met it does not come, and
 * only knows that of the parent. A parent that a rank has ended by a call does not count:
 * that rank may have come all the same. */
void tuttiBirthBegin(tuttiBirth *b, const tuttiOrigin *origin, tuttiCommunicator *child);
void tuttiBirthEnd(tuttiBirth *b);

/* `c` has failed: so do those of its births that were agreed on in it. Locks no watch. */
void tuttiBirthsFail(tuttiCommunicator *c, tuttiResult_t code, const char *text);

/* Rank `rank` of `c` has died, as `text` says. From the watch's thread. */
void tuttiCommDied(tuttiCommunicator *c, int rank, const char *text);
/* A rank of `c` whose process some communicator of this process, or an init in it, knows to be
 * dead; -1: none. */
int tuttiCommDead(const tuttiCommunicator *c);
/* tuttiSuccess, or the text of a rank's death that is not excluded. */
tuttiResult_t tuttiCommComplete(tuttiCommunicator *c, const uint8_t *excluded);
/* `c` is about to be freed. */
void tuttiDeathsForget(tuttiCommunicator *c);

#endif
