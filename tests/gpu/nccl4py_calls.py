"""Every call of nccl4py on GPU tensors of PyTorch, with its data checked: two processes that share GPU 0.

    tutti run -- python3 tests/gpu/nccl4py_calls.py [SECTION]...

Runs all sections, or those whose names are given. Exit code 77: there is no nccl4py, PyTorch or GPU here. With
TUTTI_DEVICE=host the sections that need no GPU run on host memory."""
import contextlib
import io
import pickle
import sys

import checks
from checks import COUNT, OPS, RANK, SIZE, array, blank, check, expect, expect_tensor, joined, operand, part, reduced
from checks import refused, section, tensor

TYPES = checks.INTEGERS + checks.FLOATS + checks.SMALL_FLOATS
GPU_ONLY = ["capture", "device_communicators", "device_scalars", "events", "memory", "one_sided", "registration",
            "streams"]
made = {}  # what prepare imports, and the communicator of all


def prepare():
    made["torch"] = checks.torch_ready()
    made["core"], made["bindings"] = checks.need("nccl.core", "nccl.bindings.nccl")
    if checks.HOST:
        core().Communicator._validate_buffer_device = lambda *_: None


def core():
    return made["core"]


def error():
    return made["bindings"].NCCLError


def op_of(name):
    return getattr(core().NcclRedOp, name.upper())


def unique_id(key):
    if RANK == 0:
        checks.put(key, bytes(core().get_unique_id()))
    return core().UniqueId.from_bytes(checks.get(key))


def new_comm(key, config=None):
    return core().Communicator.init(SIZE, RANK, unique_id(key), config)


def world():
    if "world" not in made:
        made["world"] = new_comm("world")
    return made["world"]


def sums(comm, ranks=SIZE):
    """That a communicator works."""
    t = tensor(checks.np().full(COUNT, 3, "float32"), "float32")
    comm.allreduce(t, t, core().SUM)
    expect_tensor(t, checks.np().full(COUNT, 3 * ranks, "float32"), "float32")


@section
def versions():
    version = core().get_version()
    with check("version of libnccl"):
        assert str(version.libnccl.version).split(".")[0] == "2", version
        number = made["bindings"].get_version()
        assert str(version.libnccl.version) == f"{number // 10000}.{number // 100 % 100}.{number % 100}", version
    with check("path of libnccl"):
        assert str(version.libnccl.path.resolve()) == checks.ours(), version
    with check("show_versions"), contextlib.redirect_stdout(io.StringIO()) as text:
        core().show_versions()
        assert str(version.libnccl.version) in text.getvalue(), text.getvalue()
    with check("all names of the API"):
        lost = [n for n in core().__all__ if not hasattr(core(), n)]
        assert not lost, lost
    for result in list(made["bindings"].Result)[:8]:
        with check(f"get_error_string {result.name}"):
            assert core().get_error_string(result), result


@section
def parameters():
    with check("params"):
        assert len(core().params) == len(list(core().params)) > 0, len(core().params)
        assert all(isinstance(core().params[k], str) for k in core().params), dict(core().params)
    refused("params of a name that is none", Exception, lambda: core().params["NCCL_NO_SUCH_PARAMETER"])
    with check("dump_params"):
        core().dump_params()


@section
def unique_ids():
    one = core().get_unique_id()
    with check("bytes"):
        assert len(bytes(one)) == 128 and bytes(one) == one.as_bytes == one.as_ndarray.tobytes()
    with check("from_bytes"):
        assert bytes(core().UniqueId.from_bytes(bytes(one))) == bytes(one)
    with check("pickle"):
        assert bytes(pickle.loads(pickle.dumps(one))) == bytes(one)
    with check("each is another one"):
        assert bytes(core().get_unique_id()) != bytes(one)
    with check("empty"):
        assert bytes(core().get_unique_id(empty=True)) == bytes(128)


@section
def data_types():
    for name in TYPES:
        with check(f"NcclDataType {name}"):
            kind, numpy_type = core().NcclDataType(checks.numpy_type(name)), checks.numpy_type(name)
            assert kind.numpy_dtype == numpy_type and kind.itemsize == numpy_type.itemsize, kind
            assert core().NcclDataType.from_numpy_dtype(numpy_type) == kind
    for name in ("int16", "complex64", "bool"):
        refused(f"NcclDataType {name}", core().NcclInvalid, core().NcclDataType, name)


@section
def communicator():
    comm = world()
    with check("rank, nranks, device"):
        assert (comm.rank, comm.nranks, comm.is_valid, comm.ptr != 0) == (RANK, SIZE, True, True), comm
        assert checks.HOST or comm.device.device_id == 0, comm.device
    with check("properties"):
        p = comm.properties
        assert (p.rank, p.n_ranks, p.multimem_support) == (RANK, SIZE, False), p
        assert checks.HOST or (p.cuda_dev, comm.cuda_dev) == (0, 0), p
        assert comm.nvml_dev == p.nvml_dev and comm.device_api_support == p.device_api_support, p
        assert comm.multimem_support is False and comm.n_lsa_teams == p.n_lsa_teams >= 1, p
        assert comm.gin_type == comm.railed_gin_type == core().NcclGinType.NONE, p
        assert comm.host_rma_support is True, p
    with check("team_world"):
        team = comm.team_world
        assert (team.n_ranks, team.rank, team.stride) == (SIZE, RANK, 1), team
        assert [comm.team_rank_to_world(team, r) for r in range(SIZE)] == list(range(SIZE))
    with check("team_lsa, team_rail, team_cft"):
        assert comm.team_lsa.n_ranks * comm.team_rail.n_ranks == SIZE, (comm.team_lsa, comm.team_rail)
        assert comm.team_rank_to_lsa(comm.team_lsa, 0) == 0
        assert comm.team_cft().n_ranks == comm.team_cft_multimem.n_ranks == 1
    with check("get_async_error, get_last_error"):
        assert comm.get_async_error() == made["bindings"].Result.Success
        assert isinstance(comm.get_last_error(), str)
    for stat in core().NcclCommMemStat:
        with check(f"get_mem_stat {stat.name}"):
            assert comm.get_mem_stat(stat) >= 0
    with check("repr"):
        assert checks.HOST or f"rank={RANK}/{SIZE}" in repr(comm), repr(comm)
    refused("initialize twice", core().NcclInvalid, comm.initialize, SIZE, RANK, core().get_unique_id(empty=True))


@section
def inits():
    with check("several ids"):
        comm = core().Communicator.init(SIZE, RANK, [unique_id("first"), unique_id("second")])
        sums(comm)
        comm.destroy()
    with check("init_all"):
        comms = core().Communicator.init_all([0])
        assert len(comms) == 1 and comms[0].nranks == 1
        sums(comms[0], 1)
        comms[0].destroy()
    refused("init with a rank out of range", error(), core().Communicator.init, 1, 1, core().get_unique_id())
    refused("init with no rank", error(), core().Communicator.init, 0, 0, core().get_unique_id())
    refused("init with a word as id", core().NcclInvalid, core().Communicator.init, 1, 0, "id")
    refused("init_all of a word", TypeError, core().Communicator.init_all, "0")


CONFIG = {"blocking": True, "cga_cluster_size": 2, "min_ctas": 1, "max_ctas": 4, "net_name": "Socket",
          "split_share": True, "traffic_class": 1, "comm_name": "checks", "collnet_enable": False, "cta_policy": 1,
          "shrink_share": True, "nvls_ctas": 4, "n_channels_per_net_peer": 1, "nvlink_centric_sched": True,
          "graph_usage_mode": 1, "num_rma_ctx": 2, "max_p2p_peers": 2, "graph_stream_ordering": 1,
          "launch_order_implicit": False, "num_rma_sig": 2, "rma_eager_init": True, "host_cft_mode": 2,
          "nvls_host_mode": 2147483647}


def settle(comm):
    """Waits for what a communicator that does not block has begun."""
    while comm.get_async_error() == made["bindings"].Result.InProgress:
        pass


@section
def configs():
    for field, value in CONFIG.items():
        with check(f"config {field}"):
            comm = new_comm(f"config-{field}", core().NCCLConfig(**{field: value}))
            sums(comm)
            comm.destroy()
    with check("config blocking false"):
        comm = new_comm("nonblocking", core().NCCLConfig(blocking=False))
        settle(comm)
        t = tensor(operand("float32", RANK), "float32")
        comm.allreduce(t, t, core().SUM)
        settle(comm)
        expect_tensor(t, reduced("float32", "sum"), "float32")
        checks.meet("nonblocking-done")
        comm.abort()
    refused("config with more min_ctas than max_ctas", error(), core().Communicator.init, 1, 0, core().get_unique_id(),
            core().NCCLConfig(min_ctas=4, max_ctas=2))


@section
def allreduce():
    for name in TYPES:
        for op in OPS:
            with check(f"allreduce {name} {op}"):
                out = blank(COUNT, name)
                world().allreduce(tensor(operand(name, RANK, op), name), out, op_of(op))
                expect_tensor(out, reduced(name, op), name)
    for name in TYPES:
        with check(f"allreduce in place {name}"):
            t = tensor(operand(name, RANK), name)
            world().reduce(t, t, core().SUM)
            expect_tensor(t, reduced(name, "sum"), name)
    for count in (0, 1, 2, 65537, 2_000_003):
        with check(f"allreduce of {count}"):
            out = blank(count, "float32")
            world().allreduce(tensor(operand("float32", RANK, count=count), "float32"), out, core().SUM)
            expect_tensor(out, reduced("float32", "sum", count), "float32")


@section
def reduce():
    for i, (name, op) in enumerate((n, o) for n in TYPES for o in OPS):
        root = i % SIZE
        with check(f"reduce {name} {op} to {root}"):
            out = blank(COUNT, name)
            before = array(out, name)
            world().reduce(tensor(operand(name, RANK, op), name), out if RANK == root else None, op_of(op), root)
            expect_tensor(out, reduced(name, op) if RANK == root else before, name)


@section
def reduce_scatter():
    for name in TYPES:
        for op in OPS:
            with check(f"reduce_scatter {name} {op}"):
                out = blank(COUNT, name)
                world().reduce_scatter(tensor(operand(name, RANK, op, SIZE * COUNT), name), out, op_of(op))
                expect_tensor(out, part(reduced(name, op, SIZE * COUNT), RANK), name)


@section
def broadcast():
    for root in range(SIZE):
        for name in TYPES:
            with check(f"broadcast {name} of {root}"):
                out = blank(COUNT, name)
                world().broadcast(tensor(operand(name, RANK), name) if RANK == root else None, out, root)
                expect_tensor(out, operand(name, root), name)


@section
def gathers():
    for name in TYPES:
        with check(f"allgather {name}"):
            out = blank(SIZE * COUNT, name)
            world().allgather(tensor(operand(name, RANK), name), out)
            expect_tensor(out, joined(name), name)
        for root in range(SIZE):
            with check(f"gather {name} to {root}"):
                out = blank(SIZE * COUNT, name)
                before = array(out, name)
                world().gather(tensor(operand(name, RANK), name), out if RANK == root else None, root)
                expect_tensor(out, joined(name) if RANK == root else before, name)


@section
def scatters():
    for name in TYPES:
        for root in range(SIZE):
            with check(f"scatter {name} of {root}"):
                out, data = blank(COUNT, name), operand(name, root, count=SIZE * COUNT)
                world().scatter(tensor(data, name) if RANK == root else None, out, root)
                expect_tensor(out, part(data, RANK), name)
        with check(f"alltoall {name}"):
            out, data = blank(SIZE * COUNT, name), [operand(name, r, count=SIZE * COUNT) for r in range(SIZE)]
            world().alltoall(tensor(data[RANK], name), out)
            expect_tensor(out, checks.np().concatenate([part(d, RANK) for d in data]), name)


@section
def messages():
    for name in TYPES:
        with check(f"send and recv {name}"):
            t = tensor(operand(name, 0), name) if RANK == 0 else blank(COUNT, name)
            (world().send if RANK == 0 else world().recv)(t, 1 - RANK)
            expect_tensor(t, operand(name, 0), name)
        with check(f"send and recv {name} in a group"):
            t, out = tensor(operand(name, RANK), name), blank(COUNT, name)
            with core().group():
                world().send(t, 1 - RANK)
                world().recv(out, 1 - RANK)
            expect_tensor(out, operand(name, 1 - RANK), name)
    with check("to itself"):
        t, out = tensor(operand("int32", RANK), "int32"), blank(COUNT, "int32")
        with core().group():
            world().send(t, RANK)
            world().recv(out, RANK)
        expect_tensor(out, operand("int32", RANK), "int32")


@section
def groups():
    with check("group of several collectives"):
        outs = [blank(COUNT, "float32") for _ in range(4)]
        data = [tensor(operand("float32", RANK) * (i + 1), "float32") for i in range(4)]
        core().group_start()
        for t, out in zip(data, outs):
            world().allreduce(t, out, core().SUM)
        core().group_end()
        for i, out in enumerate(outs):
            expect_tensor(out, reduced("float32", "sum") * (i + 1), "float32")
    with check("group in a group"):
        t, out = tensor(operand("float32", RANK), "float32"), blank(COUNT, "float32")
        with core().group(), core().group():
            world().allreduce(t, out, core().SUM)
        expect_tensor(out, reduced("float32", "sum"), "float32")
    with check("group_end with simulate"):
        out = blank(COUNT, "float32")
        before, t = array(out, "float32"), tensor(operand("float32", RANK), "float32")
        core().group_start()
        world().allreduce(t, out, core().SUM)
        info = core().group_end(simulate=True)
        assert isinstance(info.estimated_time, float), info
        expect_tensor(out, before, "float32")
    refused("group_end without group_start", error(), core().group_end)


def premul(title, name, scalar, scale, datatype=None):
    with check(f"create_pre_mul_sum {title}"):
        op, out = world().create_pre_mul_sum(scalar, datatype), blank(COUNT, name)
        world().allreduce(tensor(operand(name, RANK), name), out, op)
        expect_tensor(out, reduced(name, "sum", scale=scale), name)
        assert op.is_valid and "PreMulSum" in repr(op), op
        op.close()
        assert not op.is_valid


@section
def custom_ops():
    for name in TYPES:
        kind, scale = checks.numpy_type(name), 2 if name in checks.INTEGERS else 0.5
        premul(f"{name} by a number", name, scale, scale, core().NcclDataType(kind))
        premul(f"{name} by an array of NumPy", name, checks.np().array([scale], kind), scale)
    with check("reduce and reduce_scatter with a custom op"):
        op, out = world().create_pre_mul_sum(0.5, core().FLOAT32), blank(COUNT, "float32")
        world().reduce(tensor(operand("float32", RANK), "float32"), out, op, 0)
        if RANK == 0:
            expect_tensor(out, reduced("float32", "sum", scale=0.5), "float32")
        world().reduce_scatter(tensor(operand("float32", RANK, count=SIZE * COUNT), "float32"), out, op)
        expect_tensor(out, part(reduced("float32", "sum", SIZE * COUNT, 0.5), RANK), "float32")
        op.close()
        op.close()
    closed = world().create_pre_mul_sum(2.0)
    closed.close()
    refused("a closed op", RuntimeError, int, closed)
    refused("a scalar of two", core().NcclInvalid, world().create_pre_mul_sum, checks.np().ones(2))


@section
def device_scalars():
    for name in TYPES:
        scale = 2 if name in checks.INTEGERS else 0.5
        premul(f"{name} by a tensor", name, tensor(checks.np().array([scale], checks.numpy_type(name)), name), scale)
    refused("a tensor of two as scalar", core().NcclInvalid, world().create_pre_mul_sum, blank(2, "float32"))


def calls_with(config):
    """All collectives with a configuration of this call."""
    comm, one = world(), tensor(operand("float32", RANK), "float32")
    many, out, outs = tensor(joined("float32"), "float32"), blank(COUNT, "float32"), blank(SIZE * COUNT, "float32")
    comm.allreduce(one, out, core().SUM, config=config)
    expect_tensor(out, reduced("float32", "sum"), "float32")
    comm.reduce(one, out, core().MAX, 0, config=config)
    comm.reduce_scatter(many, out, core().SUM, config=config)
    expect_tensor(out, SIZE * operand("float32", RANK), "float32")
    comm.broadcast(one, out, 1, config=config)
    expect_tensor(out, operand("float32", 1), "float32")
    comm.allgather(one, outs, config=config)
    expect_tensor(outs, joined("float32"), "float32")
    comm.alltoall(many, outs, config=config)
    expect_tensor(outs, checks.np().tile(operand("float32", RANK), SIZE), "float32")
    comm.gather(one, outs, 0, config=config)
    comm.scatter(many, out, 1, config=config)
    expect_tensor(out, operand("float32", RANK), "float32")


@section
def call_configs():
    for fields in ({}, {"min_ctas": 1, "max_ctas": 2}, {"nvls_ctas": 2}, {"cga_cluster_size": 2},
                   {"cta_policy": core().CTAPolicy.EFFICIENCY}, {"user_profiler_tag": 42},
                   {"vendor_options": (core().VendorOption(7, 1, int_value=3), core().VendorOption(7, 3, raw_value=9),
                                       core().VendorOption(7, 2, str_value="x"))}):
        with check(f"NCCLCollConfig {' '.join(fields) or 'empty'}"):
            calls_with(core().NCCLCollConfig(**fields))
    with check("NCCLCollConfig alg_selection that is only a wish"):
        calls_with(core().NCCLCollConfig(alg_selection="ring", force_alg_selection=False))
    t, out = tensor(joined("float32"), "float32"), blank(SIZE * COUNT, "float32")
    refused("NCCLCollConfig alg_selection that cannot be had", error(), world().alltoall, t, out,
            config=core().NCCLCollConfig(alg_selection="ring"))
    one = core().VendorOption(1, 1, int_value=1)
    refused("vendor option twice", core().NcclInvalid, core().NCCLCollConfig, vendor_options=(one, one))
    refused("vendor option with two values", core().NcclInvalid, core().VendorOption, 1, 1, 2, "x")
    refused("vendor option without a value", core().NcclInvalid, core().VendorOption, 1, 1)
    refused("vendor options that are none", core().NcclInvalid, core().NCCLCollConfig, vendor_options="x")


@section
def events():
    torch = made["torch"]
    with check("NCCLCollConfig launch_completion_event"):
        event = torch.cuda.Event()
        event.record()
        torch.cuda.synchronize()
        calls_with(core().NCCLCollConfig(launch_completion_event=event.cuda_event))
        torch.cuda.synchronize()
        assert event.query()
    refused("event 0", ValueError, calls_with, core().NCCLCollConfig(launch_completion_event=0))
    refused("event true", TypeError, calls_with, core().NCCLCollConfig(launch_completion_event=True))


@section
def splits():
    with check("split into one each"):
        comm = world().split(color=RANK)
        assert (comm.nranks, comm.rank) == (1, 0), comm
        sums(comm, 1)
        comm.destroy()
    with check("split with keys that turn the order"):
        comm = world().split(color=5, key=SIZE - RANK)
        assert (comm.nranks, comm.rank) == (SIZE, SIZE - 1 - RANK), comm
        sums(comm)
        comm.destroy()
    with check("split without a color"):
        comm = world().split(color=0 if RANK else None)
        assert comm.is_valid == bool(RANK), comm
        if comm.is_valid:
            sums(comm, 1)
        comm.destroy()
    with check("split with a config"):
        comm = world().split(color=0, config=core().NCCLConfig(split_share=True, comm_name="child"))
        sums(comm)
        comm.destroy()
    refused("split of nothing", core().NcclInvalid, core().Communicator().split, 0)


@section
def shrink_and_grow():
    for flag in core().CommShrinkFlag:
        with check(f"shrink {flag.name}"):
            comm = new_comm(f"shrink-{flag.name}")
            sums(comm)
            checks.meet(f"summed-{flag.name}")
            if RANK == 0:
                less = comm.shrink([1], flag=flag)
                assert (less.nranks, less.rank) == (1, 0), less
                sums(less, 1)
                less.destroy()
            checks.meet(f"shrunk-{flag.name}")
            comm.abort()
    with check("grow"):
        if RANK == 0:
            comm = core().Communicator.init(1, 0, core().get_unique_id())
            uid = comm.get_unique_id()
            checks.put("grow", bytes(uid))
            more = comm.grow(SIZE, uid)
        else:
            more = core().Communicator().grow(SIZE, core().UniqueId.from_bytes(checks.get("grow")), rank=1)
        assert (more.nranks, more.rank) == (SIZE, RANK), more
        sums(more)
        more.destroy()
    refused("grow of nothing", core().NcclInvalid, core().Communicator().grow, 2)
    refused("grow as a new rank with a communicator", core().NcclInvalid, world().grow, 3, None, 2)


@section
def ends():
    with check("finalize and destroy"):
        comm = new_comm("finalize")
        sums(comm)
        comm.finalize()
        comm.destroy()
        assert not comm.is_valid and comm.ptr == 0, comm
        comm.destroy()
        comm.abort()
        comm.finalize()
    with check("abort"):
        comm = new_comm("abort")
        sums(comm)
        checks.meet("aborted")  # an abort fails what others still do
        comm.abort()
        assert not comm.is_valid, comm
    refused("a call of what was aborted", core().NcclInvalid, sums, comm)
    with check("revoke, and shrink with ABORT"):
        comm = new_comm("revoke")
        sums(comm)
        checks.meet("to be revoked")
        comm.revoke()
        checks.meet("revoked")
        if RANK == 0:
            less = comm.shrink([1], flag=core().CommShrinkFlag.ABORT)
            sums(less, 1)
            less.destroy()
        checks.meet("after")
        comm.destroy()
    with check("suspend and resume"):
        comm = new_comm("suspend")
        sums(comm)
        comm.suspend(core().CommSuspendFlag.MEM)
        comm.resume()
        sums(comm)
        comm.destroy()


@section
def errors():
    comm, t, out = world(), blank(COUNT, "float32"), blank(COUNT, "float32")
    refused("root of reduce", error(), comm.reduce, t, out, core().SUM, SIZE)
    refused("root of broadcast", error(), comm.broadcast, t, out, -1)
    refused("root of gather", error(), comm.gather, t, out, SIZE)
    refused("root of scatter", error(), comm.scatter, t, out, SIZE)
    refused("peer of send", error(), comm.send, t, SIZE)
    refused("peer of recv", error(), comm.recv, t, -1)
    refused("operation", error(), comm.allreduce, t, out, 99)
    other = blank(COUNT, "int32")
    refused("type of allreduce", core().NcclInvalid, comm.allreduce, t, other, core().SUM)
    refused("type of reduce_scatter", core().NcclInvalid, comm.reduce_scatter, t, other, core().SUM)
    refused("type of allgather", core().NcclInvalid, comm.allgather, t, other)
    refused("type of alltoall", core().NcclInvalid, comm.alltoall, t, other)
    less = blank(COUNT - 1, "float32")
    refused("count of allreduce", core().NcclInvalid, comm.allreduce, t, less, core().SUM)
    refused("count of allgather", core().NcclInvalid, comm.allgather, t, out)
    refused("count of alltoall", core().NcclInvalid, comm.alltoall, t, less)
    refused("count of reduce_scatter", core().NcclInvalid, comm.reduce_scatter, blank(1, "float32"), out, core().SUM)
    refused("type that NCCL has not", Exception, comm.allreduce, t.to(made["torch"].complex64), out, core().SUM)
    refused("what is no buffer", Exception, comm.allreduce, [1.0], out, core().SUM)
    refused("a bool as stream", TypeError, comm.allreduce, t, out, core().SUM, stream=True)
    with check("the status of an error"):
        try:
            comm.send(t, SIZE)
        except error() as caught:
            assert caught.status == made["bindings"].Result.InvalidArgument, caught.status
            assert pickle.loads(pickle.dumps(caught)).status == caught.status
            assert "InvalidArgument" in str(caught) and comm.get_last_error(), caught
    with check("and the communicator works"):
        sums(comm)


@section
def streams():
    torch = made["torch"]
    side = torch.cuda.Stream()
    own, = checks.need("cuda.core")
    device = own.Device(0)
    device.set_current()
    kinds = {"of PyTorch": side, "as a number": side.cuda_stream, "of cuda.core": device.create_stream()}
    for title, stream in kinds.items():
        with check(f"stream {title}"):
            t, out = tensor(operand("float32", RANK), "float32"), blank(COUNT, "float32")
            torch.cuda.synchronize()
            world().allreduce(t, out, core().SUM, stream=stream)
            expect_tensor(out, reduced("float32", "sum"), "float32")


@section
def capture():
    torch = made["torch"]
    with check("CUDA graph"):
        t, out, graph = blank(COUNT, "float32"), blank(COUNT, "float32"), torch.cuda.CUDAGraph()
        world().allreduce(t, out, core().SUM)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            world().allreduce(t, out, core().SUM, stream=torch.cuda.current_stream().cuda_stream)
        for i in range(3):
            t.copy_(tensor(operand("float32", RANK) + i, "float32"))
            graph.replay()
            expect_tensor(out, reduced("float32", "sum") + checks.np().float32(SIZE * i), "float32")


@section
def memory():
    torch = made["torch"]
    with check("mem_alloc and mem_free"):
        buffer = core().mem_alloc(1 << 20)
        assert buffer.size == 1 << 20 and int(buffer.handle), buffer
        core().mem_free(buffer)
    with check("collective on a Buffer"):
        mine, out = core().mem_alloc(COUNT, 0), core().mem_alloc(SIZE * COUNT, 0)
        torch.from_dlpack(mine).view(torch.int8).copy_(tensor(operand("int8", RANK), "int8"))
        world().allgather(mine, out)
        expect_tensor(torch.from_dlpack(out).view(torch.int8), joined("int8"), "int8")
    for name in TYPES:
        with check(f"torch.empty {name}"):
            t, out = (core().torch.empty(COUNT, dtype=checks.torch_type(name), device="cuda:0") for _ in range(2))
            assert t.shape == (COUNT,) and t.dtype == checks.torch_type(name)
            t.copy_(tensor(operand(name, RANK), name))
            world().allreduce(t, out, core().SUM)
            expect_tensor(out, reduced(name, "sum"), name)
    with check("torch.empty in the order of Fortran"):
        t = core().torch.empty((3, 5), dtype=torch.float32, morder="F")
        assert t.shape == (3, 5) and t.stride() == (1, 3), t.stride()
    refused("torch.empty in no order", core().NcclInvalid, core().torch.empty, 3, morder="A")
    refused("torch.empty on the host", core().NcclInvalid, core().torch.empty, 3, device="cpu")


@section
def cupy_arrays():
    with check("cupy.empty, and collectives on its arrays"):
        cupy, = checks.need("cupy")
        for name in checks.INTEGERS + checks.FLOATS:
            t = core().cupy.empty((SIZE, COUNT), name)
            t[:] = cupy.asarray(checks.np().stack([operand(name, RANK)] * SIZE))
            world().allreduce(t, t, core().SUM)
            cupy.cuda.Device().synchronize()
            expect(cupy.asnumpy(t[1]), reduced(name, "sum"))


@section
def registration():
    comm = world()
    with check("register_buffer"):
        t = tensor(operand("float32", RANK), "float32")
        handle = comm.register_buffer(t)
        assert handle.size == 4 * COUNT and handle.is_valid and "size" in repr(handle), handle
        comm.allreduce(t, t, core().SUM)
        expect_tensor(t, reduced("float32", "sum"), "float32")
        handle.close()
        handle.close()
        assert not handle.is_valid
    refused("the handle of a closed buffer", RuntimeError, lambda: handle.handle)
    for flags in (None, core().WindowFlag.COLL_SYMMETRIC, core().WindowFlag.STRICT_ORDERING):
        with check(f"register_window {flags!r}"):
            t = core().torch.empty(COUNT, dtype=made["torch"].float32)
            t.copy_(tensor(operand("float32", RANK), "float32"))
            window = comm.register_window(t, flags)
            assert window.is_valid and window.handle and window.user_ptr == t.data_ptr(), window
            assert window.size == 4 * COUNT, window
            comm.allreduce(t, t, core().SUM)
            expect_tensor(t, reduced("float32", "sum"), "float32")
            window.close()
            window.close()
    for flags in (core().WindowFlag.GIN_ONLY, core().WindowFlag.CFT_COUNTED):
        refused(f"register_window {flags!r}", error(), comm.register_window, t, flags)
    with check("pointers of a window"):
        memory_of_it = core().torch.empty(1 << 20, dtype=made["torch"].int8)
        window = comm.register_window(memory_of_it, core().WindowFlag.COLL_SYMMETRIC)
        assert window.get_lsa_device_pointer(RANK) and window.get_peer_device_pointer(RANK, 64)
        assert window.get_lsa_device_pointer(1 - RANK, 64) == window.get_peer_device_pointer(1 - RANK, 64)
        assert window.get_lsa_multimem_device_pointer() is None
    for title, call in (("multimem", window.get_multimem_le_info), ("peer", lambda: window.get_peer_le_info(0)),
                        ("CFT", lambda: window.get_cft_le_info(0, comm.team_cft()))):
        refused(f"logical endpoint, {title}", error(), call)


def put_round(title, window, target, name, context=0, index=0):
    """Each rank puts its operand into the second half of the other one's window, and waits for the other one's."""
    comm, source = world(), tensor(operand(name, RANK), name)
    target.copy_(blank(2 * COUNT, name))
    made["torch"].cuda.synchronize()
    checks.meet(f"cleared-{title}")
    comm.put_signal(source, 1 - RANK, window, COUNT, index, context)
    comm.wait_signal(core().WaitSignalDesc(1 - RANK, 1, index, context))
    want = checks.np().concatenate([array(blank(COUNT, name), name), operand(name, 1 - RANK)])
    expect_tensor(target, want, name)
    checks.meet(f"seen-{title}")


@section
def one_sided():
    comm, torch = world(), made["torch"]
    for name in TYPES:
        with check(f"put_signal {name}"):
            target = core().torch.empty(2 * COUNT, dtype=checks.torch_type(name))
            window = comm.register_window(target)
            put_round(name, window, target, name)
            window.close()
    target = torch.zeros(2 * COUNT, device="cuda:0")
    window = comm.register_window(target)
    with check("put_signal into common memory"):
        put_round("common", window, target, "float32")
    with check("signal and wait_signal"):
        for _ in range(3):
            comm.signal(1 - RANK)
        comm.wait_signal([core().WaitSignalDesc(1 - RANK, op_count=3)])
        torch.cuda.synchronize()
    refused("put_signal to no rank", error(), comm.put_signal, target[:4], SIZE, window)
    refused("put_signal beyond the window", error(), comm.put_signal, target[:4], 1 - RANK, window, 2 * COUNT)
    refused("signal to no rank", error(), comm.signal, SIZE)
    refused("signal of no context", error(), comm.signal, 1 - RANK, 0, 99)
    refused("signal with flags", error(), comm.signal, 1 - RANK, 0, 0, 1)
    checks.meet("one-sided")
    window.close()


@section
def device_communicators():
    comm = world()
    with check("create_dev_comm"):
        dev = comm.create_dev_comm(core().NCCLDevCommRequirements(lsa_barrier_count=2))
        assert dev.is_valid and dev.ptr, dev
        dev.close()
        assert not dev.is_valid
    with check("create_dev_comm with resources"):
        wanted = (core().LsaBarrierRequirement(comm.team_lsa, 4), core().LLA2ARequirement(2, 64, 8))
        dev = comm.create_dev_comm(core().NCCLDevCommRequirements(resources=wanted))
        barrier, slots = dev.resource_handles
        assert barrier.n_barriers == 4 and slots.n_slots > 0, (barrier, slots)
        dev.close()
    with check("create_dev_comm with teams"):
        dev = comm.create_dev_comm(core().NCCLDevCommRequirements(teams=(core().TeamRequirement(comm.team_lsa),)))
        assert dev.is_valid
        dev.close()
    for title, fields in (("multimem", {"lsa_multimem": True}), ("GIN", {"gin_force_enable": True}),
                          ("GIN's barriers", {"rail_gin_barrier_count": 1, "world_gin_barrier_count": 1}),
                          ("CFT", {"cft_barrier_count": 1})):
        refused(f"create_dev_comm with {title}", error(), comm.create_dev_comm,
                core().NCCLDevCommRequirements(**fields))


@section
def end():
    with check("destroy"):
        world().destroy()
        assert not world().is_valid


if __name__ == "__main__":
    sys.exit(checks.main("nccl4py", prepare, sys.argv[1:], GPU_ONLY + ["cupy_arrays"] if checks.HOST else ()))
