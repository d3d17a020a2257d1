/* Errors: one status enum (tuttiResult_t), one text per thread, logged once where it is born. */
#ifndef TUTTI_BASE_ERROR_H_
#define TUTTI_BASE_ERROR_H_

#include <sys/cdefs.h>

#include "base/text.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_ERROR_TEXT 1024

/* Sets this thread's last error to "<context>: <text>", logs it once at WARN with file:line, and
 * returns `code`. The text names the object, the ranks and a remedy. */
tuttiResult_t tuttiErrorSet(tuttiResult_t code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Adopts a text that was born (and logged) in another thread or rank; no log, no context. */
tuttiResult_t tuttiErrorAdopt(tuttiResult_t code, const char *text);

/* This thread's last error; "" when none. Valid until its next error. */
const char *tuttiErrorText(void);
void tuttiErrorClear(void);

/* The public call this thread is inside: every error born below starts with
 * "tuttiAllReduce (rank 3 of 8, comm train): ". Costs a few stores: the strings are kept by address
 * and must live until the scope changes. `comm` may be NULL; a NULL call ends the scope. */
void tuttiErrorScope(const char *call, const char *comm, int rank, int nranks);

__END_DECLS

/* `code`, promised to the compiler and to checkers to be a failure. */
static inline tuttiResult_t tuttiErrorCode(tuttiResult_t code) {
  if (code == tuttiSuccess) __builtin_unreachable();
  return code;
}

/* The check macros of this code base. TUTTI_FAIL's value is `code`, which is not tuttiSuccess. */
#define TUTTI_FAIL(code, ...) tuttiErrorCode(tuttiErrorSet((code), __FILE__, __LINE__, __VA_ARGS__))

/* For a list of X: the name of each of its members, for a table. */
#define TUTTI_NAME(name) #name,

/* Returns from the caller on failure. */
#define TUTTI_TRY(expr)                                                                            \
  do {                                                                                             \
    tuttiResult_t tryResult_ = (expr);                                                             \
    if (tryResult_ != tuttiSuccess) return tryResult_;                                             \
  } while (0)

#endif
