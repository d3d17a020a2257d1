#include "base/nvtx.h"

#ifdef TUTTI_HAVE_NVTX
#include <nvtx3/nvToolsExtPayload.h>
#include <pthread.h>

#include "base/os.h"

typedef struct {
  uint64_t bytes;
  int64_t rank;
  uint64_t tag;
} Payload;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* NULL: nobody listens */
tuttiAtomic32 tuttiRangesUnheard;
static uint64_t schema; /* tells the tool what a Payload holds */

static void openDomain(void) {
  static const nvtxPayloadSchemaEntry_t entries[] = {
      {.type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64, .name = "bytes"},
      {.type = NVTX_PAYLOAD_ENTRY_TYPE_INT64, .name = "rank"},
      {.type = NVTX_PAYLOAD_ENTRY_TYPE_UINT64, .name = "tag"}};
  static const nvtxPayloadSchemaAttr_t attributes = {
      .fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                   NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES |
                   NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE,
      .type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC,
      .entries = entries,
      .numEntries = 3,
      .payloadStaticSize = sizeof(Payload)};
  /* NVTX loads the tool that a variable of the environment names. */
  if (!tuttiPrivileged()) domain = nvtxDomainCreateA("tutti");
  if (domain) schema = nvtxPayloadSchemaRegister(domain, &attributes);
  tuttiStoreRelease32(&tuttiRangesUnheard, domain == NULL);
}

uint64_t tuttiRangeStart(const char *name, size_t bytes, int rank, uint64_t tag) {
  pthread_once(&once, openDomain);
  if (!domain) return 0;
  const Payload payload = {.bytes = bytes, .rank = rank, .tag = tag};
  const nvtxPayloadData_t data = {schema, sizeof payload, &payload};
  const nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                       .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                       .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                       .message.ascii = name,
                                       .payloadType = NVTX_PAYLOAD_TYPE_EXT,
                                       .reserved0 = 1, /* so many data */
                                       .payload.ullValue = (uintptr_t)&data};
  return nvtxDomainRangeStartEx(domain, &event);
}

void tuttiRangeClose(uint64_t range) {
  if (range) nvtxDomainRangeEnd(domain, range);
}

#else
tuttiAtomic32 tuttiRangesUnheard = {1};
uint64_t tuttiRangeStart(const char *name, size_t bytes, int rank, uint64_t tag) {
  return (void)name, (void)bytes, (void)rank, (void)tag, 0;
}
void tuttiRangeClose(uint64_t range) {
  (void)range;
}
#endif
