/* A machine as the checks see it: its GPUs, its NICs with their ports, and every pair of them. Made
 * once from what the machine says, and only read afterwards. */
#ifndef TUTTI_TOOLS_DOCTOR_VIEW_H_
#define TUTTI_TOOLS_DOCTOR_VIEW_H_

#include <sys/cdefs.h>

#include "doctor/findings.h"
#include "doctor/machine.h"
#include "topology/gdr.h"
#include "transport/ib/wire.h"

__BEGIN_DECLS

#define TUTTI_VIEW_GPUS  64
#define TUTTI_VIEW_NICS  64
#define TUTTI_VIEW_PORTS 4 /* of a NIC */

/* Numbers of sysfs. */
enum { TUTTI_PORT_DOWN = 1, TUTTI_PORT_INIT = 2, TUTTI_PORT_ARMED = 3, TUTTI_PORT_ACTIVE = 4 };
enum { TUTTI_PHYS_POLLING = 2, TUTTI_PHYS_DISABLED = 3, TUTTI_PHYS_LINKED = 5 };

typedef struct {
  int node; /* in the topology */
  char bus[TUTTI_BUS_ID_TEXT];
  char name[96]; /* of the model, "" unknown */
  bool driven;   /* by the NVIDIA driver */
  bool told;     /* NVML knows it */
} tuttiViewGpu;

typedef struct {
  int number, state, phys;
  bool ethernet;
  bool allowed;     /* by TUTTI_IB_HCA */
  double gigabits;  /* of the rate in force */
  char rate[48];    /* "400 Gb/sec (4X NDR)" */
  char net[16];     /* interface, "" none */
  long mtu;         /* of the interface, 0 unknown */
  char dir[512];    /* its directory */
  char text[80];    /* "mlx5_0", or "mlx5_0 port 2" where there are several */
  tuttiIbPort rail; /* with the addresses that the library would tell peers */
} tuttiViewPort;

typedef struct {
  int node;
  char name[64], driver[32], firmware[48], board[64], hca[64];
  bool physical; /* on PCI */
  bool usable;   /* InfiniBand or RoCE; iWARP is not served */
  int nports;
  tuttiViewPort ports[TUTTI_VIEW_PORTS];
} tuttiViewNic;

typedef struct {
  tuttiGdr answer, read; /* as of tuttiGdrAnswer */
  tuttiDistance apart;
  char why[TUTTI_GDR_SENTENCE];
} tuttiViewPair;

typedef struct {
  const tuttiMachine *m;
  tuttiTopology *t;
  tuttiViewGpu gpus[TUTTI_VIEW_GPUS];
  tuttiViewNic nics[TUTTI_VIEW_NICS];
  int ngpus, nnics, nphysical;
  tuttiViewPair *pairs; /* [ngpus][nnics] */
  bool container;
} tuttiView;

/* To be freed also on failure. */
tuttiResult_t tuttiViewMake(const tuttiMachine *m, tuttiView *v);
void tuttiViewFree(tuttiView *v);

static inline const tuttiViewPair *tuttiViewPairOf(const tuttiView *v, int gpu, int nic) {
  return &v->pairs[gpu * v->nnics + nic];
}
/* A port that is up and may be used. */
bool tuttiViewNicUp(const tuttiViewNic *nic);
/* The nearest NIC on PCI, of those that are up if `up`; -1: none. */
int tuttiViewNearest(const tuttiView *v, int gpu, bool up);
/* The value of a setting there, or "". */
const char *tuttiViewSetting(const tuttiView *v, const char *name);

/* Which kernel modules of the NVIDIA driver are loaded. */
typedef enum {
  TUTTI_MODULES_UNKNOWN,
  TUTTI_MODULES_OPEN,
  TUTTI_MODULES_CLOSED
} tuttiViewModuleKind;
tuttiViewModuleKind tuttiViewModules(const tuttiView *v);
/* The kernel has this version or a later one, or none is known. */
bool tuttiViewKernelSince(const tuttiView *v, int major, int minor);

/* The checks, each for one part of the machine. */
void tuttiCheckGpus(const tuttiView *v, tuttiFindings *f);
void tuttiCheckLinks(const tuttiView *v, tuttiFindings *f); /* PCIe and NVLink */
void tuttiCheckRdma(const tuttiView *v, tuttiFindings *f);  /* modules, devices, libraries */
void tuttiCheckPorts(const tuttiView *v, tuttiFindings *f);
void tuttiCheckGdr(const tuttiView *v, tuttiFindings *f); /* after the others */
/* What came of trying the ports. */
void tuttiCheckLive(const tuttiView *v, tuttiFindings *f);
void tuttiCheckPrograms(const tuttiView *v, tuttiFindings *f);
void tuttiCheckCopies(const tuttiView *v, tuttiFindings *f); /* after the links */
/* What came of a copy: "389.4 direct", "17.0 staged" (by way of the host), "wrong data", "failed:
 * ..."; NULL: it was not tried. And GB/s, 0 where it was not tried or failed. */
const char *tuttiViewCopySaid(const tuttiView *v, int from, int to);
double tuttiViewCopy(const tuttiView *v, int from, int to);
void tuttiCheckHost(const tuttiView *v, tuttiFindings *f);
void tuttiCheckContainer(const tuttiView *v, tuttiFindings *f);
/* All of them, sorted. */
void tuttiCheckAll(const tuttiView *v, tuttiFindings *f);

__END_DECLS

#endif
