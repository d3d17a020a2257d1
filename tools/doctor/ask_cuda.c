/* What the CUDA driver says of the GPUs: attributes, for which no context is made. */
#include <dlfcn.h>
#include <stdio.h>

#include "base/error.h"
#include "doctor/machine.h"

/* Enumerators of cuda.h. */
#define GPUDIRECT_RDMA 116
#define DMA_BUF        124
#define MAJOR          75 /* of the compute capability */

typedef struct {
  int (*init)(unsigned flags);
  int (*count)(int *n);
  int (*busId)(char *text, int size, int device);
  int (*attribute)(int *value, int what, int device);
  int (*errorText)(int code, const char **text);
} calls;

static tuttiResult_t askDevice(tuttiMachine *m, const calls *cuda, int device) {
  static const struct {
    int attribute;
    const char *key;
  } asked[] = {{GPUDIRECT_RDMA, "gdr"}, {DMA_BUF, "dmabuf"}};
  char text[32] = "", bus[TUTTI_BUS_ID_TEXT];
  uint64_t id = 0;
  if (cuda->busId(text, sizeof text, device) != 0 || !tuttiBusIdParse(text, &id))
    return tuttiSuccess;
  tuttiBusIdText(id, bus, sizeof bus);
  TUTTI_TRY(tuttiMachineTell(m, bus, "cuda.device.%d", device));
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    int value = 0;
    if (cuda->attribute(&value, asked[i].attribute, device) != 0) continue;
    TUTTI_TRY(tuttiMachineTell(m, value ? "1" : "0", "cuda.%s.%s", bus, asked[i].key));
  }
  int major = 0;
  if (cuda->attribute(&major, MAJOR, device) == 0)
    TUTTI_TRY(tuttiMachineTell(m, major < 8 ? "1" : "0", "cuda.%s.preampere", bus));
  return tuttiSuccess;
}

static tuttiResult_t askAll(tuttiMachine *m, const calls *cuda) {
  int n = 0, err = cuda->init(0);
  const char *text = "unknown error";
  char said[160];
  if (err == 0) err = cuda->count(&n);
  if (err) {
    (void)cuda->errorText(err, &text);
    snprintf(said, sizeof said, "%d: %s", err, text);
    return tuttiMachineTell(m, said, "cuda.state");
  }
  TUTTI_TRY(tuttiMachineTell(m, "ok", "cuda.state"));
  for (int i = 0; i < n; i++)
    TUTTI_TRY(askDevice(m, cuda, i));
  return tuttiSuccess;
}

/* The library stays loaded: its threads do not expect to lose it. */
tuttiResult_t tuttiAskCuda(tuttiMachine *m) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return tuttiMachineTell(m, "missing", "cuda.state");
  calls cuda;
  *(void **)&cuda.init = dlsym(library, "cuInit");
  *(void **)&cuda.count = dlsym(library, "cuDeviceGetCount");
  *(void **)&cuda.busId = dlsym(library, "cuDeviceGetPCIBusId");
  *(void **)&cuda.attribute = dlsym(library, "cuDeviceGetAttribute");
  *(void **)&cuda.errorText = dlsym(library, "cuGetErrorString");
  if (!cuda.init || !cuda.count || !cuda.busId || !cuda.attribute || !cuda.errorText)
    return tuttiMachineTell(m, "too old", "cuda.state");
  return askAll(m, &cuda);
}
