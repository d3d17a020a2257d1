/* What came of copies between GPUs: as NVML and the topology say, or not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/view.h"

const char *tuttiViewCopySaid(const tuttiView *v, int from, int to) {
  return tuttiMachineAnswer(v->m, "copy.%s.%s", v->gpus[from].bus, v->gpus[to].bus);
}

double tuttiViewCopy(const tuttiView *v, int from, int to) {
  const char *said = tuttiViewCopySaid(v, from, to);
  return said ? strtod(said, NULL) : 0;
}

static const char *pathOf(const tuttiView *v, int a, int b, char *buf, size_t size) {
  return tuttiTopologyPath(v->t, v->t->nodes[v->gpus[a].node].busId,
                           v->t->nodes[v->gpus[b].node].busId, buf, size);
}

/* The fastest copy between GPUs that are joined in the same way. */
static double fastestAlike(const tuttiView *v, const char *path) {
  char other[64];
  double best = 0;
  for (int a = 0; a < v->ngpus; a++) {
    for (int b = 0; b < v->ngpus; b++) {
      if (a == b || strcmp(pathOf(v, a, b, other, sizeof other), path) != 0) continue;
      double gbs = tuttiViewCopy(v, a, b);
      if (gbs > best) best = gbs;
    }
  }
  return best;
}

/* GB/s that the NVLinks of a path such as "NV18 (NVLink)" carry one way; 0: not known. */
static double nominal(const tuttiView *v, int gpu, const char *path) {
  int links = strncmp(path, "NV", 2) == 0 ? atoi(path + 2) : 0, version = 0;
  for (int i = v->gpus[gpu].node + 1; i < v->t->count; i++)
    if (v->t->nodes[i].parent == v->gpus[gpu].node && v->t->nodes[i].kind == tuttiNodeNvlink)
      version = v->t->nodes[i].version;
  return links * (version >= 50 ? 50.0 : version >= 20 ? 25.0 : version > 0 ? 20.0 : 0.0);
}

/* `known`: that GPUs do not reach each other has been said. */
static void checkPair(const tuttiView *v, int a, int b, bool known, tuttiFindings *f) {
  const char *said = tuttiViewCopySaid(v, a, b);
  char path[64], subject[80];
  if (said == NULL) return;
  snprintf(subject, sizeof subject, "%s to %s", v->gpus[a].bus, v->gpus[b].bus);
  pathOf(v, a, b, path, sizeof path);
  double gbs = strtod(said, NULL), best = fastestAlike(v, path), could = nominal(v, a, path);
  if (strcmp(said, "wrong data") == 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.copy", subject, "nvidia-smi topo -p2p w",
              "a copy between these GPUs brings wrong data: an IOMMU or ACS is in the way of PCIe, "
              "most likely; boot with iommu=pt");
  else if (strncmp(said, "failed", 6) == 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "gpu.copy", subject, "sudo dmesg | grep -i xid",
              "a copy between these GPUs %s", said);
  else if (strncmp(path, "NV", 2) == 0 && strstr(said, "staged") && !known)
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.p2p", v->gpus[a].bus, "nvidia-smi topo -p2p w",
              "NVLink joins it with other GPUs, and CUDA says that they do not reach each other");
  else if (gbs < best / 2)
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.copy", subject, "nvidia-smi nvlink -e",
              "copies run at %.0f GB/s, where others over %s run at %.0f", gbs, path, best);
  else if (strstr(said, "direct") && gbs < could / 2)
    tuttiFind(f, TUTTI_FOUND_WARNING, "gpu.copy", subject, "nvidia-smi nvlink -s",
              "copies run at %.0f GB/s, where %s carries %.0f", gbs, path, could);
}

/* Says that all is well where each pair was tried and nothing was found. */
static void praise(const tuttiView *v, tuttiFindings *f) {
  double least = 0, most = 0;
  for (int a = 0; a < v->ngpus; a++) {
    for (int b = 0; b < v->ngpus; b++) {
      double gbs = tuttiViewCopy(v, a, b);
      if (a == b) continue;
      if (gbs == 0) return;
      if (least == 0 || gbs < least) least = gbs;
      if (gbs > most) most = gbs;
    }
  }
  if (most > 0 && !tuttiFound(f, "gpu.copy"))
    tuttiFind(f, TUTTI_FOUND_OK, "gpu.copy", "copies between GPUs", "",
              "right data from each to each other one, at %.0f to %.0f GB/s", least, most);
}

void tuttiCheckCopies(const tuttiView *v, tuttiFindings *f) {
  const char *error = tuttiMachineAnswer(v->m, "copy.error");
  bool known = tuttiFound(f, "gpu.p2p");
  for (int a = 0; a < v->ngpus; a++)
    for (int b = 0; b < v->ngpus; b++)
      if (a != b) checkPair(v, a, b, known, f);
  praise(v, f);
  if (error)
    tuttiFind(f, TUTTI_FOUND_NOTE, "unseen.copies", "copies between GPUs", "nvidia-smi",
              "they were not tried: %s", error);
}
