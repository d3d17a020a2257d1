/* MPI and UCX beside GPUs, and the libnccl.so.2 of a program. */
#include <stdio.h>
#include <string.h>

#include "doctor/view.h"

static void checkMpi(const tuttiView *v, const char *key, const char *name, const char *rebuild,
                     tuttiFindings *f) {
  const char *version = tuttiMachineAnswer(v->m, "mpi.%s", key);
  const char *cuda = tuttiMachineAnswer(v->m, "mpi.%s.cuda", key);
  if (version == NULL || cuda == NULL) return;
  if (strcmp(cuda, "true") == 0)
    tuttiFind(f, TUTTI_FOUND_OK, "mpi.cuda", name, "", "%s is built with CUDA", version);
  else if (v->ngpus > 0)
    tuttiFind(f, TUTTI_FOUND_NOTE, "mpi.cuda", name, rebuild,
              "%s is built without CUDA: its calls must not be given GPU memory; copy to host "
              "memory first, or leave these to tutti",
              version);
}

static void checkUcx(const tuttiView *v, tuttiFindings *f) {
  const char *found = tuttiMachineAnswer(v->m, "ucx.cuda");
  if (found == NULL || v->ngpus == 0) return;
  if (strstr(found, "cuda_copy") == NULL)
    tuttiFind(f, TUTTI_FOUND_NOTE, "ucx.cuda", "UCX", "ucx_info -d | grep cuda",
              "it has no transport for GPU memory (cuda_copy): its package for CUDA is missing");
  else
    tuttiFind(f, TUTTI_FOUND_OK, "ucx.cuda", "UCX", "", "it has %s", found);
}

static void checkProgram(const tuttiView *v, tuttiFindings *f) {
  const char *name = tuttiMachineAnswer(v->m, "program.name");
  const char *path = tuttiMachineAnswer(v->m, "program.nccl");
  const char *what = tuttiMachineAnswer(v->m, "program.nccl.what");
  if (name == NULL) return;
  if (tuttiMachineSaid(v->m, "program.state", "not loaded"))
    tuttiFind(
        f, TUTTI_FOUND_NOTE, "program.nccl", name, "file PROGRAM",
        "glibc's loader does not start it (it is linked statically, or with another libc), so "
        "it was not run to be asked what it would load");
  else if (!tuttiMachineSaid(v->m, "program.state", "ok"))
    tuttiFind(f, TUTTI_FOUND_FAILURE, "program.nccl", name, "ldd PROGRAM",
              "it cannot be run, or its loader finds not all of its libraries");
  else if (path == NULL || path[0] == '\0')
    tuttiFind(f, TUTTI_FOUND_NOTE, "program.nccl", name, "tutti run PROGRAM",
              "it would load no libnccl.so.2 when it starts");
  else if (what == NULL || strncmp(what, "cannot", 6) == 0)
    tuttiFind(f, TUTTI_FOUND_FAILURE, "program.nccl", name, "ldd PROGRAM",
              "it would load %s, which %s", path, what ? what : "cannot be loaded");
  else
    tuttiFind(f, TUTTI_FOUND_OK, "program.nccl", name, "", "it would load %s: %s", path, what);
}

void tuttiCheckPrograms(const tuttiView *v, tuttiFindings *f) {
  checkMpi(v, "openmpi", "Open MPI", "./configure --with-cuda --with-ucx", f);
  checkMpi(v, "mvapich2", "MVAPICH2", "./configure --enable-cuda", f);
  checkUcx(v, f);
  checkProgram(v, f);
}
