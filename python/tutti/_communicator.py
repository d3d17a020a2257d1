"""Communicators, windows and groups."""
import atexit
import collections
import contextlib
import ctypes
import threading
from ctypes import byref, c_int, c_size_t, c_void_p

from tutti._array import Array, SUM, of_bools
from tutti._environment import find_place, meet
from tutti._library import Config, Error, Id, SimInfo, check, lib, version_code
from tutti._operation import Works

_UNDEFINED, _MAGIC = -(2**31), 0x7A771C0F
_DEVICES = {"auto": 0, "host": 1, "cuda": 2}
# What the kinds of a tuttiWorkStep call, with the arguments behind the type; all end in communicator and stream.
_ALL_REDUCE, _BROADCAST, _REDUCE, _ALL_GATHER, _REDUCE_SCATTER = 1, 2, 3, 4, 5
_ALL_TO_ALL, _GATHER, _SCATTER, _SEND, _RECV = 6, 7, 8, 9, 10
_CALLS = {
    _ALL_REDUCE: (lib.tuttiAllReduce, ("op",)), _BROADCAST: (lib.tuttiBroadcast, ("peer",)),
    _REDUCE: (lib.tuttiReduce, ("op", "peer")), _ALL_GATHER: (lib.tuttiAllGather, ()),
    _REDUCE_SCATTER: (lib.tuttiReduceScatter, ("op",)), _ALL_TO_ALL: (lib.tuttiAlltoAll, ()),
    _GATHER: (lib.tuttiGather, ("peer",)), _SCATTER: (lib.tuttiScatter, ("peer",)),
}
# Communicators that have operations beside their caller, or windows, whose buffers must not go with the last name of
# one: one that nobody destroys stays here to the end.
_used = set()
_LONGEST = 2**31 - 1  # milliseconds, some 24 days
_thread = threading.local()  # .held: what the calls of an open group use


def _milliseconds(timeout):
    """What the library takes for a timeout in seconds; 0: none."""
    if not timeout >= 0:  # or NaN
        raise ValueError(f"timeout is {timeout}; it must be a number of seconds, or 0 for none")
    return int(max(1, min(1000 * timeout, _LONGEST))) if timeout else 0


def unique_id():
    """The bytes that all ranks of one new communicator must have; this process must live until all
    have joined.

    >>> len(tutti.unique_id())
    128
    """
    uid = Id()
    check(lib.tuttiGetUniqueId(byref(uid)))
    return bytes(uid)


@contextlib.contextmanager
def group():
    """Calls of this thread inside `with tutti.group():` run together at its end.

    >>> x, y = numpy.arange(4), numpy.zeros(4, dtype=int)
    >>> with tutti.group():
    ...     comm.send(x, 0)
    ...     got = comm.recv(y, 0)
    >>> print(y)
    [0 1 2 3]
    """
    outer = getattr(_thread, "held", None)
    _thread.held = [] if outer is None else outer
    check(lib.tuttiGroupStart())
    try:
        yield
    except BaseException:
        lib.tuttiGroupSimulateEnd(byref(SimInfo()))  # forgets them
        raise
    else:
        check(lib.tuttiGroupEnd())
    finally:
        _thread.held = outer


class Window:
    """Memory of every rank that the others can write to: Communicator.window makes it. `close`, or the end
    of a `with`, gives it back, on all ranks.

    >>> part = numpy.zeros(4)
    >>> with comm.window(part) as window:
    ...     window.put(numpy.ones(2), 0, offset=16)
    ...     comm.wait_signals(0)
    >>> print(part)
    [0. 0. 1. 1.]
    """

    def __init__(self, comm, array):
        self._comm, self._array, self._handle = comm, array, c_void_p()
        size = array.count * array.element
        comm._windows.add(array)
        _used.add(comm)
        try:
            comm._call(lib.tuttiCommWindowRegister, comm._handle, c_void_p(array.address), c_size_t(size),
                       byref(self._handle), 0)
        except Error:
            comm._forget([array])
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if not kind:
            self.close()

    def close(self):
        """Gives the window back, when no rank uses it any more; the memory is the caller's again.

        >>> comm.window(numpy.zeros(4)).close()
        """
        handle, self._handle = self._handle, None
        if handle:
            self._comm._call(lib.tuttiCommWindowDeregister, self._comm._handle, handle)
            self._comm._forget([self._array])

    def put(self, x, peer, offset=0, signal=0, context=0, stream=0):
        """Writes x to `offset` bytes into the part of `peer`, without a call there, then sends the signal
        of this number, which arrives behind the data. x may change when this returns; on GPUs, what is
        behind it on the stream may change it.

        >>> with comm.window(numpy.zeros(4)) as window:
        ...     window.put(numpy.ones(4), 0)
        ...     comm.wait_signals(0)
        """
        if not self._handle:
            raise ValueError("the window has been closed")
        a = Array(x)
        self._comm._require_host([a])
        self._comm._call(lib.tuttiPutSignal, c_void_p(a.address), c_size_t(a.count), a.type, peer,
                         self._handle, c_size_t(offset), signal, context, 0, self._comm._handle,
                         c_void_p(stream), hold=[a])


class _Wait(ctypes.Structure):  # a tuttiWaitSignalDesc_t
    _fields_ = [("count", c_int), ("peer", c_int), ("signal", c_int), ("context", c_int)]


class Communicator:
    """One rank's handle of a communicator of `nranks` ranks, which all make one with the same id.
    `device` is "auto", "host" or "cuda"; `timeout`, in seconds, is that of each wait, 0 for none; `signals`
    and `contexts` are how many of each one-sided calls have.

    Every call that moves data takes async_op=True on host memory: it returns an Operation that goes on
    beside the caller, to wait for or to await.

    >>> with tutti.Communicator(1, 0, tutti.unique_id(), device="host", timeout=60) as alone:
    ...     print(alone.rank, alone.size, alone.all_reduce(numpy.ones(2)))
    0 1 [1. 1.]
    """

    def __init__(self, nranks, rank, uid, *, device="auto", timeout=None, name=None, signals=None,
                 contexts=None):
        if len(uid) != 128:
            raise ValueError(f"a unique id has 128 bytes, not {len(uid)}")
        numbers = [_UNDEFINED if n is None else n for n in (contexts, signals)]
        config = Config(ctypes.sizeof(Config), _MAGIC, version_code(), 1, *[_UNDEFINED] * 4, None,
                        name.encode() if name else None, _DEVICES[device],
                        _UNDEFINED if timeout is None else _milliseconds(timeout), *numbers)
        handle = c_void_p()
        check(lib.tuttiCommInitRankConfig(byref(handle), nranks, Id.from_buffer_copy(uid), rank,
                                          byref(config)), rank=rank)
        self._take(handle, rank, nranks)

    def _take(self, handle, rank, nranks):
        self._handle, self.rank, self.size = handle, rank, nranks
        self._works, self._pending = None, collections.deque()
        self._windows = set()  # the Arrays of those that others may write to, whoever still has a Window

    @classmethod
    def from_env(cls, **options):
        """This rank's communicator of all ranks that torchrun, mpirun or srun has started, by what they
        say in the environment; without a launcher, of this process alone. `options` are those of
        Communicator. The ranks meet over a socket of the host if they are all on one, and else at
        TUTTI_COMM_ID, the store of torchrun's agent, MASTER_ADDR, or the first host of a Slurm step.

        >>> with tutti.Communicator.from_env(device="host") as everyone:
        ...     print(everyone.rank, everyone.size)
        0 1
        """
        place = find_place()
        timeout = options.get("timeout")
        seconds = 60 if timeout is None else (_milliseconds(timeout) or _LONGEST) / 1000
        uid = meet(place, unique_id, seconds)
        return cls(place.size, place.rank, uid, **options)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.abort() if kind else self.destroy()

    def _end(self, call, text=None):
        handle, self._handle = self._handle, None
        works, self._works = self._works, None
        held = getattr(_thread, "held", None)
        if held is not None:  # at whose end the communicator is freed
            held.extend(self._windows)
        try:
            if works:  # which own the communicator
                works.end(text)
            elif handle:
                check(call(handle), rank=self.rank)
        finally:  # what fails has freed it, too
            self._pending.clear()
            self._forget(list(self._windows))

    def _forget(self, windows):
        """Lets go of what these windows wrote to, and of the communicator where nothing of it is in use."""
        self._windows.difference_update(windows)
        if not (self._windows or self._works):
            _used.discard(self)

    def destroy(self):
        """Completes what is outstanding and frees the communicator; once more does nothing.

        >>> alone = tutti.Communicator(1, 0, tutti.unique_id(), device="host")
        >>> alone.destroy()
        """
        self._end(lib.tuttiCommDestroy)

    def abort(self):
        """Ends all work at once and frees the communicator; the other ranks get an error.

        >>> alone = tutti.Communicator(1, 0, tutti.unique_id(), device="host")
        >>> alone.abort()
        """
        self._end(lib.tuttiCommAbort, b"the communicator has been aborted on this rank")

    # ---- communicators of others ----

    def _part(self, name, call, *arguments):
        """The communicator that such a call makes of this one's ranks; None: not of this rank."""
        if getattr(_thread, "held", None) is not None:  # at whose end nobody would take the new handle
            raise ValueError(f"{name} cannot be in a group")
        handle, rank, size = c_void_p(), c_int(), c_int()
        self._settle()
        check(call(self._handle, *arguments, byref(handle), None), self._handle, self.rank)
        if not handle:
            return None
        check(lib.tuttiCommUserRank(handle, byref(rank)))
        check(lib.tuttiCommCount(handle, byref(size)))
        part = object.__new__(Communicator)
        part._take(handle, rank.value, size.value)
        return part

    def split(self, color, key=0):
        """A new communicator of the ranks with this color, ordered by key; None for color -1.

        >>> half = comm.split(comm.rank % 2)
        >>> half.destroy()
        """
        return self._part("split", lib.tuttiCommSplit, color, key)

    def shrink(self, excluded, abort=False):
        """A new communicator of all ranks but the `excluded` ones, which need not call it and may be dead.
        With `abort` this one may have failed, and can only be destroyed, aborted or shrunk again.

        >>> rest = comm.shrink([])
        >>> rest.destroy()
        """
        ranks = (c_int * max(1, len(excluded)))(*excluded)

        def shrink(handle, part, config):
            return lib.tuttiCommShrink(handle, ranks, len(excluded), part, config, int(abort))

        return self._part("shrink", shrink)

    # ---- running ----

    def _require_host(self, arrays):
        if all(array.on_host for array in arrays):
            return
        device = c_int()
        check(lib.tuttiCommCuDevice(self._handle, byref(device)), self._handle, self.rank)
        if device.value < 0:
            raise ValueError("the array is in GPU memory, but the communicator works on host "
                             'memory; make it with device="cuda", which says what is missing')

    def _settle(self):
        """Lets end what has been started beside the caller: a communicator is used by one thread at a time."""
        while self._pending:
            self._pending.popleft()._await_end()

    def _call(self, call, *arguments, hold=()):
        self._settle()
        held = getattr(_thread, "held", None)
        if held is not None:
            held.extend(hold)
        check(call(*arguments), self._handle, self.rank)

    def _run(self, kind, send, recv, count, result, arrays, stream, async_op, op=0, peer=0):
        """Carries a call out, or starts it; `result` is what the caller gets of it."""
        self._require_host(arrays)
        of = arrays[0].type
        if async_op:
            return self._start((kind, of, op, peer, send, recv, count), result, arrays)
        if kind in (_SEND, _RECV):
            call = lib.tuttiSend if kind == _SEND else lib.tuttiRecv
            self._call(call, c_void_p(send or recv), c_size_t(count), of, peer, self._handle,
                       c_void_p(stream), hold=arrays)
            return result
        call, names = _CALLS[kind]
        rest = [op if name == "op" else peer for name in names]
        self._call(call, c_void_p(send), c_void_p(recv), c_size_t(count), of, *rest, self._handle,
                   c_void_p(stream), hold=arrays)
        return result

    def _start(self, step, result, arrays):
        if getattr(_thread, "held", None) is not None:
            raise ValueError("async_op=True cannot be in a group")
        if not self._handle:
            raise ValueError("the communicator has been destroyed or aborted")
        device = c_int()
        check(lib.tuttiCommCuDevice(self._handle, byref(device)), self._handle, self.rank)
        if device.value >= 0:
            raise ValueError("async_op=True is for host memory: on GPUs every call is enqueued on its stream")
        if not self._works:
            self._works = Works(self._handle, self.size, self.rank)
            _used.add(self)
        while self._pending and self._pending[0].done():
            self._pending.popleft()
        operation = self._works.start(step, result, arrays)
        self._pending.append(operation)  # whose buffers must live until it has ended
        return operation

    def _move(self, kind, send, recv, sizes, stream, async_op, op=None, peer=0):
        """A call with two buffers, whose elements are as sizes[0] to sizes[1]."""
        s, r = Array(send), Array(recv)
        if s.type != r.type:
            raise TypeError("the two buffers have different types")
        count = s.count // sizes[0]
        if s.count != count * sizes[0] or r.count != count * sizes[1]:
            raise ValueError(f"the buffers hold {s.count} and {r.count} elements; on {self.size} "
                             f"ranks they must be as {sizes[0]} to {sizes[1]}, and whole")
        if op is not None and s.is_bool:
            op = of_bools(op)
        return self._run(kind, s.address, r.address, count, recv, [s, r], stream, async_op, op or 0, peer)

    # ---- collectives ----

    def all_reduce(self, x, out=None, op=SUM, stream=0, async_op=False):
        """out (x itself without) = the reduction over ranks of x.

        >>> print(comm.all_reduce(numpy.arange(3), op=tutti.MAX))
        [0 1 2]
        """
        return self._move(_ALL_REDUCE, x, x if out is None else out, (1, 1), stream, async_op, op)

    def broadcast(self, x, root=0, stream=0, async_op=False):
        """x = x of root.

        >>> print(comm.broadcast(numpy.arange(3), root=0))
        [0 1 2]
        """
        return self._move(_BROADCAST, x, x, (1, 1), stream, async_op, peer=root)

    def reduce(self, x, out=None, root=0, op=SUM, stream=0, async_op=False):
        """out (x itself without) on root = the reduction over ranks of x.

        >>> print(comm.reduce(numpy.arange(3), root=0))
        [0 1 2]
        """
        return self._move(_REDUCE, x, x if out is None else out, (1, 1), stream, async_op, op, root)

    def all_gather(self, x, out, stream=0, async_op=False):
        """out = x of rank 0, x of rank 1, ...

        >>> print(comm.all_gather(numpy.ones(2), numpy.empty(2 * comm.size)))
        [1. 1.]
        """
        return self._move(_ALL_GATHER, x, out, (1, self.size), stream, async_op)

    def reduce_scatter(self, x, out, op=SUM, stream=0, async_op=False):
        """out = this rank's part of the reduction over ranks of x.

        >>> print(comm.reduce_scatter(numpy.ones(2 * comm.size), numpy.empty(2)))
        [1. 1.]
        """
        return self._move(_REDUCE_SCATTER, x, out, (self.size, 1), stream, async_op, op)

    def all_to_all(self, x, out, stream=0, async_op=False):
        """Part r of out = this rank's part of x of rank r.

        >>> print(comm.all_to_all(numpy.arange(comm.size), numpy.empty(comm.size, dtype=int)))
        [0]
        """
        return self._move(_ALL_TO_ALL, x, out, (self.size, self.size), stream, async_op)

    def gather(self, x, out=None, root=0, stream=0, async_op=False):
        """out on root = x of rank 0, x of rank 1, ...; other ranks pass none.

        >>> print(comm.gather(numpy.ones(2), numpy.empty(2 * comm.size) if comm.rank == 0 else None))
        [1. 1.]
        """
        if self.rank == root:
            return self._move(_GATHER, x, out, (1, self.size), stream, async_op, peer=root)
        return self._move(_GATHER, x, x, (1, 1), stream, async_op, peer=root)

    def scatter(self, x, out, root=0, stream=0, async_op=False):
        """out = this rank's part of x of root; other ranks pass None for x.

        >>> print(comm.scatter(numpy.arange(comm.size) if comm.rank == 0 else None, numpy.empty(1, dtype=int)))
        [0]
        """
        if self.rank == root:
            return self._move(_SCATTER, x, out, (self.size, 1), stream, async_op, peer=root)
        return self._move(_SCATTER, out, out, (1, 1), stream, async_op, peer=root)

    # ---- messages ----

    def send(self, x, peer, stream=0, async_op=False):
        """Sends x, for which `peer` calls recv. A started one keeps x until it has ended.

        >>> with tutti.group():
        ...     comm.send(numpy.ones(2), 0)
        ...     got = comm.recv(numpy.empty(2), 0)
        """
        a = Array(x)
        return self._run(_SEND, a.address, None, a.count, None, [a], stream, async_op, peer=peer)

    def recv(self, x, peer, stream=0, async_op=False):
        """Receives into x what `peer` sends.

        >>> with tutti.group():
        ...     comm.send(numpy.ones(2), 0)
        ...     got = comm.recv(numpy.empty(2), 0)
        """
        a = Array(x)
        return self._run(_RECV, None, a.address, a.count, x, [a], stream, async_op, peer=peer)

    # ---- one-sided calls ----

    def window(self, x):
        """Makes x, and what the other ranks pass, of as many bytes, a Window that all can write to. x lives
        until that is closed, or the communicator ends.

        >>> with comm.window(bytearray(100)) as window:
        ...     window.put(bytearray(b"hello"), 0, offset=50)
        ...     comm.wait_signals(0)
        """
        a = Array(x)
        self._require_host([a])
        if getattr(_thread, "held", None) is not None:
            raise ValueError("window cannot be in a group")
        return Window(self, a)

    def signal(self, peer, signal=0, context=0, stream=0):
        """Sends the signal of this number to `peer`, behind what was put there before.

        >>> with comm.window(bytearray(100)):
        ...     comm.signal(0)
        ...     comm.wait_signals(0)
        """
        self._call(lib.tuttiSignal, peer, signal, context, 0, self._handle, c_void_p(stream))

    def wait_signals(self, peers, count=1, signal=0, context=0, stream=0):
        """Waits for `count` signals of this number from each of the peers (one rank, or several); what they
        put before is there then. On GPUs the stream waits.

        >>> with comm.window(bytearray(100)):
        ...     comm.signal(0)
        ...     comm.wait_signals([0])
        """
        peers = [peers] if isinstance(peers, int) else list(peers)
        waits = (_Wait * max(1, len(peers)))(*[_Wait(count, peer, signal, context) for peer in peers])
        self._call(lib.tuttiWaitSignal, len(peers), waits, self._handle, c_void_p(stream), hold=[waits])


def _leave():
    """Neither operations nor other ranks may go on in buffers that the end of the interpreter frees."""
    for comm in list(_used):
        if not all(operation.done() for operation in comm._pending):
            comm.abort()
        else:  # whose ranks go on: what they write to is there to the end of the process
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm._windows))


atexit.register(_leave)
