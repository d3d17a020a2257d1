"""What tutti.torch asks of the arguments of a call before it starts anything. The texts hold the words that
PyTorch's own backend for the CPU uses, as programs and tests look for them."""
import torch
from torch._C._distributed_c10d import ReduceOp


class Refused(RuntimeError, ValueError):
    """An argument that cannot be right. PyTorch's own backends raise a RuntimeError there."""


class WrongType(RuntimeError, TypeError):
    """The same of an element type."""


def listed(tensors):
    """The tensors of a call that may be given one alone."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def options(kind, given, root=None, op=None):
    """The options of a call, some of whose forms give a root or a reduction instead."""
    if given is not None and not isinstance(given, (int, ReduceOp, ReduceOp.RedOpType)):
        return given
    made = kind()
    if isinstance(given, int):
        root = given
    elif given is not None:
        op = given
    if root is not None:
        made.rootRank = root
    if op is not None:
        made.reduceOp = op
    return made


def root(call, options, size):
    if not 0 <= options.rootRank < size:
        raise Refused(f"tutti: {call}: invalid root rank: {options.rootRank}; the group has 0 to {size - 1}")


def root_tensor(call, options, n):
    if not 0 <= options.rootTensor < n:
        raise Refused(f"tutti: {call}: invalid root tensor: {options.rootTensor} of {n} tensors")


def not_empty(call, tensors, what="tensor list"):
    if not tensors:
        raise Refused(f"tutti: {call} requires non-empty {what}")


def single(call, tensors, what):
    if len(tensors) != 1:
        raise Refused(f"tutti: {call} requires a single-element {what}, not one of {len(tensors)}")


def dense(tensor):
    if tensor.layout is not torch.strided:
        raise Refused(f"tutti moves dense tensors; unsupported layout {tensor.layout}: pass tensor.to_dense()")
    if not tensor.is_cpu:
        raise Refused(f"tutti's group for the CPU got a tensor on {tensor.device}: unsupported device type")


def same_layout(call, tensors):
    for i, tensor in enumerate(tensors):
        if tensor.layout != tensors[0].layout:
            raise Refused(f"tutti: {call}: invalid tensor layout at index {i}: {tensor.layout}, not "
                          f"{tensors[0].layout}")


def same_types(tensors, like, call="an operation"):
    for i, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype:
            raise WrongType(f"tutti: {call}: invalid tensor type at index {i}: tensors of {tensor.dtype} and of "
                            f"{like.dtype}")


def same_sizes(call, tensors, like):
    for i, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise Refused(f"tutti: {call}: invalid tensor size at index {i}: {tensor.numel()} elements, not "
                          f"{like.numel()}")


def alike(call, tensors):
    """Tensors that stand for one another, as in a reduction of several of a rank."""
    not_empty(call, tensors)
    same_layout(call, tensors)
    same_types(tensors, tensors[0], call)
    same_sizes(call, tensors, tensors[0])


def lists_for(call, lists, tensors, size):
    """One list for each tensor, with room for all tensors of all ranks."""
    not_empty(call, tensors, "input tensor list")
    if len(lists) != len(tensors):
        raise Refused(f"tutti: {call} requires input/output tensor lists to have the same length: {len(tensors)} "
                      f"and {len(lists)}")
    for i, outs in enumerate(lists):
        if len(outs) != size * len(tensors):
            raise Refused(f"tutti: {call}: invalid output tensor list at index {i}: {len(outs)} tensors for "
                          f"{size} ranks")


def outputs(tensors, like):
    """What a coalesced all-gather puts one tensor of each rank into."""
    for i, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise Refused(f"tutti: allgather_coalesced: invalid size of output tensor at index {i}: "
                          f"{tensor.numel()} elements, not {like.numel()}")
    same_types(tensors, like, "allgather_coalesced")


def of_root(call, lists, size, here, what):
    """What the root gives or takes, a tensor for each rank, and all others not; the tensors."""
    if not here:
        if lists and lists[0]:
            raise Refused(f"tutti: {call} requires empty {what} on non-root ranks")
        return []
    if len(lists) != 1:
        raise Refused(f"tutti: {call} requires a single-element {what} list containing a list with {size} tensors")
    if len(lists[0]) != size:
        raise Refused(f"tutti: {call}: Incorrect {what} list size {len(lists[0])}. {what.capitalize()} list size "
                      f"should be {size}, same as size of the process group")
    return lists[0]
