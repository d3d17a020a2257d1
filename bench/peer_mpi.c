/* Times MPI's collectives as `tutti perf` times tutti's: mean time of one call over many, maximum over
 * ranks, after a warm-up. One JSON line for each size.
 *
 *   mpirun -n N bench_peer_mpi COLLECTIVE BEGIN END FACTOR
 * COLLECTIVE: all_reduce, broadcast or all_gather; sizes in bytes as `tutti perf` counts them. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_SECONDS 0.12 /* per size, after the warm-up */
#define MAX_ITERATIONS 20000

typedef struct {
  const char *name;
  size_t bytes;
  int nranks;
  float *send, *recv;
} job;

static void call(const job *j) {
  int count = (int)(j->bytes / sizeof(float));
  if (!strcmp(j->name, "all_reduce"))
    MPI_Allreduce(j->send, j->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(j->name, "broadcast"))
    MPI_Bcast(j->recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else
    MPI_Allgather(j->send, count / j->nranks, MPI_FLOAT, j->recv, count / j->nranks, MPI_FLOAT,
                  MPI_COMM_WORLD);
}

/* Mean of one call in us, maximum over ranks. */
static double timeCalls(const job *j, int iterations) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < iterations; i++) call(j);
  double mean = (MPI_Wtime() - start) / iterations * 1e6, slowest;
  MPI_Allreduce(&mean, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank;
  job j = {0};
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &j.nranks);
  if (argc != 5 || atof(argv[4]) < 2) {
    if (rank == 0) fprintf(stderr, "usage: %s COLLECTIVE BEGIN END FACTOR\n", argv[0]);
    MPI_Finalize();
    return 2;
  }
  size_t begin = strtoull(argv[2], NULL, 10), end = strtoull(argv[3], NULL, 10);
  size_t factor = strtoull(argv[4], NULL, 10);
  j.name = argv[1];
  j.send = malloc(end);
  j.recv = malloc(end);
  if (!j.send || !j.recv) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(j.send, 0, end);
  memset(j.recv, 0, end);
  for (j.bytes = begin; j.bytes <= end; j.bytes *= factor) {
    timeCalls(&j, 3);
    double once = timeCalls(&j, 5);
    int iterations = once > 0 ? (int)(TARGET_SECONDS * 1e6 / once) : MAX_ITERATIONS;
    if (iterations < 3) iterations = 3;
    if (iterations > MAX_ITERATIONS) iterations = MAX_ITERATIONS;
    double us = timeCalls(&j, iterations);
    if (rank == 0)
      printf("{\"collective\": \"%s\", \"size\": %zu, \"time_us\": %.3f}\n", j.name, j.bytes, us);
    fflush(stdout);
  }
  free(j.send);
  free(j.recv);
  MPI_Finalize();
  return 0;
}
