/* What the sources of libnccl.so.2 have in common. */
#ifndef TUTTI_NCCL_EXPORT_H_
#define TUTTI_NCCL_EXPORT_H_

#include <stdbool.h>
#include <stddef.h>

#include "tutti.h"

#define EXPORT __attribute__((visibility("default")))

/* Defines pnccl<name> and its weak twin; the body follows. */
#define DEFINE(type, name, parameters)                                                             \
  EXPORT type pnccl##name parameters;                                                              \
  EXPORT __attribute__((weak, alias("pnccl" #name))) type nccl##name parameters;                   \
  EXPORT type pnccl##name parameters

/* A call that tutti has not; its arguments are not looked at. */
#define REFUSE(name, parameters, text)                                                             \
  DEFINE(tuttiResult_t, name, parameters) {                                                        \
    return tuttiNcclRefuse(tuttiInvalidUsage, "nccl" #name ": " text);                             \
  }

/* Why the last call of this thread was refused here, as tutti does not know of it; NULL: it was
 * not. Each call begins by setting it so. */
extern _Thread_local const char *tuttiNcclRefusal;
static inline tuttiResult_t tuttiNcclRefuse(tuttiResult_t code, const char *text) {
  tuttiNcclRefusal = text;
  return code;
}

/* TUTTI_NCCL_VERSION, which tutti has checked, as a code: 23203 of "2.32.3". */
tuttiResult_t tuttiNcclReportedVersion(int *version);

/* Bytes of the device communicator of a version of the header. */
size_t tuttiNcclDevCommBytes(int version);
/* A group of this thread has ended; `outermost`: and it was in none. Device communicators that were
 * made in it are told to the program. */
void tuttiNcclDevCommsTell(bool outermost);

#endif
