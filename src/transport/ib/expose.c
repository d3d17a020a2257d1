/* NET/IB: windows of this rank that peers write to by themselves.
 *
 * A window is registered with all ports or with none. Its keys travel when the ranks make it; a
 * peer whose queue pairs have no key for one of its ports writes into slots, as to a rank that
 * registered nothing. All of this is done by the user's thread while the proxy runs, and so touches
 * nothing that the proxy changes: whether a device has gone, it asks the device. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "transport/ib/endpoint.h"

typedef struct {
  struct ibv_mr *mr[TUTTI_IB_PORTS];
} exposed;

/* False: it was refused by a device that is there, which is logged. */
static bool exposeBy(tuttiIbNode *node, int i, const tuttiGpuMemory *window, struct ibv_mr **mr) {
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const tuttiIbRail *rail = &node->rails[i];
  *mr = window->device >= 0 ? tuttiIbRegisterGpu(rail, window, access, node->gdr.relaxed)
                            : tuttiIbRegisterMr(rail, window->memory, window->bytes, access,
                                                tuttiIbRelaxes(tuttiIbHostTold()));
  if (*mr) return true;
  int err = errno;
  if (tuttiIbDeviceGone(rail)) return true;
  TUTTI_WARN(NET,
             "NET/IB: %s port %u refused a window of %zu bytes of %s memory (%s): what peers put "
             "there is copied; see the limit on locked memory (ulimit -l) and dmesg",
             rail->port.device, rail->port.port, window->bytes,
             window->device >= 0 ? "GPU" : "host", tuttiErrnoText(err));
  return false;
}

void tuttiIbWithdraw(void *node, void *it) {
  (void)node;
  exposed *x = it;
  tuttiIbDeregister(x->mr);
  tuttiFree(x);
}

void *tuttiIbExpose(void *self, void *base, size_t bytes, tuttiRmaKeys *keys) {
  tuttiIbNode *node = self;
  const tuttiCommView *v = node->view;
  int gpu = tuttiPeerGpu(&v->peers[v->rank]);
  tuttiGpuMemory window = {.memory = base, .bytes = bytes, .device = gpu};
  exposed *x;
  if (gpu >= 0 && node->gdr.slab.blocks.n == 0) return NULL;
  if (tuttiAlloc((void **)&x, 1, sizeof *x, "keys of a window", v->memory) != tuttiSuccess)
    return NULL;
  for (int i = 0; i < node->nrails && i < TUTTI_RMA_KEYS; i++)
    if (!exposeBy(node, i, &window, &x->mr[i])) {
      tuttiIbWithdraw(node, x);
      return NULL;
    }
  for (int i = 0; i < node->nrails && i < TUTTI_RMA_KEYS; i++)
    keys->key[i] = x->mr[i] ? x->mr[i]->rkey : 0;
  TUTTI_INFO(NET, "NET/IB: peers write to a window of %zu bytes by themselves", bytes);
  return x;
}
