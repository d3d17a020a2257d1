"""One all-reduce over all GPUs by CuPy's own NCCL calls, one process for all of them, checked.

    NCCL_DEBUG=VERSION tutti run -- python3 tests/gpu/cupy_allreduce.py

CuPy loads the NCCL that was installed with it, if no other is there already: LD_LIBRARY_PATH is not
enough. Exit code 77: there is no CuPy here, or it found no NCCL or GPU."""
import sys

try:
    import cupy
    from cupy.cuda import nccl
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if not nccl.available:
    print("skipped: this CuPy has no NCCL (its warning above says why)")
    sys.exit(77)
try:
    devices = list(range(cupy.cuda.runtime.getDeviceCount()))
except cupy.cuda.runtime.CUDARuntimeError as none:
    print(f"skipped: {none}")
    sys.exit(77)
comms = nccl.NcclCommunicator.initAll(devices)
arrays = []
for d in devices:
    with cupy.cuda.Device(d):
        arrays.append(cupy.full(1_000_003, d + 1, dtype=cupy.float32))
nccl.groupStart()
for d, comm, array in zip(devices, comms, arrays):
    with cupy.cuda.Device(d):
        comm.allReduce(array.data.ptr, array.data.ptr, array.size, nccl.NCCL_FLOAT32,
                       nccl.NCCL_SUM, cupy.cuda.Stream.null.ptr)
nccl.groupEnd()
for d, array in zip(devices, arrays):
    with cupy.cuda.Device(d):
        assert (array == sum(range(1, len(devices) + 1))).all(), f"wrong on device {d}"
for comm in comms:
    comm.destroy()
print(f"cupy {cupy.__version__}, nccl {nccl.get_version()}: {len(devices)} GPUs, ok")
