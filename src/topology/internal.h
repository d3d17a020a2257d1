/* What the files that make topologies (detected, read) share, and those that make graphs (built,
 * read); and their XML (xml.c). */
#ifndef TUTTI_TOPOLOGY_INTERNAL_H_
#define TUTTI_TOPOLOGY_INTERNAL_H_

#include <sys/cdefs.h>

#include "collectives/graph.h"
#include "topology/topology.h"

__BEGIN_DECLS

#define TUTTI_TOPOLOGY_MAX_NODES 65536

/* Appends a copy of *node; its index is then count - 1. */
tuttiResult_t tuttiTopologyAdd(tuttiTopology *t, const tuttiNode *node);

/* Puts a copy at its place, *index (may be NULL), below its parent; nodes before it keep theirs. */
tuttiResult_t tuttiTopologyInsert(tuttiTopology *t, const tuttiNode *n, int *index);

#define TUTTI_PCI_BRIDGE 0x0604 /* class and subclass */

/* Reads a small file of sysfs; false if it cannot be read or does not fit. */
bool tuttiReadText(const char *dir, const char *file, char *buf, size_t size);

/* "0000:3b:00.0" to a bus id and back; a domain has 4 to 8 digits. False if `text` is else. */
bool tuttiBusIdParse(const char *text, uint64_t *busId);
#define TUTTI_BUS_ID_TEXT 32
const char *tuttiBusIdText(uint64_t busId, char *buf, size_t size);

/* NVML's calls, by their names; tests hand in their own. They return 0 or an error's code. */
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char busId[32];
} tuttiNvmlPci;
#define TUTTI_NVML_CALLS(X)                                                                        \
  X(int, Init_v2, (void))                                                                          \
  X(int, Shutdown, (void))                                                                         \
  X(const char *, ErrorString, (int code))                                                         \
  X(int, DeviceGetHandleByPciBusId_v2, (const char *busId, void **device))                         \
  X(int, DeviceGetNvLinkState, (void *device, unsigned link, unsigned *up))                        \
  X(int, DeviceGetNvLinkVersion, (void *device, unsigned link, unsigned *version))                 \
  X(int, DeviceGetNvLinkRemoteDeviceType, (void *device, unsigned link, unsigned *type))           \
  X(int, DeviceGetNvLinkRemotePciInfo_v2, (void *device, unsigned link, tuttiNvmlPci *pci))
typedef struct {
#define X(type, name, parameters) type(*name) parameters; // NOLINT(bugprone-macro-parentheses)
  TUTTI_NVML_CALLS(X)
#undef X
} tuttiNvml;

/* Insert the NVLinks of all GPUs. What NVML does not tell is left out; a line of the log says so.
 */
tuttiResult_t tuttiNvlinkRead(tuttiTopology *t, const tuttiNvml *nvml);
tuttiResult_t tuttiNvlinkDetect(tuttiTopology *t, const char *library); /* if there is a GPU */

/* A graph whose hosts are numbered and whose rings and trees are all zero. Checks its arguments. */
tuttiResult_t tuttiGraphNew(const uint64_t *hostIds, int nranks, int nchannels, tuttiGraph **out);

/* Fills g->depth[channel]; -1 if the parents go round in a circle. All must be -1 or ranks. */
tuttiResult_t tuttiGraphMeasureTree(tuttiGraph *g, int channel);

/* ---- XML --------------------------------------------------------------------------------------
 * Elements with attributes, no text, no document type. Reading is done by expat; every error names
 * file and line. */

#define TUTTI_XML_MAX_BYTES (16 << 20)
#define TUTTI_XML_MAX_DEPTH 64 /* elements inside each other */

typedef struct tuttiXml tuttiXml;

/* An element that may stand in another, in `parent`, or be the outermost, where that is NULL. */
typedef struct {
  const char *parent, *element;
  tuttiResult_t (*open)(void *context, const tuttiXml *xml);
  tuttiResult_t (*close)(void *context, const tuttiXml *xml); /* NULL: nothing to do */
} tuttiXmlElement;

/* Parses `text`, which `name` stands for in errors, or the file `name` if `text` is NULL; at most
 * TUTTI_XML_MAX_BYTES. Calls open and close for each element; the first failure of these ends it
 * and is returned. */
tuttiResult_t tuttiXmlParse(const char *text, size_t size, const char *name,
                            const tuttiXmlElement *elements, int n, void *context);

/* For open and close: fails with tuttiInvalidArgument "name:line: text". */
tuttiResult_t tuttiXmlFail(const tuttiXml *xml, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* An attribute and what takes it; what is absent stays as it is. */
typedef struct {
  const char *name;
  const char **raw; /* valid within open */
  int *number;      /* decimal, or hexadecimal after 0x, within min and max */
  int min, max;
  char *text; /* copied; control characters and texts longer than `size` - 1 fail */
  size_t size;
} tuttiXmlAttribute;

/* For open: takes all attributes of the element. Fails if there is any other. */
tuttiResult_t tuttiXmlTake(const tuttiXml *xml, const tuttiXmlAttribute *known, int n);

/* Lets `write` write the file `path`, which then holds all of it or, after a failure, what it held
 * before. Where `path` is a device or a pipe it is written directly. `what` stands in errors. */
tuttiResult_t tuttiSaveFile(const char *path, const char *what,
                            void (*write)(FILE *out, const void *object), const void *object);

/* Writes ` name="value"` with all that is special in XML escaped. */
void tuttiXmlPut(FILE *out, const char *name, const char *value);

__END_DECLS

#endif
