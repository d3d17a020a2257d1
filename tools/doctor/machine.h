/* What the doctor reads of a machine: files of /sys, /proc and /dev, and answers, which is what
 * libraries and system calls said when they were asked. A machine is this one, or a recording of
 * one; who reads it cannot tell which. */
#ifndef TUTTI_TOOLS_DOCTOR_MACHINE_H_
#define TUTTI_TOOLS_DOCTOR_MACHINE_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

#include "topology/topology.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_ANSWER_KEY   128
#define TUTTI_ANSWER_VALUE 1024

typedef struct {
  char key[TUTTI_ANSWER_KEY];
  char value[TUTTI_ANSWER_VALUE];
} tuttiAnswer;

typedef struct {
  char root[PATH_MAX]; /* what stands before "/sys"; "" for this machine */
  bool recorded;       /* root is a copy that ends with the machine */
  char **denied;       /* [ndenied] paths that are there and could not be opened */
  int ndenied, deniedCapacity;
  tuttiAnswer *answers; /* [nanswers], in the order of their keys */
  int nanswers, answersCapacity;
} tuttiMachine;

/* Paths have no '/' in front: "sys/class/net". */

/* The text of a small file without trailing white space; false (and "") if it cannot be read. */
bool tuttiMachineRead(const tuttiMachine *m, const char *path, char *buf, size_t size);
/* The number that a file of a directory begins with; `missing` if there is none. */
long tuttiMachineNumber(const tuttiMachine *m, const char *dir, const char *file, long missing);
/* 0 if it is there and can be opened for reading and, of a device, for writing; else an errno. */
int tuttiMachineAccess(const tuttiMachine *m, const char *path);
/* What a link points to, the last component of it; false (and "") if there is none. */
bool tuttiMachineLink(const tuttiMachine *m, const char *path, char *buf, size_t size);
/* Names in a directory, in version order, for tuttiFree; none if it cannot be read. */
typedef char tuttiName[NAME_MAX + 1];
tuttiResult_t tuttiMachineList(const tuttiMachine *m, const char *dir, tuttiName **names, int *n);
/* Where a path lies in the file system. */
const char *tuttiMachinePath(const tuttiMachine *m, const char *path, char buf[PATH_MAX]);

/* What was said to the question `key`; NULL: it was not asked, or could not be. */
const char *tuttiMachineAnswer(const tuttiMachine *m, const char *key, ...)
    __attribute__((format(printf, 2, 3)));
bool tuttiMachineSaid(const tuttiMachine *m, const char *key, const char *value);
/* Notes an answer, of as many bytes as fit; control characters become '?'. The last one counts. */
tuttiResult_t tuttiMachineTell(tuttiMachine *m, const char *value, const char *key, ...)
    __attribute__((format(printf, 3, 4)));

/* Asks this machine, and tries its devices if `live`. Nothing is changed on it; what cannot be
 * asked stays unanswered. To be closed also on failure. */
tuttiResult_t tuttiMachineAsk(tuttiMachine *m, bool live);
/* Reads a recording, which is checked as any input: fails with file, line and what is wrong. To be
 * closed also on failure. */
tuttiResult_t tuttiMachineOpen(tuttiMachine *m, const char *recording);
void tuttiMachineClose(tuttiMachine *m);

/* Writes what the doctor reads of the machine into one text file, without serial numbers, GUIDs and
 * addresses. */
tuttiResult_t tuttiMachineRecord(const tuttiMachine *m, const char *recording);

/* The topology that the library would see there, with the NVLinks that the answers tell. */
tuttiResult_t tuttiMachineTopology(const tuttiMachine *m, tuttiTopology **out);

/* ---- ask_*.c: the parts of tuttiMachineAsk */

tuttiResult_t tuttiAskHost(tuttiMachine *m);
tuttiResult_t tuttiAskNetwork(tuttiMachine *m);
tuttiResult_t tuttiAskNvml(tuttiMachine *m);
/* Opens the devices of the GPUs that NVML has not told of: after tuttiAskNvml. */
tuttiResult_t tuttiAskGpus(tuttiMachine *m);
tuttiResult_t tuttiAskCuda(tuttiMachine *m);
tuttiResult_t tuttiAskVerbs(tuttiMachine *m);
/* Runs ompi_info, mpiname and ucx_info where they are, and finds which libnccl.so.2 `program` (may
 * be NULL) would load. */
tuttiResult_t tuttiAskPrograms(tuttiMachine *m, const char *program);
/* Loads a libnccl.so.2 and prints a line of what it is: in a process of its own. */
void tuttiDescribeLibrary(const char *path);
/* Tries what the machine has, after the others: each RDMA port that is up writes into memory of the
 * host and of the GPUs near it, and the data are looked at. Takes some memory for some seconds. */
tuttiResult_t tuttiTryPorts(tuttiMachine *m);
/* Each GPU copies to each other one, where there is CUDA and some. */
tuttiResult_t tuttiTryCopies(tuttiMachine *m);

__END_DECLS

#endif
