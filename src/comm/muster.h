/* Where the ranks of one communicator that are threads of one process wait for each other. */
#ifndef TUTTI_COMM_MUSTER_H_
#define TUTTI_COMM_MUSTER_H_

#include <sys/cdefs.h>

#include "socket/socket.h"
#include "transport/transport.h"

__BEGIN_DECLS

/* Returns when all ranks of this process have called it, once each. At once where there is none but
 * this one. */
tuttiResult_t tuttiMusterWait(const tuttiCommView *v, tuttiWait wait);

__END_DECLS

#endif
