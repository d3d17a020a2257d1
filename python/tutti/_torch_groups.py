"""The process groups of tutti.torch, as PyTorch sees them."""
import torch
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroup

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


class Part(Calls, Backend):
    """The CPU's backend in a group that has another for other devices; only where PARTS."""

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
    """A group whose only backend is tutti."""

    def __init__(self, store, rank, size, timeout, name=""):
        if not PARTS:
            ProcessGroup.__init__(self, rank, size)  # the only one that calls methods in Python
            self._tutti_name, self._tutti_text = "", "undefined"
            self.engine = Engine(store, rank, size, timeout, name)
            return
        ProcessGroup.__init__(self, store, rank, size)
        self.engine = Engine(store, rank, size, timeout, name)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM,
                               _Splits(self.engine))
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self.engine.monitored_barrier(self.engine.timeout if timeout is None else timeout,
                                      wait_all_ranks)

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None,
                    devices=None, **others):
        engine = self.engine
        if engine.rank not in ranks:
            return None
        store = PrefixStore(f"split/{group_name}/", engine.store)
        part = type(self)(store, ranks.index(engine.rank), len(ranks), timeout or engine.timeout,
                          group_name or "split")
        part._set_group_name(group_name or "")
        part._set_group_desc(group_desc or "undefined")
        return part

    splitGroup = split_group


class WholeGroup(Group):
    """A Group of a PyTorch that has no backends in Python: what PyTorch would ask a backend, it asks here."""

    supports_splitting = True
    supports_coalescing = supports_shrinking = False
    _device_types = property(lambda self: [torch.device("cpu")])
    group_name = property(lambda self: self._tutti_name)
    group_desc = property(lambda self: self._tutti_text)

    def _set_group_name(self, name):
        self._tutti_name = name

    def _set_group_desc(self, text):
        self._tutti_text = text

    def _get_backend(self, device):
        return self

    def _get_backend_name(self):
        return "tutti"

    def name(self):
        return "tutti"


class _Splits(Part):
    """What a Group shows as its backend: it can be split."""

    @property
    def supports_splitting(self):
        return True
