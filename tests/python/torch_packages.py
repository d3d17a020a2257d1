"""One rank of a test of a package that is built upon torch.distributed: python torch_packages.py NAME, with the
environment that torchrun makes. 77: the package is not there."""
import runpy
import sys

import torch
import torch.distributed as dist

import tutti.torch


def accelerate():
    """Accelerate's own test script; it takes the process group that there is, and ends it."""
    dist.init_process_group("tutti")
    assert dist.get_backend() == "tutti" and isinstance(dist.group.WORLD, tutti.torch.Group)
    runpy.run_module("accelerate.test_utils.scripts.test_script", run_name="__main__")


def deepspeed():
    """DeepSpeed's comm, with the backend chosen as its users do."""
    import deepspeed.comm as comm

    comm.init_distributed(dist_backend="tutti", auto_mpi_discovery=False, verbose=False)
    rank, size = comm.get_rank(), comm.get_world_size()
    assert dist.get_backend() == "tutti"
    x = torch.full((5,), rank + 1.0)
    comm.all_reduce(x)
    assert (x == size * (size + 1) / 2).all(), x
    out = torch.empty(5 * size)
    comm.all_gather_into_tensor(out, x.fill_(rank))
    assert torch.equal(out, torch.arange(size * 1.0).repeat_interleave(5)), out
    comm.reduce_scatter_tensor(x, out)
    assert (x == rank * size).all(), x
    comm.broadcast(x.fill_(rank), 1)
    assert (x == 1).all(), x
    many = [torch.empty(5) for _ in range(size)]
    comm.all_gather(many, x.fill_(rank))
    assert all((many[r] == r).all() for r in range(size))
    other = torch.empty(2 * size)
    comm.all_to_all_single(other, torch.full((2 * size,), float(rank)))
    assert torch.equal(other, torch.arange(size * 1.0).repeat_interleave(2)), other
    comm.barrier()
    comm.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        __import__(sys.argv[1])
        __import__("pytest" if sys.argv[1] == "accelerate" else "torch")  # whose script needs it
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    globals()[sys.argv[1]]()
    print("done")
