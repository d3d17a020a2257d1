"""One all-reduce over all GPUs by CuPy's own NCCL calls, checked: python3 cupy_allreduce.py"""
import cupy
from cupy.cuda import nccl

devices = list(range(cupy.cuda.runtime.getDeviceCount()))
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
