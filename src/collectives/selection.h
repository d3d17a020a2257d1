/* What the planner may use of algorithms or protocols, collective by collective: the language of
 * TUTTI_ALGO and TUTTI_PROTO, which is NCCL's. */
#ifndef TUTTI_COLLECTIVES_SELECTION_H_
#define TUTTI_COLLECTIVES_SELECTION_H_

#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/signature.h"
#include "tutti.h"

__BEGIN_DECLS

/* What can be named: `has` is what tutti has, bit i of a mask stands for has[i]; `others` are words
 * of NCCL for what tutti has not, which are understood and select nothing. */
typedef struct {
  const char *const *has;
  int nhas;
  const char *const *others;
  int nothers;
} tuttiSelectionWords;
extern const tuttiSelectionWords tuttiAlgoWords, tuttiProtoWords;

/* For each collective the mask of what may be used; 0 where only `others` were named. */
typedef struct {
  uint32_t of[tuttiCollCount];
} tuttiSelection;

/* Parses "ring;allreduce:tree,direct;broadcast:^ring": parts between semicolons, each for one
 * collective or for all, of words between commas, or with ^ of all but these words. A later part
 * counts where an earlier one said something else; "" selects all; case is ignored. `setting` is
 * for the text of the error, tuttiInvalidArgument, which says at which character (from 1) stands
 * what, and which words are accepted there. */
tuttiResult_t tuttiSelectionParse(const char *setting, const char *text,
                                  const tuttiSelectionWords *words, tuttiSelection *out);

__END_DECLS

#endif
