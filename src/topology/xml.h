/* The XML of topologies and graphs: elements with attributes, no text, no document type. Reading is
 * done by expat; every error names file and line. */
#ifndef TUTTI_TOPOLOGY_XML_H_
#define TUTTI_TOPOLOGY_XML_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_XML_MAX_BYTES (16 << 20)
#define TUTTI_XML_MAX_DEPTH 64 /* elements inside each other */

typedef struct tuttiXml tuttiXml;

typedef struct {
  tuttiResult_t (*open)(void *context, tuttiXml *xml, const char *element);
  tuttiResult_t (*close)(void *context, tuttiXml *xml, const char *element);
} tuttiXmlHandler;

/* Parses `text`, which `name` stands for in errors, and calls the handler for each element. The
 * first failure of the handler ends it and is returned. */
tuttiResult_t tuttiXmlParse(const char *text, size_t size, const char *name,
                            const tuttiXmlHandler *handler, void *context);

/* For handlers: fails with tuttiInvalidArgument "name:line: text". */
tuttiResult_t tuttiXmlFail(const tuttiXml *xml, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* For handlers: attributes of the element at hand. A text outlives the call of `open` only as a
 * copy. */
const char *tuttiXmlGet(const tuttiXml *xml, const char *attribute); /* NULL if absent */
/* The list ends with NULL. Fails if there is any other attribute. */
tuttiResult_t tuttiXmlOnly(const tuttiXml *xml, const char *const *attributes);
/* Absent: *value stays as it is. Numbers are decimal, or hexadecimal after 0x. */
tuttiResult_t tuttiXmlNumber(const tuttiXml *xml, const char *attribute, int64_t min, int64_t max,
                             int64_t *value);
/* Absent: *buf stays as it is. Control characters and texts longer than `size` - 1 fail. */
tuttiResult_t tuttiXmlText(const tuttiXml *xml, const char *attribute, char *buf, size_t size);

/* Reads a file of at most TUTTI_XML_MAX_BYTES; *text is for tuttiFree. */
tuttiResult_t tuttiXmlLoad(const char *path, char **text, size_t *size);

/* Lets `write` write the file `path`, which then holds all of it or, after a failure, what it held
 * before. Where `path` is a device or a pipe it is written directly. `what` stands in errors. */
tuttiResult_t tuttiSaveFile(const char *path, const char *what,
                            void (*write)(FILE *out, const void *object), const void *object);

/* Writes ` name="value"` with all that is special in XML escaped. */
void tuttiXmlPut(FILE *out, const char *name, const char *value);

__END_DECLS

#endif
