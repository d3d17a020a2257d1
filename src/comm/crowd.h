/* How many ranks a host is known to have: a communicator of a few of them shares their cores with
 * those that only other communicators of this process show. */
#ifndef TUTTI_COMM_CROWD_H_
#define TUTTI_COMM_CROWD_H_

/* What one communicator knows; zero before it joins. */
typedef struct tuttiCrowd {
  struct tuttiCrowd *next;
  int ranks;
} tuttiCrowd;

/* Tells of a communicator's ranks on this host, at least one. Returns the most that any
 * communicator of the process has there now. `mine` stays where it is until tuttiCrowdLeave. Any
 * thread. */
int tuttiCrowdJoin(tuttiCrowd *mine, int ranks);
/* The communicator ends; one that has not joined may leave. Any thread. */
void tuttiCrowdLeave(tuttiCrowd *mine);

#endif
