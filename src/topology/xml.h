/* XML: elements with attributes, no text, no document type. Reading is done by expat; every error
 * names file and line. */
#ifndef TUTTI_TOPOLOGY_XML_H_
#define TUTTI_TOPOLOGY_XML_H_

#include <stddef.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_XML_MAX_BYTES (16 << 20)
#define TUTTI_XML_MAX_DEPTH 64 /* elements inside each other */

typedef struct tuttiXml tuttiXml;

/* An element that may stand in another, in `parent`, or be the outermost, where that is NULL. */
typedef struct {
  const char *parent, *element;
  tuttiResult_t (*open)(void *context, const tuttiXml *xml);
  tuttiResult_t (*close)(void *context, const tuttiXml *xml);
} tuttiXmlElement;

/* For elements that are done with once they are open: no entry of their table is NULL. */
tuttiResult_t tuttiXmlNothingToClose(void *context, const tuttiXml *xml);

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

/* The contents of a regular file of at most TUTTI_XML_MAX_BYTES; *text is for tuttiFree. `name`
 * stands for it in errors: "TUTTI_TOPO_FILE=/a/b.xml". */
tuttiResult_t tuttiXmlLoad(const char *path, const char *name, char **text, size_t *size);

/* Lets `write` write the file `path`, which then holds all of it or, after a failure, what it held
 * before. Fails if there is something else than a regular file. `what` and `asked`, the variable or
 * option that gave the path, stand in errors. */
tuttiResult_t tuttiSaveFile(const char *path, const char *asked, const char *what,
                            void (*write)(FILE *out, const void *object), const void *object);

/* Writes ` name="value"` with all that is special in XML escaped. */
void tuttiXmlPut(FILE *out, const char *name, const char *value);

__END_DECLS

#endif
