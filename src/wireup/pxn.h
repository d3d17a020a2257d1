/* Messages between GPUs of two hosts whose NICs are on different rails. From NIC to NIC they would
 * cross the rails, in the spine of the network or not at all; so the sender stores them over NVLink
 * in the memory of the GPU of its host that is beside the receiver's rail, and they leave by the
 * NIC there (NCCL calls it PXN). That GPU's rank lends memory at init and does no more. Which one
 * it is follows from the peer records, so lender and borrower come to the same without a message.
 */
#ifndef TUTTI_WIREUP_PXN_H_
#define TUTTI_WIREUP_PXN_H_

#include <sys/cdefs.h>

#include "wireup/rails.h"

__BEGIN_DECLS

typedef struct {
  tuttiPxnWay *to; /* [nranks] of messages from this rank; NULL: none goes by another GPU */
  int32_t *lends;  /* [nranks]: to how many peers that rank sends by way of this one's GPU */
} tuttiPxn;

/* Fills *pxn, which is zero. To be freed also after a failure. */
tuttiResult_t tuttiPxnMake(const tuttiPeer *peers, const tuttiRails *rails, int rank, int nranks,
                           tuttiPxn *pxn);
void tuttiPxnFree(tuttiPxn *pxn);

__END_DECLS

#endif
