/* The ports of the RDMA devices: their state, their addresses, one beside the other, and what their
 * counters tell. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/view.h"

typedef struct {
  const tuttiView *v;
  tuttiFindings *f;
  int active;  /* ports that are up and may be used */
  int waiting; /* ports that only a subnet manager is missing for */
} examination;

/* Calls `check` for each port that may be used. */
static void forPorts(const examination *x,
                     void (*check)(const examination *x, const tuttiViewNic *nic,
                                   const tuttiViewPort *port)) {
  for (int i = 0; i < x->v->nnics; i++)
    for (int p = 0; p < x->v->nics[i].nports; p++)
      if (x->v->nics[i].ports[p].allowed) check(x, &x->v->nics[i], &x->v->nics[i].ports[p]);
}

static bool isActive(const tuttiViewPort *port) {
  return port->allowed && port->state == TUTTI_PORT_ACTIVE;
}

static bool isWaiting(const tuttiViewPort *port) {
  return port->allowed && !port->ethernet &&
         (port->state == TUTTI_PORT_INIT || port->state == TUTTI_PORT_ARMED);
}

/* ---- state ---------------------------------------------------------------------------------- */

/* A GPU that has this NIC below its PCIe switches, and no other there that is up. */
static bool isMissed(const tuttiView *v, const tuttiViewNic *nic) {
  int number = (int)(nic - v->nics);
  for (int g = 0; g < v->ngpus; g++) {
    int other = tuttiViewNearest(v, g, true);
    if (!v->gpus[g].driven || tuttiViewPairOf(v, g, number)->apart > TUTTI_DISTANCE_PXB) continue;
    if (other < 0 || tuttiViewPairOf(v, g, other)->apart > TUTTI_DISTANCE_PXB) return true;
  }
  return false;
}

static const char *downText(const tuttiViewPort *port) {
  if (port->phys == TUTTI_PHYS_DISABLED) return "it is switched off";
  if (port->phys == TUTTI_PHYS_POLLING)
    return "nothing answers at the other end: see to the cable, and to the switch's port";
  return port->phys == TUTTI_PHYS_LINKED ? "the link is there, and the interface is down"
                                         : "it has no link";
}

static void downCommand(const tuttiViewPort *port, char *command, size_t size) {
  if (port->ethernet && port->net[0])
    snprintf(command, size, "sudo ip link set %s up", port->net);
  else
    snprintf(command, size, "ibstat %s %d", port->rail.device, port->number);
}

static void checkState(const examination *x, const tuttiViewNic *nic, const tuttiViewPort *port) {
  char command[96];
  if (isActive(port)) return;
  if (isWaiting(port)) {
    tuttiFind(
        x->f, TUTTI_FOUND_FAILURE, "nic.subnet", port->text, "sudo systemctl start opensm",
        "its link is up and it waits for a subnet manager to give it a LID: none runs in this "
        "InfiniBand fabric, or it does not answer");
    return;
  }
  downCommand(port, command, sizeof command);
  if (x->active + x->waiting == 0)
    tuttiFind(x->f, TUTTI_FOUND_FAILURE, "nic.down", port->text, command,
              TUTTI_IB_NONE_ACTIVE ": %s", nic->name, TUTTI_IB_OTHERS(x->v->nnics), downText(port));
  else if (!tuttiViewNicUp(nic) && isMissed(x->v, nic))
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.down", port->text, command,
              "it is down, and a GPU has no other NIC near: %s", downText(port));
  else
    tuttiFind(x->f, TUTTI_FOUND_NOTE, "nic.down", port->text, command, "it is down: %s",
              downText(port));
}

/* ---- addresses ------------------------------------------------------------------------------ */

static void checkAddress(const examination *x, const tuttiViewNic *nic, const tuttiViewPort *port) {
  bool reaches = false, routable = false;
  char command[96];
  (void)nic;
  if (!isActive(port) || !port->ethernet) return;
  for (int i = 0; i < port->rail.ngids; i++) {
    reaches |= tuttiIbGidReaches(&port->rail.gids[i]);
    routable |= port->rail.gids[i].type == TUTTI_GID_ROCE2;
  }
  snprintf(command, sizeof command, "sudo ip addr add ADDRESS/PREFIX dev %s",
           port->net[0] ? port->net : "INTERFACE");
  if (!reaches && x->v->container && port->net[0] == '\0')
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.address", port->text, "docker run --network=host",
              "it has no address that peers could use: its interface is not in this container's "
              "network namespace");
  else if (!reaches)
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.address", port->text, command,
              "no row of its GID table has an address that peers could use (IPv4, or IPv6 that is "
              "not link-local): give its interface one");
  else if (!routable)
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.roce1", port->text, "show_gids",
              "its addresses are of RoCE v1 only, which no router passes on");
}

/* Whether a side of RoCE's congestion control is on for some priority; true where nobody says. */
static bool hasEcn(const tuttiView *v, const tuttiViewPort *port, const char *side) {
  char dir[128];
  bool told = false;
  snprintf(dir, sizeof dir, "sys/class/net/%.15s/ecn/%s/enable", port->net, side);
  for (char priority[2] = "0"; priority[0] < '8'; priority[0]++) {
    long on = tuttiMachineNumber(v->m, dir, priority, -1);
    if (on > 0) return true;
    told |= on == 0;
  }
  return !told;
}

static void checkEcn(const examination *x, const tuttiViewNic *nic, const tuttiViewPort *port) {
  char command[128];
  (void)nic;
  if (!isActive(port) || !port->ethernet || port->net[0] == '\0') return;
  if (hasEcn(x->v, port, "roce_np") && hasEcn(x->v, port, "roce_rp")) return;
  snprintf(command, sizeof command, "echo 1 | sudo tee /sys/class/net/%s/ecn/roce_{np,rp}/enable/3",
           port->net);
  tuttiFind(x->f, TUTTI_FOUND_NOTE, "nic.ecn", port->text, command,
            "its congestion control (ECN, DCQCN) is off for all priorities, so that a full switch "
            "pauses or drops what it sends");
}

/* ---- one beside the other ------------------------------------------------------------------- */

/* Of one board and one kind of link: they should be alike. */
static bool areAlike(const tuttiViewNic *a, const tuttiViewPort *p, const tuttiViewNic *b,
                     const tuttiViewPort *q) {
  return isActive(q) && a->board[0] && strcmp(a->board, b->board) == 0 &&
         p->ethernet == q->ethernet;
}

static void checkBeside(const examination *x, const tuttiViewNic *nic, const tuttiViewPort *port) {
  const tuttiViewPort *fastest = port, *largest = port;
  char command[96];
  if (!isActive(port)) return;
  for (int i = 0; i < x->v->nnics; i++) {
    const tuttiViewNic *other = &x->v->nics[i];
    for (int p = 0; p < other->nports; p++) {
      const tuttiViewPort *q = &other->ports[p];
      if (!areAlike(nic, port, other, q)) continue;
      if (q->gigabits > fastest->gigabits) fastest = q;
      if (q->mtu > largest->mtu) largest = q;
    }
  }
  if (fastest->gigabits > port->gigabits && port->gigabits > 0) {
    snprintf(command, sizeof command, "ibstat %s %d", port->rail.device, port->number);
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.rate", port->text, command,
              "its link runs at %s, where others of the same board run at %s: see to the cable and "
              "the switch's port",
              port->rate, fastest->rate);
  }
  if (largest->mtu > port->mtu && port->mtu > 0) {
    snprintf(command, sizeof command, "sudo ip link set %s mtu %ld", port->net, largest->mtu);
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.mtu", port->text, command,
              "the MTU of its interface is %ld, where others of the same board have %ld", port->mtu,
              largest->mtu);
  } else if (port->ethernet && nic->physical && port->mtu > 0 && port->mtu < 4200) {
    snprintf(command, sizeof command, "sudo ip link set %s mtu 9000", port->net);
    tuttiFind(
        x->f, TUTTI_FOUND_NOTE, "nic.mtu", port->text, command,
        "the MTU of its interface is %ld, so RDMA packets carry less than the 4096 bytes that "
        "they could if switches and hosts allow more",
        port->mtu);
  }
}

/* Boards of one kind whose firmware differs from that of most. */
static void checkFirmware(const tuttiView *v, tuttiFindings *f) {
  for (int i = 0; i < v->nnics; i++) {
    const tuttiViewNic *nic = &v->nics[i], *most = nic;
    int same = 0, best = 0;
    if (nic->board[0] == '\0' || nic->firmware[0] == '\0') continue;
    for (int j = 0; j < v->nnics; j++) {
      if (strcmp(v->nics[j].board, nic->board) != 0) continue;
      int count = 0;
      for (int k = 0; k < v->nnics; k++)
        count += strcmp(v->nics[k].board, nic->board) == 0 &&
                 strcmp(v->nics[k].firmware, v->nics[j].firmware) == 0;
      if (strcmp(v->nics[j].firmware, nic->firmware) == 0) same = count;
      if (count > best) best = count, most = &v->nics[j];
    }
    if (same < best)
      tuttiFind(f, TUTTI_FOUND_WARNING, "nic.firmware", nic->name, "sudo mlxfwmanager --query",
                "its firmware is %s, where %d of the same board have %s", nic->firmware, best,
                most->firmware);
  }
}

/* ---- counters ------------------------------------------------------------------------------- */

/* They count since the driver was loaded, and some of each is normal; so it takes a number and a
 * rate since the host was booted. */
static const struct {
  const char *file;
  long least, perHour;
  const char *what;
} counters[] = {
    {"counters/link_downed", 20, 0, "losses of the link: see to the cable and its seat"},
    {"counters/symbol_error", 1000, 10, "symbol errors: clean or exchange the cable"},
    {"counters/port_rcv_errors", 1000, 10,
     "packets received with errors: clean or exchange the cable"},
    {"counters/local_link_integrity_errors", 100, 1,
     "errors of the link's integrity: clean or exchange the cable"},
    {"hw_counters/out_of_sequence", 100000, 10000,
     "packets that came out of order: packets are lost on the way, see to PFC and ECN"},
    {"hw_counters/packet_seq_err", 100000, 10000,
     "packets sent anew for a gap: packets are lost on the way, see to PFC and ECN"},
    {"hw_counters/local_ack_timeout_err", 1000, 10,
     "acknowledgements that did not come: peers or the way to them fail"},
    {"hw_counters/rnr_nak_retry_err", 1000, 10, "receivers that were not ready"},
};

static void checkCounters(const examination *x, const tuttiViewNic *nic,
                          const tuttiViewPort *port) {
  const char *uptime = tuttiMachineAnswer(x->v->m, "host.uptime");
  double hours = uptime ? strtod(uptime, NULL) / 3600 : 0;
  char command[128];
  (void)nic;
  if (hours <= 0) return;
  for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
    long n = tuttiMachineNumber(x->v->m, port->dir, counters[i].file, 0);
    if (n < counters[i].least || (double)n / hours < (double)counters[i].perHour) continue;
    /* A link that was lost once a day or less: somebody worked on the switch. */
    if (counters[i].perHour == 0 && (double)n / hours < 1.0 / 24) continue;
    snprintf(command, sizeof command, "cat /%.80s/%.40s", port->dir, counters[i].file);
    tuttiFind(x->f, TUTTI_FOUND_WARNING, "nic.errors", port->text, command,
              "it has counted %ld in %.0f hours: %s", n, hours, counters[i].what);
  }
}

void tuttiCheckPorts(const tuttiView *v, tuttiFindings *f) {
  examination x = {.v = v, .f = f};
  if (tuttiFound(f, "setting.rdma") || tuttiFound(f, "setting.hca")) return;
  for (int i = 0; i < v->nnics; i++) {
    for (int p = 0; p < v->nics[i].nports; p++) {
      x.active += isActive(&v->nics[i].ports[p]);
      x.waiting += isWaiting(&v->nics[i].ports[p]);
    }
  }
  forPorts(&x, checkState);
  forPorts(&x, checkAddress);
  forPorts(&x, checkEcn);
  forPorts(&x, checkBeside);
  forPorts(&x, checkCounters);
  checkFirmware(v, f);
}
