"""Buffers of others, by DLPack or Python's buffer protocol."""
import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_void_p

SUM, PROD, MAX, MIN, AVG = range(5)
# By DLPack's type code and bits: signed, unsigned, float, bfloat16, e4m3fn, e5m2; bool is uint8.
_TYPES = {(0, 8): 0, (1, 8): 1, (6, 8): 1, (0, 32): 2, (1, 32): 3, (0, 64): 4, (1, 64): 5,
          (2, 16): 6, (2, 32): 7, (2, 64): 8, (4, 16): 9, (10, 8): 10, (12, 8): 11}
_CODES = {**dict.fromkeys("bhilq", 0), **dict.fromkeys("BHILQc", 1), **dict.fromkeys("efd", 2),
          "?": 6}
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]


class _Tensor(ctypes.Structure):  # DLPack's DLTensor
    _fields_ = [("data", c_void_p), ("device", c_int * 2), ("ndim", c_int),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", POINTER(ctypes.c_int64)), ("strides", POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


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


class Array:
    """Where a buffer is, how many elements of which type and size it has, and what keeps it there."""

    def __init__(self, array):
        self.address, self.count, kind, keep, self.on_host = _parts(array)
        if kind not in _TYPES:
            raise TypeError(f"tutti has no type for {getattr(array, 'dtype', kind)}")
        self.type, self.element = _TYPES[kind], kind[1] // 8
        self.is_bool = kind[0] == 6
        self.keep = (array, keep)


def of_bools(op):
    """Bools are 0 or 1 in memory: their sum, as NumPy's, is whether any is true."""
    if op == AVG:
        raise TypeError("tutti has no average of bools; pass floats")
    return {SUM: MAX, PROD: MIN}.get(op, op)
