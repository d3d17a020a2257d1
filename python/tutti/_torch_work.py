"""The Work objects of tutti.torch."""
import atexit
import threading
import time

import torch
from torch._C._distributed_c10d import Work as _TorchWork
from torch._C._profiler import _RecordFunctionFast as _RecordFunction
from torch.distributed import DistBackendError

from tutti import _work as w

_lib, _Lock = w.lib, threading.Lock
SHAPES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
_TIMEOUT = 8  # tuttiTimeout
_PATIENCE = 1.0  # seconds that Python's end waits for these threads
_SPARE = 2  # threads that wait for the ends of works; those that are more end themselves
_SOON = 0.02  # seconds in which a thread is back that nothing keeps


def failed(text, code=0):
    """The exception for a failure that the library tells so."""
    text = text or "tutti: the operation failed"
    if code == _TIMEOUT and "timeout has passed" not in text:
        text = f"a timeout has passed: {text}"
    return DistBackendError(text)


class Range:
    """What a profiler shows of an operation: from its start to its end, which another thread sees."""

    def __init__(self, name):
        self._over, self._shown = torch.futures.Future(), threading.Event()
        with torch.autograd.profiler.record_function(f"tutti:{name}") as record:
            record._call_end_callbacks_on_future(self._over)

    def end(self):
        self._over.set_result(None)
        self._shown.set()

    def wait(self):
        self._shown.wait()


class RangeWithShapes(Range):
    """The same with the shapes of tensors."""

    def __init__(self, name, tensors):
        self._record, self._shown = _RecordFunction(f"tutti:{name}", list(tensors)), threading.Event()
        self._record.__enter__()

    def end(self):
        self._record = None  # its last reference: __exit__ does nothing in a thread that is not profiled itself
        self._shown.set()


def profiled(name, tensors):
    """The Range of an operation that has begun. In older versions of PyTorch one with shapes has no end there."""
    return RangeWithShapes(name, tensors) if SHAPES else Range(name)


class _Completer:
    """Threads that fulfil the futures of works as these end, whatever their number and order. What is chained to a
    future may wait for the future of the next work; so there is always one more thread than those that are at it.
    Mostly two are enough, as each is soon back."""

    def __init__(self):
        self._lock, self._works, self._threads = threading.Condition(), {}, set()
        self._waiting = self._busy = 0
        self._ends = _lib.tuttiWorkEndsMake()
        if not self._ends:
            raise MemoryError("no memory for the futures of operations")

    def add(self, work):
        with self._lock:
            self._works[work.handle] = work  # which lives until it has ended
            if not self._threads:
                self._start()
        _lib.tuttiWorkEndsAdd(self._ends, work.handle)

    def _start(self):
        self._waiting += 1
        thread = threading.Thread(target=self._run, daemon=True, name="tutti-future")
        self._threads.add(thread)
        thread.start()

    def stop(self):
        """When Python ends: a thread that is in PyTorch's code when Python takes its lock away for good would end
        the process. One that is kept by what is chained to a future is not waited for."""
        _lib.tuttiWorkEndsClose(self._ends)
        with self._lock:
            threads = list(self._threads)
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(0, until - time.monotonic()))

    def _take(self, handle):
        """The work; another thread waits for the next when this returns."""
        with self._lock:
            self._waiting -= 1
            self._busy += 1
            if self._waiting == 0 and self._busy > 1:  # one of them comes back, unless all are kept
                self._lock.wait_for(lambda: self._waiting > 0, _SOON)
            if self._waiting == 0:
                self._start()
            return self._works.pop(handle)

    def _is_spare(self):
        """This thread has done what it took; is it one too many?"""
        with self._lock:
            self._busy -= 1
            if self._waiting >= _SPARE:
                self._threads.discard(threading.current_thread())
                return True
            self._waiting += 1
            self._lock.notify()
            return False

    def _run(self):
        while handle := _lib.tuttiWorkEndsNext(self._ends):
            work = self._take(handle)
            work.ended()
            work.complete()
            del work  # or its tensors would live until the next
            if self._is_spare():
                return


_completer = _Completer()
atexit.register(_completer.stop)  # behind the groups' shutdown, which is registered later


class Work(_TorchWork):
    """An operation that goes on beside its caller. `plan` keeps its tensors and knows what is left to
    do when it has ended; a wait ends after `milliseconds` if it says nothing else (0: as the library says)."""

    _error = _future = None
    _over = _given = False
    _followed = False  # does the completer look after it?

    def __init__(self, handle, tensors, plan, milliseconds=0):
        _TorchWork.__init__(self)
        self.handle, self._tensors, self._plan, self._milliseconds = handle, tensors, plan, milliseconds
        self._lock = _Lock()
        self._range = plan.range
        if self._range is not None:
            self._followed = True
            _completer.add(self)

    def __del__(self):  # only then does no other thread wait for it
        _lib.tuttiWorkFree(self.handle)

    def _finish(self, code):
        """What is left when the library is done with it, with this result; whoever sees that first does it."""
        with self._lock:
            if self._over:
                return
            if code:
                self._error = failed(_lib.tuttiWorkText(self.handle).decode(errors="replace"), code)
            else:
                try:
                    self._plan.finish()
                except Exception as error:
                    self._error = error
            self._plan, self._over = None, True

    def ended(self):
        if not self._over and _lib.tuttiWorkDone(self.handle):
            self._finish(_lib.tuttiWorkResult(self.handle))
        return self._over

    def await_end(self, milliseconds=0):
        if not self._over:
            self._finish(_lib.tuttiWorkWait(self.handle, milliseconds))

    def wait(self, timeout=None):
        if not self._over:
            seconds = timeout.total_seconds() if timeout is not None else 0
            self.await_end(min(max(1, int(seconds * 1000)), 2**31 - 1) if seconds > 0 else self._milliseconds)
        shown = self._range
        if shown:
            shown.wait()
        if self._error:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self.ended()

    def is_success(self):
        return self.ended() and self._error is None

    def exception(self):
        return self._error if self.ended() else None

    def result(self):
        self.wait()
        return self._tensors

    def source_rank(self):
        return _lib.tuttiWorkPeer(self.handle) if self.is_success() else -1

    def _source_rank(self):
        return self.source_rank()

    def get_future(self):
        with self._lock:
            asked, future = self._future is not None, self._future or torch.futures.Future()
            self._future = future
        if not asked:
            if self.ended():
                self._fulfil()
            elif not self._followed:
                self._followed = True
                _completer.add(self)
        return future

    def complete(self):
        """What the completer does at the end."""
        shown, self._range = self._range, None
        if shown:
            shown.end()
        if self._future is not None:
            self._fulfil()

    def _fulfil(self):
        with self._lock:
            given, self._given = self._given, True
        if given:
            return
        if self._error:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._tensors)


class Both(_TorchWork):
    """Several works as one."""

    def __init__(self, works):
        super().__init__()
        self._works = works

    def wait(self, timeout=None):
        for work in self._works:  # some may be PyTorch's own, which take no None
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return all(work.is_completed() for work in self._works)

    def is_success(self):
        return all(work.is_success() for work in self._works)

    def exception(self):
        return next((work.exception() for work in self._works if work.exception()), None)

    def result(self):
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self):
        future = torch.futures.collect_all([work.get_future() for work in self._works])
        return future.then(lambda f: [t for part in f.value() for t in part.value()])


class _Done(Both):
    """What a call that has done its work returns."""

    def __init__(self):
        super().__init__([])

    def wait(self, timeout=None):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result([])
        return future


DONE = _Done()
