"""Collective communication between the ranks of a job, on host memory and on GPUs.

    import numpy, tutti

    with tutti.Communicator.from_env() as comm:  # under torchrun, mpirun or srun
        x = numpy.ones(1000, dtype=numpy.float32)
        comm.all_reduce(x)  # in place; with out=y it goes there

Other programs pass the bytes of unique_id() from one rank to all by any means they have, and make
Communicator(nranks, rank, uid).

Buffers are whatever speaks DLPack (NumPy, PyTorch, CuPy, JAX, ...) or Python's buffer protocol,
contiguous, in the memory that the communicator works on. On host memory a call returns when it is
done, or with async_op=True at once; on GPUs it is enqueued on `stream`, the number of a CUDA stream (0:
the default stream). What each call does and demands is said in tutti.h. Calls of different communicators
may run in different threads; other threads go on meanwhile.

`import tutti.torch` has what PyTorch needs; enable() puts tutti's libnccl.so.2 into this process, and
which() says whose is in it.

The library is libtutti.so: TUTTI_LIBRARY, else the one that the package brings, else where the loader
finds it, else this checkout's build folder.
"""
from tutti._array import AVG, MAX, MIN, PROD, SUM
from tutti._communicator import Communicator, Window, group, unique_id
from tutti._library import Error, library_path, version
from tutti._nccl import enable, which
from tutti._operation import Operation

__all__ = ["AVG", "Communicator", "Error", "MAX", "MIN", "Operation", "PROD", "SUM", "Window", "enable",
           "group", "library_path", "unique_id", "version", "which"]
