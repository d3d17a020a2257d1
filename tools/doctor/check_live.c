/* What came of trying the RDMA ports. */
#include <stdio.h>
#include <string.h>

#include "doctor/view.h"

/* "live.mlx5_0.1" of host memory, "live.mlx5_0.1.0000:18:00.0" of a GPU's. */
static void judge(const tuttiAnswer *a, tuttiFindings *f) {
  char nic[64], gpu[TUTTI_BUS_ID_TEXT] = "";
  int port;
  int n = sscanf(a->key, "live.%63[^.].%d.%31s", nic, &port, gpu);
  bool works = strcmp(a->value, "ok") == 0;
  if (n < 2) return;
  if (n == 3 && works)
    tuttiFind(f, TUTTI_FOUND_OK, "gdr.tried", nic, "", "it reads and writes the memory of GPU %s",
              gpu);
  else if (n == 3)
    tuttiFind(f, TUTTI_FOUND_WARNING, "gdr.broken", gpu, "sudo dmesg | tail -50",
              TUTTI_IB_GDR_BROKEN, nic, port, a->value);
  else if (works)
    tuttiFind(f, TUTTI_FOUND_OK, "nic.tried", nic, "", "it reads and writes host memory");
  else
    tuttiFind(f, TUTTI_FOUND_FAILURE, "nic.broken", nic, "sudo dmesg | tail -50", "%s", a->value);
}

void tuttiCheckLive(const tuttiView *v, tuttiFindings *f) {
  const char *error = tuttiMachineAnswer(v->m, "live.error");
  for (int i = 0; i < v->m->nanswers; i++)
    if (strncmp(v->m->answers[i].key, "live.", 5) == 0) judge(&v->m->answers[i], f);
  if (error && v->nnics > 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "nic.broken", "NET/IB", "ulimit -l; sudo dmesg | tail -50",
              "%s", error);
}
