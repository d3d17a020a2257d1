"""Operations that go on beside their caller, on a thread of the library that never takes the GIL."""
import asyncio
import ctypes
import os
import threading

from tutti._library import Error

_EFD_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK


def _eventfd():
    make = ctypes.CDLL(None, use_errno=True).eventfd
    fd = make(0, _EFD_CLOEXEC_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "no eventfd to await an operation by: " +
                      os.strerror(ctypes.get_errno()))
    return fd


class Works:
    """What a communicator has started beside its caller, which owns the communicator from then on."""

    def __init__(self, comm, size, rank):
        from tutti import _work  # who starts nothing needs no libtutti_work.so

        self.lib, self._step, self._rank = _work.lib, _work.Step, rank
        self._group = self.lib.tuttiWorkGroupMake(size, rank, 0, b"")
        if not self._group:
            raise MemoryError("no memory for operations beside the caller")
        self.lib.tuttiWorkGroupAdopt(self._group, comm)  # a new group takes every communicator

    def start(self, step, result, arrays):
        """The operation that carries this step out."""
        work = self.lib.tuttiWorkSubmit(self._group, (self._step * 1)(step), 1, 0)
        if not work:
            raise MemoryError("no memory for an operation")
        return Operation(self.lib, work, result, arrays, self._rank)

    def end(self, abort_text):
        """Completes them, or ends them for this reason, and frees the communicator."""
        if abort_text:
            self.lib.tuttiWorkGroupAbort(self._group, abort_text)
        self.lib.tuttiWorkGroupFree(self._group)


class Operation:
    """A call that goes on beside its caller: async_op=True makes it. Its buffers stay untouched until it has
    ended, and it goes on if nobody waits for it. `await` it in one event loop, or wait(); both give what
    the call would have returned, and raise what it would have raised.

    >>> import asyncio
    >>> async def add():
    ...     return await comm.all_reduce(numpy.ones(2), async_op=True)
    >>> print(asyncio.run(add()))
    [1. 1.]
    """

    def __init__(self, native, work, result, arrays, rank):
        self._lib, self._work, self._rank = native, work, rank
        self._result, self._arrays = result, arrays
        self._lock, self._fd, self._told = threading.Lock(), -1, None

    def __del__(self):
        self._lib.tuttiWorkNotify(self._work, -1)
        self._forget()
        self._lib.tuttiWorkFree(self._work)

    def _forget(self):
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def done(self):
        """Has it ended, well or not?

        >>> operation = comm.all_reduce(numpy.ones(2), async_op=True)
        >>> got = operation.wait()
        >>> operation.done()
        True
        """
        return bool(self._lib.tuttiWorkDone(self._work))

    def wait(self, timeout=None):
        """Waits for the end, and gives the call's result. A timeout, in seconds, that passes first ends the
        operation and its communicator.

        >>> print(comm.all_reduce(numpy.ones(2), async_op=True).wait(timeout=60))
        [1. 1.]
        """
        self._await_end(0 if timeout is None else max(1, min(int(timeout * 1000), 2**31 - 1)))
        return self._outcome()

    def _await_end(self, milliseconds=0):
        self._lib.tuttiWorkWait(self._work, milliseconds)

    def _outcome(self):
        code = self._lib.tuttiWorkResult(self._work)
        if code:
            raise Error(code, self._lib.tuttiWorkText(self._work).decode(errors="replace"), self._rank)
        return self._result

    def __await__(self):
        if not self.done():
            yield from asyncio.shield(self._telling()).__await__()
        return self._outcome()

    def _telling(self):
        """A future of this event loop that the end of the operation fulfils, by a file descriptor."""
        if self._told is None:
            loop = asyncio.get_running_loop()
            self._fd, self._told = _eventfd(), loop.create_future()
            loop.add_reader(self._fd, self._tell, loop)
            self._lib.tuttiWorkNotify(self._work, self._fd)
        return self._told

    def _tell(self, loop):
        loop.remove_reader(self._fd)
        self._forget()
        if not self._told.done():
            self._told.set_result(None)
