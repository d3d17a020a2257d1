/* Memory that kernels of the user share within their local team. */
#ifndef TUTTI_COMM_DEVCOMM_H_
#define TUTTI_COMM_DEVCOMM_H_

#include "comm/communicator.h"
#include "comm/job.h"

/* As a job; its run is tuttiDevCommRun. */
typedef struct {
  tuttiJob job;
  size_t bytes;
  uint64_t tag;
  tuttiDevComm_t *out;
} tuttiDevCommJob;

/* Waits for all ranks; fails on all of them if they disagree or one cannot take part. Fills *out.
 */
tuttiResult_t tuttiDevCommRun(tuttiJob *job);

/* Fails unless kernels of the user are served. The same on all ranks but for what their drivers
 * can. */
tuttiResult_t tuttiDevCommServed(const tuttiCommunicator *c);

/* Gives back this rank's part of what `window` names; tuttiInvalidArgument: there is no such. */
tuttiResult_t tuttiDevCommRemove(tuttiCommunicator *c, tuttiWindow_t window);
/* Forgets what is left when the communicator ends; the device gives it back. */
void tuttiDevCommsForget(tuttiCommunicator *c);

#endif
