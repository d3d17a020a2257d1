"""The all-reduce of sparse tensors. The library moves dense ones: all ranks gather the indices and values of all and
add them."""
import torch
from torch._C._distributed_c10d import ReduceOp

from tutti import _torch_checks as check


def _padded(tensor, n):
    """The tensor with n rows, as all ranks have as many then."""
    return torch.cat([tensor, tensor.new_zeros(n - tensor.shape[0], *tensor.shape[1:])])


def all_reduce(engine, tensors, options, plan_of, gathered):
    """Each of the tensors, of this and of all ranks, becomes the sum of all of them. How many values each rank has
    must be known before they can be gathered: this waits for it, and for what was started before."""
    check.alike("allreduce", tensors)
    if options.reduceOp.op != ReduceOp.RedOpType.SUM:
        raise check.Refused(f"tutti: allreduce: unsupported reduction operation {options.reduceOp.op} of sparse "
                            "tensors, which are only summed; pass tensor.to_dense()")
    with torch.no_grad():
        mine = sum(tensors[1:], tensors[0]).coalesce()
        indices, values = mine.indices().t(), mine.values()
        plan = plan_of()
        counts = gathered(plan, torch.tensor([values.shape[0]]))
        engine.start(plan, []).wait()
        counts = counts.tolist()
        plan = plan_of(tensors)
        all_indices = gathered(plan, _padded(indices, max(counts)).contiguous())
        all_values = gathered(plan, _padded(values, max(counts)).contiguous())

    def finish():
        shape = engine.size, max(counts)
        with torch.no_grad():
            where = all_indices.view(*shape, mine.sparse_dim())
            what = all_values.view(*shape, *values.shape[1:])
            total = torch.sparse_coo_tensor(torch.cat([where[r, :n] for r, n in enumerate(counts)]).t(),
                                            torch.cat([what[r, :n] for r, n in enumerate(counts)]),
                                            mine.shape, check_invariants=True).coalesce()
            for tensor in tensors:
                tensor.copy_(total)

    plan.finish = finish
    return engine.run("all_reduce", plan, options, tensors)
