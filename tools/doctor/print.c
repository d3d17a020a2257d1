#include "doctor/print.h"

#include <string.h>

#include "tool.h"

static const char *said(const tuttiView *v, const char *key) {
  const char *text = tuttiMachineAnswer(v->m, "%s", key);
  return text ? text : "unknown";
}

/* "PIX" of "PIX (at most one PCIe switch)". */
static int shortLength(const tuttiViewPair *pair) {
  return (int)strcspn(tuttiDistanceTexts[pair->apart], " ");
}

/* ---- text ----------------------------------------------------------------------------------- */

static void printMachine(const tuttiView *v, FILE *out) {
  fprintf(out, "Linux %s %s", said(v, "host.release"), said(v, "host.machine"));
  if (tuttiMachineAnswer(v->m, "nvml.driver"))
    fprintf(out, ", NVIDIA driver %s, CUDA %s", said(v, "nvml.driver"), said(v, "nvml.cuda"));
  if (v->container) fprintf(out, ", container (%s)", said(v, "host.container"));
  putc('\n', out);
}

static void printGpus(const tuttiView *v, FILE *out) {
  for (int i = 0; i < v->ngpus; i++) {
    const tuttiViewGpu *gpu = &v->gpus[i];
    fprintf(out, "GPU%-3d %s  %s, NUMA node %d\n", i, gpu->bus,
            gpu->name[0] ? gpu->name : "NVIDIA GPU", v->t->nodes[gpu->node].numa);
  }
  if (v->ngpus == 0) fputs("no NVIDIA GPU on PCI\n", out);
}

static void printPort(const tuttiViewPort *port, FILE *out) {
  static const char *const states[] = {"unknown", "down", "init", "armed", "active"};
  bool known = port->state >= 0 && port->state < (int)(sizeof states / sizeof *states);
  fprintf(out, "%s: %s, %s, %s", port->text, port->ethernet ? "RoCE" : "InfiniBand",
          known ? states[port->state] : states[0], port->rate[0] ? port->rate : "rate unknown");
  if (port->net[0]) fprintf(out, ", %s", port->net);
  if (port->mtu > 0) fprintf(out, " MTU %ld", port->mtu);
  fputs(port->allowed ? "" : " (not used: TUTTI_IB_HCA)", out);
}

static void printNics(const tuttiView *v, FILE *out) {
  for (int i = 0; i < v->nnics; i++) {
    const tuttiViewNic *nic = &v->nics[i];
    for (int p = 0; p < nic->nports; p++) {
      printPort(&nic->ports[p], out);
      fprintf(out, ", %s%s%s%s\n", nic->driver[0] ? nic->driver : "software",
              nic->firmware[0] ? " firmware " : "", nic->firmware,
              nic->physical ? "" : ", not on PCI");
    }
  }
  if (v->nnics == 0) fputs("no RDMA device: NET/Socket serves\n", out);
}

static void printPairs(const tuttiView *v, FILE *out) {
  if (v->ngpus == 0 || v->nphysical == 0) return;
  fputs("\nDistance and GPUDirect RDMA (+; -: of what comes alone) of each GPU and NIC:\n      ",
        out);
  for (int n = 0; n < v->nnics; n++)
    if (v->nics[n].physical) fprintf(out, " %8s", v->nics[n].name);
  putc('\n', out);
  for (int g = 0; g < v->ngpus; g++) {
    fprintf(out, "GPU%-3d", g);
    for (int n = 0; n < v->nnics; n++) {
      const tuttiViewPair *pair = tuttiViewPairOf(v, g, n);
      char cell[16];
      snprintf(cell, sizeof cell, "%.*s%s", shortLength(pair), tuttiDistanceTexts[pair->apart],
               pair->read == TUTTI_GDR_YES     ? "+"
               : pair->answer == TUTTI_GDR_YES ? "-"
                                               : "");
      if (v->nics[n].physical) fprintf(out, " %8s", cell);
    }
    putc('\n', out);
  }
}

/* Where copies were tried. */
static void printCopies(const tuttiView *v, FILE *out) {
  bool tried = false;
  for (int b = 1; b < v->ngpus; b++)
    tried |= tuttiViewCopy(v, 0, b) > 0;
  if (!tried) return;
  fputs("\nCopies from each GPU (row) to each other one, GB/s:\n      ", out);
  for (int b = 0; b < v->ngpus; b++)
    fprintf(out, "   GPU%-2d", b);
  putc('\n', out);
  for (int a = 0; a < v->ngpus; a++) {
    fprintf(out, "GPU%-3d", a);
    for (int b = 0; b < v->ngpus; b++)
      if (tuttiViewCopy(v, a, b) > 0)
        fprintf(out, " %7.1f", tuttiViewCopy(v, a, b));
      else
        fprintf(out, " %7s", "-");
    putc('\n', out);
  }
}

void tuttiDoctorFindings(const tuttiFindings *f, FILE *out) {
  int counts[TUTTI_FOUND_COUNT] = {0};
  for (int i = 0; i < f->n; i++) {
    const tuttiFinding *found = &f->list[i];
    counts[found->severity]++;
    fprintf(out, "%-7s  %s: %s [%s]\n", tuttiSeverityNames[found->severity], found->subject,
            found->sentence, found->id);
    if (found->remedy[0]) fprintf(out, "         $ %s\n", found->remedy);
  }
  if (f->lost > 0) fprintf(out, "and %d more\n", f->lost);
  fprintf(out, "%d failure%s, %d warning%s, %d note%s\n", counts[TUTTI_FOUND_FAILURE],
          counts[TUTTI_FOUND_FAILURE] == 1 ? "" : "s", counts[TUTTI_FOUND_WARNING],
          counts[TUTTI_FOUND_WARNING] == 1 ? "" : "s", counts[TUTTI_FOUND_NOTE],
          counts[TUTTI_FOUND_NOTE] == 1 ? "" : "s");
}

void tuttiDoctorText(const tuttiView *v, const tuttiFindings *f, FILE *out) {
  printMachine(v, out);
  printGpus(v, out);
  printNics(v, out);
  printPairs(v, out);
  printCopies(v, out);
  putc('\n', out);
  tuttiDoctorFindings(f, out);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void member(FILE *out, const char *before, const char *name, const char *value) {
  fprintf(out, "%s\"%s\": ", before, name);
  tuttiJsonString(out, value);
}

static void jsonMachine(const tuttiView *v, FILE *out) {
  member(out, "  \"machine\": {", "kernel", said(v, "host.release"));
  member(out, ", ", "architecture", said(v, "host.machine"));
  member(out, ", ", "driver", said(v, "nvml.driver"));
  member(out, ", ", "cuda", said(v, "nvml.cuda"));
  member(out, ", ", "container", said(v, "host.container"));
  fputs("},\n", out);
}

static void jsonGpus(const tuttiView *v, FILE *out) {
  fputs("  \"gpus\": [", out);
  for (int i = 0; i < v->ngpus; i++) {
    member(out, i ? ",\n    {" : "\n    {", "bus", v->gpus[i].bus);
    member(out, ", ", "name", v->gpus[i].name);
    fprintf(out, ", \"numa\": %d}", v->t->nodes[v->gpus[i].node].numa);
  }
  fputs("],\n", out);
}

static void jsonPort(const tuttiViewPort *port, const char *before, FILE *out) {
  fprintf(out, "%s{\"number\": %d, \"state\": %d, \"physical_state\": %d", before, port->number,
          port->state, port->phys);
  member(out, ", ", "link_layer", port->ethernet ? "Ethernet" : "InfiniBand");
  member(out, ", ", "rate", port->rate);
  member(out, ", ", "interface", port->net);
  fprintf(out, ", \"mtu\": %ld, \"addresses\": %d, \"allowed\": %s}", port->mtu, port->rail.ngids,
          port->allowed ? "true" : "false");
}

static void jsonNics(const tuttiView *v, FILE *out) {
  fputs("  \"nics\": [", out);
  for (int i = 0; i < v->nnics; i++) {
    const tuttiViewNic *nic = &v->nics[i];
    member(out, i ? ",\n    {" : "\n    {", "name", nic->name);
    member(out, ", ", "driver", nic->driver);
    member(out, ", ", "firmware", nic->firmware);
    member(out, ", ", "board", nic->board);
    fprintf(out, ", \"on_pci\": %s, \"ports\": [", nic->physical ? "true" : "false");
    for (int p = 0; p < nic->nports; p++)
      jsonPort(&nic->ports[p], p ? ", " : "", out);
    fputs("]}", out);
  }
  fputs("],\n", out);
}

static void jsonPairs(const tuttiView *v, FILE *out) {
  fputs("  \"pairs\": [", out);
  for (int g = 0; g < v->ngpus; g++) {
    for (int n = 0; n < v->nnics; n++) {
      const tuttiViewPair *pair = tuttiViewPairOf(v, g, n);
      char distance[16];
      snprintf(distance, sizeof distance, "%.*s", shortLength(pair),
               tuttiDistanceTexts[pair->apart]);
      member(out, g + n ? ",\n    {" : "\n    {", "gpu", v->gpus[g].bus);
      member(out, ", ", "nic", v->nics[n].name);
      member(out, ", ", "distance", v->nics[n].physical ? distance : "unknown");
      fprintf(out, ", \"gdrdma\": %s", pair->answer == TUTTI_GDR_YES ? "true" : "false");
      fprintf(out, ", \"gdrdma_reads\": %s", pair->read == TUTTI_GDR_YES ? "true" : "false");
      member(out, ", ", "why", pair->why);
      putc('}', out);
    }
  }
  fputs("],\n", out);
}

/* Those that were tried. */
static void jsonCopies(const tuttiView *v, FILE *out) {
  const char *before = "\n    {";
  fputs("  \"copies\": [", out);
  for (int a = 0; a < v->ngpus; a++) {
    for (int b = 0; b < v->ngpus; b++) {
      const char *copied = a == b ? NULL : tuttiViewCopySaid(v, a, b);
      if (copied == NULL) continue;
      member(out, before, "from", v->gpus[a].bus);
      member(out, ", ", "to", v->gpus[b].bus);
      fprintf(out, ", \"gigabytes\": %.1f", tuttiViewCopy(v, a, b));
      const char *how = tuttiViewCopy(v, a, b) > 0 ? strchr(copied, ' ') : NULL;
      member(out, ", ", "how", how ? how + 1 : copied);
      putc('}', out);
      before = ",\n    {";
    }
  }
  fputs("],\n", out);
}

void tuttiDoctorJson(const tuttiView *v, const tuttiFindings *f, FILE *out) {
  fputs("{\n  \"schema\": \"tutti doctor 1\",\n", out);
  jsonMachine(v, out);
  jsonGpus(v, out);
  jsonNics(v, out);
  jsonPairs(v, out);
  jsonCopies(v, out);
  fputs("  \"findings\": [", out);
  for (int i = 0; i < f->n; i++) {
    const tuttiFinding *found = &f->list[i];
    member(out, i ? ",\n    {" : "\n    {", "id", found->id);
    member(out, ", ", "severity", tuttiSeverityNames[found->severity]);
    member(out, ", ", "subject", found->subject);
    member(out, ", ", "sentence", found->sentence);
    member(out, ", ", "remedy", found->remedy);
    putc('}', out);
  }
  member(out, "],\n  ", "worst", tuttiSeverityNames[tuttiWorst(f)]);
  fputs("\n}\n", out);
}

/* ---- a script ------------------------------------------------------------------------------- */

/* To be done by hand: a container is started anew, or a word in capitals is to be replaced. */
static bool isByHand(const char *remedy) {
  return strncmp(remedy, "docker ", 7) == 0 || strstr(remedy, "ADDRESS") ||
         strstr(remedy, "reboot") || strstr(remedy, "INTERFACE") || strstr(remedy, "PROGRAM") ||
         remedy[0] == '.';
}

void tuttiDoctorScript(const tuttiFindings *f, FILE *out) {
  fputs("#!/bin/sh\n"
        "# What tutti doctor proposes, worst first. Read it before you run it: nothing was done.\n",
        out);
  for (int i = 0; i < f->n; i++) {
    const tuttiFinding *found = &f->list[i];
    if (found->severity < TUTTI_FOUND_WARNING || found->remedy[0] == '\0') continue;
    fprintf(out, "\n# %s: %s: %s\n", tuttiSeverityNames[found->severity], found->subject,
            found->sentence);
    fprintf(out, "%s%s\n", isByHand(found->remedy) ? "# by hand: " : "", found->remedy);
  }
}
