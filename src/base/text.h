/* What texts of errors and of the log are made with. The lowest step of base: includes nothing of
 * it. */
#ifndef TUTTI_BASE_TEXT_H_
#define TUTTI_BASE_TEXT_H_

#include <stddef.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* strerror(err) in a thread-safe way; valid until this thread's next call. */
const char *tuttiErrnoText(int err);

/* Host name without domain; constant for the process. */
const char *tuttiHostname(void);

/* Appends to the text in `to` as much as fits in its `size` bytes. */
__attribute__((format(printf, 3, 4))) void tuttiAppend(char *to, size_t size, const char *fmt, ...);

/* A JSON string in quotes; what is not UTF-8 becomes U+FFFD. */
void tuttiJsonString(FILE *out, const char *text);

__END_DECLS

#endif
