/* The table of paths: one row per peer of this rank, by rank (transport/path.h), made once at init
 * and read-only afterwards. Planner, connections, log, errors and tools read it; no transport is
 * asked again. */
#ifndef TUTTI_WIREUP_PATHS_H_
#define TUTTI_WIREUP_PATHS_H_

#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

/* Fills paths[nranks] for `rank`; its own row stays empty. */
void tuttiPathsFill(const tuttiPeer *peers, int rank, int nranks, tuttiPath *paths);
/* The failure of two ranks that no transport connects. */
tuttiResult_t tuttiPathMissing(const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b);

__END_DECLS

#endif
