"""Every call of cupy.cuda.nccl and cupyx.distributed, with its data checked: two processes that share GPU 0.

    tutti run -- python3 tests/gpu/cupy_calls.py [--mpi] [SECTION]...

Runs all sections, or those whose names are given; with --mpi those of cupyx.distributed, in processes that mpirun
starts and which meet by MPI. Exit code 77: there is no CuPy, GPU or MPI here. With TUTTI_DEVICE=host the sections of
cupy.cuda.nccl that need no GPU run on host memory."""
import pickle
import socket
import sys
import warnings

import checks
from checks import COUNT, OPS, RANK, SIZE, check, expect, operand, part, reduced, refused, section

MPI = "--mpi" in sys.argv
TYPES = checks.INTEGERS + checks.FLOATS + ["bfloat16"]
ALIASES = {"CHAR": "int8", "INT": "int32", "HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64"}
NCCL = ["constants", "communicator", "all_reduce", "reduce", "broadcasts", "reduce_scatter", "all_gather", "messages",
        "groups", "splits", "errors", "ends"]
GPU_ONLY = ["streams", "capture"]
CUPYX = ["wrong_groups", "dense_reductions", "dense_copies", "dense_messages", "dense_errors", "sparse_copies",
         "sparse_messages", "sparse_reductions", "stop"]
made = {}  # what prepare imports, and the communicators of all


def prepare():
    made["cupy"], made["nccl"] = checks.need("cupy", "cupy.cuda.nccl")
    checks.need("ml_dtypes", *(["mpi4py.MPI"] if MPI else []))
    if not nccl().available:
        raise checks.Missing("this CuPy has no NCCL")
    if checks.HOST:
        return
    try:
        cupy().cuda.Device(0).use()
        cupy().zeros(1)
    except cupy().cuda.runtime.CUDARuntimeError as none:
        raise checks.Missing(str(none)) from none


def cupy():
    return made["cupy"]


def nccl():
    return made["nccl"]


def code(name):
    return getattr(nccl(), "NCCL_" + name.upper())


# Memory that NCCL gets by its address, cupy.cuda.nccl knows no arrays.


class Memory:
    def __init__(self, array):
        self.bytes = checks.np().ascontiguousarray(array).view("uint8").copy()
        if checks.HOST:
            self.ptr = self.bytes.ctypes.data
        else:
            self.bytes = cupy().asarray(self.bytes)
            self.ptr = self.bytes.data.ptr

    def read(self, name):
        if checks.HOST:
            return self.bytes.view(checks.numpy_type(name))
        cupy().cuda.Device().synchronize()
        return cupy().asnumpy(self.bytes).view(checks.numpy_type(name))


def mine(name, op="sum", count=COUNT):
    return Memory(operand(name, RANK, op, count))


def blank(name, count=COUNT):
    return Memory(checks.np().full(count, 99, checks.numpy_type(name)))


def unique_id(key):
    if RANK == 0:
        checks.put(key, pickle.dumps(nccl().get_unique_id()))
    return pickle.loads(checks.get(key))


def new_comm(key):
    return nccl().NcclCommunicator(SIZE, unique_id(key), RANK)


def world():
    if "world" not in made:
        made["world"] = new_comm("world")
    return made["world"]


def sums(comm, ranks=SIZE):
    """That a communicator works."""
    t = Memory(checks.np().full(COUNT, 3, "float32"))
    comm.allReduce(t.ptr, t.ptr, COUNT, nccl().NCCL_FLOAT32, nccl().NCCL_SUM, 0)
    expect(t.read("float32"), checks.np().full(COUNT, 3 * ranks, "float32"))


@section
def constants():
    with check("get_version, get_build_version"):
        assert nccl().get_version() >= 21400 and nccl().get_build_version() > 20000, nccl().get_version()
    with check("get_unique_id"):
        one = nccl().get_unique_id()
        assert len(one) == 128 and one != nccl().get_unique_id(), one
    with check("types and operations"):
        assert [code(n) for n in TYPES] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert [code(n) for n in OPS] == [0, 1, 2, 3, 4]
        assert all(code(a) == code(n) for a, n in ALIASES.items())


@section
def communicator():
    with check("rank_id, size, device_id, comm"):
        assert (world().rank_id(), world().size()) == (RANK, SIZE) and world().comm, world().comm
        assert checks.HOST or world().device_id() == 0, world().device_id()
    with check("check_async_error"):
        world().check_async_error()
    for devices in ([0], 1):
        with check(f"initAll {devices}"):
            comms = nccl().NcclCommunicator.initAll(devices)
            assert [(c.rank_id(), c.size()) for c in comms] == [(0, 1)], comms
            sums(comms[0], 1)
            comms[0].destroy()
    refused("initAll of a word", ValueError, nccl().NcclCommunicator.initAll, "0")


@section
def all_reduce():
    for name in TYPES:
        for op in OPS:
            with check(f"allReduce {name} {op}"):
                t, out = mine(name, op), blank(name)
                world().allReduce(t.ptr, out.ptr, COUNT, code(name), code(op), 0)
                expect(out.read(name), reduced(name, op))
            with check(f"allReduce in place {name} {op}"):
                t = mine(name, op)
                world().allReduce(t.ptr, t.ptr, COUNT, code(name), code(op), 0)
                expect(t.read(name), reduced(name, op))
    for alias, name in ALIASES.items():
        with check(f"allReduce {alias}"):
            t = mine(name)
            world().allReduce(t.ptr, t.ptr, COUNT, code(alias), code("sum"), 0)
            expect(t.read(name), reduced(name, "sum"))
    for count in (0, 1, 2, 7, 65537, 2_000_003):
        for name in ("int8", "float32"):
            with check(f"allReduce of {count} {name}"):
                t, out = mine(name, count=count), blank(name, count)
                world().allReduce(t.ptr, out.ptr, count, code(name), code("sum"), 0)
                expect(out.read(name), reduced(name, "sum", count))


@section
def reduce():
    for root in range(SIZE):
        for name in TYPES:
            for op in OPS:
                with check(f"reduce {name} {op} to {root}"):
                    t, out = mine(name, op), blank(name)
                    before = out.read(name).copy()
                    world().reduce(t.ptr, out.ptr, COUNT, code(name), code(op), root, 0)
                    expect(out.read(name), reduced(name, op) if RANK == root else before)
                with check(f"reduce in place {name} {op} to {root}"):
                    t = mine(name, op)
                    world().reduce(t.ptr, t.ptr, COUNT, code(name), code(op), root, 0)
                    expect(t.read(name), reduced(name, op) if RANK == root else operand(name, RANK, op))


@section
def broadcasts():
    for root in range(SIZE):
        for name in TYPES:
            with check(f"broadcast {name} of {root}"):
                t, out = mine(name), blank(name)
                world().broadcast(t.ptr, out.ptr, COUNT, code(name), root, 0)
                expect(out.read(name), operand(name, root))
            with check(f"broadcast in place {name} of {root}"):
                t = mine(name)
                world().broadcast(t.ptr, t.ptr, COUNT, code(name), root, 0)
                expect(t.read(name), operand(name, root))
            with check(f"bcast {name} of {root}"):
                t = mine(name)
                world().bcast(t.ptr, COUNT, code(name), root, 0)
                expect(t.read(name), operand(name, root))


@section
def reduce_scatter():
    for name in TYPES:
        for op in OPS:
            with check(f"reduceScatter {name} {op}"):
                t, out = mine(name, op, SIZE * COUNT), blank(name)
                world().reduceScatter(t.ptr, out.ptr, COUNT, code(name), code(op), 0)
                expect(out.read(name), part(reduced(name, op, SIZE * COUNT), RANK))
            with check(f"reduceScatter in place {name} {op}"):
                t, size = mine(name, op, SIZE * COUNT), checks.numpy_type(name).itemsize
                world().reduceScatter(t.ptr, t.ptr + RANK * COUNT * size, COUNT, code(name), code(op), 0)
                expect(part(t.read(name), RANK), part(reduced(name, op, SIZE * COUNT), RANK))


@section
def all_gather():
    for name in TYPES:
        with check(f"allGather {name}"):
            t, out = mine(name), blank(name, SIZE * COUNT)
            world().allGather(t.ptr, out.ptr, COUNT, code(name), 0)
            expect(out.read(name), checks.joined(name))
        with check(f"allGather in place {name}"):
            t, size = mine(name, count=SIZE * COUNT), checks.numpy_type(name).itemsize
            world().allGather(t.ptr + RANK * COUNT * size, t.ptr, COUNT, code(name), 0)
            parts = [part(operand(name, r, count=SIZE * COUNT), r) for r in range(SIZE)]
            expect(t.read(name), checks.np().concatenate(parts))


@section
def messages():
    for name in TYPES:
        for sender in range(SIZE):
            with check(f"send and recv {name} from {sender}"):
                t = mine(name) if RANK == sender else blank(name)
                (world().send if RANK == sender else world().recv)(t.ptr, COUNT, code(name), 1 - RANK, 0)
                expect(t.read(name), operand(name, sender))
        with check(f"send and recv {name} in a group"):
            t, out = mine(name), blank(name)
            nccl().groupStart()
            world().send(t.ptr, COUNT, code(name), 1 - RANK, 0)
            world().recv(out.ptr, COUNT, code(name), 1 - RANK, 0)
            nccl().groupEnd()
            expect(out.read(name), operand(name, 1 - RANK))


@section
def groups():
    for name in TYPES:
        with check(f"group of collectives {name}"):
            t, outs = mine(name), [blank(name) for _ in OPS]
            gathered, spread = blank(name, SIZE * COUNT), mine(name)
            nccl().groupStart()
            for out, op in zip(outs, OPS):
                world().allReduce(t.ptr, out.ptr, COUNT, code(name), code(op), 0)
            world().allGather(t.ptr, gathered.ptr, COUNT, code(name), 0)
            world().bcast(spread.ptr, COUNT, code(name), 1, 0)
            nccl().groupEnd()
            for out, op in list(zip(outs, OPS))[:1]:
                expect(out.read(name), reduced(name, op))
            for out, function in ((outs[2], checks.np().maximum), (outs[3], checks.np().minimum)):
                expect(out.read(name), function(operand(name, 0), operand(name, 1)))
            expect(gathered.read(name), checks.joined(name))
            expect(spread.read(name), operand(name, 1))
    refused("groupEnd without groupStart", nccl().NcclError, nccl().groupEnd)


@section
def splits():
    with check("commSplit into one each"):
        comm = world().commSplit(RANK, 0)
        assert (comm.rank_id(), comm.size()) == (0, 1)
        sums(comm, 1)
        comm.destroy()
    with check("commSplit with keys that turn the order"):
        comm = world().commSplit(0, SIZE - RANK)
        assert (comm.rank_id(), comm.size()) == (SIZE - 1 - RANK, SIZE)
        sums(comm)
        comm.destroy()
    with check("commSplit without a color"):
        comm = world().commSplit(0 if RANK else -1, 0)
        assert (comm is not None) == bool(RANK), comm
        if comm is not None:
            sums(comm, 1)
            comm.destroy()
    with check("commSplit with a config"):
        comm = world().commSplit(0, RANK, nccl().NcclConfig(split_share=1))
        sums(comm)
        comm.destroy()


@section
def errors():
    t, kind, comm = blank("float32"), nccl().NCCL_FLOAT32, world()
    for title, call, args in (
            ("type of allReduce", comm.allReduce, (t.ptr, t.ptr, COUNT, 99, 0, 0)),
            ("operation of allReduce", comm.allReduce, (t.ptr, t.ptr, COUNT, kind, 99, 0)),
            ("root of reduce", comm.reduce, (t.ptr, t.ptr, COUNT, kind, 0, SIZE, 0)),
            ("root of broadcast", comm.broadcast, (t.ptr, t.ptr, COUNT, kind, -1, 0)),
            ("root of bcast", comm.bcast, (t.ptr, COUNT, kind, SIZE, 0)),
            ("type of reduceScatter", comm.reduceScatter, (t.ptr, t.ptr, 1, -1, 0, 0)),
            ("type of allGather", comm.allGather, (t.ptr, t.ptr, 1, 99, 0)),
            ("peer of send", comm.send, (t.ptr, COUNT, kind, SIZE, 0)),
            ("peer of recv", comm.recv, (t.ptr, COUNT, kind, -1, 0)),
            ("color of commSplit", comm.commSplit, (-7, 0)),
            ("number of ranks", nccl().NcclCommunicator, (0, nccl().get_unique_id(), 0)),
            ("rank", nccl().NcclCommunicator, (2, nccl().get_unique_id(), 2))):
        refused(title, nccl().NcclError, call, *args)
    with check("the status of an error"):
        error = nccl().NcclError(4)
        assert error.status == 4 and "NCCL_ERROR_INVALID_ARGUMENT: " in str(error), error
        assert pickle.loads(pickle.dumps(error)).status == 4
    with check("and the communicator works"):
        sums(comm)


@section
def ends():
    for end in ("destroy", "abort"):
        with check(end):
            comm = new_comm(end)
            sums(comm)
            checks.meet(f"summed-{end}")  # an abort fails what others still do
            getattr(comm, end)()
            assert not comm.comm, comm.comm
            comm.destroy()
            comm.abort()
        refused(f"a call after {end}", nccl().NcclError, sums, comm)
    with check("no end"):
        comm = new_comm("collected")
        sums(comm)
        del comm


@section
def streams():
    for title, make in (("null", lambda: cupy().cuda.Stream.null), ("per thread", lambda: cupy().cuda.Stream.ptds),
                        ("blocking", cupy().cuda.Stream), ("other", lambda: cupy().cuda.Stream(non_blocking=True))):
        with check(f"stream, {title}"):
            t, out, stream = mine("float32"), blank("float32"), make()
            cupy().cuda.Device().synchronize()
            for _ in range(3):
                world().allReduce(t.ptr, out.ptr, COUNT, nccl().NCCL_FLOAT32, nccl().NCCL_SUM, stream.ptr)
            stream.synchronize()
            expect(out.read("float32"), reduced("float32", "sum"))


@section
def capture():
    with check("CUDA graph"):
        t, out, stream = mine("float32"), blank("float32"), cupy().cuda.Stream(non_blocking=True)
        world().allReduce(t.ptr, out.ptr, COUNT, nccl().NCCL_FLOAT32, nccl().NCCL_SUM, stream.ptr)
        cupy().cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            world().allReduce(t.ptr, out.ptr, COUNT, nccl().NCCL_FLOAT32, nccl().NCCL_SUM, stream.ptr)
            graph = stream.end_capture()
        for i in range(3):
            t.bytes[:] = cupy().asarray((operand("float32", RANK) + checks.np().float32(i)).view("uint8"))
            cupy().cuda.Device().synchronize()
            graph.launch(stream)
            expect(out.read("float32"), reduced("float32", "sum") + checks.np().float32(SIZE * i))


# cupyx.distributed


def backend():
    if "backend" not in made:
        port = None
        if not MPI:
            if RANK == 0:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    checks.put("port", str(free.getsockname()[1]).encode())
            port = int(checks.get("port"))
        distributed, = checks.need("cupyx.distributed")
        made["backend"] = distributed.init_process_group(SIZE, RANK, port=port, use_mpi=MPI)
    return made["backend"]


def data(char, rank, op="sum", count=COUNT):
    """What a rank has, of one of NumPy's types; of complex ones the parts are two ranks' operands."""
    if char in "FD":
        real = operand("float64", rank, op, count)
        return (real + 1j * operand("float64", rank + 2, op, count)).astype(char)
    return operand(checks.np().dtype(char).name, rank, op, count).astype(char)


def total(char, op="sum", count=COUNT):
    if char in "FD":
        return data(char, 0, op, count) + data(char, 1, op, count)
    return reduced(checks.np().dtype(char).name, op, count).astype(char)


def pair(char, rank):
    """An array with a row for each rank."""
    return data(char, rank, count=SIZE * COUNT).reshape(SIZE, COUNT)


def up(array):
    return cupy().asarray(array)


def down(array):
    return cupy().asnumpy(array)


def empty(char, *shape):
    return cupy().full(shape or COUNT, 99, char)


CHARS = "bBiIlLqQefdFD"


@section
def wrong_groups():
    distributed, = checks.need("cupyx.distributed")
    for title, args, kwargs in (("0 devices", (0, 0), {}), ("-1 devices", (-1, 0), {}), ("rank -1", (2, -1), {}),
                                ("rank 3", (2, 3), {}), ("backend", (1, 0), {"backend": "mpi"})):
        refused(f"init_process_group, {title}", ValueError, distributed.init_process_group, *args, **kwargs)
    with check("init_process_group"):
        assert backend().rank == RANK
    for i in range(3):
        with check(f"barrier, time {i}"):
            backend().barrier()


@section
def dense_reductions():
    for char in CHARS:
        for op in ["sum"] if char in "FD" else OPS[:4]:
            with check(f"all_reduce {char} {op}"):
                out = empty(char)
                backend().all_reduce(up(data(char, RANK, op)), out, op)
                expect(down(out), total(char, op))
            for root in range(SIZE):
                with check(f"reduce {char} {op} to {root}"):
                    out = empty(char)
                    backend().reduce(up(data(char, RANK, op)), out, root, op)
                    expect(down(out), total(char, op) if RANK == root else down(empty(char)))
            with check(f"reduce_scatter {char} {op}"):
                out = empty(char)
                backend().reduce_scatter(up(data(char, RANK, op, SIZE * COUNT)), out, COUNT, op)
                expect(down(out), part(total(char, op, SIZE * COUNT), RANK))


@section
def dense_copies():
    both = checks.np().stack
    for char in CHARS:
        for root in range(SIZE):
            with check(f"broadcast {char} of {root}"):
                t = up(data(char, RANK))
                backend().broadcast(t, root)
                expect(down(t), data(char, root))
            with check(f"gather {char} to {root}"):
                out = empty(char, SIZE, COUNT)
                backend().gather(up(data(char, RANK)), out, root)
                want = both([data(char, r) for r in range(SIZE)])
                expect(down(out), want if RANK == root else down(empty(char, SIZE, COUNT)))
            with check(f"scatter {char} of {root}"):
                out = empty(char)
                backend().scatter(up(pair(char, RANK)), out, root)
                expect(down(out), pair(char, root)[RANK])
        with check(f"all_gather {char}"):
            out = empty(char, SIZE * COUNT)
            backend().all_gather(up(data(char, RANK)), out, COUNT)
            expect(down(out), checks.np().concatenate([data(char, r) for r in range(SIZE)]))
        with check(f"all_to_all {char}"):
            out = empty(char, SIZE, COUNT)
            backend().all_to_all(up(pair(char, RANK)), out)
            expect(down(out), both([pair(char, r)[RANK] for r in range(SIZE)]))


@section
def dense_messages():
    for char in CHARS:
        for sender in range(SIZE):
            with check(f"send and recv {char} from {sender}"):
                t = up(data(char, RANK)) if RANK == sender else empty(char)
                (backend().send if RANK == sender else backend().recv)(t, 1 - RANK)
                expect(down(t), data(char, sender))
        with check(f"send_recv {char}"):
            out = empty(char)
            backend().send_recv(up(data(char, RANK)), out, 1 - RANK)
            expect(down(out), data(char, 1 - RANK))
    with check("a stream that is given"):
        t, out, stream = up(data("f", RANK)), empty("f"), cupy().cuda.Stream(non_blocking=True)
        cupy().cuda.Device().synchronize()
        backend().all_reduce(t, out, stream=stream)
        stream.synchronize()
        expect(down(out), total("f"))


@section
def dense_errors():
    t, comm = up(data("f", RANK)), backend()
    refused("operation that is none", RuntimeError, comm.all_reduce, t, t, "xor")
    refused("product of complex numbers", ValueError, comm.all_reduce, empty("F"), empty("F"), "prod")
    refused("type that NCCL has not", TypeError, comm.broadcast, cupy().zeros(3, "h"))
    refused("an array with gaps", RuntimeError, comm.broadcast, cupy().zeros((4, 4), "f")[:2, :2])
    refused("rows of scatter", RuntimeError, comm.scatter, empty("f", 3, 2), empty("f"))
    refused("rows of gather", RuntimeError, comm.gather, empty("f"), empty("f", 3, 2))
    refused("rows of all_to_all", RuntimeError, comm.all_to_all, empty("f", 2, 2), empty("f", 3, 2))
    refused("root", nccl().NcclError, comm.broadcast, t, SIZE)


def grid(char, rank):
    """A dense matrix with gaps, another number of them on each rank."""
    numpy = checks.np()
    values = data(char, rank, count=30).reshape(5, 6)[:, :5]
    return (values * ((numpy.arange(25).reshape(5, 5) + rank) % (2 + rank) == 0)).astype(char)


def sparse(array, kind):
    formats, = checks.need("cupyx.scipy.sparse")
    return getattr(formats, kind)(up(array))


def nothing(char, kind="csr_matrix"):
    return sparse(checks.np().eye(1, dtype=char), kind)


def expect_sparse(matrix, want):
    expect(down(matrix.toarray()), want)


def zeroed(size):
    """CuPy makes its empty sparse matrices of memory that it has not set, and refuses what happens to be there."""
    memory = cupy().get_default_memory_pool().malloc(size)
    if size:
        memory.memset_async(0, size)
    return memory


KINDS = ("csr_matrix", "csc_matrix", "coo_matrix", "csr_array")


@section
def sparse_copies():
    warnings.filterwarnings("ignore", ".*transferring sparse.*")
    for kind in KINDS:
        for char in "fdFD":
            for root in range(SIZE):
                with check(f"broadcast {kind} {char} of {root}"):
                    t = sparse(grid(char, RANK), kind) if RANK == root else nothing(char, kind)
                    backend().broadcast(t, root)
                    expect_sparse(t, grid(char, root))
            with check(f"scatter {kind} {char}"):
                out = nothing(char, kind)
                backend().scatter([sparse(grid(char, r), kind) for r in range(SIZE)], out, 1)
                expect_sparse(out, grid(char, RANK))


@section
def sparse_messages():
    warnings.filterwarnings("ignore", ".*transferring sparse.*")
    for kind in KINDS:
        for char in "fdFD":
            for sender in range(SIZE):
                with check(f"send and recv {kind} {char} from {sender}"):
                    t = sparse(grid(char, RANK), kind) if RANK == sender else nothing(char, kind)
                    (backend().send if RANK == sender else backend().recv)(t, 1 - RANK)
                    expect_sparse(t, grid(char, sender))
            if MPI:  # without it CuPy reads the sizes within the group that brings them
                with check(f"send_recv {kind} {char}"):
                    out = nothing(char, kind)
                    backend().send_recv(sparse(grid(char, RANK), kind), out, 1 - RANK)
                    expect_sparse(out, grid(char, 1 - RANK))


def reductions(kind, char):
    """No coo_matrix: CuPy has no empty one."""
    own, want = grid(char, RANK), grid(char, 0) + grid(char, 1)
    with check(f"reduce {kind} {char}"):
        out = nothing(char, kind)
        backend().reduce(sparse(own, kind), out, 0)
        expect_sparse(out, want if RANK == 0 else checks.np().eye(1, dtype=char))
    with check(f"all_reduce {kind} {char}"):
        out = nothing(char, kind)
        backend().all_reduce(sparse(own, kind), out)
        expect_sparse(out, want)
    with check(f"reduce_scatter {kind} {char}"):
        out = nothing(char, kind)
        backend().reduce_scatter([sparse(grid(char, RANK) * (i + 1), kind) for i in range(SIZE)], out, 1)
        expect_sparse(out, want * (RANK + 1))
    for title in ("gather", "all_gather", "all_to_all"):
        with check(f"{title} {kind} {char}"):
            outs, given = [], sparse(own, kind)
            if title == "gather":
                backend().gather(given, outs, 0)
            elif title == "all_gather":
                backend().all_gather(given, outs, 1)
            else:
                backend().all_to_all([sparse(grid(char, (RANK + i) % SIZE), kind) for i in range(SIZE)], outs)
            assert len(outs) == (SIZE if RANK == 0 or title != "gather" else 0), outs
            for i, out in enumerate(outs):  # rank i has sent (i + RANK) % SIZE here
                expect_sparse(out, grid(char, (i + RANK) % SIZE if title == "all_to_all" else i))


@section
def sparse_reductions():
    warnings.filterwarnings("ignore", ".*transferring sparse.*")
    with cupy().cuda.using_allocator(zeroed):
        for kind in ("csr_matrix", "csc_matrix", "csr_array"):
            for char in "fdFD":
                reductions(kind, char)
        with check("product of matrices"):
            out = nothing("f")
            backend().reduce(sparse(grid("f", RANK), "csr_matrix"), out, 0, "prod")
            if RANK == 0:
                expect_sparse(out, grid("f", 0) @ grid("f", 1))
        refused("sparse matrices in no list", ValueError, backend().reduce_scatter, nothing("f"), nothing("f"), 1)


@section
def stop():
    with check("barrier and stop"):
        backend().barrier()
        backend().stop()


if __name__ == "__main__":
    left = (NCCL + GPU_ONLY) if MPI else GPU_ONLY + CUPYX if checks.HOST else ()
    names = [a for a in sys.argv[1:] if a != "--mpi"]
    sys.exit(checks.main("cupyx over MPI" if MPI else "cupy", prepare, names, left, MPI))
