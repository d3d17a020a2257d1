"""libtutti_work.so by ctypes: collectives and messages that go on beside Python's threads (work.h)."""
import ctypes
from ctypes import c_char_p, c_int, c_size_t, c_void_p

from tutti._library import beside, load

(COPY, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND,
 RECV, BARRIER) = range(12)
ANY = -1  # a receive from whoever sends first
UINT8 = 1  # tuttiUint8


class Step(ctypes.Structure):  # a tuttiWorkStep
    _fields_ = [("kind", c_int), ("type", c_int), ("op", c_int), ("peer", c_int),
                ("send", c_void_p), ("recv", c_void_p), ("count", c_size_t)]


lib = load("libtutti_work.so", beside("tutti/libtutti_work.so", "libtutti_work.so"),
           "It comes with libtutti.so; install tutti as a whole")
_SIGNATURES = {
    "GroupMake": (c_void_p, [c_int, c_int, c_int, c_char_p]),
    "GroupOpen": (c_int, [c_void_p, c_char_p]),
    "GroupAdopt": (c_int, [c_void_p, c_void_p]),
    "LaneOpen": (c_int, [c_void_p, c_int, c_int, c_char_p]),
    "LaneFail": (None, [c_void_p, c_int, c_int, c_char_p]),
    "GroupText": (c_char_p, [c_void_p]),
    "GroupAbort": (None, [c_void_p, c_char_p]),
    "GroupClose": (None, [c_void_p]),
    "GroupFree": (None, [c_void_p]),
    "Run": (c_int, [c_void_p, c_void_p, c_int]),
    "RunOne": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_size_t, c_int, c_int, c_int]),
    "Submit": (c_void_p, [c_void_p, c_void_p, c_int, c_int]),
    "Post": (c_void_p, [c_void_p, c_int, c_void_p, c_size_t, c_int, c_int]),
    "Wait": (c_int, [c_void_p, c_int]),
    "Done": (c_int, [c_void_p]),
    "Notify": (None, [c_void_p, c_int]),
    "EndsMake": (c_void_p, []),
    "EndsAdd": (None, [c_void_p, c_void_p]),
    "EndsNext": (c_void_p, [c_void_p]),
    "EndsClose": (None, [c_void_p]),
    "Result": (c_int, [c_void_p]),
    "Text": (c_char_p, [c_void_p]),
    "Peer": (c_int, [c_void_p]),
    "Free": (None, [c_void_p]),
}
# Calls that wait for nothing keep Python's lock: to let it go, and to get it back from other threads, takes longer.
_SHORT = {"GroupText", "Submit", "Post", "Done", "Notify", "EndsAdd", "Result", "Text", "Peer", "Free"}
_keeping = ctypes.PyDLL(lib._name)
for _name, (_result, _arguments) in _SIGNATURES.items():
    _call = getattr(_keeping if _name in _SHORT else lib, "tuttiWork" + _name)
    _call.restype, _call.argtypes = _result, _arguments
    setattr(lib, "tuttiWork" + _name, _call)


def text(group):
    """Why this thread's last call of the group failed."""
    return lib.tuttiWorkGroupText(group).decode(errors="replace")
