"""What each rank of the tests of tutti.torch does: all functions take (dist, rank, size)."""
import datetime
import json
import os
import signal
import threading
import time
import warnings

import torch

import tutti.torch
from tutti import _process_group
from tutti._torch_groups import PARTS
from tutti._torch_work import SHAPES

# Does PyTorch split groups of the CPU, and record the calls of backends other than its own?
SPLITS_CPUS = RECORDS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
KINDS = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64]
MOVED = KINDS + [torch.bool, torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn]


def mine(rank, shape=(3, 4), kind=torch.float32):
    """A tensor that differs between ranks and places, exact in every type."""
    n = 1
    for side in shape:
        n *= side
    return (torch.arange(n) % 3 + rank + 1).reshape(shape).to(kind)


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got, want)
    as_bytes = (torch.float8_e4m3fn,)
    if got.dtype in as_bytes:
        got, want = got.view(torch.uint8), want.view(torch.uint8)
    assert torch.equal(got, want), f"got {got}, expected {want}"


def total(size, shape=(3, 4), kind=torch.float32):
    return sum(mine(r, shape, kind) for r in range(size))


def fails(kind, part, call):
    """The call raises such an exception, with that in its text; the exception."""
    try:
        call()
    except kind as error:
        assert part in str(error), str(error)
        return error
    raise AssertionError(f"no {kind.__name__} with '{part}'")


def all_reduce_types_and_ops(dist, rank, size):
    for kind in KINDS:
        x = mine(rank, kind=kind)
        dist.all_reduce(x)
        same(x, total(size, kind=kind).to(kind))
    every = torch.stack([mine(r) for r in range(size)])
    for op, want in ((dist.ReduceOp.PRODUCT, every.prod(0)), (dist.ReduceOp.MAX, every.amax(0)),
                     (dist.ReduceOp.MIN, every.amin(0)), (dist.ReduceOp.AVG, every.mean(0))):
        x = mine(rank)
        dist.all_reduce(x, op)
        assert torch.allclose(x, want), op
    for kind in (torch.complex64, torch.complex128):
        x = mine(rank, kind=kind) * (1 + 2j)
        dist.all_reduce(x)
        same(x, (total(size, kind=kind) * (1 + 2j)).to(kind))
    for op, want in ((dist.ReduceOp.SUM, [False, True, True]), (dist.ReduceOp.PRODUCT, [False, False, True]),
                     (dist.ReduceOp.BXOR, [False, True, size % 2 == 1])):
        x = torch.tensor([False, rank == 1, True])
        dist.all_reduce(x, op)
        same(x.view(torch.uint8), torch.tensor(want).view(torch.uint8))  # bools that are 0 or 1
    for op, want in ((dist.ReduceOp.BAND, 0 if size > 2 else 0), (dist.ReduceOp.BOR, 2**size - 1)):
        x = torch.tensor([1 << rank])
        dist.all_reduce(x, op)
        same(x, torch.tensor([want]))
    fails(TypeError, "int16", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)))
    fails(ValueError, "sparse", lambda: dist.broadcast(torch.eye(2).to_sparse(), 0))


def odd_tensors(dist, rank, size):
    x = mine(rank, (6, 5)).t()  # not contiguous
    dist.all_reduce(x)
    same(x, total(size, (6, 5)).t())
    x = torch.zeros(4, 6)
    part = x[:, ::2]
    part.copy_(mine(rank, (4, 3)))
    work = dist.all_reduce(part, async_op=True)
    work.wait()
    same(part, total(size, (4, 3)))
    assert x[:, 1::2].abs().sum() == 0
    for call in (lambda t: dist.all_reduce(t), lambda t: dist.broadcast(t, 0), lambda t: dist.reduce(t, 1)):
        call(torch.empty(0))
    outs = [torch.empty(0) for _ in range(size)]
    dist.all_gather(outs, torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    for beside in (False, True):
        works = [dist.gather(torch.empty(0), outs if rank == 1 else None, 1, async_op=beside),
                 dist.scatter(torch.empty(0), outs if rank == 1 else None, 1, async_op=beside)]
        assert not beside or all(work.wait() for work in works)
    x = torch.tensor(float(rank))
    dist.all_reduce(x)
    same(x, torch.tensor(float(sum(range(size)))))
    x = torch.ones(3, dtype=torch.complex64) * 1j
    y = x.conj()
    outs = [torch.empty(3, dtype=torch.complex64) for _ in range(size)]
    dist.group.WORLD.allgather([outs], [y]).wait()
    same(outs[size - 1], torch.ones(3, dtype=torch.complex64) * -1j)


def moves_of_every_type(dist, rank, size):
    for kind in MOVED:
        x = mine(rank, kind=kind)
        dist.broadcast(x, 1)
        same(x, mine(1, kind=kind))
        outs = [torch.zeros(3, 4).to(kind) for _ in range(size)]
        dist.all_gather(outs, mine(rank, kind=kind))
        for r in range(size):
            same(outs[r], mine(r, kind=kind))
        flat = torch.zeros(size * 3, 4).to(kind)
        dist.all_gather_into_tensor(flat, mine(rank, kind=kind))
        same(flat, torch.cat([mine(r, kind=kind) for r in range(size)]))
        outs = [torch.zeros(3, 4).to(kind) for _ in range(size)] if rank == 1 else None
        dist.gather(mine(rank, kind=kind), outs, 1)
        for r in range(size if rank == 1 else 0):
            same(outs[r], mine(r, kind=kind))
        x = torch.zeros(3, 4).to(kind)
        dist.scatter(x, [mine(r, kind=kind) for r in range(size)] if rank == 0 else None, 0)
        same(x, mine(rank, kind=kind))
        if rank == 0:
            dist.send(mine(5, kind=kind), 1)
        elif rank == 1:
            dist.recv(x, 0)
            same(x, mine(5, kind=kind))


def reductions_to_parts(dist, rank, size):
    x = mine(rank)
    dist.reduce(x, size - 1)
    same(x, total(size) if rank == size - 1 else mine(rank)) if rank == size - 1 else None
    out = torch.empty(2, 4)
    dist.reduce_scatter(out, [mine(rank + 10 * r, (2, 4)) for r in range(size)])
    same(out, sum(mine(r + 10 * rank, (2, 4)) for r in range(size)))
    out = torch.empty(2, 4)
    dist.reduce_scatter_tensor(out, mine(rank, (2 * size, 4)))
    same(out, total(size, (2 * size, 4))[2 * rank:2 * rank + 2])
    # Parts of different sizes.
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [mine(rank, (r + 1,)) for r in range(size)])
    same(out, total(size, (rank + 1,)))
    out = torch.empty(2, dtype=torch.int64)
    dist.reduce_scatter_tensor(out, torch.full((2 * size,), 1 << rank), dist.ReduceOp.BOR)
    same(out, torch.full((2,), 2**size - 1))


def lists_of_large_parts(dist, rank, size):
    """By way of one buffer, and to and from each tensor by itself."""
    few = _process_group._FEW
    for n, _process_group._FEW in ((5, 0), (5, few), (9001, 0), (9001, few)):
        wide = torch.zeros(n, 2 * size)  # whose columns are not contiguous
        outs = [wide[:, 2 * r] for r in range(size)]
        dist.all_gather(outs, mine(rank, (n,)))
        for r in range(size):
            same(outs[r], mine(r, (n,)))
        outs = [wide[:, 2 * r + 1] for r in range(size)]
        dist.gather(mine(rank, (n,)), outs if rank == 1 else None, 1)
        for r in range(size):
            same(outs[r], mine(r, (n,)) if rank == 1 else torch.zeros(n))
        x = torch.zeros(n, 2)[:, 1]
        dist.scatter(x, [mine(r + 3, (n, 2))[:, 0] for r in range(size)] if rank == 0 else None, 0)
        same(x, mine(rank + 3, (n, 2))[:, 0])
        dist.reduce_scatter(x, [mine(rank + 10 * r, (n,)) for r in range(size)])
        same(x, sum(mine(r + 10 * rank, (n,)) for r in range(size)))
    _process_group._FEW = few


def uneven(dist, rank, size):
    outs = [torch.zeros(r + 1, 2) for r in range(size)]
    dist.all_gather(outs, mine(rank, (rank + 1, 2)))
    for r in range(size):
        same(outs[r], mine(r, (r + 1, 2)))
    # Rank i sends i + j + 1 rows to rank j.
    sends = [rank + j + 1 for j in range(size)]
    out = torch.zeros(sum(sends), 3)
    dist.all_to_all_single(out, torch.full((sum(sends), 3), float(rank)), sends, sends)
    same(out, torch.cat([torch.full((rank + j + 1, 3), float(j)) for j in range(size)]))
    outs = [torch.zeros(rank + j) for j in range(size)]
    dist.all_to_all(outs, [torch.full((rank + j,), float(rank)) for j in range(size)])
    for j in range(size):
        same(outs[j], torch.full((rank + j,), float(j)))
    x = torch.arange(size * 2) + 100 * rank
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    same(y, torch.cat([torch.arange(2) + 2 * rank + 100 * j for j in range(size)]))
    outs = [torch.zeros(4, 2).t() for _ in range(size)]  # not contiguous
    dist.all_gather(outs, mine(rank, (2, 4)))
    for r in range(size):
        same(outs[r].contiguous(), mine(r, (2, 4)))
    fails(ValueError, "split sizes", lambda: dist.all_to_all_single(out, out, [1] * size, [1] * size))


def coalesced(dist, rank, size):
    tensors = [mine(rank, (k + 1,)) for k in range(3)]
    dist.all_reduce_coalesced(tensors)
    for k, x in enumerate(tensors):
        same(x, total(size, (k + 1,), x.dtype).to(x.dtype))
    xs = [mine(rank, (k + 1,)) for k in range(3)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    for k, x in enumerate(xs):
        same(x, total(size, (k + 1,)))
    outs = [torch.zeros(size * 2) for _ in range(2)]
    with dist._coalescing_manager(async_ops=True) as all_of_them:
        for out in outs:
            dist.all_gather_into_tensor(out, mine(rank, (2,)))
    all_of_them.wait()
    for out in outs:
        same(out, torch.cat([mine(r, (2,)) for r in range(size)]))
    to, come = (rank + 1) % size, (rank - 1) % size
    x, y = mine(rank), torch.zeros(3, 4)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, come)])
    for work in works:
        work.wait()
    same(y, mine(come))


def short_forms(dist, rank, size):
    """The calls of a ProcessGroup that take a tensor, a root or a reduction instead of lists and options."""
    group = dist.group.WORLD
    x = mine(rank)
    group.broadcast(x, root=1).wait()
    same(x, mine(1))
    x = mine(rank)
    assert group.allreduce(x).get_future().wait()[0] is x
    same(x, total(size))
    x = mine(rank)
    group.allreduce([x], dist.ReduceOp.MAX).wait()
    same(x, mine(size - 1).maximum(mine(0)).maximum(mine(1)))
    x = mine(rank)
    group.reduce(x, root=1).wait()
    if rank == 1:
        same(x, total(size))
    outs = [torch.zeros(3, 4) for _ in range(size)]
    group.allgather(outs, mine(rank)).wait()
    same(outs[1], mine(1))
    outs = [torch.zeros(3, 4) for _ in range(size)]
    group.gather(outs if rank == 1 else [], mine(rank), root=1).wait()
    same(outs[1], mine(1) if rank == 1 else torch.zeros(3, 4))
    x = torch.zeros(3, 4)
    group.scatter(x, [mine(r) for r in range(size)] if rank == 1 else [], root=1).wait()
    same(x, mine(rank))
    group.reduce_scatter(x, [mine(rank)] * size).wait()
    same(x, total(size))
    group.reduce_scatter_tensor_coalesced([x], [mine(rank, (3 * size, 4))]).wait()
    same(x, total(size, (3 * size, 4))[3 * rank:3 * rank + 3])


def several_tensors(dist, rank, size):
    """A rank's tensors in one call stand beside those of the other ranks, as with gloo."""
    group = dist.group.WORLD
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG):
        options = dist.AllreduceOptions()
        options.reduceOp = op
        pair = [mine(rank), mine(rank + 5)]
        group.allreduce(pair, options).wait()
        every = torch.stack([mine(r + k) for r in range(size) for k in (0, 5)])
        want = {dist.ReduceOp.SUM: every.sum(0), dist.ReduceOp.MAX: every.amax(0),
                dist.ReduceOp.PRODUCT: every.prod(0), dist.ReduceOp.AVG: every.mean(0)}[op]
        assert torch.allclose(pair[0], want) and torch.equal(pair[0], pair[1]), (op, pair, want)
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 1, 1
    pair = [mine(rank), mine(rank + 5)]
    group.broadcast(pair, options).wait()
    same(pair[0], mine(6))
    same(pair[1], mine(6))
    lists = [[torch.zeros(3, 4) for _ in range(2 * size)] for _ in range(2)]
    group.allgather(lists, [mine(rank), mine(rank + 5)]).wait()
    for outs in lists:
        for i, out in enumerate(outs):
            same(out, mine(i // 2 + 5 * (i % 2)))
    x = mine(rank)
    dist.all_reduce_coalesced([x, x])  # reduced once
    same(x, total(size))


def refused(dist, rank, size):
    """What cannot be right is a RuntimeError, as of PyTorch's own backends, and a ValueError; nothing is started."""
    group, x, y = dist.group.WORLD, torch.zeros(1), torch.zeros(2)
    options = dist.BroadcastOptions()
    options.rootRank = size
    for kind in (RuntimeError, ValueError):
        fails(kind, f"invalid root rank: {size}", lambda: group.broadcast([x], options))
    options.rootRank, options.rootTensor = 0, 1
    fails(RuntimeError, "invalid root tensor", lambda: group.broadcast([x], options))
    fails(RuntimeError, "requires non-empty tensor list", lambda: group.allreduce([]))
    fails(RuntimeError, "requires non-empty tensor list", lambda: group.allreduce_coalesced([]))
    for kind in (RuntimeError, TypeError):
        fails(kind, "invalid tensor type at index 1", lambda: group.allreduce([x, x.double()]))
    fails(RuntimeError, "invalid tensor size at index 1", lambda: group.allreduce([x, y]))
    fails(RuntimeError, "invalid tensor layout at index 1", lambda: group.allreduce([x, x.to_sparse()]))
    fails(RuntimeError, "requires a single-element tensor list", lambda: group.reduce([x, x], root=0))
    fails(RuntimeError, "requires non-empty input tensor list", lambda: group.allgather([], []))
    fails(RuntimeError, "lists to have the same length", lambda: group.allgather([], [x]))
    fails(RuntimeError, "invalid output tensor list at index 0", lambda: group.allgather([[x]], [x]))
    fails(RuntimeError, "output lists should be equal to world size",
          lambda: group.allgather_coalesced([[x]] * (size + 1), [x]))
    fails(RuntimeError, "invalid size of output tensor at index 0",
          lambda: group.allgather_coalesced([[y]] + [[x]] * (size - 1), [x]))
    options = dist.GatherOptions()
    options.rootRank = rank
    fails(RuntimeError, "requires a single-element output list", lambda: group.gather([], [x], options))
    fails(RuntimeError, f"Incorrect output list size 1. Output list size should be {size}",
          lambda: group.gather([[x]], [x], options))
    options = dist.ScatterOptions()
    options.rootRank = (rank + 1) % size
    fails(RuntimeError, "requires empty input on non-root", lambda: group.scatter([x], [[x] * size], options))
    fails(RuntimeError, "unsupported reduction operation", lambda: dist.all_reduce(
        x.to_sparse(), dist.ReduceOp.MAX))


def sparse(dist, rank, size):
    """The sum of sparse tensors, also of no values, of rows, and as gradients of DDP."""
    def part(r, n):
        rows = (torch.arange(n) * 3 + r) % 10
        return torch.sparse_coo_tensor(rows.unsqueeze(0), mine(r, (n, 2)), (10, 2))

    x = part(rank, rank)  # rank 0 has nothing
    dist.all_reduce(x)
    same(x.to_dense(), sum(part(r, r).to_dense() for r in range(size)))
    pair = [part(rank, 2), part(rank, 2)]
    group = dist.group.WORLD
    assert group.allreduce(pair).get_future().wait()[1] is pair[1]
    same(pair[1].to_dense(), 2 * sum(part(r, 2).to_dense() for r in range(size)))

    def model():
        torch.manual_seed(4)
        return torch.nn.Sequential(torch.nn.EmbeddingBag(10, 3, sparse=True), torch.nn.Linear(3, 2))

    ours, alone = torch.nn.parallel.DistributedDataParallel(model()), model()
    x = torch.arange(4 * size).reshape(2 * size, 2) % 10
    ours(x[2 * rank:2 * rank + 2]).sum().backward()
    (alone(x).sum() / size).backward()
    for a, b in zip(ours.parameters(), alone.parameters()):
        assert torch.allclose(a.grad.to_dense(), b.grad.to_dense(), atol=1e-5), (a.grad, b.grad)


def messages(dist, rank, size):
    """Large messages cross, tags are received in another order than sent, from whom they come."""
    others = [r for r in range(size) if r != rank]
    sends = [dist.isend(torch.full((300000,), float(rank)), r) for r in others]
    boxes = [torch.zeros(300000) for _ in others]
    receives = [dist.irecv(box, r) for box, r in zip(boxes, others)]
    for work in sends + receives:
        work.wait()
    for box, r in zip(boxes, others):
        assert bool((box == r).all())
    if rank == 0:
        works = [dist.isend(torch.full((n,), float(n)), 1, tag=n) for n in (5, 100, 9)]
        for work in works:
            work.wait()
    elif rank == 1:
        for n in (9, 5, 100):
            x = torch.zeros(n)
            assert dist.recv(x, 0, tag=n) == 0
            same(x, torch.full((n,), float(n)))
    dist.barrier()
    if rank == 0:
        seen = set()
        for _ in others:
            x = torch.zeros(2)
            source = dist.recv(x, tag=7)
            same(x, torch.full((2,), float(source)))
            seen.add(source)
        assert seen == set(others), seen
    else:
        dist.send(torch.full((2,), float(rank)), 0, tag=7)
    dist.barrier()
    if rank == 1:
        x = torch.zeros(2, 6)
        work = dist.irecv(x[:, ::2], 0)  # not contiguous
        assert not work.is_completed()
        dist.send(torch.zeros(1), 0)
        work.wait()
        assert work.is_completed() and work.is_success()
        same(x[:, ::2], mine(0, (2, 3)))
    elif rank == 0:
        dist.recv(torch.zeros(1), 1)
        dist.send(mine(0, (2, 3)), 1)
    dist.barrier()
    if rank == 0:
        dist.send(torch.zeros(3), 1, tag=4)
        dist.send(torch.ones(2), 1, tag=4)
    elif rank == 1:
        fails(dist.DistBackendError, "rank 0 sent 12 bytes with tag 4", lambda: dist.recv(
            torch.zeros(2), 0, tag=4))
        x = torch.zeros(2)
        dist.recv(x, 0, tag=4)  # the lane goes on
        same(x, torch.ones(2))


def asynchronous(dist, rank, size):
    """Operations go on while nobody waits, in order, and tell it by Work and Future."""
    x, y = torch.ones(1000), torch.ones(1000)
    works = [dist.all_reduce(x, async_op=True) for _ in range(4)]
    late = dist.broadcast(y.fill_(rank), 1, async_op=True)
    while not late.is_completed():
        time.sleep(0.001)
    assert all(work.is_completed() and work.is_success() for work in works)
    assert bool((x == size**4).all()) and bool((y == 1).all())
    future = dist.all_reduce(x.fill_(1), async_op=True).get_future()
    chained = future.then(lambda f: f.value()[0] * 2)
    assert bool((chained.wait() == 2 * size).all())
    assert future.done()
    work = dist.all_reduce(x.fill_(1), async_op=True)
    assert work.result()[0] is x or bool((work.result()[0] == size).all())
    # A work that nobody keeps.
    for _ in range(20):
        dist.all_reduce(torch.ones(50000), async_op=True)
    dist.barrier()


def many_futures(dist, rank, size):
    """Futures of many works need few threads; what is chained to one may wait for the next."""
    def threads():
        return sum(thread.name == "tutti-future" for thread in threading.enumerate())

    if rank == size - 1:
        dist.recv(torch.zeros(1), 0)
    tensors = [torch.ones(1) for _ in range(300)]
    futures = [dist.all_reduce(x, async_op=True).get_future() for x in tensors]
    first = threads()
    chained = [one.then(lambda f, then=then: then.wait()[0] + f.value()[0])
               for one, then in zip(futures[:8], futures[1:9])]
    if rank == 0:
        dist.send(torch.ones(1), size - 1)
    assert all(f.wait().item() == 2 * size for f in chained)
    assert all(f.wait()[0] is x and x.item() == size for f, x in zip(futures, tensors))
    assert first <= 4 and threads() <= 12, (first, threads())


def without_gil(dist, rank, size):
    """A rank that waits in a collective lets its other threads run."""
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.recv(torch.zeros(1), 1)
        work.wait()
        return
    count = [0]

    def tick():
        while count[0] < 100:
            count[0] += 1
            time.sleep(0)
        if rank == 1:
            dist.send(torch.ones(1), 0)

    thread = threading.Thread(target=tick)
    thread.start()
    dist.all_reduce(torch.ones(1))
    thread.join()
    assert count[0] >= 100


def objects(dist, rank, size):
    outs = [None] * size
    dist.all_gather_object(outs, {"rank": rank, "long": "x" * (1000 * rank)})
    assert [o["rank"] for o in outs] == list(range(size))
    some = [rank, "a"] if rank == 1 else [None, None]
    dist.broadcast_object_list(some, 1)
    assert some == [1, "a"]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert got == [f"for {rank}"]
    outs = [None] * size if rank == 0 else None
    dist.gather_object(rank, outs, 0)
    assert rank or outs == list(range(size))


def groups(dist, rank, size):
    pair = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=30))
    if rank < 2:
        x = torch.ones(3)
        dist.all_reduce(x, group=pair)
        same(x, torch.full((3,), 2.0))
        assert dist.get_backend(pair) == "tutti"
        dist.destroy_process_group(pair)
    last = dist.new_group([size - 2, size - 1])
    if rank >= size - 2:
        x = torch.zeros(1)
        dist.broadcast(x.fill_(rank), size - 1, group=last)
        same(x, torch.tensor([float(size - 1)]))
    part = dist.group.WORLD.split_group(list(range(1, size)), group_name=f"a name that rank {rank} has given")
    if rank:
        x = torch.ones(1)
        part.allreduce([x]).wait()
        same(x, torch.tensor([size - 1.0]))
    if not SPLITS_CPUS:
        fails(RuntimeError, "No device associated", lambda: dist.split_group(split_ranks=[[0]]))
        return
    part = dist.split_group(split_ranks=[[0], list(range(1, size))])
    x = torch.ones(1)
    dist.all_reduce(x, group=part)
    same(x, torch.tensor([1.0 if rank == 0 else size - 1.0]))


def mixed(dist, rank, size):
    """The CPU's part of a group that has another backend too."""
    group = dist.new_group(backend="cpu:tutti,cuda:gloo")
    x = mine(rank)
    dist.all_reduce(x, group=group)
    same(x, total(size))
    work = dist.all_reduce(x.fill_(1), group=group, async_op=True)
    work.wait()
    assert bool((x == size).all())
    dist.barrier(group=group)
    outs = [torch.zeros(3, 4) for _ in range(size)]
    dist.all_gather(outs, mine(rank), group=group)
    same(outs[1], mine(1))


def ddp(dist, rank, size):
    """Gradients as buckets, plain and by the bf16 hook, and PowerSGD, against one process's."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def model():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))

    for hook in (None, default_hooks.bf16_compress_hook, powerSGD_hook.powerSGD_hook):
        ours = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.001)
        if hook is powerSGD_hook.powerSGD_hook:
            ours.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), hook)
        elif hook:
            ours.register_comm_hook(None, hook)
        alone = model()
        x = torch.arange(size * 4 * 20.0).reshape(size * 4, 20) / 100
        for _ in range(3):
            ours(x[4 * rank:4 * rank + 4]).sum().backward()
        for _ in range(3):
            (alone(x).sum() / size).backward()
        if hook is not powerSGD_hook.powerSGD_hook:
            for a, b in zip(ours.parameters(), alone.parameters()):
                assert torch.allclose(a.grad, b.grad, rtol=2e-2 if hook else 1e-4, atol=1e-3), hook


def functional(dist, rank, size):
    import torch.distributed._functional_collectives as fc

    x = fc.all_reduce(mine(rank), "sum", dist.group.WORLD)
    same(x + 0, total(size))
    x = fc.all_gather_tensor(mine(rank), 0, dist.group.WORLD)
    same(x + 0, torch.cat([mine(r) for r in range(size)]))
    x = fc.reduce_scatter_tensor(mine(rank, (size, 2)), "sum", 0, dist.group.WORLD)
    same(x + 0, total(size, (size, 2))[rank:rank + 1])


def direct(dist, rank, size):
    x = mine(rank)
    assert tutti.torch.all_reduce(x) is x
    same(x, total(size))
    fails(ValueError, "contiguous", lambda: tutti.torch.all_reduce(x.t()))


def mismatch(dist, rank, size):
    group = dist.new_group()
    dist.barrier()  # a rank that is still making the group would see the failure there
    error = fails(dist.DistBackendError, "AllReduce", lambda: dist.all_reduce(
        torch.ones(2 if rank else 3), group=group))
    assert "count" in str(error) or "3" in str(error), error


def monitored_barrier(dist, rank, size):
    # Before 2.14 PyTorch's own function refuses whatever is not gloo.
    monitored_barrier = dist.monitored_barrier if PARTS else dist.group.WORLD.monitored_barrier
    monitored_barrier()
    second = datetime.timedelta(seconds=1)
    if rank == 0:
        fails(dist.DistBackendError, f"Ranks {', '.join(map(str, range(1, size)))} failed" if size > 2
              else "Rank 1 failed", lambda: monitored_barrier(timeout=second, wait_all_ranks=True))
    dist.barrier()
    group = dist.new_group()
    if rank != 1:
        fails(dist.DistBackendError, "Rank 1 failed to pass" if rank == 0 else
              f"Rank {rank} successfully reached monitoredBarrier, but received errors",
              lambda: group.monitored_barrier(second, False))
    dist.barrier()


def late_receive(dist, rank, size):
    """A timeout of one wait ends the work, and says so."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        begin = time.monotonic()
        fails(dist.DistBackendError, "timeout has passed", lambda: dist.recv(torch.ones(1), 1, group=group))
        assert time.monotonic() - begin < 20
    work = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        fails(dist.DistBackendError, "rank", lambda: dist.all_reduce(torch.ones(1), group=work))
    dist.barrier()


def set_timeout(dist, rank, size):
    """A shorter timeout holds from then on, for a collective and a receive; a longer one is none, and says so."""
    for case in ("all_reduce", "recv"):
        group = dist.new_group(timeout=datetime.timedelta(seconds=40))
        set_to = getattr(group, "set_timeout", None) or group._set_default_timeout
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            set_to(datetime.timedelta(seconds=50))
        assert "stays 0:00:40" in str(said[0].message), said
        assert group.options._timeout == datetime.timedelta(seconds=40)
        set_to(datetime.timedelta(seconds=1))
        assert group.options._timeout == datetime.timedelta(seconds=1)
        if rank == 0:
            begin, x = time.monotonic(), torch.ones(1)
            call = {"all_reduce": lambda: dist.all_reduce(x, group=group), "recv": lambda: dist.recv(x, 1, group=group)}
            fails(dist.DistBackendError, "Timed out waiting 1000ms: the operation's timeout has passed", call[case])
            assert time.monotonic() - begin < 20
        dist.barrier()


def profiled(dist, rank, size):
    """A profiler sees each operation with the shapes of what went into it, up to its end on another thread."""
    def calls():
        dist.all_reduce(mine(rank))
        dist.all_gather([torch.zeros(2) for _ in range(size)], mine(rank, (2,)))
        dist.scatter(torch.zeros(5), [mine(r, (5,)) for r in range(size)] if rank == 1 else None, 1)
        works = [dist.isend(mine(rank, (1, 7)), (rank + 1) % size), dist.irecv(torch.zeros(7), (rank - 1) % size)]
        for work in works:
            work.wait()
        dist.barrier()

    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        calls()
    seen = {event.name: event for event in profile.function_events if event.name.startswith("tutti:")}
    want = {"tutti:all_reduce": [[3, 4]], "tutti:all_gather": [[2]],
            "tutti:scatter": [[5]] * size if rank == 1 else [], "tutti:send": [[1, 7]], "tutti:recv": [[7]],
            "tutti:barrier": []}
    assert {name: event.input_shapes for name, event in seen.items()} == {
        name: shapes if SHAPES else [] for name, shapes in want.items()}, seen
    assert all(event.is_async for event in seen.values()), seen


def flight_recorder(dist, rank, size):
    """PyTorch's flight recorder, which TORCH_FR_BUFFER_SIZE asks for, has the calls of a group made then."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    try:
        group = dist.new_group()
    finally:
        del os.environ["TORCH_FR_BUFFER_SIZE"]
    x = mine(rank)
    dist.all_reduce(x, group=group)
    same(x, total(size))
    if not RECORDS:
        assert isinstance(group, tutti.torch.Group), "nothing is recorded, and yet the group is PyTorch's own"
        return
    entries = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="tutti"))["entries"]
    ours = [entry for entry in entries if entry["process_group"][0] == group.group_name]
    assert [(entry["profiling_name"], entry["input_sizes"]) for entry in ours] == [
        ("tutti:all_reduce", [[3, 4]])], entries


def aborted(dist, rank, size):
    group = dist.new_group()
    dist.barrier()  # as in mismatch
    if rank == 1:
        dist.send(torch.ones(1), 0)
        time.sleep(0.05)
        group.abort()
        fails(dist.DistBackendError, "aborted on this rank", lambda: dist.all_reduce(torch.ones(1), group=group))
    else:
        if rank == 0:
            dist.recv(torch.ones(1), 1)
        fails(dist.DistBackendError, "rank 1", lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier()


def again(dist, rank, size):
    """A group of the same name on the same store, after the first one has been destroyed."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group("tutti", store=store, rank=rank, world_size=size)
    x = mine(rank)
    dist.all_reduce(x)
    same(x, total(size))


def recovers(dist, rank, size):
    """After a failure the processes make the group anew, by the same store."""
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    if rank == 1:
        dist.group.WORLD.abort()
    fails(dist.DistBackendError, "aborted on this rank" if rank == 1 else "rank 1", lambda: [
        dist.all_reduce(torch.ones(1)) for _ in range(2)])
    dist.destroy_process_group()
    dist.init_process_group("tutti", store=store, rank=rank, world_size=size)
    x = mine(rank)
    dist.all_reduce(x)
    same(x, total(size))


def one_dies(dist, rank, size):
    """All others get an error that names the dead one, in a collective and in a receive."""
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    if rank == 0:
        fails(dist.DistBackendError, "rank 1", lambda: dist.all_reduce(torch.ones(1)))
    else:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        fails(dist.DistBackendError, "died", work.wait)
        fails(dist.DistBackendError, "died", lambda: dist.barrier())
    assert time.monotonic() - begin < 5 * float(os.environ.get("TUTTI_TEST_SLOWNESS", "1"))


def one_leaves(dist, rank, size):
    """One ends early, as a program with an exception does; the others wait for it in a collective and in a receive,
    and have half an hour until their timeout."""
    dist.barrier()
    if rank == 1:
        dist.send(mine(rank), 2)
        dist.destroy_process_group()
        return
    begin, text = time.monotonic(), "has destroyed its communicator"
    if rank == 0:
        fails(dist.DistBackendError, text, lambda: dist.all_reduce(torch.ones(1)))
    else:
        dist.recv(mine(0), 1)
        fails(dist.DistBackendError, text, lambda: dist.recv(torch.ones(1), 1))
        fails(dist.DistBackendError, text, lambda: dist.all_reduce(torch.ones(1)))  # as rank 0: it may still wait
    assert time.monotonic() - begin < 15 * float(os.environ.get("TUTTI_TEST_SLOWNESS", "1"))
