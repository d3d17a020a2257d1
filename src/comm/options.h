/* Options of a communicator. */
#ifndef TUTTI_COMM_OPTIONS_H_
#define TUTTI_COMM_OPTIONS_H_

#include "base/error.h"
#include "tutti.h"

#define TUTTI_COMM_NAME    64
#define TUTTI_RMA_CONTEXTS 64   /* at most */
#define TUTTI_RMA_SIGNALS  1024 /* of each, at most */

/* Options in force: config, else setting, else default. */
typedef struct {
  int blocking;                 /* 0 or 1 */
  int minChannels, maxChannels; /* 0: the planner decides */
  int timeoutMs;                /* 0: none */
  int trafficClass;
  int device;                  /* a tuttiDevice_t */
  int ordinal;                 /* of the CUDA device; -1: the current one */
  int rmaContexts, rmaSignals; /* of one-sided operations */
  char net[16];
  char name[TUTTI_COMM_NAME];
} tuttiOptions;

/* Resolves a user's config (may be NULL) over `base` (may be NULL: settings), but for its name. */
tuttiResult_t tuttiOptionsResolve(const tuttiConfig_t *config, const tuttiOptions *base,
                                  tuttiOptions *out);

#endif
