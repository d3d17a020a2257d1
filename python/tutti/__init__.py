"""Collective communication between the ranks of a job, on host memory and on GPUs.

    import numpy, tutti

    uid = tutti.unique_id()  # on one rank; bytes, that the others get by any means
    with tutti.Communicator(nranks, rank, uid) as comm:
        x = numpy.ones(1000, dtype=numpy.float32)
        comm.all_reduce(x)  # in place; with out=y it goes there

Buffers are whatever speaks DLPack (NumPy, PyTorch, CuPy, JAX, ...) or Python's buffer protocol,
contiguous, in the memory that the communicator works on. On host memory a call returns when it is
done; on GPUs it is enqueued on `stream`, the number of a CUDA stream (0: the default stream). What
each call does and demands is said in tutti.h. Calls of different communicators may run in different
threads; other threads go on meanwhile.

`import tutti.torch` has what PyTorch needs; enable() puts tutti's libnccl.so.2 into this process, and
which() says whose is in it.

The library is libtutti.so: TUTTI_LIBRARY, else the one that the package brings, else where the loader
finds it, else this checkout's build folder.
"""
import contextlib
import ctypes
import os
import pathlib
import threading
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p

__all__ = ["AVG", "Communicator", "Error", "MAX", "MIN", "PROD", "SUM", "enable", "group",
           "library_path", "unique_id", "version", "which"]

SUM, PROD, MAX, MIN, AVG = range(5)
_SUCCESS, _IN_PROGRESS, _UNDEFINED, _MAGIC = 0, 7, -(2**31), 0x7A771C0F
_DEVICES = {"auto": 0, "host": 1, "cuda": 2}
# By DLPack's type code and bits: signed, unsigned, float, bfloat16, e4m3fn, e5m2; bool is uint8.
_TYPES = {(0, 8): 0, (1, 8): 1, (6, 8): 1, (0, 32): 2, (1, 32): 3, (0, 64): 4, (1, 64): 5,
          (2, 16): 6, (2, 32): 7, (2, 64): 8, (4, 16): 9, (10, 8): 10, (12, 8): 11}
_CODES = {**dict.fromkeys("bhilq", 0), **dict.fromkeys("BHILQc", 1), **dict.fromkeys("efd", 2),
          "?": 6}


class Error(RuntimeError):
    """A call has failed: the text names the call, the object, the ranks and a remedy; `code` is the
    tuttiResult_t."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class _Id(ctypes.Structure):
    _fields_ = [("internal", c_char * 128)]


class _Config(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int),
                ("minCTAs", c_int), ("maxCTAs", c_int), ("splitShare", c_int),
                ("trafficClass", c_int), ("netName", c_char_p), ("commName", c_char_p),
                ("device", c_int), ("timeoutMs", c_int)]


class _Tensor(ctypes.Structure):  # DLPack's DLTensor
    _fields_ = [("data", c_void_p), ("device", c_int * 2), ("ndim", c_int),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", POINTER(ctypes.c_int64)), ("strides", POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


def _load():
    build = pathlib.Path(__file__).resolve().parents[2] / "build/src/libtutti.so"
    named, tried = os.environ.get("TUTTI_LIBRARY"), []
    wheel = pathlib.Path(__file__).resolve().parent / "lib/libtutti.so.0"
    for path in [named] if named else [str(wheel), "libtutti.so.0", str(build)]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
    raise ImportError("no libtutti.so: " + "; ".join(tried) +
                      ". Install tutti, or let TUTTI_LIBRARY name it")


_lib = _load()
_lib.tuttiGetLastError.restype = c_char_p
_lib.tuttiCommInitRankConfig.argtypes = [c_void_p, c_int, _Id, c_int, c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_thread = threading.local()  # .held: what the calls of an open group use


def _check(result, comm=None):
    if result not in (_SUCCESS, _IN_PROGRESS):
        raise Error(result, _lib.tuttiGetLastError(comm).decode(errors="replace"))


def _contiguous(tensor):
    expected = 1
    if 0 in tensor.shape[:tensor.ndim]:
        return True
    for i in reversed(range(tensor.ndim)):
        if tensor.shape[i] != 1 and tensor.strides[i] != expected:
            return False
        expected *= tensor.shape[i]
    return True


_REACHED_BY_CPUS = (1, 3, 13)  # DLPack's kDLCPU, kDLCUDAHost, kDLCUDAManaged


def _dlpack(array):
    device = array.__dlpack_device__()[0]
    # On a GPU the caller's stream orders the work: nobody need wait here.
    capsule = array.__dlpack__() if device == 1 else array.__dlpack__(stream=-1)
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    if tensor.strides and not _contiguous(tensor):
        raise ValueError("the array is not contiguous; pass a copy")
    count = 1
    for i in range(tensor.ndim):
        count *= tensor.shape[i]
    kind = (tensor.code, tensor.bits if tensor.lanes == 1 else 0)
    return (tensor.data or 0) + tensor.offset, count, kind, capsule, device in _REACHED_BY_CPUS


def _buffer(array):
    view = memoryview(array)
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous; pass a copy")
    if view.readonly:
        raise ValueError("the buffer is read-only")
    kind = (_CODES.get(view.format.lstrip("@="), 255), 8 * view.itemsize)
    if view.nbytes == 0:
        return 0, 0, kind, view, True
    raw = (c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(raw), view.nbytes // view.itemsize, kind, raw, True


def _parts(array):
    if not hasattr(array, "__dlpack__"):
        return _buffer(array)
    try:
        return _dlpack(array)
    except BufferError:
        if getattr(array, "dtype", None) != "bool":
            raise
        return _buffer(array)  # NumPy 1 exports no bools by DLPack


class _Array:
    """Where a buffer is, how many elements of which type it has, and what keeps it there."""

    def __init__(self, array):
        self.address, self.count, kind, keep, self.on_host = _parts(array)
        if kind not in _TYPES:
            raise TypeError(f"tutti has no type for {getattr(array, 'dtype', kind)}")
        self.type = _TYPES[kind]
        self.is_bool = kind[0] == 6
        self.keep = (array, keep)


def _of_bools(op):
    """Bools are 0 or 1 in memory: their sum, as NumPy's, is whether any is true."""
    if op == AVG:
        raise TypeError("tutti has no average of bools; pass floats")
    return {SUM: MAX, PROD: MIN}.get(op, op)


def version():
    """The library's version, e.g. (0, 1, 0)."""
    code = c_int()
    _check(_lib.tuttiGetVersion(byref(code)))
    return code.value // 10000, code.value // 100 % 100, code.value % 100


class _Symbol(ctypes.Structure):  # a Dl_info
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p)]


def _file_of(call):
    """The file of the library that this function is in."""
    symbol = _Symbol()
    find = ctypes.CDLL(None).dladdr
    find.argtypes = [c_void_p, c_void_p]
    if not find(ctypes.cast(call, c_void_p), byref(symbol)):
        raise OSError("the C library does not know where a loaded function is")
    return os.path.realpath(os.fsdecode(symbol.file))


def library_path():
    """The file of the libtutti.so in use.

    >>> os.path.basename(tutti.library_path()).startswith("libtutti.so")
    True
    """
    return _file_of(_lib.tuttiGetVersion)


def unique_id():
    """The bytes that all ranks of one new communicator must have; this process must live until all
    have joined."""
    uid = _Id()
    _check(_lib.tuttiGetUniqueId(byref(uid)))
    return bytes(uid)


@contextlib.contextmanager
def group():
    """Calls of this thread inside `with tutti.group():` run together at its end."""
    outer = getattr(_thread, "held", None)
    _thread.held = [] if outer is None else outer
    _check(_lib.tuttiGroupStart())
    try:
        yield
    except BaseException:
        _lib.tuttiGroupSimulateEnd(byref(_forget()))
        raise
    else:
        _check(_lib.tuttiGroupEnd())
    finally:
        _thread.held = outer


class _forget(ctypes.Structure):  # a tuttiSimInfo_t
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint),
                ("time", ctypes.c_float)]

    def __init__(self):
        super().__init__(ctypes.sizeof(_forget), 0x74685283, 0, -1.0)


class Communicator:
    """One rank's handle of a communicator of `nranks` ranks, which all make one with the same id.
    `device` is "auto", "host" or "cuda"; `timeout` is in seconds."""

    def __init__(self, nranks, rank, uid, *, device="auto", timeout=None, name=None):
        if len(uid) != 128:
            raise ValueError(f"a unique id has 128 bytes, not {len(uid)}")
        code = c_int()
        _check(_lib.tuttiGetVersion(byref(code)))
        config = _Config(ctypes.sizeof(_Config), _MAGIC, code.value, 1, *[_UNDEFINED] * 4, None,
                         name.encode() if name else None, _DEVICES[device],
                         _UNDEFINED if timeout is None else int(1000 * timeout))
        handle = c_void_p()
        _check(_lib.tuttiCommInitRankConfig(byref(handle), nranks, _Id.from_buffer_copy(uid), rank,
                                            byref(config)))
        self._handle, self.rank, self.size = handle, rank, nranks

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.abort() if kind else self.destroy()

    def _end(self, call):
        if self._handle:
            handle, self._handle = self._handle, None
            _check(call(handle))

    def destroy(self):
        """Completes what is outstanding and frees the communicator."""
        self._end(_lib.tuttiCommDestroy)

    def abort(self):
        """Ends all work at once and frees the communicator; the other ranks get an error."""
        self._end(_lib.tuttiCommAbort)

    def split(self, color, key=0):
        """A new communicator of the ranks with this color, ordered by key; None for color -1."""
        handle, rank, size = c_void_p(), c_int(), c_int()
        if getattr(_thread, "held", None) is not None:
            raise ValueError("split cannot be in a group")
        _check(_lib.tuttiCommSplit(self._handle, color, key, byref(handle), None), self._handle)
        if not handle:
            return None
        _check(_lib.tuttiCommUserRank(handle, byref(rank)))
        _check(_lib.tuttiCommCount(handle, byref(size)))
        part = object.__new__(Communicator)
        part._handle, part.rank, part.size = handle, rank.value, size.value
        return part

    def _run(self, call, *arguments, arrays):
        if not all(array.on_host for array in arrays):
            device = c_int()
            _check(_lib.tuttiCommCuDevice(self._handle, byref(device)), self._handle)
            if device.value < 0:
                raise ValueError("the array is in GPU memory, but the communicator works on host "
                                 'memory; make it with device="cuda", which says what is missing')
        held = getattr(_thread, "held", None)
        if held is not None:
            held.extend(arrays)
        _check(call(*arguments), self._handle)

    def _move(self, call, send, recv, sizes, rest, stream, op=None):
        """A call with two buffers, whose elements are as sizes[0] to sizes[1]."""
        s, r = _Array(send), _Array(recv)
        if s.type != r.type:
            raise TypeError("the two buffers have different types")
        count = s.count // sizes[0]
        if s.count != count * sizes[0] or r.count != count * sizes[1]:
            raise ValueError(f"the buffers hold {s.count} and {r.count} elements; on {self.size} "
                             f"ranks they must be as {sizes[0]} to {sizes[1]}, and whole")
        if op is not None:
            rest = (_of_bools(op) if s.is_bool else op, *rest)
        self._run(call, c_void_p(s.address), c_void_p(r.address), c_size_t(count), s.type, *rest,
                  self._handle, c_void_p(stream), arrays=[s, r])
        return recv

    def all_reduce(self, x, out=None, op=SUM, stream=0):
        """out (x itself without) = the reduction over ranks of x."""
        return self._move(_lib.tuttiAllReduce, x, x if out is None else out, (1, 1), (), stream, op)

    def broadcast(self, x, root=0, stream=0):
        """x = x of root."""
        return self._move(_lib.tuttiBroadcast, x, x, (1, 1), (root,), stream)

    def reduce(self, x, out=None, root=0, op=SUM, stream=0):
        """out (x itself without) on root = the reduction over ranks of x."""
        out = x if out is None else out
        return self._move(_lib.tuttiReduce, x, out, (1, 1), (root,), stream, op)

    def all_gather(self, x, out, stream=0):
        """out = x of rank 0, x of rank 1, ..."""
        return self._move(_lib.tuttiAllGather, x, out, (1, self.size), (), stream)

    def reduce_scatter(self, x, out, op=SUM, stream=0):
        """out = this rank's part of the reduction over ranks of x."""
        return self._move(_lib.tuttiReduceScatter, x, out, (self.size, 1), (), stream, op)

    def all_to_all(self, x, out, stream=0):
        """Part r of out = this rank's part of x of rank r."""
        return self._move(_lib.tuttiAlltoAll, x, out, (self.size, self.size), (), stream)

    def gather(self, x, out=None, root=0, stream=0):
        """out on root = x of rank 0, x of rank 1, ...; other ranks pass none."""
        if self.rank == root:
            return self._move(_lib.tuttiGather, x, out, (1, self.size), (root,), stream)
        return self._move(_lib.tuttiGather, x, x, (1, 1), (root,), stream)

    def scatter(self, x, out, root=0, stream=0):
        """out = this rank's part of x of root; other ranks pass None for x."""
        if self.rank == root:
            return self._move(_lib.tuttiScatter, x, out, (self.size, 1), (root,), stream)
        return self._move(_lib.tuttiScatter, out, out, (1, 1), (root,), stream)

    def _message(self, call, x, peer, stream):
        a = _Array(x)
        self._run(call, c_void_p(a.address), c_size_t(a.count), a.type, peer, self._handle,
                  c_void_p(stream), arrays=[a])
        return x

    def send(self, x, peer, stream=0):
        """Sends x, for which `peer` calls recv."""
        self._message(_lib.tuttiSend, x, peer, stream)

    def recv(self, x, peer, stream=0):
        """Receives into x what `peer` sends."""
        return self._message(_lib.tuttiRecv, x, peer, stream)


from tutti._nccl import enable, which  # noqa: E402  (they need library_path)
