"""CUDA tensors of a group: PyTorch's own backend for NCCL serves them, on tutti's libnccl.so.2. It is made when the
first such tensor comes, so that a group that has none asks for no GPU and no NCCL."""
import functools
import threading

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup

from tutti import _nccl

# What a call is named by versions that do not have the newest name.
_OLD_NAMES = {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base",
              "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
              "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
              "all_to_all_single": "alltoall_base"}


def _require_ours():
    """RuntimeError unless what PyTorch calls as NCCL is tutti's."""
    if not dist.is_nccl_available():
        raise RuntimeError("tutti: CUDA tensors of a group go by PyTorch's ProcessGroupNCCL, which this PyTorch is "
                           "built without: install a build for CUDA, or pass tensor.cpu()")
    library = _nccl.which()
    if library is None:
        raise RuntimeError("tutti: CUDA tensors of a group are for tutti's libnccl.so.2, but this process has loaded "
                           "none, as this PyTorch has an NCCL of its own inside: install a build that loads "
                           "libnccl.so.2, as those from PyPI do, or name cuda:nccl for the one inside")
    if not _nccl.is_ours(library):
        raise RuntimeError(f"tutti: CUDA tensors of a group are for tutti's libnccl.so.2, but this process uses "
                           f"{library}: start it by `python -m tutti run` or with TUTTI_ENABLE=1, or call "
                           "tutti.enable() before `import torch`; cuda:nccl in the name of the backend takes the "
                           "one that is there")


def _make(store, rank, size, timeout, name, ranks, options):
    """The last step, for which a GPU is needed."""
    options = options or c10d.ProcessGroupNCCL.Options()
    options._timeout, options.group_name, options.global_ranks_in_group = timeout, name, list(ranks)
    return c10d.ProcessGroupNCCL(store, rank, size, options)


def _group_of(backend, store, rank, size):
    """A plain group with this backend alone. It has every call that a group may be asked for, in the same forms; in
    Python the backend has not: that of PyTorch 2.11 lacks the coalesced all-gather and reduce-scatter."""
    group = ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, backend)
    group._set_default_backend(ProcessGroup.BackendType.NCCL)
    return group


class Cuda:
    """One rank's backend for CUDA tensors, or the lack of one; `options` are None or a ProcessGroupNCCL.Options."""

    def __init__(self, store, rank, size, timeout, name, ranks, options):
        self._arguments, self.options = [store, rank, size, timeout, name, ranks, options], options
        self._lock, self._made, self._ended = threading.Lock(), None, False  # made: the backend and its group
        self._coalesces = None  # the group that has been told to

    def _both(self):
        made = self._made
        if made is None:
            with self._lock:
                if self._ended:
                    raise dist.DistBackendError("tutti: the process group has been shut down or aborted on this rank")
                if self._made is None:
                    _require_ours()
                    backend = _make(*self._arguments)
                    self._made = backend, _group_of(backend, *self._arguments[:3])
                made = self._made
        return made

    def backend(self):
        """What PyTorch has for NCCL, made at the first call; RuntimeError if that would not be tutti's."""
        return self._both()[0]

    def is_made(self):
        return self._made is not None

    def call(self, name, arguments, named):
        """A call of this name on the backend, by way of its group, which has the same short forms as those here."""
        group = self._both()[1]
        call = getattr(group, name, None) or getattr(group, _OLD_NAMES[name])
        while arguments and arguments[-1] is None:  # what is not given
            arguments = arguments[:-1]
        return call(*arguments, **{key: value for key, value in named.items() if value is not None})

    def start_coalescing(self, device):
        """Nothing where the backend has ended: PyTorch 2.15 aborts groups between this and the end, again if asked to."""
        over = self._ended and self._made is None
        self._coalesces = None if over else self._both()[1]
        if self._coalesces is not None:
            self._coalesces._start_coalescing(device)

    def end_coalescing(self, device):
        """Of the group that began, which may have been aborted meanwhile: who began a group of calls in NCCL has to
        end it. A Work or None."""
        group, self._coalesces = self._coalesces, None
        return None if group is None else group._end_coalescing(device)

    def set_timeout(self, timeout):
        self._arguments[3] = timeout
        if self._made is not None:
            self.call("set_timeout", (timeout,), {})

    def end(self, how):
        """`how` is "abort" or "shutdown"; nothing is made any more. What a shutdown cannot end, as of a group whose
        rank has died, is there for an abort."""
        with self._lock:
            made, self._ended = self._made, True
        if made is not None:
            getattr(made[0], how)()
            self._made = None


def first_tensor(things):
    """The first tensor of the arguments of a call, in lists of lists too; None."""
    for thing in things:
        while isinstance(thing, (list, tuple)) and thing:
            thing = thing[0]
        if isinstance(thing, torch.Tensor):
            return thing
    return None


def by_device(method):
    """The method, on CUDA tensors that of the group's `cuda_call`."""
    name = method.__name__

    @functools.wraps(method)
    def call(self, *arguments, **named):
        tensor = first_tensor(arguments or named.values())
        if tensor is not None and tensor.is_cuda:
            return self.cuda_call(name, arguments, named)
        return method(self, *arguments, **named)

    return call
