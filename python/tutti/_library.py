"""Where the libraries of the package are, and what all calls of libtutti.so share."""
import ctypes
import os
import pathlib
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_void_p

_SUCCESS, _IN_PROGRESS = 0, 7
# What names each tuttiResult_t that is a failure, and what may help where its text says no more.
_FAILURES = {
    1: ("tuttiUnhandledCudaError", "see the CUDA error, and what the kernels before it did"),
    2: ("tuttiSystemError", "give the system what the text says it lacks"),
    3: ("tuttiInternalError", "report it, with the log of TUTTI_DEBUG=INFO"),
    4: ("tuttiInvalidArgument", "pass what the text asks for; the communicator goes on"),
    5: ("tuttiInvalidUsage", "let all ranks make the same calls in the same order"),
    6: ("tuttiRemoteError", "see why the rank that is named has gone; go on without it by shrink()"),
    8: ("tuttiTimeout", "see what the ranks that are named are at; or pass a longer timeout"),
}


class Error(RuntimeError):
    """A call has failed. Its text names the call, the object, the ranks and mostly a remedy; `code` is the
    tuttiResult_t and `name` its name, `rank` this rank of the communicator (None: there is none yet), and
    `remedy` what helps with such failures.

    >>> try:
    ...     comm.broadcast(numpy.ones(1), root=7)
    ... except tutti.Error as error:
    ...     print(error.name, error.rank, "argument root is 7" in str(error))
    tuttiInvalidArgument 0 True
    """

    def __init__(self, code, text, rank=None):
        super().__init__(text)
        self.code, self.rank = code, rank
        self.name, self.remedy = _FAILURES.get(code, (f"tuttiResult_t {code}", ""))

    def __reduce__(self):  # so that it can come from a pool's process
        return Error, (self.code, str(self), self.rank)


class Id(ctypes.Structure):  # a tuttiUniqueId
    _fields_ = [("internal", c_char * 128)]


class Config(ctypes.Structure):  # a tuttiConfig_t
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int),
                ("minCTAs", c_int), ("maxCTAs", c_int), ("splitShare", c_int),
                ("trafficClass", c_int), ("netName", c_char_p), ("commName", c_char_p),
                ("device", c_int), ("timeoutMs", c_int), ("numRmaCtx", c_int), ("numRmaSig", c_int)]


class SimInfo(ctypes.Structure):  # a tuttiSimInfo_t
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint),
                ("time", ctypes.c_float)]

    def __init__(self):
        super().__init__(ctypes.sizeof(SimInfo), 0x74685283, 0, -1.0)


def load(name, places, remedy):
    """The first of these places of the library `name` that the loader takes; ImportError with what it
    said of each."""
    tried = []
    for place in places:
        try:
            return ctypes.CDLL(place)
        except OSError as error:
            tried.append(str(error))
    raise ImportError(f"no {name}: {'; '.join(tried)}. {remedy}")


def _places():
    """Where libtutti.so may be."""
    here, named = pathlib.Path(__file__).resolve(), os.environ.get("TUTTI_LIBRARY")
    if named:
        return [named]
    return [str(here.parent / "lib/libtutti.so.0"), "libtutti.so.0",
            str(here.parents[2] / "build/src/libtutti.so")]


lib = load("libtutti.so", _places(), "Install tutti, or let TUTTI_LIBRARY name it")
lib.tuttiGetLastError.restype = c_char_p
lib.tuttiCommInitRankConfig.argtypes = [c_void_p, c_int, Id, c_int, c_void_p]


def check(result, comm=None, rank=None):
    """Raises what a call of this rank of a communicator has failed with."""
    if result not in (_SUCCESS, _IN_PROGRESS):
        raise Error(result, lib.tuttiGetLastError(comm).decode(errors="replace"), rank)


def version_code():
    """The library's TUTTI_VERSION_CODE."""
    code = c_int()
    check(lib.tuttiGetVersion(byref(code)))
    return code.value


def version():
    """The library's version: three numbers.

    >>> tutti.version() >= (0, 1, 0)
    True
    """
    code = version_code()
    return code // 10000, code // 100 % 100, code % 100


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
    return _file_of(lib.tuttiGetVersion)


def beside(*names):
    """Where a file that comes with libtutti.so may be: each of these names, from its folder on."""
    folder = os.path.dirname(library_path())
    return [os.path.normpath(os.path.join(folder, name)) for name in names]


def found_beside(what, *names):
    """The first of these files that is there; ImportError."""
    for path in beside(*names):
        if os.path.exists(path):
            return os.path.realpath(path)
    raise ImportError(f"no {what} beside {library_path()}; install tutti as a whole")
