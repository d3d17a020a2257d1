/* Libraries of NCCL's ABI take turns on this host's GPUs, each turn in processes of its own. For
 * the programs beside this file. Where something fails, the process says so and ends. */
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>
#include <sys/types.h>

#include "tutti.h"

#define MAX_RANKS   8
#define MAX_ROUNDS  100
#define MAX_LIBS    4
#define MAX_FIGURES 16
#define LIMIT_S     120 /* for a turn of one library */

__BEGIN_DECLS

void turnsFail(const char *what, const char *why) __attribute__((noreturn));

/* Each call must succeed. */
void turnsCuda(cudaError_t err, const char *call);
void turnsNccl(tuttiResult_t result, const char *call);
#define CUDA(call) turnsCuda(call, #call)
#define NCCL(call) turnsNccl(call, #call)

void *turnsOpen(const char *path);
/* The library's nccl<name>. */
void *turnsFind(void *library, const char *path, const char *name);

/* Milliseconds. */
double turnsNow(void);

/* Memory that all processes begun later share, zeroed; lives as long as this process. */
void *turnsShare(size_t size);
/* For processes, in such memory. */
void turnsBarrier(pthread_barrier_t *barrier, int n);

/* Starts a process that calls run and ends well when it returns, with this process or, for a
 * library that hangs, after LIMIT_S. */
typedef void turnsRun(const char *path, void *shared, int rank, int nranks);
pid_t turnsBegin(turnsRun *run, const char *path, void *shared, int rank, int nranks);
/* True if all of them ended well; if one fails the others are ended, for they would wait. */
bool turnsAwait(const pid_t *pids, int n);

/* Sorts the values. */
double turnsMedian(double *values, int n);
/* The value of the option, if it stands at argv[*used], which then counts it; else `value`. */
int turnsOption(int argc, char **argv, const char *name, int most, int value, int *used);

/* What two processes share, at the beginning of whatever else that is. */
typedef struct {
  pthread_barrier_t barrier;      /* of both */
  double figures[2][MAX_FIGURES]; /* by rank; zero when a turn begins */
} turnsPair;

/* A program whose turns are two processes, which leave figures: [--rounds N] LIBRARY... Prints the
 * medians of rank 0's, in a table with a line for each title. The last of the n is how much was
 * wrong, on either rank. Returns the exit code: not 0 if anything was, or a turn failed. */
int turnsMain(int argc, char **argv, turnsRun *run, turnsPair *shared, const char *const *titles,
              int n);

__END_DECLS
