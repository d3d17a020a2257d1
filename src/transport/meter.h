/* How fast the link under a connection is: bytes over time, of those stretches alone in which
 * nothing but the link held the connection up.
 *
 * A stretch lies between two marks. A mark is set at a moment when a large payload is under way,
 * and all that has come of it, or has been acknowledged, is counted. So between two marks of one
 * payload there was something to carry and room for it, and that more had not come yet was up to
 * the link. Times of small messages would tell of latencies, and time in which a side has nothing
 * to send, or no slot free, of ranks.
 *
 * Endpoints set marks where they know of such moments for nothing: a receiver of sockets when it
 * has read them empty in the midst of a payload, a sender of RDMA when it has taken all completions
 * and some are still to come. The clock is read once for each, never for a small payload. */
#ifndef TUTTI_TRANSPORT_METER_H_
#define TUTTI_TRANSPORT_METER_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

#define TUTTI_METER_PAYLOAD 65536u     /* bytes; no mark is set in smaller payloads */
#define TUTTI_METER_SAMPLE  (1u << 20) /* bytes of stretches that make a sample */
#define TUTTI_METER_SAMPLES 16         /* the best of the last 16 to 32 is told */
#define TUTTI_METER_LEAST   4          /* fewer say nothing */

/* Zeroed at first. Belongs to whoever runs the endpoint. Rates are in kB/s, that is 1000 bytes. */
typedef struct {
  uint64_t at;         /* tuttiNow() of the last mark; 0: the next one begins a stretch */
  uint64_t bytes, all; /* counted by then */
  uint64_t sampleNs, sampleBytes, sampleAll; /* of the sample in the making */
  uint32_t samples;                          /* taken so far */
  uint32_t rate[2],
      allRate[2]; /* the best of the samples of this generation and of the one before */
} tuttiMeter;

/* Sets a mark at the time `now`. `bytes` and `all` count what this connection and what all of its
 * NIC's that are known here have carried so far, this one among them: what shares a link is to be
 * told from a slow one. */
void tuttiMeterMark(tuttiMeter *m, uint64_t now, uint64_t bytes, uint64_t all);
/* From the last mark on something else may have held the connection up. */
static inline void tuttiMeterBreak(tuttiMeter *m) {
  m->at = 0;
}
/* The best of the last samples: of this connection, and of all while it was measured. A core that
 * somebody else has meanwhile makes samples slow, and nothing makes them faster than the link.
 * False: there are too few. */
bool tuttiMeterRate(const tuttiMeter *m, uint32_t *rate, uint32_t *allRate);

__END_DECLS

#endif
