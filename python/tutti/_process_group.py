"""What each call of PyTorch on a group becomes, in terms of libtutti_work.so."""
import atexit
import collections
import datetime
import threading
import time
import warnings
import weakref

import torch
from torch.autograd import profiler as _profiler
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Backend, PrefixStore, ReduceOp

import tutti
from tutti import _torch_checks as check
from tutti import _torch_sparse
from tutti import _work as w
from tutti._torch_cuda import Cuda, by_device
from tutti._torch_work import DONE, Both, Work, failed, profiled

_lib = w.lib
_run_one = _lib.tuttiWorkRunOne
_RedOp = ReduceOp.RedOpType
SUM, PROD, MAX, MIN, AVG = range(5)
# tuttiDataType_t of a torch.dtype, and how many of it make an element. What has no type of its own
# travels as bytes and cannot be reduced.
_TYPES = {torch.int8: (0, 1), torch.uint8: (1, 1), torch.int32: (2, 1), torch.int64: (4, 1),
          torch.float16: (6, 1), torch.float32: (7, 1), torch.float64: (8, 1),
          torch.bfloat16: (9, 1), torch.bool: (1, 1), torch.complex64: (7, 2),
          torch.complex128: (8, 2), torch.complex32: (6, 2)}
for _name, _code in (("uint32", 3), ("uint64", 5), ("float8_e4m3fn", 10), ("float8_e5m2", 11)):
    if hasattr(torch, _name):
        _TYPES[getattr(torch, _name)] = (_code, 1)
_OPS = {_RedOp.SUM: SUM, _RedOp.PRODUCT: PROD, _RedOp.MAX: MAX, _RedOp.MIN: MIN, _RedOp.AVG: AVG}
_BOOL_OPS = {_RedOp.SUM: MAX, _RedOp.PRODUCT: MIN, _RedOp.MAX: MAX, _RedOp.MIN: MIN,
             _RedOp.BOR: MAX, _RedOp.BAND: MIN}
_COMPLEX_OPS = {_RedOp.SUM: SUM, _RedOp.AVG: AVG}
_BITWISE = {_RedOp.BAND: torch.bitwise_and, _RedOp.BOR: torch.bitwise_or,
            _RedOp.BXOR: torch.bitwise_xor}
_COMBINE = {**_BITWISE, _RedOp.SUM: torch.add, _RedOp.AVG: torch.add, _RedOp.PRODUCT: torch.mul,
            _RedOp.MAX: torch.maximum, _RedOp.MIN: torch.minimum}
_PLAIN = {kind: code for kind, (code, n) in _TYPES.items() if n == 1 and kind != torch.bool}
_LARGE = 1 << 15  # bytes; see _is_large
_FEW = 16  # ranks among which a root had better talk to each by itself
_POLL = 0.001  # seconds between looks at the store, at first
_groups = weakref.WeakSet()


def _kind(tensor):
    """Type and number of such elements for moving a tensor."""
    kind = _TYPES.get(tensor.dtype)
    if kind:
        return kind[0], tensor.numel() * kind[1]
    return w.UINT8, tensor.numel() * tensor.element_size()


def _reducing(tensor, op):
    """Type, number of elements and tuttiRedOp_t for reducing a tensor."""
    kind, ops = _TYPES.get(tensor.dtype), _OPS
    if tensor.dtype == torch.bool:
        ops = _BOOL_OPS
    elif tensor.is_complex():
        ops = _COMPLEX_OPS
    code = ops.get(getattr(op, "op", op))
    if kind is None or code is None:
        raise check.WrongType(f"tutti has no {op} of {tensor.dtype} tensors; convert them first")
    return kind[0], tensor.numel() * kind[1], code


def _dense(tensor):
    """The tensor, or a contiguous copy of it."""
    check.dense(tensor)
    if tensor.is_complex() and tensor.is_conj():
        tensor = tensor.resolve_conj()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _is_large(tensor):
    """Is a rank's part of a list so large that it had better go from and to the tensors of the list than by way of
    one buffer? All ranks say the same, wherever their tensors lie."""
    return tensor.numel() * tensor.element_size() >= _LARGE


def _follow_each_other(tensors):
    """Do the tensors lie one behind the other, so that they are one buffer?"""
    at = tensors[0].data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.data_ptr() != at:
            return False
        at += tensor.numel() * tensor.element_size()
    return True


class _Plan:
    """What one call has to do: steps, tensors that must live until they are done, and copies into
    tensors that are not contiguous. A profiler shows the shapes of its `inputs`."""

    def __init__(self, inputs=()):
        self.inputs = inputs
        self.steps, self.keep, self.back = [], [], []
        self.range = None  # what a profiler sees of it

    def add(self, kind, send, recv, count, code, op=0, peer=0):
        self.steps.append((kind, code, op, peer, send.data_ptr() if send is not None else None,
                           recv.data_ptr() if recv is not None else None, count))

    def source(self, tensor):
        tensor = _dense(tensor)
        self.keep.append(tensor)
        return tensor

    def target(self, tensor, whole=True):
        """Where to write what shall be in `tensor`; not `whole`: what is there counts, too."""
        check.dense(tensor)
        self.keep.append(tensor)
        if tensor.is_contiguous():
            return tensor
        dense = tensor.contiguous() if not whole else torch.empty_like(
            tensor, memory_format=torch.contiguous_format)
        self.back.append((tensor, dense))
        return dense

    def flat(self, like, n):
        """Room for n tensors like this one."""
        room = torch.empty(n * like.numel(), dtype=like.dtype)
        self.keep.append(room)
        return room

    def copy(self, source, target):
        """target = source; both are contiguous and as large."""
        self.add(w.COPY, source, target, source.numel() * source.element_size(), 0)

    def array(self):
        return (w.Step * len(self.steps))(*self.steps)

    def finish(self):
        for tensor, dense in self.back:
            tensor.copy_(dense)


class Engine:
    """One rank's part of a group: the collectives' communicator, a lane of messages for each sender and
    receiver, made when the first message needs it, and what serves CUDA tensors. `ranks` are those of the
    default group."""

    def __init__(self, store, rank, size, timeout, name, ranks=(), nccl_options=None):
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.name = str(name) or "torch"
        self.made_with = timeout
        self.shorter = 0  # the milliseconds of each call after a set_timeout
        self.milliseconds = max(1, int(timeout.total_seconds() * 1000))
        self.ended = False
        self._lock = threading.Lock()
        self._lanes, self._wanted = set(), set()
        self._pollers = 0
        self._pending = collections.deque()
        self._batch = None
        self._barriers = 0
        # The same store may serve a group of this name again, after this one has been destroyed.
        self._round = store.add(f"tutti/round/{rank}", 1)
        self.native = _lib.tuttiWorkGroupMake(size, rank, min(self.milliseconds, 2**31 - 1),
                                              self.name.encode()[:63])
        if not self.native:
            raise MemoryError("no memory for a process group")
        self._free = weakref.finalize(self, _lib.tuttiWorkGroupFree, self.native)
        self._free.atexit = False  # _leave does what must be done then
        self._open()
        self.ranks = list(ranks) or list(range(size))
        self.cuda = Cuda(self.own_store("cuda"), rank, size, timeout, self.name, self.ranks, nccl_options)
        _groups.add(self)

    def _key(self, name):
        return f"tutti/{self._round}/{name}"

    def own_store(self, name):
        """The group's store for something of its own, which no other group sees, nor this one made again."""
        return PrefixStore(self._key(name), self.store)

    def _open(self):
        key = self._key("id")
        if self.rank == 0:
            uid = tutti.unique_id()
            self.store.set(key, uid)
        else:
            self.store.wait([key], self.timeout)
            uid = bytes(self.store.get(key))
        if _lib.tuttiWorkGroupOpen(self.native, uid):
            raise failed(w.text(self.native))

    # ---- running ----

    def all_reduce_now(self, tensor, op):
        if not tensor.is_contiguous() or not tensor.is_cpu or tensor.layout != torch.strided:
            raise check.Refused("tutti.torch.all_reduce takes a contiguous tensor in host memory")
        code, count, op = _reducing(tensor, op)
        if self.shorter:
            plan = _Plan()
            plan.add(w.ALL_REDUCE, tensor, tensor, count, code, op)
            self.start(plan, [tensor], self.shorter).wait()
            return
        at = tensor.data_ptr()
        bad = _run_one(self.native, w.ALL_REDUCE, at, at, count, code, op, 0)
        if bad:
            raise failed(w.text(self.native), bad)

    def set_timeout(self, timeout):
        """That of all later calls. Only the library's own waits hold that of the group's beginning, so a longer
        one would be none."""
        seconds = timeout.total_seconds()
        if seconds <= 0 or seconds > self.made_with.total_seconds():
            warnings.warn(f"tutti: a group's timeout can only be made shorter than the {self.made_with} that it was "
                          f"made with: it stays {self.timeout}, not {timeout}", stacklevel=3)
            return
        self.timeout = timeout
        self.shorter = 0 if timeout == self.made_with else max(1, int(seconds * 1000))

    def run(self, name, plan, options, result):
        """Carries out a plan: at once, or as the options say on the group's own thread. A profiler sees
        it as tutti:`name`."""
        timeout = self._own_timeout(options)
        if _profiler._is_profiler_enabled:
            return self._profiled(name, plan, options, result, timeout)
        if not getattr(options, "asyncOp", True) and not timeout:
            if len(plan.steps) == 1:
                kind, code, op, peer, send, recv, count = plan.steps[0]
                bad = _run_one(self.native, kind, send, recv, count, code, op, peer)
            else:
                bad = plan.steps and _lib.tuttiWorkRun(self.native, plan.array(), len(plan.steps))
            if bad:
                raise failed(w.text(self.native), bad)
            plan.finish()
            return DONE
        return self.start(plan, result, timeout)

    def _profiled(self, name, plan, options, result, timeout):
        plan.range = profiled(name, plan.inputs)
        work = self.start(plan, result, timeout)
        if not getattr(options, "asyncOp", True):
            work.wait()
        return work

    def start(self, plan, result, timeout=0):
        handle = _lib.tuttiWorkSubmit(self.native, plan.array(), len(plan.steps), timeout)
        if not handle:
            raise MemoryError("no memory for an operation")
        return self.remember(Work(handle, result, plan))

    def remember(self, work):
        """Keeps the tensors of a work that nobody else may keep until it is done."""
        pending = self._pending
        while pending and pending[0].ended():
            pending.popleft()
        pending.append(work)
        self.add_to_batch(work)
        return work

    def _own_timeout(self, options):
        """The milliseconds of a call that has a timeout other than the library's own, or 0."""
        timeout = getattr(options, "timeout", None)
        if timeout is None or timeout.total_seconds() <= 0:
            return self.shorter
        if timeout == self.made_with:
            return 0
        return min(max(1, int(timeout.total_seconds() * 1000)), 2**31 - 1)

    # ---- messages ----

    def _open_lane(self, sending, peer, uid):
        if _lib.tuttiWorkLaneOpen(self.native, sending, peer, uid):
            _lib.tuttiWorkLaneFail(self.native, sending, peer, _lib.tuttiWorkGroupText(self.native))

    def _start_opening(self, sending, peer, uid):
        threading.Thread(target=self._open_lane, args=(sending, peer, uid), daemon=True,
                         name="tutti-lane").start()

    def send_lane(self, peer):
        with self._lock:
            if (1, peer) in self._lanes:
                return
            self._lanes.add((1, peer))
        uid = tutti.unique_id()
        self.store.set(self._key(f"lane/{self.rank}/{peer}"), uid)
        self._start_opening(1, peer, uid)

    def receive_lanes(self, peers, work):
        """Opens the lanes of these senders as soon as they say that they have something to send, while
        this work waits for it."""
        with self._lock:
            missing = {peer for peer in peers if (0, peer) not in self._lanes}
            if not missing:
                return
            self._wanted |= missing
        threading.Thread(target=self._poll, args=(missing, work), daemon=True,
                         name="tutti-lanes").start()

    def _poll(self, peers, work):
        pause = _POLL
        while peers and not work.ended() and not self.ended:
            for peer in sorted(peers):
                try:
                    if not self._found(peer):
                        continue
                except Exception as error:  # the store is gone, in any of its ways
                    _lib.tuttiWorkLaneFail(self.native, 0, peer,
                                           f"the store does not answer: {error}".encode())
                peers.discard(peer)
                pause = _POLL
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _found(self, peer):
        """Is the lane from this sender open or being opened?"""
        with self._lock:
            if (0, peer) in self._lanes:
                return True
        key = self._key(f"lane/{peer}/{self.rank}")
        if not self.store.check([key]):
            return False
        uid = bytes(self.store.get(key))
        with self._lock:
            if (0, peer) in self._lanes:
                return True
            self._lanes.add((0, peer))
        self._start_opening(0, peer, uid)
        return True

    def message(self, sending, tensor, peer, tag):
        if peer != w.ANY and not 0 <= peer < self.size:
            raise check.Refused(f"rank {peer} is none of the group's {self.size}")
        if peer == self.rank:
            raise check.Refused(f"rank {peer} cannot send to or receive from itself")
        plan = _Plan()
        buffer = plan.source(tensor) if sending else plan.target(tensor)
        if sending and (1, peer) not in self._lanes:
            self.send_lane(peer)
        size = buffer.numel() * buffer.element_size()
        handle = _lib.tuttiWorkPost(self.native, sending, buffer.data_ptr(), size, peer, tag)
        if not handle:
            raise MemoryError("no memory for a message")
        if _profiler._is_profiler_enabled:
            plan.range = profiled("send" if sending else "recvAnySource" if peer == w.ANY else "recv", [tensor])
        work = self.remember(Work(handle, [tensor], plan, self.shorter))
        if not sending and (0, peer) not in self._lanes:  # as it is when peer is ANY
            peers = range(self.size) if peer == w.ANY else (peer,)
            self.receive_lanes([p for p in peers if p != self.rank], work)
        return work

    # ---- the rest ----

    def start_batch(self):
        self._batch = []

    def add_to_batch(self, work):
        if self._batch is not None:
            self._batch.append(work)

    def end_batch(self):
        works, self._batch = self._batch or [], None
        return Both(works)

    def monitored_barrier(self, timeout, wait_all):
        """Rank 0 hears from all others and lets them go on, or says who did not come."""
        self._barriers += 1
        came = (f"monitored barrier: Rank {self.rank} successfully reached monitoredBarrier, but received errors while "
                "waiting for send/recv from rank 0")
        base = self._key(f"barrier/{self._barriers}")
        until = time.monotonic() + timeout.total_seconds()
        if self.rank:
            self.store.set(f"{base}/{self.rank}", b"here")
            try:
                self.store.wait([f"{base}/go"], timeout)
            except Exception as error:
                raise failed(f"{came}: it did not answer within {timeout}; it may have died, or not have "
                             "come") from error
            answer = bytes(self.store.get(f"{base}/go")).decode()
            answer = answer if answer == "go" else f"{came}: {answer}"
        else:
            answer = self._gather_at_barrier(base, until, timeout, wait_all)
            self.store.set(f"{base}/go", (answer or "go").encode())
        if answer and answer != "go":
            raise failed(answer)

    def _gather_at_barrier(self, base, until, timeout, wait_all):
        missing = []
        for peer in range(1, self.size):
            left = max(0.001, until - time.monotonic())
            try:
                self.store.wait([f"{base}/{peer}"], datetime.timedelta(seconds=left))
            except Exception:
                missing.append(peer)
                if not wait_all:
                    break
        if not missing:
            return ""
        who = ", ".join(map(str, missing))
        return (f"monitored barrier: Rank{'s' * (len(missing) > 1)} {who} failed to pass monitoredBarrier "
                f"in {timeout}: Rank 0 timed out in monitoredBarrier without them; see what they are at")

    def abort(self):
        self.ended = True
        _lib.tuttiWorkGroupAbort(self.native, b"the process group has been aborted on this rank")

    def shutdown(self):
        self.ended = True
        _lib.tuttiWorkGroupClose(self.native)


def _leave():
    """A rank that ends says goodbye, so that others, who may still read what it sent, do not take it
    for dead."""
    for engine in list(_groups):
        if not engine.ended:
            engine.shutdown()


atexit.register(_leave)


class Calls:
    """The collectives, as PyTorch calls them. Every method returns a Work."""

    def getBackendName(self):
        return "tutti"

    def cuda_call(self, name, arguments, named):
        """A call on CUDA tensors."""
        work = self.engine.cuda.call(name, arguments, named)
        self.engine.add_to_batch(work)
        return work

    def _elementwise(self, kind, tensors, options, root=0):
        op, plan, engine = options.reduceOp, _Plan(tensors), self.engine
        for tensor in tensors:
            check.dense(tensor)
        if op.op in _BITWISE and any(t.dtype != torch.bool or op.op == _RedOp.BXOR for t in tensors):
            return self._bitwise(tensors, op, options, kind == w.ALL_REDUCE or engine.rank == root)
        seen = set()
        for tensor in tensors:
            if tensor.numel() and tensor.data_ptr() in seen:
                continue  # a tensor may stand there twice, and is reduced once
            seen.add(tensor.data_ptr())
            code, count, native = _reducing(tensor, op)
            buffer = plan.target(tensor, whole=False)
            plan.add(kind, buffer, buffer, count, code, native, root)
        if kind == w.REDUCE and engine.rank != root:
            plan.back.clear()
        return engine.run("all_reduce" if kind == w.ALL_REDUCE else "reduce", plan, options, tensors)

    def _bitwise(self, tensors, op, options, here):
        """Gathers what all have and combines it here: the library has no reductions of bits."""
        engine, plan = self.engine, _Plan(tensors)
        rooms = []
        for tensor in tensors:
            if tensor.is_floating_point() or tensor.is_complex():
                raise check.WrongType(f"there is no {op} of {tensor.dtype} tensors; pass integers")
            rooms.append(self._gathered(plan, tensor))
        plan.finish = lambda: here and [
            _combine([tensor], [room], op.op, engine.size) for tensor, room in zip(tensors, rooms)]
        return engine.run("all_reduce", plan, options, tensors)

    def _gathered(self, plan, tensor):
        """Where the plan puts this tensor of all ranks."""
        source = plan.source(tensor)
        code, count = _kind(source)
        room = plan.flat(source, self.engine.size)
        plan.add(w.ALL_GATHER, source, room, count, code)
        return room

    def _reduce_several(self, tensors, options):
        """Each of several tensors of each rank becomes the reduction of all of them."""
        engine, plan, op = self.engine, _Plan(tensors), options.reduceOp.op
        check.alike("allreduce", tensors)
        for tensor in tensors:
            if op not in _BITWISE:
                _reducing(tensor, op)  # raises where there is no such reduction
        rooms = [self._gathered(plan, tensor) for tensor in tensors]
        plan.finish = lambda: _combine(tensors, rooms, op, engine.size)
        return engine.run("all_reduce", plan, options, tensors)

    def allreduce(self, tensors, opts=None, op=None):
        tensors, opts = check.listed(tensors), check.options(c10d.AllreduceOptions, opts, op=op)
        if len(tensors) == 1 and not opts.asyncOp:
            tensor, op = tensors[0], _OPS.get(opts.reduceOp.op)
            code = _PLAIN.get(tensor.dtype)
            engine = self.engine
            if (op is not None and code is not None and tensor.is_cpu and tensor.is_contiguous()
                    and not engine._own_timeout(opts) and not _profiler._is_profiler_enabled):
                at = tensor.data_ptr()
                bad = _run_one(engine.native, w.ALL_REDUCE, at, at, tensor.numel(), code, op, 0)
                if bad:
                    raise failed(w.text(engine.native), bad)
                return DONE
        if tensors and tensors[0].is_cuda:
            return self.cuda_call("allreduce", (tensors, opts), {})  # sparse ones too
        if tensors and any(tensor.is_sparse for tensor in tensors):
            return _torch_sparse.all_reduce(self.engine, tensors, opts, _Plan, self._gathered)
        if len(tensors) != 1:
            return self._reduce_several(tensors, opts)
        return self._elementwise(w.ALL_REDUCE, tensors, opts)

    @by_device
    def allreduce_coalesced(self, tensors, opts=None):
        check.not_empty("allreduce_coalesced", tensors)
        check.same_layout("allreduce_coalesced", tensors)
        return self._elementwise(w.ALL_REDUCE, tensors, opts or c10d.AllreduceCoalescedOptions())

    @by_device
    def reduce(self, tensors, opts=None, root=None, op=None):
        tensors, opts = check.listed(tensors), check.options(c10d.ReduceOptions, opts, root, op)
        check.root("reduce", opts, self.engine.size)
        check.root_tensor("reduce", opts, len(tensors))
        check.single("reduce", tensors, "tensor list")
        return self._elementwise(w.REDUCE, tensors, opts, opts.rootRank)

    @by_device
    def broadcast(self, tensors, opts=None, root=None):
        """The root's tensor of this place comes into all tensors of all ranks."""
        tensors, opts = check.listed(tensors), check.options(c10d.BroadcastOptions, opts, root)
        check.root("broadcast", opts, self.engine.size)
        check.root_tensor("broadcast", opts, len(tensors))
        check.alike("broadcast", tensors)
        plan = _Plan(tensors)
        buffer = plan.target(tensors[opts.rootTensor], whole=False)
        code, count = _kind(buffer)
        plan.add(w.BROADCAST, buffer, buffer, count, code, 0, opts.rootRank)
        for i, tensor in enumerate(tensors):
            if i != opts.rootTensor:
                plan.copy(buffer, plan.target(tensor))
        return self.engine.run("broadcast", plan, opts, tensors)

    # ---- gathering ----

    def _gather_lists(self, plan, outputs, tensor):
        """All-gather of one tensor into a list of tensors, uneven ones by broadcasts."""
        engine, source = self.engine, plan.source(tensor)
        if len(outputs) != engine.size:
            raise check.Refused(f"all-gather of {engine.size} ranks into {len(outputs)} tensors: output lists "
                                "should be equal to world size")
        check.same_types(outputs, tensor)
        if _is_large(source) or any(out.numel() != tensor.numel() for out in outputs):
            self._gather_each(plan, outputs, source)
            return
        code, count = _kind(source)
        targets = [plan.target(out) for out in outputs]
        if _follow_each_other(targets):
            plan.add(w.ALL_GATHER, source, targets[0], count, code)
            return
        room = plan.flat(source, engine.size)
        plan.add(w.ALL_GATHER, source, room, count, code)
        plan.keep.append(targets)
        for part, target in zip(room.view(engine.size, -1).unbind() if count else (), targets):
            plan.copy(part, target)

    def _gather_each(self, plan, outputs, source):
        """By a broadcast of each rank, of which none needs know the sizes of others."""
        engine = self.engine
        if outputs[engine.rank].numel() != source.numel():
            raise check.Refused(f"rank {engine.rank} gathers {source.numel()} elements, but its own "
                                f"output has {outputs[engine.rank].numel()}")
        for peer, out in enumerate(outputs):
            target = plan.target(out)
            code, count = _kind(target)
            plan.add(w.BROADCAST, source if peer == engine.rank else target, target, count, code, 0,
                     peer)

    def _gather_several(self, lists, inputs, opts):
        """All tensors of all ranks come into each of the lists, rank by rank."""
        size, n, plan = self.engine.size, len(inputs), _Plan(inputs)
        check.alike("allgather", inputs)
        for outs in lists:
            check.same_types(outs, inputs[0], "allgather")
            check.same_sizes("allgather", outs, inputs[0])
        rooms = [self._gathered(plan, tensor) for tensor in inputs]
        for outs in lists if inputs[0].numel() else ():
            for i, out in enumerate(outs):
                plan.copy(rooms[i % n].view(size, -1)[i // n], plan.target(out))
        return self.engine.run("all_gather", plan, opts, lists)

    @by_device
    def allgather(self, outputs, inputs, opts=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        check.lists_for("allgather", outputs, inputs, self.engine.size)
        if len(inputs) > 1:
            return self._gather_several(outputs, inputs, opts)
        plan = _Plan(inputs)
        self._gather_lists(plan, outputs[0], inputs[0])
        return self.engine.run("all_gather", plan, opts, outputs[0])

    @by_device
    def allgather_coalesced(self, output_lists, inputs, opts=None):
        plan, size = _Plan(inputs), self.engine.size
        # Either one list for each rank, or one for each input.
        turned = len(output_lists) == size and len(output_lists[0]) == len(inputs)
        if not turned and len(output_lists) != len(inputs):
            raise check.Refused(f"tutti: allgather_coalesced: output lists should be equal to world size, which is "
                                f"{size}, not {len(output_lists)}")
        for i, tensor in enumerate(inputs):
            outs = [outs[i] for outs in output_lists] if turned else output_lists[i]
            check.outputs(outs, tensor)
            self._gather_lists(plan, outs, tensor)
        return self.engine.run("all_gather", plan, opts, output_lists)

    @by_device
    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        plan = _Plan(inputs)
        for out, tensor in zip(outputs, inputs):
            source, target = plan.source(tensor), plan.target(out)
            check.same_types([out], tensor)
            if target.numel() != source.numel() * self.engine.size:
                raise check.Refused(f"all-gather of {source.numel()} elements of each of "
                                    f"{self.engine.size} ranks into {target.numel()}")
            code, count = _kind(source)
            plan.add(w.ALL_GATHER, source, target, count, code)
        return self.engine.run("all_gather_into_tensor", plan, opts, outputs)

    @by_device
    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    @by_device
    def gather(self, outputs, inputs, opts=None, root=None):
        engine = self.engine
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        opts, plan = check.options(c10d.GatherOptions, opts, root), _Plan(inputs)
        check.root("gather", opts, engine.size)
        check.single("gather", inputs, "input tensor list")
        outs = check.of_root("gather", outputs, engine.size, engine.rank == opts.rootRank, "output")
        source = plan.source(inputs[0])
        is_root, targets = engine.rank == opts.rootRank, []
        if is_root:
            check.same_types(outs, source, "gather")
            check.same_sizes("gather", outs, source)
            targets = [plan.target(out) for out in outs]
            plan.keep.append(targets)
        if engine.size <= _FEW or _is_large(source):
            self._swap(plan, {opts.rootRank: source}, dict(enumerate(targets)), source)
        else:
            self._gather_room(plan, targets, source, opts.rootRank)
        return engine.run("gather", plan, opts, outs)

    def _gather_room(self, plan, targets, source, root):
        """Gather by way of one buffer; the root alone has targets."""
        code, count = _kind(source)
        follow = not targets or _follow_each_other(targets)
        room = (targets or [source])[0] if follow else plan.flat(source, self.engine.size)
        plan.add(w.GATHER, source, room, count, code, 0, root)
        for part, target in zip(room.view(self.engine.size, -1).unbind() if count and not follow else (), targets):
            plan.copy(part, target)

    @by_device
    def scatter(self, outputs, inputs, opts=None, root=None):
        engine, plan = self.engine, _Plan()
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = check.options(c10d.ScatterOptions, opts, root)
        check.root("scatter", opts, engine.size)
        check.single("scatter", outputs, "output tensor list")
        parts = check.of_root("scatter", inputs, engine.size, engine.rank == opts.rootRank, "input")
        plan.inputs = parts
        target = plan.target(outputs[0])
        is_root = engine.rank == opts.rootRank
        if is_root:
            check.same_types(parts, target, "scatter")
            check.same_sizes("scatter", parts, target)
        if engine.size <= _FEW or _is_large(target):
            sources = [plan.source(part) for part in parts] if is_root else []
            self._swap(plan, dict(enumerate(sources)), {opts.rootRank: target}, target)
        else:
            code, count = _kind(target)
            room = self._joined(plan, parts) if is_root else target
            plan.add(w.SCATTER, room, target, count, code, 0, opts.rootRank)
        return engine.run("scatter", plan, opts, outputs)

    def _joined(self, plan, parts):
        """The parts as one buffer."""
        parts = [plan.source(part) for part in parts]
        if _follow_each_other(parts):
            return parts[0]
        room = torch.cat([part.reshape(-1) for part in parts])
        plan.keep.append(room)
        return room

    # ---- reduce-scatter ----

    def _scatter_list(self, plan, output, inputs, op):
        engine = self.engine
        if len(inputs) != engine.size:
            raise check.Refused(f"reduce-scatter of {len(inputs)} tensors among {engine.size} ranks")
        check.same_types(inputs, output)
        if output.numel() != inputs[engine.rank].numel():
            raise check.Refused(f"rank {engine.rank} takes {output.numel()} elements of a part that has "
                                f"{inputs[engine.rank].numel()}")
        target = plan.target(output)
        code, count, native = _reducing(output, op)
        if not _is_large(output) and all(part.numel() == output.numel() for part in inputs):
            plan.add(w.REDUCE_SCATTER, self._joined(plan, inputs), target, count, code, native)
            return
        for peer, part in enumerate(inputs):  # large or uneven parts: each is reduced to its owner
            source = plan.source(part)
            code, count, native = _reducing(source, op)
            plan.add(w.REDUCE, source, target if peer == engine.rank else source, count, code,
                     native, peer)

    @by_device
    def reduce_scatter(self, outputs, inputs, opts=None, op=None):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = check.options(c10d.ReduceScatterOptions, opts, op=op)
        plan = _Plan([part for parts in inputs for part in parts])
        for output, parts in zip(outputs, inputs):
            if opts.reduceOp.op in _BITWISE:
                return self._scatter_bits(outputs, [torch.cat([p.reshape(-1) for p in parts])
                                                    for parts in inputs], opts)
            self._scatter_list(plan, output, parts, opts.reduceOp)
        return self.engine.run("reduce_scatter", plan, opts, outputs)

    def _scatter_bits(self, outputs, inputs, opts):
        engine, plan, rooms = self.engine, _Plan(inputs), []
        for tensor in inputs:
            rooms.append(self._gathered(plan, tensor))

        def finish():
            for output, tensor, room in zip(outputs, inputs, rooms):
                whole = torch.empty_like(tensor)
                _combine([whole], [room], opts.reduceOp.op, engine.size)
                output.copy_(whole.view(engine.size, -1)[engine.rank].view(output.shape))

        plan.finish = finish
        return engine.run("reduce_scatter", plan, opts, outputs)

    @by_device
    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts, plan = check.options(c10d.ReduceScatterOptions, opts), _Plan(inputs)
        if opts.reduceOp.op in _BITWISE:
            return self._scatter_bits(outputs, inputs, opts)
        for output, tensor in zip(outputs, inputs):
            source, target = plan.source(tensor), plan.target(output)
            check.same_types([output], tensor)
            if source.numel() != target.numel() * self.engine.size:
                raise check.Refused(f"reduce-scatter of {source.numel()} elements among "
                                    f"{self.engine.size} ranks that take {target.numel()} each")
            code, count, native = _reducing(target, opts.reduceOp)
            plan.add(w.REDUCE_SCATTER, source, target, count, code, native)
        return self.engine.run("reduce_scatter_tensor", plan, opts, outputs)

    @by_device
    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    # ---- all-to-all ----

    def _exchange(self, plan, sends, recvs, code, size):
        """Messages between ranks in one group: {peer: (address, count)} to send and to receive."""
        engine, nothing = self.engine, (None, 0)
        for peer in range(engine.size):
            (source, n), (target, m) = sends.get(peer, nothing), recvs.get(peer, nothing)
            if peer == engine.rank:
                if n != m:
                    raise check.Refused(f"rank {peer} keeps {n} elements for itself, but takes {m}")
                if n:
                    plan.steps.insert(0, (w.COPY, 0, 0, 0, source, target, n * size))
                continue
            if n:
                plan.steps.append((w.SEND, code, 0, peer, source, None, n))
            if m:
                plan.steps.append((w.RECV, code, 0, peer, None, target, m))

    def _swap(self, plan, sources, targets, like):
        """The same of whole tensors of the type of `like`: {peer: tensor}."""
        code, size = _unit(like)
        per = like.element_size() // size
        sends, recvs = ({peer: (t.data_ptr(), t.numel() * per) for peer, t in tensors.items()}
                        for tensors in (sources, targets))
        self._exchange(plan, sends, recvs, code, size)

    @by_device
    def alltoall(self, outputs, inputs, opts=None):
        engine, plan = self.engine, _Plan(inputs)
        if len(outputs) != engine.size or len(inputs) != engine.size:
            raise check.Refused(f"all-to-all of {len(inputs)} into {len(outputs)} tensors between "
                                f"{engine.size} ranks")
        check.same_types(inputs + outputs, inputs[0])
        sources = [plan.source(tensor) for tensor in inputs]
        targets = [plan.target(out) for out in outputs]
        plan.keep.append(targets)
        self._swap(plan, dict(enumerate(sources)), dict(enumerate(targets)), inputs[0])
        return engine.run("all_to_all", plan, opts, outputs)

    @by_device
    def all_to_all_single(self, output, tensor, output_sizes=(), input_sizes=(), opts=None):
        engine, plan = self.engine, _Plan([tensor])
        check.same_types([output], tensor)
        source, target = plan.source(tensor), plan.target(output)
        if not output_sizes and not input_sizes and source.numel() == target.numel():
            if source.shape[:1] and source.shape[0] % engine.size:
                raise check.Refused(f"all-to-all of {source.shape[0]} rows between {engine.size} ranks: "
                                    "pass split sizes")
            code, count = _kind(source)
            plan.add(w.ALL_TO_ALL, source, target, count // engine.size, code)
            return engine.run("all_to_all", plan, opts, [output])
        code, size = _unit(tensor)
        self._exchange(plan, dict(enumerate(_slices(source, input_sizes, engine.size, size))),
                       dict(enumerate(_slices(target, output_sizes, engine.size, size))), code, size)
        return engine.run("all_to_all", plan, opts, [output])

    # ---- messages, barriers, life ----

    @by_device
    def send(self, tensors, dst, tag=0):
        return self.engine.message(1, tensors[0], dst, tag)

    @by_device
    def recv(self, tensors, src, tag=0):
        return self.engine.message(0, tensors[0], src, tag)

    @by_device
    def recv_anysource(self, tensors, tag=0):
        return self.engine.message(0, tensors[0], w.ANY, tag)

    def barrier(self, opts=None):
        device = getattr(opts, "device", None)
        if device is not None and device.type == "cuda":
            return self.cuda_call("barrier", (opts,), {})
        plan = _Plan()
        plan.steps.append((w.BARRIER, 0, 0, 0, None, None, 0))
        return self.engine.run("barrier", plan, opts, [])

    def start_coalescing(self, device=None):
        if device is not None and device.type == "cuda":
            self.engine.cuda.start_coalescing(device)
        else:
            self.engine.start_batch()

    def end_coalescing(self, device=None):
        if device is not None and device.type == "cuda":
            return self.engine.cuda.end_coalescing(device)
        return self.engine.end_batch()

    def abort(self):
        self.engine.abort()
        self.engine.cuda.end("abort")

    def shutdown(self):
        self.engine.shutdown()
        self.engine.cuda.end("shutdown")

    @property
    def options(self):
        return Backend.Options("tutti", self.engine.timeout)

    def set_timeout(self, timeout):
        self.engine.set_timeout(timeout)
        self.engine.cuda.set_timeout(self.engine.timeout)

    def _set_sequence_number_for_group(self):
        pass  # the library counts operations itself

    def _get_sequence_number_for_group(self):
        return 0

    # The names of other versions of PyTorch, and of C++.
    _allgather_base = allgather_into_tensor = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource
    _set_default_timeout = setTimeout = set_timeout
    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing


def _combine(tensors, rooms, op, size):
    """Each of the tensors = the reduction of what all ranks had, which lies in the rooms."""
    rows = [row for room in rooms for row in room.view(size, -1)]
    total = rows[0].clone()
    for row in rows[1:]:
        _COMBINE[op](total, row, out=total)
    if op == _RedOp.AVG:
        total /= len(rows)
    for tensor in tensors:
        tensor.copy_(total.view(tensor.shape))


def _unit(tensor):
    """Type of what messages of such a tensor count, and its bytes."""
    code, _ = _kind(tensor)
    kind = _TYPES.get(tensor.dtype)
    return code, tensor.element_size() // kind[1] if kind else 1


def _slices(tensor, sizes, ranks, unit):
    """(address, units) of what each rank has of a tensor, by rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise check.Refused(f"all-to-all of {rows} rows between {ranks} ranks: pass split sizes")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise check.Refused(f"all-to-all of {rows} rows between {ranks} ranks: the split sizes are "
                            f"{list(sizes)}")
    row = tensor.numel() // rows * tensor.element_size() if rows else 0
    at, slices = tensor.data_ptr(), []
    for size in sizes:
        slices.append((at, size * row // unit))
        at += size * row
    return slices
