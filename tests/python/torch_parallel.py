"""What PyTorch builds upon torch.distributed, on tutti.torch: all functions take (dist, rank, size), and compare
with one process that does it all."""
import torch


def model(width=12):
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.ReLU(), torch.nn.Linear(2 * width, width))


def batches(size, width=12):
    """One batch for each rank, which differ."""
    return (torch.arange(size * 4 * width).reshape(size, 4, width) % 7 - 3) / 5


def close(got, want):
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-5), (got - want).abs().max()


def trained_alone(size, steps=3):
    """The parameters after some steps of one process on the batches of all ranks."""
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        for batch in batches(size):
            (alone(batch).square().sum() / size).backward()
        optimizer.step()
    return alone


def fully_sharded(dist, rank, size):
    """FSDP2: parameters gathered before they are used, gradients reduced and scattered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    ours = model()
    for layer in ours:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(ours, mesh=mesh)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ours(batches(size)[rank]).square().sum().backward()
        optimizer.step()
    for mine, want in zip(ours.parameters(), trained_alone(size).parameters()):
        close(mine.full_tensor(), want)


def sharded_optimizer(dist, rank, size):
    """DDP whose optimizer's state is spread over the ranks, which broadcast what they have updated."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ours = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(ours.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ours(batches(size)[rank]).square().sum().backward()
        optimizer.step()
    for mine, want in zip(ours.parameters(), trained_alone(size).parameters()):
        close(mine, want)


def tensor_parallel(dist, rank, size):
    """Columns of the first layer and rows of the second on each rank; one all-reduce between."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    ours = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    alone = model()
    x = batches(size)[0]
    close(ours(x), alone(x))
    ours(x).square().sum().backward()
    alone(x).square().sum().backward()
    for mine, want in zip(ours.parameters(), alone.parameters()):
        close(mine.grad.full_tensor(), want.grad)


def distributed_tensors(dist, rank, size):
    """Redistribution between shards, copies and partial sums, also where rows do not fit the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    for rows in (2 * size, 2 * size + 1):
        whole = torch.arange(rows * 3.0 * size).reshape(rows, 3 * size)
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(sharded.full_tensor(), whole)
        assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local(), whole)
        close((sharded.t() @ sharded).full_tensor(), whole.t() @ whole)


def pipeline(dist, rank, size):
    """A layer on each rank: activations go on and gradients come back, for several micro-batches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(7)
    layers = [torch.nn.Linear(6, 6) for _ in range(size)]
    x, target = torch.randn(8, 6), torch.randn(8, 6)
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        out = schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    torch.manual_seed(7)
    alone = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(size)])
    want = alone(x)
    sum(torch.nn.functional.mse_loss(a, b) for a, b in zip(want.chunk(4), target.chunk(4))).div(4).backward()
    if rank == size - 1:
        close(out, want)
    close(layers[rank].weight.grad, alone[rank].weight.grad)


def checkpoint(dist, rank, size):
    """A sharded state is written and read by all ranks, which agree on who has what."""
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    whole = torch.arange(4.0 * size)
    dcp.save({"x": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder[0])
    state = {"x": distribute_tensor(torch.zeros(4 * size), mesh, [Shard(0)])}
    dcp.load(state, checkpoint_id=folder[0])
    assert torch.equal(state["x"].full_tensor(), whole)


def joined(dist, rank, size):
    """DDP with fewer batches on some ranks: the others' all-reduces are shadowed."""
    from torch.distributed.algorithms.join import Join

    ours = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    with Join([ours]):
        for _ in range(rank + 1):
            ours(torch.ones(2, 4)).sum().backward()
    dist.barrier()


def groups_of_a_mesh(dist, rank, size):
    """A mesh of two dimensions, whose groups are made by subgroup or split."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("replicas", "shards"))
    x = torch.ones(1)
    dist.all_reduce(x, group=mesh.get_group("shards"))
    assert x.item() == size
    dist.all_reduce(x, group=mesh.get_group("replicas"))
    assert x.item() == size
    dist.barrier()
