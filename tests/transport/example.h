/* A transport that carries nothing, made by the recipe of CONTRIBUTING.md. */
#ifndef TUTTI_TESTS_TRANSPORT_EXAMPLE_H_
#define TUTTI_TESTS_TRANSPORT_EXAMPLE_H_

#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

/* The calls of its operations so far, in this process. */
typedef struct {
  int prepared, attached, opened, closed, detached;
} exampleCalls;
extern exampleCalls exampleCounts;

extern const tuttiTransport tuttiTransportExample;

__END_DECLS

#endif
