/* Writing and reading XML. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef TUTTI_HAVE_EXPAT
#include <expat.h>
#if XML_MAJOR_VERSION > 2 || XML_MINOR_VERSION >= 9 /* where the other is deprecated */
#define LINE_NUMBER XML_GetCurrentLineNumber64
#else
#define LINE_NUMBER XML_GetCurrentLineNumber
#endif
#endif

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "topology/xml.h"

struct tuttiXml {
  const char *name;
  int line;
  const char **attributes; /* name, value, ..., NULL */
};

tuttiResult_t tuttiXmlFail(const tuttiXml *xml, const char *fmt, ...) {
  char text[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return TUTTI_FAIL(tuttiInvalidArgument, "%s:%d: %s", xml->name, xml->line, text);
}

static tuttiResult_t takeNumber(const tuttiXml *xml, const tuttiXmlAttribute *a, const char *text) {
  bool hex = text[0] == '0' && text[1] == 'x';
  bool begins = hex ? isxdigit((unsigned char)text[2]) != 0
                    : isdigit((unsigned char)text[text[0] == '-']) != 0;
  char *end = NULL;
  errno = 0;
  long long number = begins ? strtoll(text, &end, hex ? 16 : 10) : 0;
  if (!begins || *end != '\0')
    return tuttiXmlFail(xml, "%s=\"%.64s\" is not a number", a->name, text);
  if (errno == ERANGE || number < a->min || number > a->max)
    return tuttiXmlFail(xml, "%s=\"%.64s\" is not within %d to %d", a->name, text, a->min, a->max);
  *a->number = (int)number;
  return tuttiSuccess;
}

static tuttiResult_t takeText(const tuttiXml *xml, const tuttiXmlAttribute *a, const char *text) {
  size_t length = strlen(text);
  if (length >= a->size)
    return tuttiXmlFail(xml, "%s is %zu bytes long; at most %zu are possible", a->name, length,
                        a->size - 1);
  for (const char *c = text; *c != '\0'; c++)
    if (iscntrl((unsigned char)*c)) return tuttiXmlFail(xml, "%s has a control character", a->name);
  memcpy(a->text, text, length + 1);
  return tuttiSuccess;
}

tuttiResult_t tuttiXmlTake(const tuttiXml *xml, const tuttiXmlAttribute *known, int n) {
  for (const char **given = xml->attributes; given[0] != NULL; given += 2) {
    int i = 0;
    while (i < n && strcmp(known[i].name, given[0]) != 0)
      i++;
    if (i == n) return tuttiXmlFail(xml, "unknown attribute \"%.64s\"", given[0]);
    if (known[i].raw != NULL) *known[i].raw = given[1];
    if (known[i].number != NULL) TUTTI_TRY(takeNumber(xml, &known[i], given[1]));
    if (known[i].text != NULL) TUTTI_TRY(takeText(xml, &known[i], given[1]));
  }
  return tuttiSuccess;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Lets `write` write the open file, which is new and private, and closes it, whatever comes of it;
 * 0 or an errno. Others may read it then. */
static int writeAndClose(int fd, void (*write)(FILE *out, const void *object), const void *object) {
  int error = 0;
  FILE *out = fdopen(fd, "w");
  if (out == NULL) {
    error = errno;
    close(fd);
    return error;
  }
  errno = 0;
  write(out, object);
  if (fflush(out) != 0 || ferror(out) || fchmod(fd, 0644) != 0) error = errno;
  /* The stream is gone whatever fclose says; a network file system reports a full disk here. */
  if (fclose(out) != 0 && error == 0) error = errno;
  return error;
}

tuttiResult_t tuttiSaveFile(const char *path, const char *asked, const char *what,
                            void (*write)(FILE *out, const void *object), const void *object) {
  char temporary[PATH_MAX];
  struct stat st;
  int length = snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
  if (length >= (int)sizeof temporary)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "cannot write %s: the path of %d bytes is too long (%s)", what, length,
                      asked);
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "cannot write %s to %s: it is not a regular file; give another path (%s)",
                      what, path, asked);
  int fd = mkostemp(temporary, O_CLOEXEC);
  int error = fd < 0 ? errno : writeAndClose(fd, write, object);
  if (error == 0 && rename(temporary, path) != 0) error = errno;
  if (error == 0) return tuttiSuccess;
  if (fd >= 0) unlink(temporary);
  return TUTTI_FAIL(tuttiSystemError, "cannot write %s to %s: %s (%s)", what, path,
                    tuttiErrnoText(error), asked);
}

void tuttiXmlPut(FILE *out, const char *name, const char *value) {
  fprintf(out, " %s=\"", name);
  for (const char *c = value; *c != '\0'; c++) {
    const char *escaped = *c == '&'   ? "&amp;"
                          : *c == '<' ? "&lt;"
                          : *c == '>' ? "&gt;"
                          : *c == '"' ? "&quot;"
                                      : NULL;
    if (escaped != NULL)
      fputs(escaped, out);
    else
      fputc(*c, out);
  }
  fputc('"', out);
}

/* ---- parsing -------------------------------------------------------------------------------- */

tuttiResult_t tuttiXmlNothingToClose(void *context, const tuttiXml *xml) {
  (void)context, (void)xml;
  return tuttiSuccess;
}

tuttiResult_t tuttiXmlLoad(const char *path, const char *name, char **text, size_t *size) {
  char why[TUTTI_WHY];
  size_t bytes;
  TUTTI_CLOSED int fd = tuttiOpenRegular(path, TUTTI_XML_MAX_BYTES, &bytes, why);
  if (fd < 0) return TUTTI_FAIL(tuttiInvalidArgument, "cannot read %s%s", name, why);
  TUTTI_TRY(tuttiAlloc((void **)text, bytes + 1, 1, name, NULL));
  ssize_t used = tuttiReadAll(fd, *text, bytes);
  if (used < 0)
    return TUTTI_FAIL(tuttiSystemError, "cannot read %s: %s", name, tuttiErrnoText(errno));
  *size = (size_t)used;
  return tuttiSuccess;
}

#ifndef TUTTI_HAVE_EXPAT

tuttiResult_t tuttiXmlParse(const char *text, size_t size, const char *name,
                            const tuttiXmlElement *elements, int n, void *context) {
  (void)text, (void)size, (void)elements, (void)n, (void)context;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "%s: this tutti was built without expat and reads no XML; build it where "
                    "libexpat1-dev (expat.h, libexpat.a) is installed",
                    name);
}

#else

typedef struct {
  tuttiXml xml;
  XML_Parser parser;
  const tuttiXmlElement *elements; /* [n] */
  int n;
  void *context;
  const tuttiXmlElement *path[TUTTI_XML_MAX_DEPTH]; /* [depth] the open ones */
  int depth;
  tuttiResult_t result; /* of the first failure, which stops the parser */
} parse;

static void settle(parse *p, tuttiResult_t result) {
  if (result == tuttiSuccess) return;
  p->result = result;
  XML_StopParser(p->parser, XML_FALSE);
}

/* False: something has failed before, and the parser is about to stop. */
static bool locate(parse *p, const char **attributes) {
  static const char *none[] = {NULL};
  p->xml.line = (int)LINE_NUMBER(p->parser);
  p->xml.attributes = attributes != NULL ? attributes : none;
  return p->result == tuttiSuccess;
}

static tuttiResult_t enter(parse *p, const char *name) {
  const char *parent = p->depth > 0 ? p->path[p->depth - 1]->element : "";
  char expected[128] = "";
  if (p->depth == TUTTI_XML_MAX_DEPTH)
    return tuttiXmlFail(&p->xml, "more than %d elements inside each other", TUTTI_XML_MAX_DEPTH);
  for (int i = 0; i < p->n; i++) {
    const tuttiXmlElement *e = &p->elements[i];
    if (strcmp(e->parent != NULL ? e->parent : "", parent) != 0) continue;
    if (strcmp(e->element, name) == 0) {
      p->path[p->depth++] = e;
      return e->open(p->context, &p->xml);
    }
    tuttiAppend(expected, sizeof expected, expected[0] ? " or <%s>" : "<%s>", e->element);
  }
  if (p->depth == 0) /* another program's file, of which nothing is told */
    return tuttiXmlFail(&p->xml, "the outermost element is not %s", expected);
  return tuttiXmlFail(&p->xml, "element <%.64s> where %s is expected", name,
                      expected[0] != '\0' ? expected : "none");
}

static void onOpen(void *data, const char *element, const char **attributes) {
  parse *p = data;
  if (locate(p, attributes)) settle(p, enter(p, element));
}

static void onClose(void *data, const char *element) {
  parse *p = data;
  (void)element;
  if (!locate(p, NULL)) return;
  const tuttiXmlElement *e = p->path[--p->depth];
  settle(p, e->close(p->context, &p->xml));
}

static void onText(void *data, const char *text, int length) {
  parse *p = data;
  bool blank = true;
  for (int i = 0; i < length; i++)
    blank &= isspace((unsigned char)text[i]) != 0;
  if (locate(p, NULL) && !blank) settle(p, tuttiXmlFail(&p->xml, "text between the elements"));
}

/* Entities are declared in a document type; without one there are none to blow up. */
static void onDoctype(void *data, const char *doctype, const char *system, const char *public,
                      int subset) {
  parse *p = data;
  (void)doctype, (void)system, (void)public, (void)subset;
  if (locate(p, NULL))
    settle(p, tuttiXmlFail(&p->xml, "a document type (<!DOCTYPE) is not accepted; remove it"));
}

tuttiResult_t tuttiXmlParse(const char *text, size_t size, const char *name,
                            const tuttiXmlElement *elements, int n, void *context) {
  TUTTI_FREED char *file = NULL;
  parse p = {.xml = {.name = name, .line = 1}, .elements = elements, .n = n, .context = context};
  if (text == NULL) {
    TUTTI_TRY(tuttiXmlLoad(name, name, &file, &size));
    text = file;
  }
  if (size > TUTTI_XML_MAX_BYTES)
    return tuttiXmlFail(&p.xml, "%zu bytes; at most %d are accepted", size, TUTTI_XML_MAX_BYTES);
  p.parser = XML_ParserCreate(NULL);
  if (!p.parser) return TUTTI_FAIL(tuttiSystemError, "%s: no memory for an XML parser", name);
  XML_SetUserData(p.parser, &p);
  XML_SetElementHandler(p.parser, onOpen, onClose);
  XML_SetCharacterDataHandler(p.parser, onText);
  XML_SetStartDoctypeDeclHandler(p.parser, onDoctype);
  enum XML_Status status = XML_Parse(p.parser, text, (int)size, 1);
  if (p.result == tuttiSuccess && status != XML_STATUS_OK) {
    locate(&p, NULL);
    p.result = tuttiXmlFail(&p.xml, "not well-formed XML: %s",
                            XML_ErrorString(XML_GetErrorCode(p.parser)));
  }
  XML_ParserFree(p.parser);
  return p.result;
}

#endif
