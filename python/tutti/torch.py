"""tutti as a backend of torch.distributed.

    import torch.distributed as dist

    dist.init_process_group("tutti")  # found by entry point where the package is installed; a plain
    dist.all_reduce(tensor)           # checkout needs `import tutti.torch` first

A group made of this backend alone is a ProcessGroup of its own, whose calls are Python's from end to
end; beside another backend ("cpu:tutti,cuda:nccl") it is that group's Backend for the CPU. Tensors on
a GPU go to PyTorch's backend for NCCL, which the group makes when the first comes; it must find tutti's
libnccl.so.2 (tutti.enable()).

`all_reduce(tensor)` of this module is the shortest way to reduce a small tensor: no Work, no checks of
torch.distributed.
"""
import os

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tutti import _torch_groups
from tutti._process_group import Engine
from tutti._torch_groups import PARTS, Group, Part

__all__ = ["Group", "all_reduce", "register"]


def _is_one_of_many(options):
    """Will the group have other backends as well? Then its default backend is another's, or it has
    one already."""
    group = getattr(options, "process_group", None)
    if group is None or not PARTS:  # a backend in Python stands for the whole group
        return False
    try:
        if list(group._device_types):
            return True
        name = group._get_backend_name() if hasattr(group, "_get_backend_name") else ""
    except RuntimeError:
        return False
    return name.lower() in ("nccl", "gloo", "mpi", "ucc", "xccl")


def _is_recorded():
    """Has somebody asked for PyTorch's flight recorder? It sees what PyTorch hands on to a backend, and so nothing
    of a group whose calls are Python's from end to end."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        size = os.environ.get(name)
        if size:
            # That of 2.14 has what a recorder needs, but gives it to no group.
            return hasattr(distributed_c10d, "_maybe_attach_flight_recorder") and size.isdigit() and int(size) > 0
    return False


def _make(options, backend_options):
    arguments = (options.store, options.group_rank, options.group_size, options.timeout,
                 options.group_id, getattr(options, "global_ranks_in_group", None) or (),
                 _torch_groups.nccl_options(backend_options))
    if _is_one_of_many(options) or PARTS and _is_recorded():
        return Part(Engine(*arguments))
    return Group(*arguments) if PARTS else _torch_groups.WholeGroup(*arguments)


def register():
    """Makes "tutti" known to torch.distributed; once is enough, and `import tutti.torch` does it.

    >>> tutti.torch.register()
    """
    if "TUTTI" not in dist.Backend._plugins:
        dist.Backend.register_backend("tutti", _make, extended_api=True, devices=["cpu", "cuda"])


def autoload():
    """For the entry point that `import torch` itself loads: only versions of PyTorch that look for no
    backend by its name need it."""
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        register()


def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None):
    """tensor = the reduction over ranks of tensor, which is contiguous and in host memory, in this
    thread: torch.distributed.all_reduce without its Work.

    >>> tutti.torch.all_reduce(torch.ones(2))  # in a group of one rank
    tensor([1., 1.])
    """
    group = group or distributed_c10d._get_default_group()
    engine = getattr(group, "engine", None) or group._get_backend(torch.device("cpu")).engine
    engine.all_reduce_now(tensor, op)
    return tensor


register()
