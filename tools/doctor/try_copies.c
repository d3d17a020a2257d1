/* Copies between each two GPUs, with their bandwidth and a look at the data. */
#include "doctor/machine.h"

#ifdef TUTTI_HAVE_CUDA

#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/mem.h"

#define COPY_BYTES  ((size_t)64 << 20)
#define CHECK_BYTES ((size_t)4 << 20) /* of these, at their beginning */
#define COPIES      8                 /* that are timed, after one that is not */
#define MOST        64

typedef struct {
  int n;
  char bus[MOST][TUTTI_BUS_ID_TEXT];
  void *memory[MOST][2]; /* to copy from, and to */
  uint32_t *pattern, *back;
} trial;

static tuttiResult_t makeMemory(trial *t, int device) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(device, &before));
  for (int i = 0; i < 2; i++)
    CUDA_TRY(cudaMalloc(&t->memory[device][i], COPY_BYTES));
  return CUDA_CHECK(
      cudaMemcpy(t->memory[device][0], t->pattern, CHECK_BYTES, cudaMemcpyHostToDevice));
}

static void freeMemory(trial *t, int device) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (tuttiCudaEnter(device, &before) != tuttiSuccess) return;
  for (int i = 0; i < 2; i++)
    cudaFree(t->memory[device][i]);
}

/* Milliseconds of COPIES copies on a stream of `from`, which is entered. */
static tuttiResult_t timeCopies(trial *t, int from, int to, cudaStream_t stream,
                                const cudaEvent_t events[2], float *ms) {
  for (int i = 0; i <= COPIES; i++) {
    CUDA_TRY(
        cudaMemcpyPeerAsync(t->memory[to][1], to, t->memory[from][0], from, COPY_BYTES, stream));
    if (i == 0) CUDA_TRY(cudaEventRecord(events[0], stream));
  }
  CUDA_TRY(cudaEventRecord(events[1], stream));
  CUDA_TRY(cudaStreamSynchronize(stream));
  return CUDA_CHECK(cudaEventElapsedTime(ms, events[0], events[1]));
}

static tuttiResult_t copyPair(trial *t, int from, int to, bool *direct, float *ms) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  cudaStream_t stream = NULL;
  cudaEvent_t events[2] = {NULL, NULL};
  int can = 0;
  TUTTI_TRY(tuttiCudaEnter(from, &before));
  CUDA_TRY(cudaDeviceCanAccessPeer(&can, from, to));
  *direct = can != 0;
  if (can && cudaDeviceEnablePeerAccess(to, 0) != cudaSuccess)
    cudaGetLastError(); /* it is on already, or the copies say what is wrong */
  tuttiResult_t result = CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 2 && result == tuttiSuccess; i++)
    result = CUDA_CHECK(cudaEventCreate(&events[i]));
  if (result == tuttiSuccess) result = timeCopies(t, from, to, stream, events, ms);
  for (int i = 0; i < 2; i++)
    if (events[i]) cudaEventDestroy(events[i]);
  if (stream) cudaStreamDestroy(stream);
  return result;
}

/* Zeros where the copy goes, the copy, and what has come. */
static tuttiResult_t tryPair(trial *t, int from, int to, char *said, size_t size) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  bool direct = false;
  float ms = 0;
  TUTTI_TRY(tuttiCudaEnter(to, &before));
  CUDA_TRY(cudaMemset(t->memory[to][1], 0, COPY_BYTES));
  CUDA_TRY(cudaDeviceSynchronize());
  TUTTI_TRY(copyPair(t, from, to, &direct, &ms));
  CUDA_TRY(cudaMemcpy(t->back, t->memory[to][1], CHECK_BYTES, cudaMemcpyDeviceToHost));
  if (memcmp(t->back, t->pattern, CHECK_BYTES) != 0)
    snprintf(said, size, "wrong data");
  else
    snprintf(said, size, "%.1f %s", ms > 0 ? COPIES * (double)COPY_BYTES / 1e6 / (double)ms : 0.0,
             direct ? "direct" : "staged");
  return tuttiSuccess;
}

static tuttiResult_t tryAll(tuttiMachine *m, trial *t) {
  char said[TUTTI_ANSWER_VALUE];
  for (int a = 0; a < t->n; a++) {
    for (int b = 0; b < t->n; b++) {
      if (a == b) continue;
      if (tryPair(t, a, b, said, sizeof said) != tuttiSuccess) {
        snprintf(said, sizeof said, "failed: %.500s", tuttiErrorText());
        tuttiErrorClear();
      }
      TUTTI_TRY(tuttiMachineTell(m, said, "copy.%s.%s", t->bus[a], t->bus[b]));
    }
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiTryCopies(tuttiMachine *m) {
  TUTTI_FRESH(trial, t, 1, "a trial of the GPUs", NULL);
  TUTTI_FRESH(uint32_t, words, 2 * CHECK_BYTES / sizeof(uint32_t), "a pattern", NULL);
  tuttiResult_t result = tuttiSuccess;
  const char *bus;
  t->pattern = words;
  t->back = words + CHECK_BYTES / sizeof *words;
  for (size_t i = 0; i < CHECK_BYTES / sizeof *words; i++)
    t->pattern[i] = (uint32_t)(i + 1) * 2654435761u;
  while (t->n < MOST && (bus = tuttiMachineAnswer(m, "cuda.device.%d", t->n)) != NULL)
    snprintf(t->bus[t->n++], sizeof *t->bus, "%.31s", bus);
  if (t->n < 2) return tuttiSuccess;
  for (int i = 0; i < t->n && result == tuttiSuccess; i++)
    result = makeMemory(t, i);
  if (result == tuttiSuccess) {
    result = tryAll(m, t);
  } else { /* the GPUs are full, say, which is no fault */
    result = tuttiMachineTell(m, tuttiErrorText(), "copy.error");
    tuttiErrorClear();
  }
  for (int i = 0; i < t->n; i++)
    freeMemory(t, i);
  return result;
}

#else

tuttiResult_t tuttiTryCopies(tuttiMachine *m) {
  (void)m;
  return tuttiSuccess;
}

#endif
