/* GPUDirect RDMA: the memory of the GPU that the NICs read and write, whether they really can, and
 * when what they have written may be looked at.
 *
 * Each rail has a queue pair that is connected to itself. At init a pattern goes by it from one
 * place of the GPU's memory to another: the NIC reads and writes there as it will for peers, so a
 * peer memory module, an IOMMU or ACS that breaks this shows before any data are at risk. Later a
 * read over it is the flush: what the NIC has written before is then there for kernels, too.
 *
 * The rank's GPU memory is one slab, made before any kernel runs, for an allocation could wait for
 * kernels that wait for this rank. Each connection takes a block of it for its payloads. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/ib/endpoint.h"

#define CHECK_BYTES 65536
#define CHECK_MS    5000       /* a rail that is no faster than that is of no use */
#define LOOK_NS     1000000u   /* between looks at a check */
#define REVIVE_NS   100000000u /* between new queue pairs of a rail with itself */
#define FLUSH_MS    1000       /* one that takes longer has lost its completion */

static bool settingIs(tuttiSettingId id, const char *word) {
  return strcmp(tuttiSettingString(id), word) == 0;
}

/* Then nothing is staged but by TUTTI_NET_GDR_READ=0: auto is no reason, and what goes without
 * fails in tuttiNetWithoutGdr. */
static bool isRequired(void) {
  return settingIs(TUTTI_SETTING_NET_GDR, "require");
}

/* ---- the queue pair of a rail with itself -----------------------------------------------------
 */

/* NULL, or the call that failed with errno `*err`. To be closed also then. */
static const char *openLoop(tuttiIbNode *node, tuttiIbRail *rail, int *err) {
  const char *call = "ibv_create_cq";
  uint32_t noInline = 0;
  rail->loopCq = tuttiVerbs.createCq(rail->context, TUTTI_IB_SENDS, NULL, NULL, 0);
  *err = errno;
  if (!rail->loopCq) return call;
  *err = tuttiIbQueuePairCreate(rail, rail->loopCq, node->pkey,
                                IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, &rail->loop,
                                &noInline, &call);
  if (*err || !rail->loop) return call;
  const tuttiIbPort *port = &rail->port;
  tuttiIbRemote self = {.mtu = (enum ibv_mtu)port->mtu, .qpn = rail->loop->qp_num};
  *err = ENODEV; /* it has lost its address */
  if (!tuttiIbAddress(rail, &port->gids[0], port, &port->gids[0], 0, &self.address))
    return "the look for its GID";
  *err = tuttiIbQueuePairReceive(rail->loop, &self);
  if (*err) return "ibv_modify_qp to RTR";
  rail->ordered = tuttiIbOrdered(rail->loop);
  *err = tuttiIbQueuePairSend(rail->loop, 0);
  return *err ? "ibv_modify_qp to RTS" : NULL;
}

static void closeLoop(tuttiIbRail *rail) {
  if (rail->loop) tuttiVerbs.destroyQp(rail->loop);
  if (rail->loopCq) tuttiVerbs.destroyCq(rail->loopCq);
  rail->loop = NULL;
  rail->loopCq = NULL;
}

/* One request to itself, with a completion: `bytes` between `local`, which is in `mr`, and `at` of
 * the memory of GPUs. Returns an errno. */
static int postLoop(tuttiIbRail *rail, enum ibv_wr_opcode opcode, void *local,
                    const struct ibv_mr *mr, void *at, uint32_t bytes) {
  rail->loopPosted++;
  struct ibv_sge sge = {(uintptr_t)local, bytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = rail->loopPosted,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = opcode,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr.rdma = {(uintptr_t)at, rail->probe->rkey}},
                     *bad;
  return rail->loop ? ibv_post_send(rail->loop, &wr, &bad) : ENODEV;
}

/* As ibv_poll_cq of one completion: that of the request that was posted last, and so of all before
 * it, or one that has failed. Others say nothing: a device may repeat what it has said of an
 * earlier one. */
static int pollLoop(tuttiIbRail *rail, struct ibv_wc *wc) {
  int n;
  do {
    n = ibv_poll_cq(rail->loopCq, 1, wc);
  } while (n > 0 && wc->status == IBV_WC_SUCCESS && wc->wr_id != rail->loopPosted);
  return n;
}

/* Reads a byte of the GPU's memory, behind all that the NIC has written. */
static int postFlush(tuttiIbNode *node, tuttiIbRail *rail) {
  return postLoop(rail, IBV_WR_RDMA_READ, node->gdr.flushByte, rail->flushMr,
                  node->gdr.probe.memory, 1);
}

/* ---- registration ---------------------------------------------------------------------------- */

/* For all that a rail does with the rank's own GPU. */
static struct ibv_mr *registerOwn(const tuttiIbRail *rail, const tuttiGpuMemory *m, bool relaxed) {
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  return tuttiIbRegisterGpu(rail, m, access, relaxed);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Waits for one completion. NULL, or why it is none of success. */
static const char *awaitLoop(tuttiIbRail *rail) {
  struct ibv_wc wc;
  uint64_t deadline = tuttiDeadline(CHECK_MS);
  while (tuttiNow() < deadline) {
    int n = pollLoop(rail, &wc);
    if (n < 0) return "its completion queue failed";
    if (n > 0) return wc.status == IBV_WC_SUCCESS ? NULL : tuttiVerbs.statusText(wc.status);
  }
  return "it does not complete";
}

/* The pattern of the check: no two words alike, and another one for each rail. */
static void fillPattern(uint64_t *pattern, uint64_t rail) {
  for (uint64_t i = 0; i < CHECK_BYTES / sizeof *pattern; i++)
    pattern[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ rail << 32;
}

/* Sends CHECK_BYTES through the NIC from `from`, which is in `mr`, to `to`, and reads a byte back.
 * NULL, or what is wrong. */
static const char *sendToItself(tuttiIbRail *rail, void *from, const struct ibv_mr *mr, uint8_t *to,
                                uint8_t *byte) {
  if (postLoop(rail, IBV_WR_RDMA_WRITE, from, mr, to, CHECK_BYTES)) return "it cannot be asked to";
  const char *why = awaitLoop(rail);
  if (why) return why;
  if (postLoop(rail, IBV_WR_RDMA_READ, byte, rail->flushMr, to, 1))
    return "it cannot be asked to read";
  return awaitLoop(rail);
}

tuttiResult_t tuttiIbGdrCheckFrom(tuttiIbNode *node, tuttiIbRail *rail, const tuttiGpuMemory *from,
                                  const struct ibv_mr *mr, const char **why) {
  const tuttiGpuMemory *probe = &node->gdr.probe;
  TUTTI_FRESH(uint64_t, pattern, 2 * CHECK_BYTES / sizeof(uint64_t), "a pattern", NULL);
  uint64_t *back = pattern + CHECK_BYTES / sizeof *pattern;
  fillPattern(pattern, (uint64_t)(rail - node->rails));
  TUTTI_TRY(tuttiGpuWrite(from, 0, pattern, CHECK_BYTES));
  TUTTI_TRY(tuttiGpuWrite(probe, CHECK_BYTES, back, CHECK_BYTES)); /* zeros */
  *why = sendToItself(rail, from->memory, mr, (uint8_t *)probe->memory + CHECK_BYTES,
                      node->gdr.flushByte);
  if (*why) return tuttiSuccess;
  TUTTI_TRY(tuttiGpuRead(probe, CHECK_BYTES, back, CHECK_BYTES));
  if (memcmp(pattern, back, CHECK_BYTES) != 0) *why = "the data that come out are wrong";
  return tuttiSuccess;
}

/* ---- which rails ------------------------------------------------------------------------------
 */

/* GPU memory for the check and the flush, and host memory for a byte of it. */
static tuttiResult_t makeProbe(tuttiIbNode *node, int device) {
  if (node->gdr.probe.memory) return tuttiSuccess;
  TUTTI_TRY(tuttiGpuAlloc(node->view->rank, device, 2 * CHECK_BYTES, &node->gdr.probe));
  TUTTI_NEW(node->gdr.flushByte, 1, "a byte to flush into", node->view->memory);
  node->gdr.flushes = settingIs(TUTTI_SETTING_NET_GDR_FLUSH, "auto")
                          ? tuttiGpuNeedsFlush(device)
                          : settingIs(TUTTI_SETTING_NET_GDR_FLUSH, "on");
  return tuttiSuccess;
}

/* Registers what check and flush need; false: the sentence says what was refused. */
static bool registerProbe(tuttiIbNode *node, tuttiIbRail *rail, char why[TUTTI_GDR_SENTENCE]) {
  rail->probe = registerOwn(rail, &node->gdr.probe, false);
  if (rail->probe)
    rail->flushMr = tuttiVerbs.regMr(rail->pd, node->gdr.flushByte, 1, IBV_ACCESS_LOCAL_WRITE);
  if (!rail->flushMr)
    snprintf(why, TUTTI_GDR_SENTENCE, "the device does not register memory of the %s: %s",
             rail->probe ? "host" : "GPU", tuttiErrnoText(errno));
  return rail->flushMr != NULL;
}

static void brokenText(const char *wrong, char why[TUTTI_GDR_SENTENCE]) {
  snprintf(why, TUTTI_GDR_SENTENCE,
           "a pattern sent through it to GPU memory and back does not arrive: %s; reload "
           "nvidia_peermem, boot with iommu=pt, switch off ACS on the bridges between them",
           wrong);
}

/* Whether the rail reaches the GPU. The sentence says why it does not. */
static tuttiResult_t tryRail(tuttiIbNode *node, tuttiIbRail *rail, bool *works,
                             char why[TUTTI_GDR_SENTENCE]) {
  const char *wrong = NULL;
  int err = 0;
  *works = false;
  if (!registerProbe(node, rail, why)) return tuttiSuccess;
  const char *call = openLoop(node, rail, &err);
  if (call) {
    snprintf(why, TUTTI_GDR_SENTENCE, "%s failed: %s", call, tuttiErrnoText(err));
    return tuttiSuccess;
  }
  if (tuttiSettingInt(TUTTI_SETTING_NET_GDR_CHECK))
    TUTTI_TRY(tuttiIbGdrCheckFrom(node, rail, &node->gdr.probe, rail->probe, &wrong));
  if (wrong) brokenText(wrong, why);
  *works = !wrong;
  return tuttiSuccess;
}

void tuttiIbGdrDrop(tuttiIbRail *rail) {
  closeLoop(rail);
  if (rail->probe) tuttiVerbs.deregMr(rail->probe);
  if (rail->flushMr) tuttiVerbs.deregMr(rail->flushMr);
  rail->probe = rail->flushMr = NULL;
}

static void warnBroken(const tuttiIbRail *rail, const char *why) {
  TUTTI_WARN(NET, "NET/IB: " TUTTI_IB_GDR_BROKEN, rail->port.device, rail->port.port, why);
}

static tuttiResult_t decide(tuttiIbNode *node, const tuttiPeer *mine, tuttiIbRail *rail,
                            tuttiGdr *answer) {
  const tuttiCommView *v = node->view;
  char why[TUTTI_GDR_SENTENCE];
  rail->dmabuf = v->dmabuf && tuttiSettingInt(TUTTI_SETTING_DMABUF_ENABLE) && tuttiIbDmabuf(rail);
  tuttiGdrQuestion q = {.gpu = mine->busId,
                        .nic = rail->port.device,
                        .level = tuttiSettingString(TUTTI_SETTING_NET_GDR_LEVEL),
                        .read = isRequired() && settingIs(TUTTI_SETTING_NET_GDR_READ, "auto")
                                    ? "1"
                                    : tuttiSettingString(TUTTI_SETTING_NET_GDR_READ),
                        .able = v->gdr,
                        .dmabuf = rail->dmabuf,
                        .preAmpere = v->preAmpere};
  tuttiGdrAnswer decided = tuttiGdrDecide(v->topology, "/sys", &q, why);
  *answer = decided.write;
  rail->reads = (uint8_t)decided.read;
  TUTTI_INFO(NET, "NET/IB: %s", why);
  if (*answer == TUTTI_GDR_YES && !rail->port.up) *answer = TUTTI_GDR_DOWN;
  if (*answer != TUTTI_GDR_YES) return tuttiSuccess;
  bool works;
  TUTTI_TRY(makeProbe(node, mine->cudaDevice));
  TUTTI_TRY(tryRail(node, rail, &works, why));
  if (works) return tuttiSuccess;
  *answer = TUTTI_GDR_BROKEN;
  if (!tuttiIbRailGone(rail)) warnBroken(rail, why);
  tuttiIbGdrDrop(rail);
  return tuttiSuccess;
}

/* Puts the answer into the port, and with it the one about reads. */
static void setAnswer(tuttiIbRail *rail, tuttiGdr answer) {
  rail->port.gdr = (uint8_t)answer;
  rail->port.gdrRead = answer == TUTTI_GDR_YES ? rail->reads : (uint8_t)answer;
}

static int railsThatReach(const tuttiIbNode *node) {
  int n = 0;
  for (int i = 0; i < node->nrails; i++)
    n += node->rails[i].port.gdr == TUTTI_GDR_YES;
  return n;
}

/* Rails that are too far from the GPU, for when no nearer one is left, and those that are to be
 * checked when their ports come up. It is no trouble if one can't. */
static tuttiResult_t keepReserve(tuttiIbNode *node) {
  char why[TUTTI_GDR_SENTENCE];
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbRail *rail = &node->rails[i];
    bool works = false, far = rail->port.gdr == TUTTI_GDR_FAR && rail->port.up;
    if (!far && rail->port.gdr != TUTTI_GDR_DOWN) continue;
    if (far)
      TUTTI_TRY(tryRail(node, rail, &works, why));
    else
      works = rail->late = registerProbe(node, rail, why);
    if (works) continue;
    TUTTI_INFO(NET, "NET/IB: no reserve for GPUDirect RDMA: %s port %u, %s", rail->port.device,
               rail->port.port, why);
    tuttiIbGdrDrop(rail);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiIbGdrOpen(tuttiIbNode *node, const tuttiPeer *mine) {
  bool off = settingIs(TUTTI_SETTING_NET_GDR, "off");
  for (int i = 0; i < node->nrails; i++) {
    tuttiGdr answer = off ? TUTTI_GDR_OFF : TUTTI_GDR_NOT_ASKED;
    if (tuttiPeerGpu(mine) < 0)
      answer = TUTTI_GDR_NOT_ASKED;
    else if (!off)
      TUTTI_TRY(decide(node, mine, &node->rails[i], &answer));
    setAnswer(&node->rails[i], answer);
  }
  return railsThatReach(node) ? keepReserve(node) : tuttiSuccess;
}

/* ---- trying without a communicator --------------------------------------------------------------
 */

tuttiResult_t tuttiIbGpuTry(tuttiIbNode *node, tuttiIbRail *rail, int device, bool *works,
                            char why[TUTTI_GDR_SENTENCE]) {
  TUTTI_TRY(makeProbe(node, device));
  tuttiResult_t result = tryRail(node, rail, works, why);
  tuttiIbGdrDrop(rail);
  return result;
}

tuttiResult_t tuttiIbHostTry(tuttiIbNode *node, tuttiIbRail *rail, bool *works,
                             char why[TUTTI_GDR_SENTENCE]) {
  const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  TUTTI_FRESH(uint64_t, memory, 2 * CHECK_BYTES / sizeof(uint64_t) + 1, "a pattern", NULL);
  uint8_t *bytes = (uint8_t *)memory;
  const char *call = NULL, *wrong = NULL;
  int err = 0;
  *works = false;
  fillPattern(memory, (uint64_t)(rail - node->rails));
  rail->probe = tuttiVerbs.regMr(rail->pd, memory, 2 * CHECK_BYTES, (int)access);
  rail->flushMr =
      rail->probe ? tuttiVerbs.regMr(rail->pd, bytes + 2 * CHECK_BYTES, 1, IBV_ACCESS_LOCAL_WRITE)
                  : NULL;
  if (!rail->flushMr) {
    err = errno;
    call = "ibv_reg_mr";
  } else {
    call = openLoop(node, rail, &err);
  }
  if (!call)
    wrong = sendToItself(rail, bytes, rail->probe, bytes + CHECK_BYTES, bytes + 2 * CHECK_BYTES);
  if (!call && !wrong && memcmp(bytes, bytes + CHECK_BYTES, CHECK_BYTES) != 0)
    wrong = "the data that come out are wrong";
  tuttiIbGdrDrop(rail);
  if (call)
    snprintf(why, TUTTI_GDR_SENTENCE, "%s failed: %s", call, tuttiErrnoText(err));
  else if (wrong)
    snprintf(why, TUTTI_GDR_SENTENCE,
             "a pattern sent through it from host memory to host memory does not arrive: %s",
             wrong);
  *works = !call && !wrong;
  return tuttiSuccess;
}

/* ---- the slab -------------------------------------------------------------------------------- */

/* The rail does not what it should. */
static tuttiResult_t railWithoutGdr(const tuttiIbNode *node, const tuttiIbRail *rail,
                                    const char *why) {
  char what[256];
  snprintf(what, sizeof what, "%s port %u does no GPUDirect RDMA: %s", rail->port.device,
           rail->port.port, why);
  return tuttiNetWithoutGdr(node->view, what);
}

/* Those that are near enough, and the connections of which others carry: it is at their expense. */
static tuttiResult_t findBrokenRail(const tuttiIbNode *node) {
  for (int i = 0; i < node->nrails; i++) {
    const tuttiIbRail *rail = &node->rails[i];
    bool should = rail->port.gdr == TUTTI_GDR_BROKEN || rail->port.gdr == TUTTI_GDR_DETOUR;
    if (should && !rail->gone)
      TUTTI_TRY(railWithoutGdr(node, rail, tuttiGdrClauses[rail->port.gdr]));
  }
  return tuttiSuccess;
}

/* Registers the slab with the rails that reach the GPU, and those in reserve that take it; false:
 * one of the former, *refused, did not take it, or their devices have all gone. */
static bool registerSlab(tuttiIbNode *node, const tuttiIbRail **refused) {
  tuttiIbGdr *g = &node->gdr;
  bool any = false;
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbRail *rail = &node->rails[i];
    if (!rail->probe) continue;
    g->slab.mr[i] = registerOwn(rail, &g->slab.memory, g->relaxed);
    any |= g->slab.mr[i] != NULL;
    g->reaching |= g->slab.mr[i] ? 1u << i : 0;
    if (g->slab.mr[i]) continue;
    int err = errno;
    if (tuttiIbRailGone(rail)) {
      tuttiIbRailLost(node, rail, TUTTI_IB_SILENT);
      continue;
    }
    if (rail->port.gdr != TUTTI_GDR_YES) {
      rail->late = false;
      tuttiIbGdrDrop(rail);
      continue;
    }
    TUTTI_WARN(NET,
               "NET/IB: %s port %u refused %zu bytes of GPU memory (%s), so payloads are staged in "
               "host memory; lower TUTTI_NET_GDR_SLAB, or enlarge the GPU's BAR1 (nvidia-smi -q)",
               rail->port.device, rail->port.port, g->slab.memory.bytes, tuttiErrnoText(err));
    *refused = rail;
    return false;
  }
  return any;
}

bool tuttiIbGdrOrdered(const tuttiIbNode *node) {
  bool ordered = true;
  for (int i = 0; i < node->nrails; i++)
    ordered &= !node->rails[i].probe || node->rails[i].late || node->rails[i].ordered;
  return ordered;
}

/* Whether all that receive in the slab ask for immediates: see wantsImmediates in meet.c. */
static bool slabIsTold(const tuttiIbNode *node) {
  bool automatic = settingIs(TUTTI_SETTING_IB_ORDER, "auto");
  return tuttiIbHostTold() || (automatic && !tuttiIbGdrOrdered(node));
}

/* Most that the slab may have. */
static size_t slabBytes(const tuttiIbNode *node) {
  size_t most = (size_t)tuttiSettingInt(TUTTI_SETTING_NET_GDR_SLAB), lent = tuttiIbPxnLent(node),
         left = node->gpuLeft > lent ? (node->gpuLeft - lent) / TUTTI_GPU_UNIT * TUTTI_GPU_UNIT : 0;
  return left < most ? left : most;
}

static tuttiResult_t slabWithoutRoom(const tuttiIbNode *node) {
  const char *why =
      node->gpuLeft == SIZE_MAX
          ? "TUTTI_NET_GDR_SLAB has no room for one connection: raise it"
          : "TUTTI_NET_GDR_SLAB or TUTTI_MEM_LIMIT leaves no room for one connection: raise it";
  TUTTI_TRY(tuttiNetWithoutGdr(node->view, why));
  TUTTI_WARN(NET, "NET/IB: payloads are staged in host memory: %s", why);
  return tuttiSuccess;
}

tuttiResult_t tuttiIbGdrAttach(tuttiIbNode *node, int npeers) {
  const tuttiCommView *v = node->view;
  tuttiIbGdr *g = &node->gdr;
  int gpu = tuttiPeerGpu(&v->peers[v->rank]);
  if (npeers == 0 || gpu < 0) return tuttiSuccess;
  const tuttiIbRail *refused = NULL;
  TUTTI_TRY(findBrokenRail(node));
  if (railsThatReach(node) == 0) return tuttiNetWithoutGdr(v, TUTTI_NET_NO_NIC);
  for (int i = 0; i < node->nrails; i++)
    g->sends |= node->rails[i].port.gdrRead == TUTTI_GDR_YES;
  size_t each = TUTTI_FIFO_DEPTH * v->slotBytes, most = slabBytes(node) / each,
         wanted = (g->sends ? 2 : 1) * (size_t)(v->nchannels + 1 + (v->rmaContexts > 0)) *
                  (size_t)npeers,
         n = wanted < most ? wanted : most;
  if (n == 0) return slabWithoutRoom(node);
  TUTTI_TRY(tuttiGpuAlloc(v->rank, gpu, n * each, &g->slab.memory));
  TUTTI_TRY(tuttiIbSlabDivide(node, &g->slab, (int)n, each));
  g->relaxed = tuttiIbRelaxes(slabIsTold(node));
  if (!registerSlab(node, &refused)) {
    g->reaching = 0;
    tuttiIbSlabDrop(&g->slab);
    return refused ? railWithoutGdr(node, refused, "it did not take the slab, see the warning")
                   : tuttiNetWithoutGdr(v, TUTTI_NET_NO_NIC);
  }
  TUTTI_INFO(NET,
             "NET/IB: GPUDirect RDMA by %d of %d ports, %d connections%s in %zu MiB of the GPU, %s",
             railsThatReach(node), node->nrails, g->slab.blocks.n,
             g->sends ? "" : " for what comes alone", g->slab.memory.bytes >> 20,
             g->flushes ? "flushed by a read" : "without a flush, which this GPU does not need");
  return tuttiSuccess;
}

int tuttiIbGdrRoom(const tuttiIbNode *node, int sends, int receives) {
  const tuttiIbGdr *g = &node->gdr;
  int wanted = receives + (g->sends ? sends : 0), n = g->slab.blocks.n;
  return wanted < n ? wanted : n;
}

/* For a connection there is no block. */
static tuttiResult_t connectionWithoutGdr(const tuttiIbNode *node, const tuttiConn *conn) {
  char what[256];
  snprintf(what, sizeof what,
           "its connection %s rank %d, channel %d, finds none of the %d blocks of GPU memory free: "
           "raise TUTTI_NET_GDR_SLAB",
           conn->direction == TUTTI_SEND ? "to" : "from", conn->peer, conn->channel,
           node->gdr.slab.blocks.n);
  return tuttiNetWithoutGdr(node->view, what);
}

tuttiResult_t tuttiIbGdrTake(tuttiIbNode *node, const tuttiConn *conn, uint8_t **block) {
  tuttiIbGdr *g = &node->gdr;
  const tuttiCommView *v = node->view;
  *block = NULL;
  if (tuttiPeerGpu(&v->peers[v->rank]) < 0) return tuttiSuccess;
  if (conn->direction == TUTTI_SEND && g->slab.blocks.n > 0 && !g->sends) return tuttiSuccess;
  *block = tuttiBlocksTake(&g->slab.blocks, 1);
  if (*block) return tuttiSuccess;
  TUTTI_TRY(connectionWithoutGdr(node, conn));
  if (g->slab.blocks.n > 0 && !g->full)
    TUTTI_WARN(NET,
               "NET/IB: all %d blocks of GPU memory are taken: more connections are staged in host "
               "memory; raise TUTTI_NET_GDR_SLAB",
               g->slab.blocks.n);
  g->full = g->slab.blocks.n > 0;
  return tuttiSuccess;
}

/* ---- ports that come up later ------------------------------------------------------------------
 *
 * By then kernels may wait for this rank, so nothing is asked of CUDA: the pattern goes from host
 * memory to GPU memory and back. */

/* Begins with the rail's check. NULL, or the call that failed with errno `*err`. */
static const char *beginCheck(tuttiIbNode *node, tuttiIbRail *rail, int *err) {
  tuttiIbGdr *g = &node->gdr;
  uint8_t *gpu = (uint8_t *)g->probe.memory + CHECK_BYTES;
  g->check.rail = rail;
  const char *call = openLoop(node, rail, err);
  if (call) return call;
  *err = ENOMEM;
  if (tuttiAlloc((void **)&g->check.pattern, 2 * CHECK_BYTES / sizeof(uint64_t), sizeof(uint64_t),
                 "a pattern", NULL) != tuttiSuccess)
    return "malloc";
  uint64_t *back = g->check.pattern + CHECK_BYTES / sizeof *back;
  fillPattern(g->check.pattern, (uint64_t)(rail - node->rails));
  g->check.mr =
      tuttiVerbs.regMr(rail->pd, g->check.pattern, (size_t)2 * CHECK_BYTES, IBV_ACCESS_LOCAL_WRITE);
  *err = errno;
  if (!g->check.mr) return "ibv_reg_mr";
  *err = postLoop(rail, IBV_WR_RDMA_WRITE, g->check.pattern, g->check.mr, gpu, CHECK_BYTES);
  if (!*err) *err = postLoop(rail, IBV_WR_RDMA_READ, back, g->check.mr, gpu, CHECK_BYTES);
  g->check.by = tuttiDeadline(CHECK_MS);
  return *err ? "ibv_post_send" : NULL;
}

static void forgetCheck(tuttiIbNode *node) {
  tuttiIbGdr *g = &node->gdr;
  if (g->check.mr) tuttiVerbs.deregMr(g->check.mr);
  tuttiFree(g->check.pattern);
  memset(&g->check, 0, sizeof g->check);
}

/* The check has ended; `why`: NULL, or why the rail does not reach the GPU. */
static void endCheck(tuttiIbNode *node, const char *why) {
  tuttiIbRail *rail = node->gdr.check.rail;
  ptrdiff_t i = rail - node->rails;
  struct ibv_mr **slab = &node->gdr.slab.mr[i];
  rail->late = false;
  setAnswer(rail, why ? TUTTI_GDR_BROKEN : TUTTI_GDR_YES);
  node->mine.ports[i] = rail->port;
  node->changes++;
  if (why) {
    warnBroken(rail, why);
    closeLoop(rail);
    tuttiVerbs.deregMr(*slab);
    *slab = NULL;
    tuttiIbGdrDrop(rail);
  } else {
    TUTTI_WARN(NET, "NET/IB: %s port %u, which was down at init, does GPUDirect RDMA now",
               rail->port.device, rail->port.port);
  }
  forgetCheck(node);
}

/* Looks at the check under way. */
static void pollCheck(tuttiIbNode *node) {
  tuttiIbGdr *g = &node->gdr;
  tuttiIbRail *rail = g->check.rail;
  const char *wrong = NULL;
  char why[TUTTI_GDR_SENTENCE];
  struct ibv_wc wc;
  if (!rail->port.up) { /* it begins anew when that is back */
    closeLoop(rail);
    forgetCheck(node);
    return;
  }
  int n = pollLoop(rail, &wc);
  if (n == 0 && tuttiNow() < g->check.by) return;
  if (n <= 0)
    wrong = n ? "its completion queue failed" : "it does not complete";
  else if (wc.status != IBV_WC_SUCCESS)
    wrong = tuttiVerbs.statusText(wc.status);
  else if (memcmp(g->check.pattern, (uint8_t *)g->check.pattern + CHECK_BYTES, CHECK_BYTES) != 0)
    wrong = "the data that come out are wrong";
  if (wrong) brokenText(wrong, why);
  endCheck(node, wrong ? why : NULL);
}

void tuttiIbGdrCheckLate(tuttiIbNode *node, tuttiProxyTurn *turn) {
  char why[TUTTI_GDR_SENTENCE];
  int err = 0;
  for (int i = 0; i < node->nrails && !node->gdr.check.rail; i++) {
    tuttiIbRail *rail = &node->rails[i];
    if (!rail->late || !rail->port.up || !node->gdr.slab.mr[i]) continue;
    const char *call = beginCheck(node, rail, &err);
    if (!call) continue;
    snprintf(why, sizeof why, "%s failed: %s", call, tuttiErrnoText(err));
    if (tuttiIbRailGone(rail))
      tuttiIbRailLost(node, rail, TUTTI_IB_SILENT); /* which ends the check below */
    else
      endCheck(node, why);
  }
  if (!node->gdr.check.rail) return;
  pollCheck(node);
  tuttiProxyWakeBy(turn, tuttiNow() + LOOK_NS);
}

void tuttiIbGdrClose(tuttiIbNode *node) {
  forgetCheck(node);
  for (int i = 0; i < node->nrails; i++)
    tuttiIbGdrDrop(&node->rails[i]);
  tuttiIbSlabDrop(&node->gdr.slab);
  tuttiGpuFree(&node->gdr.probe);
  tuttiFree(node->gdr.flushByte);
  node->gdr.flushByte = NULL;
}

/* ---- the flush ------------------------------------------------------------------------------- */

/* Whether the rail can read back what it has written. One whose queue pair has failed gets another
 * when its port is up. */
static bool readsBack(tuttiIbNode *node, tuttiIbRail *rail) {
  int err;
  if (!rail->port.up) return false;
  if (!rail->loopBroken) return true;
  if (tuttiNow() < rail->loopRetry) return false;
  closeLoop(rail);
  rail->loopRetry = tuttiNow() + REVIVE_NS;
  rail->loopBroken = openLoop(node, rail, &err) != NULL;
  return !rail->loopBroken;
}

/* What a rail can't read back, as its port went down, say, the driver makes visible. A rail that
 * has no queue pairs left has nothing more to be flushed then. */
static tuttiResult_t flushByDriver(tuttiIbNode *node, tuttiIbRail *rail) {
  TUTTI_TRY(tuttiGpuFlush(node->gdr.probe.device));
  rail->carries = rail->qps > 0;
  return tuttiSuccess;
}

static tuttiResult_t startFlush(tuttiIbNode *node) {
  tuttiIbGdr *g = &node->gdr;
  g->posted++;
  g->flushBy = tuttiDeadline(FLUSH_MS);
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbRail *rail = &node->rails[i];
    if (!rail->carries) continue;
    if (readsBack(node, rail) && postFlush(node, rail) == 0)
      g->flushing |= 1u << i;
    else
      TUTTI_TRY(flushByDriver(node, rail));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiIbFlushAsk(tuttiIbNode *node, uint64_t *number) {
  tuttiIbGdr *g = &node->gdr;
  *number = g->asked =
      g->posted + 1; /* one that begins now or later: the one under way is too old */
  return g->done == g->posted ? startFlush(node) : tuttiSuccess;
}

tuttiResult_t tuttiIbFlushPoll(tuttiIbNode *node) {
  tuttiIbGdr *g = &node->gdr;
  struct ibv_wc wc;
  for (int i = 0; i < node->nrails && g->done < g->posted; i++) {
    tuttiIbRail *rail = &node->rails[i];
    if (!(g->flushing >> i & 1)) continue;
    int n = pollLoop(rail, &wc);
    if (n == 0 && rail->port.up && tuttiNow() < g->flushBy) continue;
    g->flushing &= ~(1u << i);
    rail->loopBroken = n <= 0 || wc.status != IBV_WC_SUCCESS;
    if (rail->loopBroken) TUTTI_TRY(flushByDriver(node, rail));
  }
  if (g->flushing || g->done == g->posted) return tuttiSuccess;
  g->done = g->posted;
  return g->asked > g->posted ? startFlush(node) : tuttiSuccess;
}
