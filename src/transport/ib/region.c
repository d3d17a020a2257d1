/* NET/IB: memory of GPUs and of the user, registered with the ports.
 *
 * Memory of the user is known by its region (transport/region.h), of which the node keeps what the
 * devices made of it. On host memory the proxy registers a region when it first sends out of it. On
 * a GPU kernels rely on it: a message that a kernel has left where it is cannot be copied by
 * anybody else any more. So the thread that launches the kernel asks first, and registers. The
 * proxy alone counts uses and forgets regions; the list is under a lock of its own. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "transport/ib/endpoint.h"

struct ibv_mr *tuttiIbRegisterGpu(const tuttiIbRail *rail, const tuttiGpuMemory *m, int access,
                                  bool relaxed) {
  tuttiGpuMemory whole;
  struct ibv_mr *mr = NULL;
  if (rail->dmabuf && tuttiGpuAllocation(m, &whole)) {
    TUTTI_CLOSED int fd = tuttiGpuExport(&whole);
    size_t offset = (size_t)((uint8_t *)m->memory - (uint8_t *)whole.memory);
    if (fd >= 0)
      mr = tuttiIbRegisterDmabuf(rail, offset, m->bytes, (uintptr_t)m->memory, fd, access, relaxed);
  }
  return mr ? mr : tuttiIbRegisterMr(rail, m->memory, m->bytes, access, relaxed);
}

static size_t bytesOf(const tuttiRegion *region) {
  return region->end - region->begin;
}

void tuttiIbReturn(tuttiIbRegion *r) {
  if (!r || --r->uses > 0) return;
  tuttiIbDeregister(r->mr);
  tuttiFree(r);
}

/* All of them, or those that are not there any more, or have other pages now. */
static void dropRegions(tuttiIbNode *node, bool all) {
  TUTTI_LOCKED(&node->regionLock);
  for (tuttiIbRegion **at = &node->regions, *r; (r = *at) != NULL;) {
    if (!all && tuttiRegionLasts(&r->region)) {
      at = &r->next;
    } else {
      *at = r->next;
      tuttiIbReturn(r);
    }
  }
}

void tuttiIbRegionsClose(tuttiIbNode *node) {
  dropRegions(node, true);
}

void tuttiIbForgetRegions(tuttiIbNode *node) {
  uint64_t removed = tuttiRegionsRemoved();
  if (removed != node->regionsSeen) dropRegions(node, false);
  node->regionsSeen = removed;
}

/* ---- on host memory ---------------------------------------------------------------------------
 */

/* Only to be read from, which read-only memory allows, too. A device that has gone sends nothing.
 */
static void registerRegion(tuttiIbNode *node, tuttiIbRegion *r) {
  char remedy[192];
  size_t bytes = bytesOf(&r->region);
  for (int i = 0; i < node->nrails; i++) {
    if (node->rails[i].gone) continue;
    r->mr[i] =
        tuttiIbRegisterMr(&node->rails[i], (void *)r->region.begin, bytes, 0, tuttiIbRelaxes(true));
    if (r->mr[i]) continue;
    int err = errno;
    if (tuttiIbRailGone(&node->rails[i])) {
      tuttiIbRailLost(node, &node->rails[i], TUTTI_IB_SILENT);
      continue;
    }
    if (!node->refused)
      TUTTI_WARN(NET, "NET/IB: %s refused %zu bytes of user memory (%s), which are copied now; %s",
                 node->rails[i].port.device, bytes, tuttiErrnoText(err),
                 tuttiIbRemedyText(err, remedy, sizeof remedy));
    node->refused = true;
    tuttiIbDeregister(r->mr);
    memset(r->mr, 0, sizeof r->mr);
    return;
  }
}

/* ---- on a GPU ---------------------------------------------------------------------------------
 */

/* With the rails that reach the GPU, or with none: NICs read and write it. Touches nothing that the
 * proxy changes. */
static void registerGpuRegion(tuttiIbNode *node, tuttiIbRegion *r) {
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  tuttiGpuMemory m = {.memory = (void *)r->region.begin, // NOLINT: an address of the GPU
                      .bytes = bytesOf(&r->region),
                      .device = node->gdr.slab.memory.device};
  for (int i = 0; i < node->nrails; i++) {
    const tuttiIbRail *rail = &node->rails[i];
    if (!(node->gdr.reaching >> i & 1)) continue;
    r->mr[i] = tuttiIbRegisterGpu(rail, &m, access, node->gdr.relaxed);
    int err = errno;
    if (r->mr[i] || tuttiIbDeviceGone(rail)) continue;
    TUTTI_WARN(NET,
               "NET/IB: %s port %u refused %zu bytes of registered memory (%s), whose messages go "
               "through slots; enlarge the GPU's BAR1 (nvidia-smi -q), and see the limit on locked "
               "memory (ulimit -l) and dmesg",
               rail->port.device, rail->port.port, m.bytes, tuttiErrnoText(err));
    tuttiIbDeregister(r->mr);
    memset(r->mr, 0, sizeof r->mr);
    return;
  }
  TUTTI_INFO(NET, "NET/IB: NICs read and write %zu bytes of registered memory at %p by themselves",
             m.bytes, m.memory);
}

static bool isRegistered(const tuttiIbRegion *r) {
  bool any = false;
  for (int i = 0; i < TUTTI_IB_PORTS; i++)
    any |= r->mr[i] != NULL;
  return any;
}

/* One that holds [begin, begin + bytes), and is kept from now on as long as `found` is: as it
 * lasts, its pages are those of now. NULL: there is none. Were each newer region given one of its
 * own, those that come and go would leave theirs behind while an older one stays. */
static const tuttiIbRegion *renewed(tuttiIbNode *node, const tuttiRegion *found, uintptr_t begin,
                                    size_t bytes) {
  for (tuttiIbRegion *r = node->regions; r; r = r->next) {
    const tuttiRegion *region = &r->region;
    if (region->begin < found->begin || region->end > found->end) continue;
    if (begin < region->begin || begin + bytes > region->end || !tuttiRegionLasts(region)) continue;
    r->region.time = found->time;
    return r;
  }
  return NULL;
}

bool tuttiIbReaches(void *self, const void *addr, size_t bytes) {
  tuttiIbNode *node = self;
  tuttiRegion found;
  if (node->gdr.reaching == 0 || !tuttiRegionFind(addr, bytes, &found)) return false;
  {
    TUTTI_LOCKED(&node->regionLock);
    const tuttiIbRegion *known = renewed(node, &found, (uintptr_t)addr, bytes);
    if (known) return isRegistered(known);
  }
  tuttiIbRegion *r; /* no other thread launches kernels of this communicator meanwhile */
  if (tuttiAlloc((void **)&r, 1, sizeof *r, "a registration", node->view->memory) != tuttiSuccess)
    return false;
  *r = (tuttiIbRegion){.region = found, .uses = 1};
  registerGpuRegion(node, r);
  bool reaches = isRegistered(r);
  TUTTI_LOCKED(&node->regionLock);
  TUTTI_LINK(node->regions, r);
  return reaches;
}

/* ---- uses -------------------------------------------------------------------------------------
 */

/* Whether the rails that are there know it. */
static bool serves(const tuttiIbNode *node, const tuttiIbRegion *r) {
  bool any = false, onGpu = node->gdr.reaching != 0;
  for (int i = 0; i < node->nrails; i++) {
    bool needed = !onGpu || node->gdr.reaching >> i & 1;
    if (needed && !r->mr[i] && !node->rails[i].gone) return false;
    any |= r->mr[i] != NULL;
  }
  return any;
}

/* One that serves, if there is such, of those that hold all of it. */
static tuttiIbRegion *holding(tuttiIbNode *node, uintptr_t begin, size_t bytes) {
  TUTTI_LOCKED(&node->regionLock);
  tuttiIbRegion *found = NULL;
  for (tuttiIbRegion *r = node->regions; r; r = r->next) {
    if (begin < r->region.begin || begin + bytes > r->region.end) continue;
    found = r;
    if (serves(node, r)) break;
  }
  return found;
}

tuttiResult_t tuttiIbBorrow(tuttiIbNode *node, const void *addr, size_t bytes, tuttiIbRegion **r) {
  tuttiRegion found;
  tuttiIbForgetRegions(node);
  *r = holding(node, (uintptr_t)addr, bytes);
  if (!*r && node->gdr.reaching == 0 && tuttiRegionFind(addr, bytes, &found)) {
    TUTTI_NEW(*r, 1, "a registration", node->view->memory);
    **r = (tuttiIbRegion){.region = found, .uses = 1};
    registerRegion(node, *r);
    TUTTI_LOCKED(&node->regionLock);
    TUTTI_LINK(node->regions, *r);
  }
  if (*r && !serves(node, *r)) *r = NULL;
  if (*r) (*r)->uses++;
  return tuttiSuccess;
}
