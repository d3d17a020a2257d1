#include "topology/xml.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef TUTTI_HAVE_EXPAT
#include <expat.h>
#endif

#include "base/error.h"

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

const char *tuttiXmlGet(const tuttiXml *xml, const char *attribute) {
  for (const char **a = xml->attributes; a[0] != NULL; a += 2)
    if (strcmp(a[0], attribute) == 0) return a[1];
  return NULL;
}

tuttiResult_t tuttiXmlOnly(const tuttiXml *xml, const char *const *attributes) {
  for (const char **a = xml->attributes; a[0] != NULL; a += 2) {
    const char *const *known = attributes;
    while (*known != NULL && strcmp(*known, a[0]) != 0)
      known++;
    if (*known == NULL) return tuttiXmlFail(xml, "unknown attribute \"%.64s\"", a[0]);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiXmlNumber(const tuttiXml *xml, const char *attribute, int64_t min, int64_t max,
                             int64_t *value) {
  const char *text = tuttiXmlGet(xml, attribute);
  if (text == NULL) return tuttiSuccess;
  bool hex = text[0] == '0' && text[1] == 'x';
  bool begins = hex ? isxdigit((unsigned char)text[2]) != 0
                    : isdigit((unsigned char)text[text[0] == '-']) != 0;
  char *end = NULL;
  errno = 0;
  int64_t number = begins ? strtoll(text, &end, hex ? 16 : 10) : 0;
  if (!begins || *end != '\0')
    return tuttiXmlFail(xml, "%s=\"%.64s\" is not a number", attribute, text);
  if (errno == ERANGE || number < min || number > max)
    return tuttiXmlFail(xml, "%s=\"%.64s\" is not within %" PRId64 " to %" PRId64, attribute, text,
                        min, max);
  *value = number;
  return tuttiSuccess;
}

tuttiResult_t tuttiXmlText(const tuttiXml *xml, const char *attribute, char *buf, size_t size) {
  const char *text = tuttiXmlGet(xml, attribute);
  if (text == NULL) return tuttiSuccess;
  size_t length = strlen(text);
  if (length >= size)
    return tuttiXmlFail(xml, "%s is %zu bytes long; at most %zu are possible", attribute, length,
                        size - 1);
  for (const char *c = text; *c != '\0'; c++)
    if (iscntrl((unsigned char)*c))
      return tuttiXmlFail(xml, "%s has a control character", attribute);
  memcpy(buf, text, length + 1);
  return tuttiSuccess;
}

#ifndef TUTTI_HAVE_EXPAT

tuttiResult_t tuttiXmlParse(const char *text, size_t size, const char *name,
                            const tuttiXmlHandler *handler, void *context) {
  (void)text, (void)size, (void)handler, (void)context;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "%s: this tutti was built without expat and reads no XML; build it where "
                    "libexpat1-dev (expat.h, libexpat.a) is installed",
                    name);
}

#else

typedef struct {
  tuttiXml xml;
  XML_Parser parser;
  const tuttiXmlHandler *handler;
  void *context;
  int depth;
  tuttiResult_t result; /* of the first failure, which stops the parser */
} parse;

static void settle(parse *p, tuttiResult_t result) {
  if (result == tuttiSuccess) return;
  p->result = result;
  XML_StopParser(p->parser, XML_FALSE);
}

static void locate(parse *p, const char **attributes) {
  static const char *none[] = {NULL};
  p->xml.line = (int)XML_GetCurrentLineNumber(p->parser);
  p->xml.attributes = attributes != NULL ? attributes : none;
}

static void onOpen(void *data, const char *element, const char **attributes) {
  parse *p = data;
  if (p->result != tuttiSuccess) return;
  locate(p, attributes);
  if (++p->depth > TUTTI_XML_MAX_DEPTH)
    settle(p,
           tuttiXmlFail(&p->xml, "more than %d elements inside each other", TUTTI_XML_MAX_DEPTH));
  else
    settle(p, p->handler->open(p->context, &p->xml, element));
}

static void onClose(void *data, const char *element) {
  parse *p = data;
  if (p->result != tuttiSuccess) return;
  locate(p, NULL);
  p->depth--;
  settle(p, p->handler->close(p->context, &p->xml, element));
}

static void onText(void *data, const char *text, int length) {
  parse *p = data;
  if (p->result != tuttiSuccess) return;
  for (int i = 0; i < length; i++) {
    if (isspace((unsigned char)text[i])) continue;
    locate(p, NULL);
    settle(p, tuttiXmlFail(&p->xml, "text between the elements"));
    return;
  }
}

/* Entities are declared in a document type; without one there are none to blow up. */
static void onDoctype(void *data, const char *doctype, const char *system, const char *public,
                      int subset) {
  parse *p = data;
  (void)doctype, (void)system, (void)public, (void)subset;
  if (p->result != tuttiSuccess) return;
  locate(p, NULL);
  settle(p, tuttiXmlFail(&p->xml, "a document type (<!DOCTYPE) is not accepted; remove it"));
}

tuttiResult_t tuttiXmlParse(const char *text, size_t size, const char *name,
                            const tuttiXmlHandler *handler, void *context) {
  parse p = {.xml = {.name = name, .line = 1}, .handler = handler, .context = context};
  if (size > TUTTI_XML_MAX_BYTES)
    return tuttiXmlFail(&p.xml, "%zu bytes; at most %d are accepted", size, TUTTI_XML_MAX_BYTES);
  p.parser = XML_ParserCreate(NULL);
  if (p.parser == NULL)
    return TUTTI_FAIL(tuttiSystemError, "%s: no memory for an XML parser", name);
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
