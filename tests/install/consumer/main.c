/* One thread drives two ranks of an all-reduce; C11 and C++17. */
#include <stdio.h>
#include <tutti.h>

int main(void) {
  tuttiComm_t comms[2];
  float in[2][2] = {{1, 2}, {10, 20}}, out[2][2] = {{0, 0}, {0, 0}};
  tuttiResult_t result = tuttiCommInitAll(comms, 2, NULL);
  if (result == tuttiSuccess) result = tuttiGroupStart();
  for (int rank = 0; rank < 2 && result == tuttiSuccess; rank++)
    result = tuttiAllReduce(in[rank], out[rank], 2, tuttiFloat, tuttiSum, comms[rank], NULL);
  if (result == tuttiSuccess) result = tuttiGroupEnd();
  for (int rank = 0; rank < 2 && result == tuttiSuccess; rank++) {
    if (out[rank][0] != 11 || out[rank][1] != 22) {
      fprintf(stderr, "rank %d has %g and %g\n", rank, out[rank][0], out[rank][1]);
      return 1;
    }
    result = tuttiCommDestroy(comms[rank]);
  }
  if (result != tuttiSuccess) fprintf(stderr, "%s\n", tuttiGetLastError(NULL));
  return result != tuttiSuccess;
}
