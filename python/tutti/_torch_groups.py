"""The process groups of tutti.torch, as PyTorch sees them."""
import copy
import sys

import torch
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Backend, ProcessGroup

from tutti._process_group import Calls, Engine


def _has_backends_in_python():
    class Empty(Backend):
        pass

    try:
        Empty(0, 1)
    except TypeError:
        return False
    return True


PARTS = _has_backends_in_python()  # of a group, beside other backends: from PyTorch 2.14 on

# The functions of PyTorch that see which GPU a group is bound to: before 2.15 split_group takes no other groups, and
# shrink_group (the second is its) would give what NCCL makes out as a group for the CPU. The rest must not: new_group
# would let the ranks outside the new group split NCCL's communicator, while those inside make one of their own, and
# both wait for ever; a barrier would go by the GPU.
_SEE_THE_GPU = ("split_group", "_extract_group_metadata")


def nccl_options(options):
    """Those of PyTorch's backend for NCCL, if that is what somebody gave."""
    kind = getattr(c10d, "ProcessGroupNCCL", None)
    return options if kind and isinstance(options, kind.Options) else None


class Part(Calls, Backend):
    """A group's backend for some devices, where another object is the group; only where PARTS."""

    def __init__(self, engine):
        Backend.__init__(self, engine.rank, engine.size)
        self.engine = engine

    # PyTorch asks for each of these by an attribute of the object; what it finds in its own class asks again.
    supports_coalescing = supports_splitting = supports_shrinking = supports_reconfigure = property(
        lambda self: False)
    supports_window = _supports_time_estimate = property(lambda self: False)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        timeout = opts.timeout
        self.engine.monitored_barrier(timeout if timeout.total_seconds() > 0 else self.engine.timeout,
                                      wait_all_ranks)


class Group(Calls, ProcessGroup):
    """A group whose only backend is tutti, and that of PyTorch for NCCL on CUDA tensors: what
    torch.distributed makes for "tutti".

    >>> isinstance(dist.group.WORLD, tutti.torch.Group)
    True
    """

    def __init__(self, store, rank, size, timeout, name="", ranks=(), nccl_options=None):
        arguments = (store, rank, size, timeout, name, ranks, nccl_options)
        self._shown = False  # has it PyTorch's backend for NCCL as its own?
        self._gpu = None  # the one that somebody named when that was made
        self._splits = 0
        if not PARTS:
            ProcessGroup.__init__(self, rank, size)  # the only one that calls methods in Python
            self._tutti_name, self._tutti_text = "", "undefined"
            self.engine = Engine(*arguments)
            return
        ProcessGroup.__init__(self, store, rank, size)
        self.engine = Engine(*arguments)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM,
                               _Splits(self.engine))
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    def cuda_call(self, name, arguments, named):
        self._show_cuda()
        return super().cuda_call(name, arguments, named)

    def _show_cuda(self, device=None):
        """Makes the backend for CUDA tensors, and shows it to whoever asks the group for it."""
        backend = self.engine.cuda.backend()
        if self._shown:
            return
        self._shown = True
        if device is not None and device.index is not None:
            self._gpu = device
        if PARTS:
            name = self.group_name  # which PyTorch asks any of the backends for
            self._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, backend)
            backend._set_group_uid(name)

    def _get_backend(self, device):
        if device.type == "cuda" and self._wants_cuda(device):
            self._show_cuda(device)
        return super()._get_backend(device)

    def _wants_cuda(self, device):
        """Is it a certain GPU, or one is in use? PyTorch also asks for that of a GPU which nobody uses."""
        return device.index is not None or torch.cuda.is_initialized() and not self.engine.ended

    get_backend = _get_backend

    @property
    def bound_device_id(self):
        """That of the backend for CUDA tensors, for those who may see it."""
        if not self._shown or sys._getframe(1).f_code.co_name not in _SEE_THE_GPU:
            return None
        return self._gpu or torch.device("cuda", torch.cuda.current_device())

    @bound_device_id.setter
    def bound_device_id(self, device):  # of a part, by split_group
        self._gpu = device

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self.engine.monitored_barrier(self.engine.timeout if timeout is None else timeout,
                                      wait_all_ranks)

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None,
                    devices=None, **others):
        engine = self.engine
        self._splits += 1  # on all ranks; PyTorch's name for a part depends on how many groups a rank is in
        if engine.rank not in ranks:
            return None
        store = engine.own_store(f"split/{self._splits}/{ranks[0]}")
        options = nccl_options(opts) or copy.deepcopy(engine.cuda.options)
        part = type(self)(store, ranks.index(engine.rank), len(ranks), timeout or engine.timeout,
                          group_name or "split", [engine.ranks[rank] for rank in ranks], options)
        part._set_group_name(group_name or "")
        part._set_group_desc(group_desc or "undefined")
        return part

    splitGroup = split_group


class WholeGroup(Group):
    """A Group of a PyTorch that has no backends in Python: what PyTorch would ask a backend, it asks here."""

    supports_splitting = True
    supports_coalescing = supports_shrinking = False
    group_name = property(lambda self: self._tutti_name)
    group_desc = property(lambda self: self._tutti_text)

    def get_group_store(self):
        return self.engine.store

    def _set_group_name(self, name):
        self._tutti_name = name

    def _set_group_desc(self, text):
        self._tutti_text = text

    def _get_backend(self, device):
        if device.type == "cuda" and self._wants_cuda(device):
            self._show_cuda(device)
        return self.engine.cuda.backend() if device.type == "cuda" and self._shown else self

    get_backend = _get_backend

    @property
    def _device_types(self):
        return [torch.device(name) for name in ("cpu", "cuda") if name == "cpu" or self._shown]

    def _get_backend_name(self):
        return "tutti"

    def name(self):
        return "tutti"


class _Splits(Part):
    """What a Group shows as its backend: it can be split."""

    @property
    def supports_splitting(self):
        return True
