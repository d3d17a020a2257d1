"""Every call of torch.distributed on GPU tensors, with its data checked, on the nccl backend or on another one.

    torchrun --nproc-per-node 4 tests/gpu/torch_calls.py [--backend tutti] [NAME]...

Runs all calls, or those whose names are given; says on rank 0 what failed where."""
import argparse
import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist

CALLS = []
COUNT = 100_003  # odd, and no multiple of anything


def call(function):
    CALLS.append(function)
    return function


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def filled(value, count=COUNT, dtype=torch.float32):
    return torch.full((count,), value, dtype=dtype, device="cuda")


def expect(tensor, value):
    wrong = (tensor != value).sum().item()
    assert wrong == 0, f"{wrong} of {tensor.numel()} elements are not {value}, e.g. {tensor[0]}"


def total():
    return size() * (size() + 1) // 2


@call
def all_reduce():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64,
                  torch.int32, torch.uint8):
        t = filled(rank() + 1, dtype=dtype)
        dist.all_reduce(t)
        expect(t, total())
    for op, value in ((dist.ReduceOp.MAX, size()), (dist.ReduceOp.MIN, 1),
                      (dist.ReduceOp.AVG, total() / size())):
        t = filled(rank() + 1)
        dist.all_reduce(t, op)
        expect(t, value)
    t = filled(rank() + 1)
    dist.all_reduce(t, dist._make_nccl_premul_sum(2.0))
    expect(t, 2 * total())


@call
def all_reduce_sizes():
    for count in (0, 1, 2, 7, 1000, 65_537, 5_000_001):
        t = filled(rank() + 1, count)
        dist.all_reduce(t)
        expect(t, total())


@call
def all_reduce_async():
    tensors = [filled(rank() + i) for i in range(8)]
    for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
        work.wait()
    for i, t in enumerate(tensors):
        expect(t, total() + (i - 1) * size())


@call
def all_reduce_coalesced():
    tensors = [filled(rank() + i, 1000 * i + 1) for i in range(4)]
    dist.all_reduce_coalesced(tensors)
    for i, t in enumerate(tensors):
        expect(t, total() + (i - 1) * size())


@call
def coalescing_manager():
    tensors = [filled(rank() + i) for i in range(4)]
    with dist._coalescing_manager(async_ops=True) as work:
        for t in tensors:
            dist.all_reduce(t)
    work.wait()
    for i, t in enumerate(tensors):
        expect(t, total() + (i - 1) * size())


@call
def broadcast():
    for root in range(size()):
        t = filled(rank())
        dist.broadcast(t, root)
        expect(t, root)


@call
def reduce():
    for root in range(size()):
        t = filled(rank() + 1)
        dist.reduce(t, root)
        if rank() == root:
            expect(t, total())


@call
def all_gather():
    out = [filled(-1) for _ in range(size())]
    dist.all_gather(out, filled(rank()))
    for r in range(size()):
        expect(out[r], r)


@call
def all_gather_uneven():
    out = [filled(-1, 1000 + r) for r in range(size())]
    dist.all_gather(out, filled(rank(), 1000 + rank()))
    for r in range(size()):
        expect(out[r], r)


@call
def all_gather_into_tensor():
    out = filled(-1, COUNT * size())
    dist.all_gather_into_tensor(out, filled(rank()))
    for r, part in enumerate(out.chunk(size())):
        expect(part, r)


@call
def all_gather_into_tensor_coalesced():
    outs = [filled(-1, 1000 * size()) for _ in range(3)]
    with dist._coalescing_manager():
        for i, out in enumerate(outs):
            dist.all_gather_into_tensor(out, filled(rank() + i, 1000))
    for i, out in enumerate(outs):
        for r, part in enumerate(out.chunk(size())):
            expect(part, r + i)


@call
def reduce_scatter():
    out = filled(-1)
    dist.reduce_scatter(out, [filled(rank() + r + 1) for r in range(size())])
    expect(out, total() + size() * rank())


@call
def reduce_scatter_tensor():
    out = filled(-1)
    dist.reduce_scatter_tensor(out, torch.cat([filled(rank() + r + 1) for r in range(size())]))
    expect(out, total() + size() * rank())


@call
def all_to_all():
    out = [filled(-1, 10 + r) for r in range(size())]
    dist.all_to_all(out, [filled(10 * rank() + r, 10 + rank()) for r in range(size())])
    for r in range(size()):
        expect(out[r], 10 * r + rank())


@call
def all_to_all_single():
    out = filled(-1, COUNT * size())
    dist.all_to_all_single(out, torch.cat([filled(10 * rank() + r) for r in range(size())]))
    for r, part in enumerate(out.chunk(size())):
        expect(part, 10 * r + rank())


@call
def all_to_all_single_uneven():
    send = [(rank() + r) % 3 * 500 for r in range(size())]  # some are empty
    out = filled(-1, sum(send))
    data = torch.cat([filled(10 * rank() + r, n) for r, n in enumerate(send)])
    dist.all_to_all_single(out, data, output_split_sizes=send, input_split_sizes=send)
    for r, part in enumerate(out.split(send)):
        expect(part, 10 * r + rank())


@call
def gather():
    for root in range(size()):
        out = [filled(-1) for _ in range(size())] if rank() == root else None
        dist.gather(filled(rank()), out, root)
        for r, t in enumerate(out or []):
            expect(t, r)


@call
def scatter():
    for root in range(size()):
        out = filled(-1)
        dist.scatter(out, [filled(r) for r in range(size())] if rank() == root else None, root)
        expect(out, rank())


@call
def send_recv():
    for peer in range(1, size()):
        if rank() == 0:
            dist.send(filled(peer), peer)
        elif rank() == peer:
            t = filled(-1)
            dist.recv(t, 0)
            expect(t, peer)


@call
def batch_isend_irecv():
    t, following, before = filled(-1), (rank() + 1) % size(), (rank() - 1) % size()
    ops = [dist.P2POp(dist.isend, filled(rank()), following), dist.P2POp(dist.irecv, t, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    expect(t, before)


@call
def barrier():
    for _ in range(3):
        dist.barrier(device_ids=[torch.cuda.current_device()])


@call
def objects():
    out = [None] * size()
    dist.all_gather_object(out, {"rank": rank(), "text": "x" * rank()})
    assert [o["rank"] for o in out] == list(range(size())), out
    box = [["hello", 42] if rank() == 0 else None]
    dist.broadcast_object_list(box, 0)
    assert box == [["hello", 42]], box
    got = [None] * size() if rank() == 0 else None
    dist.gather_object(rank(), got, 0)
    assert got is None or got == list(range(size())), got
    mine = [None]
    dist.scatter_object_list(mine, list(range(size())) if rank() == 0 else None, 0)
    assert mine == [rank()], mine


@call
def new_group():
    half = [r for r in range(size()) if r % 2 == 0]
    group = dist.new_group(half)
    if rank() in half:
        t = filled(rank() + 1)
        dist.all_reduce(t, group=group)
        expect(t, sum(r + 1 for r in half))
        dist.destroy_process_group(group)


@call
def split_group():
    groups = [list(range(size() // 2)), list(range(size() // 2, size()))]
    mine = groups[rank() >= size() // 2]
    group = dist.split_group(split_ranks=groups)
    t = filled(rank() + 1)
    dist.all_reduce(t, group=group)
    expect(t, sum(r + 1 for r in mine))
    dist.destroy_process_group(group)


@call
def streams():
    side, t = torch.cuda.Stream(), filled(rank() + 1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            dist.all_reduce(t)
            t.div_(size())
    torch.cuda.current_stream().wait_stream(side)
    expect(t, total() / size())


@call
def cuda_graph():
    t, out = filled(rank() + 1), filled(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(out.copy_(t))  # what is made on first use is made now
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(t)
        dist.all_reduce(out)
        dist.all_reduce(out)
    for i in range(3):
        t.fill_(rank() + i)
        graph.replay()
        torch.cuda.synchronize()
        expect(out, size() * (total() + (i - 1) * size()))


def memory_pool(backend):
    # PyTorch refuses ncclMemAlloc on a GPU without NVLink multicast: common memory is registered there.
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.cuda.MemPool(backend.mem_allocator if backend.supports_tensor_alloc(device) else None)


@call
def symmetric_memory():
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    pool = memory_pool(backend)
    with torch.cuda.use_mem_pool(pool):
        t = filled(rank() + 1)
    backend.register_mem_pool(pool, symm=True)
    dist.all_reduce(t)
    expect(t, total())
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)
    dist.all_reduce(t)
    expect(t, total() * size())


@call
def registered_memory():
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    pool = memory_pool(backend)
    with torch.cuda.use_mem_pool(pool):
        t = filled(rank() + 1)
    backend.register_mem_pool(pool)
    dist.all_reduce(t)
    expect(t, total())
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)


@call
def shrink_group():
    me, before = rank(), size()  # it takes the place of the default group
    if me != before - 1:
        group = dist.shrink_group([before - 1])
        t = filled(me + 1)
        dist.all_reduce(t, group=group)
        expect(t, before * (before - 1) // 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--backend", default="nccl")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(args.backend, device_id=device, timeout=datetime.timedelta(seconds=120))
    me, ranks, store = rank(), size(), dist.distributed_c10d._get_default_store()
    wanted = [c for c in CALLS if c.__name__ in args.names or not args.names]
    for c in wanted:
        try:
            c()
            torch.cuda.synchronize()
            result = "ok"
        except Exception as error:  # the others go on
            result = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        store.set(f"{c.__name__}/{me}", result.encode())
    if me == 0:
        failed = 0
        for c in wanted:
            results = [store.get(f"{c.__name__}/{r}").decode() for r in range(ranks)]
            bad = [f"rank {r}: {text}" for r, text in enumerate(results) if text != "ok"]
            failed += bool(bad)
            print(f"{'FAILED' if bad else 'ok':7}{c.__name__}", *bad, sep="\n        ")
        print(f"{args.backend}, nccl {torch.cuda.nccl.version()}, {ranks} ranks: "
              f"{len(wanted) - failed} of {len(wanted)} calls passed", flush=True)
        store.set("failed", str(failed))
    failed = int(store.get("failed"))
    if wanted[-1] is not shrink_group:  # which leaves nothing to destroy
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(1 if failed else 0)


main()
