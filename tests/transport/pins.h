/* Stands in for base/pinned.c in all tests of transports: counts what is pinned, for GPUs that
 * there need not be. */
#ifndef TUTTI_TESTS_TRANSPORT_PINS_H_
#define TUTTI_TESTS_TRANSPORT_PINS_H_

#include <atomic>
#include <cstddef>

namespace pins {

extern std::atomic<int> held;      /* memories that are pinned */
extern std::atomic<int> made;      /* ... and have ever been */
extern std::atomic<size_t> last;   /* bytes of the last one */
extern std::atomic<size_t> refuse; /* memory of so many bytes and more is refused; 0: none is */

} // namespace pins

#endif
