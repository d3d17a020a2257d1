/* A tool as NVTX loads it: writes a line for each event to the file that NVTX_TOOL_OUT names. */
#include <fcntl.h>
#include <inttypes.h>
#include <nvtx3/nvToolsExtPayload.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int out = -1;
static _Atomic uint64_t ranges;

/* What a payload of tutti holds. */
typedef struct {
  uint64_t bytes;
  int64_t rank;
  uint64_t tag;
} Payload;

static nvtxDomainHandle_t NVTX_API createDomain(const char *name) {
  dprintf(out, "domain %s\n", name);
  return (nvtxDomainHandle_t)&ranges; /* any address */
}

static nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
  (void)domain;
  Payload p = {0, -2, 0};
  const nvtxPayloadData_t *data = (void *)(uintptr_t)event->payload.ullValue;
  if (event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 == 1 &&
      data->size == sizeof p)
    p = *(const Payload *)data->payload;
  uint64_t id = ++ranges;
  char tag[32] = "";
  if (p.tag) snprintf(tag, sizeof tag, " tag %" PRIu64, p.tag);
  /* One write, as other processes write here too. */
  dprintf(out, "%s %" PRIu64 " %" PRId64 "%s\nopen %d %" PRIu64 "\n", event->message.ascii, p.bytes,
          p.rank, tag, (int)getpid(), id);
  return id;
}

static void NVTX_API end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  (void)domain;
  dprintf(out, "close %d %" PRIu64 "\n", (int)getpid(), (uint64_t)id);
}

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t getTable);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t getTable) {
  const NvtxExportTableCallbacks *callbacks = getTable(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned int size;
  const char *path = getenv("NVTX_TOOL_OUT");
  if (!path || !callbacks ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
    return 0;
  out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)createDomain;
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start;
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end;
  return out >= 0;
}
