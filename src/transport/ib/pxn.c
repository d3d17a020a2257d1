/* Messages that leave by the NIC beside another GPU of the host (wireup/pxn.h says which do).
 *
 * The payload slots of their connection lie in the memory of that GPU: the sender's kernel stores
 * there over NVLink, and the sender's own proxy posts from there. So the lender's rank has no part
 * in a call that is none of its own, and there is no second protocol: to the receiver it is a
 * sender with another port.
 *
 * Within a process the borrower allocates that memory itself. For another process the lender makes
 * it, hands over a descriptor of it and one of a dma-buf, and lets go: it lives as long as the
 * borrower has it, whatever becomes of the lender. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/ib/endpoint.h"
#include "transport/symmetric.h"

#define TRADE_MS 10000

/* The two descriptors of a loan, as the rounds of their labels. */
enum { MEMORY, DMABUF, DESCRIPTORS };

static bool elsewhere(const tuttiCommView *v, int rank) {
  return v->peers[rank].process != v->peers[v->rank].process;
}

/* Most that this rank lends to another, or borrows. Of what the limit leaves on its GPU half is for
 * loans, to as many ranks as may reach that. */
static size_t mostLent(const tuttiIbNode *node) {
  size_t most = (size_t)tuttiSettingInt(TUTTI_SETTING_PXN_SLAB), others = TUTTI_SYMMETRIC_LOCAL - 1;
  if ((size_t)node->view->nranks <= others) others = (size_t)node->view->nranks - 1;
  size_t share = node->gpuLeft / 2 / others / TUTTI_GPU_UNIT * TUTTI_GPU_UNIT;
  return share < most ? share : most;
}

void tuttiIbPxnOpen(tuttiIbNode *node, tuttiPeer *self) {
  const tuttiCommView *v = node->view;
  bool any = false;
  for (int i = 0; i < node->nrails; i++)
    any |= node->rails[i].port.gdrRead == TUTTI_GDR_YES;
  node->box.fd = -1;
  if (any && node->nrails > 1 && !tuttiSettingInt(TUTTI_SETTING_PXN_DISABLE))
    self->pxnBytes = mostLent(node);
  if (!self->pxnBytes || !v->dmabuf || !tuttiSettingInt(TUTTI_SETTING_DMABUF_ENABLE)) return;
  int err = tuttiFdBoxOpen(&node->box);
  if (err)
    TUTTI_INFO(NET, "NET/IB: no Unix socket for GPU memory of other processes: %s",
               tuttiErrnoText(err));
  else
    self->loans = node->box.address;
}

/* ---- the trade ------------------------------------------------------------------------------- */

/* Bytes of the memory by which this rank and `other` send to so many peers, one by way of the
 * other; 0: there is no room for a block. Both come to the same, by the smaller of their settings.
 */
static size_t loanBytes(const tuttiCommView *v, int other, int npeers, int *nblocks) {
  uint64_t own = v->peers[v->rank].pxnBytes, theirs = v->peers[other].pxnBytes;
  size_t each = TUTTI_FIFO_DEPTH * v->slotBytes, most = (own < theirs ? own : theirs) / each;
  *nblocks = (size_t)npeers < most ? npeers : (int)most;
  return ((size_t)*nblocks * each + TUTTI_GPU_UNIT - 1) / TUTTI_GPU_UNIT * TUTTI_GPU_UNIT;
}

size_t tuttiIbPxnLent(const tuttiIbNode *node) {
  const tuttiCommView *v = node->view;
  size_t bytes = 0;
  int nblocks;
  for (int r = 0; v->lends && r < v->nranks; r++)
    bytes += loanBytes(v, r, v->lends[r], &nblocks);
  return bytes;
}

static int peersBy(const tuttiCommView *v, int lender) {
  int n = 0;
  for (int r = 0; r < v->nranks; r++)
    n += v->pxn[r].lender == lender;
  return n;
}

/* What goes to the borrowers in other processes and comes from the lenders there. */
typedef struct {
  tuttiFdParcel *parcels;
  int n;
} trade;

/* A borrower for whom there is nothing gets descriptors of the box, which are of no memory. */
static void lendTo(const tuttiIbNode *node, int borrower, trade *t) {
  const tuttiCommView *v = node->view;
  int device = tuttiPeerGpu(&v->peers[v->rank]), nblocks;
  size_t bytes = loanBytes(v, borrower, v->lends[borrower], &nblocks);
  tuttiGpuLoan loan;
  if (bytes == 0) return;
  const char *why = tuttiGpuLend(device, bytes, &loan);
  if (why) TUTTI_INFO(NET, "NET/IB: no GPU memory to lend to rank %d: %s", borrower, why);
  const int fds[DESCRIPTORS] = {why ? node->box.fd : loan.memory, why ? node->box.fd : loan.dmabuf};
  for (uint32_t i = 0; i < DESCRIPTORS; i++)
    t->parcels[t->n++] = (tuttiFdParcel){
        .to = &v->peers[borrower].loans, .label = {v->rank, i}, .fd = fds[i], .open = true};
}

static void awaitFrom(int lender, trade *t) {
  for (uint32_t i = 0; i < DESCRIPTORS; i++)
    t->parcels[t->n++] = (tuttiFdParcel){.label = {lender, i}, .fd = -1, .open = true};
}

/* Hands over and takes what is to go and to come. */
static void carryOut(tuttiIbNode *node, trade *t) {
  const tuttiCommView *v = node->view;
  for (int r = 0; r < v->nranks; r++)
    if (v->lends[r] && elsewhere(v, r)) lendTo(node, r, t);
  for (int i = 0; i < node->nloans; i++)
    if (elsewhere(v, node->loans[i].lender)) awaitFrom(node->loans[i].lender, t);
  tuttiFdBoxTrade(&node->box, t->parcels, t->n, TRADE_MS, v->failed);
  for (int i = 0; i < t->n; i++) {
    tuttiFdParcel *p = &t->parcels[i];
    if (!p->to) continue;
    if (p->error || p->open)
      TUTTI_INFO(NET, "NET/IB: cannot hand over GPU memory that is lent: %s",
                 tuttiErrnoText(p->error ? p->error : ETIMEDOUT));
    if (p->fd != node->box.fd) close(p->fd);
  }
}

static void closeParcels(trade *t) {
  for (int i = 0; i < t->n; i++)
    if (!t->parcels[i].to) tuttiFdClose(&t->parcels[i].fd);
}

/* ---- borrowing ------------------------------------------------------------------------------- */

/* The descriptors that have come from the lender. NULL, or why they are of no use. */
static const char *cameFrom(const trade *t, int lender, int fds[DESCRIPTORS]) {
  fds[MEMORY] = fds[DMABUF] = -1;
  for (int i = 0; i < t->n; i++)
    if (!t->parcels[i].to && t->parcels[i].label.rank == lender)
      fds[t->parcels[i].label.round] = t->parcels[i].fd;
  struct stat st;
  if (fds[MEMORY] < 0 || fds[DMABUF] < 0) return "it was not handed over in time";
  return fstat(fds[MEMORY], &st) == 0 && S_ISSOCK(st.st_mode) ? "there is none, see that rank's log"
                                                              : NULL;
}

/* Whether the rail sends from the memory; `dmabuf`: of it, -1 within a process. */
static tuttiResult_t registerWith(tuttiIbNode *node, int i, tuttiIbLoan *loan, int dmabuf) {
  tuttiIbRail *rail = &node->rails[i];
  const tuttiGpuMemory *m = &loan->slab.memory;
  struct ibv_mr **mr = &loan->slab.mr[i];
  const char *wrong = NULL;
  bool relaxed = tuttiIbRelaxes(true); /* nobody writes there but the GPU */
  if (!rail->probe || rail->late) return tuttiSuccess;
  if (dmabuf < 0)
    *mr = tuttiIbRegisterGpu(rail, m, 0, relaxed);
  else if (rail->dmabuf)
    *mr = tuttiIbRegisterDmabuf(rail, 0, m->bytes, (uintptr_t)m->memory, dmabuf, 0, relaxed);
  int err = errno;
  if (!*mr && tuttiIbRailGone(rail)) {
    tuttiIbRailLost(node, rail, TUTTI_IB_SILENT);
    return tuttiSuccess;
  }
  if (!*mr)
    wrong = rail->dmabuf || dmabuf < 0 ? tuttiErrnoText(err) : "it takes no dma-bufs";
  else if (tuttiSettingInt(TUTTI_SETTING_NET_GDR_CHECK))
    TUTTI_TRY(tuttiIbGdrCheckFrom(node, rail, m, *mr, &wrong));
  if (!wrong) return tuttiSuccess;
  TUTTI_INFO(NET, "NET/IB: %s port %u does not send from the memory of rank %d's GPU: %s",
             rail->port.device, rail->port.port, loan->lender, wrong);
  if (*mr) tuttiVerbs.deregMr(*mr);
  *mr = NULL;
  return tuttiSuccess;
}

/* Within a process from that GPU itself. NULL, or why there is none. */
static const char *getMemory(const tuttiIbNode *node, const trade *t, tuttiIbLoan *loan,
                             size_t bytes, int fds[DESCRIPTORS]) {
  const tuttiCommView *v = node->view;
  tuttiGpuMemory *m = &loan->slab.memory;
  fds[MEMORY] = fds[DMABUF] = -1;
  if (!elsewhere(v, loan->lender)) {
    int gpu = tuttiPeerGpu(&v->peers[loan->lender]);
    return tuttiGpuAlloc(v->rank, gpu, bytes, m) == tuttiSuccess ? NULL : tuttiErrorText();
  }
  const char *why = cameFrom(t, loan->lender, fds);
  return why ? why : tuttiGpuBorrow(tuttiPeerGpu(&v->peers[v->rank]), fds[MEMORY], bytes, m);
}

/* Whether all rails are there by which messages leave from that memory. */
static bool servesWays(const tuttiIbNode *node, const tuttiIbLoan *loan) {
  const tuttiCommView *v = node->view;
  bool all = true;
  for (int r = 0; r < v->nranks; r++)
    if (v->pxn[r].lender == loan->lender) all &= loan->slab.mr[v->pxn[r].rail.port[0]] != NULL;
  return all;
}

static tuttiResult_t borrow(tuttiIbNode *node, const trade *t, tuttiIbLoan *loan) {
  const tuttiCommView *v = node->view;
  int fds[DESCRIPTORS], nblocks;
  size_t bytes = loanBytes(v, loan->lender, peersBy(v, loan->lender), &nblocks);
  const char *why = getMemory(node, t, loan, bytes, fds);
  if (!why) {
    TUTTI_TRY(tuttiIbSlabDivide(node, &loan->slab, nblocks, TUTTI_FIFO_DEPTH * v->slotBytes));
    for (int i = 0; i < node->nrails; i++)
      TUTTI_TRY(registerWith(node, i, loan, fds[DMABUF]));
    if (!servesWays(node, loan)) why = "the NIC beside it does not send from there";
  }
  if (why) {
    TUTTI_WARN(NET, "NET/IB: messages do not go by way of rank %d's GPU: %s", loan->lender, why);
    tuttiIbSlabDrop(&loan->slab);
    tuttiErrorClear();
    return tuttiSuccess;
  }
  TUTTI_INFO(NET, "NET/IB: %d connections by way of rank %d's GPU, in %zu MiB of its memory",
             nblocks, loan->lender, bytes >> 20);
  return tuttiSuccess;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* An entry for each rank by whose GPU messages of this one go. */
static tuttiResult_t listLoans(tuttiIbNode *node) {
  const tuttiCommView *v = node->view;
  TUTTI_NEW(node->loans, v->nranks, "memory of other GPUs", v->memory);
  for (int r = 0; r < v->nranks; r++) {
    int npeers = peersBy(v, r), nblocks;
    if (npeers == 0) continue;
    if (loanBytes(v, r, npeers, &nblocks) > 0)
      node->loans[node->nloans++].lender = r;
    else
      TUTTI_INFO(NET,
                 "NET/IB: no messages by way of the GPU of rank %d: TUTTI_PXN_SLAB or "
                 "TUTTI_MEM_LIMIT here or there leaves no room for one connection, %zu KiB",
                 r, TUTTI_FIFO_DEPTH * v->slotBytes >> 10);
  }
  return tuttiSuccess;
}

static tuttiResult_t makeLoans(tuttiIbNode *node) {
  const tuttiCommView *v = node->view;
  TUTTI_TRY(listLoans(node));
  TUTTI_FRESH(tuttiFdParcel, parcels, DESCRIPTORS * 2 * (size_t)v->nranks, "loans of memory", NULL);
  trade t = {.parcels = parcels};
  carryOut(node, &t);
  tuttiResult_t result = tuttiSuccess;
  for (int i = 0; i < node->nloans && result == tuttiSuccess; i++)
    result = borrow(node, &t, &node->loans[i]);
  closeParcels(&t);
  return result;
}

tuttiResult_t tuttiIbPxnAttach(tuttiIbNode *node) {
  const tuttiCommView *v = node->view;
  tuttiResult_t result = v->pxn ? makeLoans(node) : tuttiSuccess;
  if (node->box.address.id) tuttiFdBoxClose(&node->box); /* nothing else will come */
  return result;
}

void tuttiIbPxnClose(tuttiIbNode *node) {
  for (int i = 0; i < node->nloans; i++)
    tuttiIbSlabDrop(&node->loans[i].slab);
  tuttiFree(node->loans);
  node->loans = NULL;
  node->nloans = 0;
  if (node->box.address.id) tuttiFdBoxClose(&node->box);
}

uint8_t *tuttiIbPxnTake(tuttiIbNode *node, const tuttiConn *conn) {
  const tuttiCommView *v = node->view;
  if (!v->pxn || conn->direction != TUTTI_SEND || conn->channel != TUTTI_P2P_CHANNEL) return NULL;
  for (int i = 0; i < node->nloans; i++)
    if (node->loans[i].lender == v->pxn[conn->peer].lender)
      return tuttiBlocksTake(&node->loans[i].slab.blocks, 1);
  return NULL;
}

tuttiIbLoan *tuttiIbPxnLoanOf(const tuttiIbNode *node, const uint8_t *block) {
  for (int i = 0; i < node->nloans; i++)
    if (tuttiBlocksHave(&node->loans[i].slab.blocks, block)) return &node->loans[i];
  return NULL;
}
