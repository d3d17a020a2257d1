"""Every call of vLLM's pynccl, by its files alone, with its data checked: two processes that share GPU 0.

    tutti run -- python3 tests/gpu/pynccl_calls.py FOLDER [SECTION]...

FOLDER holds vLLM's files of their own names, unchanged: vllm/distributed/device_communicators/pynccl.py,
pynccl_wrapper.py and pynccl_allocator.py, as `pip download --no-deps vllm==0.21.0` and unzip give them. What they
import of vLLM beside each other has stand-ins here. Runs all sections, or those whose names are given. Exit code 77:
there is no PyTorch, GPU or such file here. With TUTTI_DEVICE=host the sections that need no GPU run on host memory."""
import contextlib
import ctypes
import datetime
import glob
import importlib
import logging
import os
import pathlib
import pickle
import sys
import types

import checks
from checks import COUNT, OPS, RANK, SIZE, array, blank, check, expect_tensor, joined, operand, part, reduced
from checks import refused, section, tensor

GPU_ONLY = ["allocator", "capture", "streams"]
TYPES = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn"]
OTHER_TYPES = ["float8_e5m2"]  # which it sends as bytes
COMMUNICATORS = "vllm.distributed.device_communicators."
made = {}  # the modules, and the communicators of all


class Stream:
    """The stream of host memory."""
    cuda_stream = 0

    def synchronize(self):
        pass


class Logger(logging.LoggerAdapter):
    def info_once(self, *args):
        self.info(*args)

    warning_once = info_once


class StatelessProcessGroup:
    """vLLM's has a store of PyTorch; this one hands over files."""
    rank, world_size, calls = RANK, SIZE, 0

    def broadcast_obj(self, obj, src):
        self.calls += 1
        if RANK == src:
            checks.put(f"object-{self.calls}", pickle.dumps(obj))
        return pickle.loads(checks.get(f"object-{self.calls}"))


class Platform:
    def is_cuda(self):
        return not checks.HOST

    def is_rocm(self):
        return False

    def fp8_dtype(self):
        return made["torch"].float8_e4m3fn


def include_paths():
    """Folders of nccl.h, if it came as a package of Python."""
    return glob.glob(os.path.join(os.path.dirname(os.path.dirname(made["torch"].__file__)), "nvidia/nccl/include"))


def stand_in(name, **contents):
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    module.__path__ = []
    sys.modules[name] = module
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, module)


def load(folder):
    """vLLM's files, with stand-ins for what else they import."""
    torch = made["torch"]
    envs = types.SimpleNamespace(VLLM_DISABLE_PYNCCL=False, VLLM_USE_NCCL_SYMM_MEM=True, VLLM_LOGGING_LEVEL="INFO")
    made["envs"] = envs
    stand_in("vllm")
    stand_in("vllm.envs", **vars(envs))
    stand_in("vllm.logger", init_logger=lambda name: Logger(logging.getLogger(name), {}))
    stand_in("vllm.platforms", current_platform=Platform())
    stand_in("vllm.utils")
    stand_in("vllm.utils.torch_utils", direct_register_custom_op=lambda **op: made.setdefault("op", op),
             current_stream=Stream if checks.HOST else torch.cuda.current_stream)
    stand_in("vllm.utils.nccl", find_nccl_library=checks.ours, find_nccl_include_paths=include_paths)
    stand_in("vllm.distributed")
    stand_in("vllm.distributed.utils", StatelessProcessGroup=StatelessProcessGroup)
    stand_in(COMMUNICATORS.rstrip("."))
    sys.modules[COMMUNICATORS.rstrip(".")].__path__ = [str(folder / COMMUNICATORS.rstrip(".").replace(".", "/"))]
    for name in ("pynccl_wrapper", "pynccl"):
        made[name] = importlib.import_module(COMMUNICATORS + name)


def prepare():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    made["torch"] = checks.torch_ready()
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    path = folder / COMMUNICATORS.replace(".", "/") / "pynccl.py"
    if not path.exists():
        raise checks.Missing(f"there is no {path}")
    load(folder)


def wrapper():
    return made["pynccl_wrapper"]


def library():
    return wrapper().NCCLLibrary()


def kind(name):
    return wrapper().ncclDataTypeEnum.from_torch(checks.torch_type(name))


def operation(name):
    op = made["torch"].distributed.ReduceOp
    return {"sum": op.SUM, "prod": op.PRODUCT, "max": op.MAX, "min": op.MIN, "avg": op.AVG}[name]


def new_comm():
    return made["pynccl"].PyNcclCommunicator(made.setdefault("group", StatelessProcessGroup()),
                                             made["torch"].device(checks.torch_device()))


def world():
    if "world" not in made:
        made["world"] = new_comm()
    return made["world"]


def mine(name, op="sum", count=COUNT):
    return tensor(operand(name, RANK, op, count), name)


def pointer(t):
    return wrapper().buffer_type(t.data_ptr())


# NCCLLibrary


@section
def enums():
    numbers = {"int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
               "float8_e4m3fn": 10}
    types_of = wrapper().ncclDataTypeEnum
    for name in TYPES:
        with check(f"ncclDataTypeEnum {name}"):
            assert kind(name) == numbers[name] and types_of.supports_torch_dtype(checks.torch_type(name)), kind(name)
    for name in ("int16", "complex64", "float8_e5m2"):
        assert not types_of.supports_torch_dtype(checks.torch_type(name)), name
        refused(f"ncclDataTypeEnum {name}", ValueError, kind, name)
    for i, op in enumerate(OPS):
        with check(f"ncclRedOpTypeEnum {op}"):
            assert wrapper().ncclRedOpTypeEnum.from_torch(operation(op)) == i
    refused("ncclRedOpTypeEnum bxor", ValueError, wrapper().ncclRedOpTypeEnum.from_torch,
            made["torch"].distributed.ReduceOp.BXOR)


@section
def library_calls():
    with check("it loads ours"):
        assert os.path.realpath(library().lib._name) == checks.ours(), library().lib._name
    with check("all functions"):
        lost = [f.name for f in wrapper().NCCLLibrary.exported_functions if f.name not in library()._funcs]
        assert not lost, lost
    with check("ncclGetRawVersion, ncclGetVersion"):
        number, text = library().ncclGetRawVersion(), library().ncclGetVersion()
        assert number >= 21400 and text.split(".")[0] == "2", (number, text)
    with check("ncclGetErrorString, NCCL_CHECK"):
        assert library().ncclGetErrorString(4) and library().NCCL_CHECK(0) is None
    refused("NCCL_CHECK of an error", RuntimeError, library().NCCL_CHECK, 4)
    with check("ncclGetUniqueId, unique_id_from_bytes"):
        one = library().ncclGetUniqueId()
        assert bytes(library().unique_id_from_bytes(bytes(one))) == bytes(one)
        assert bytes(library().ncclGetUniqueId()) != bytes(one)
    refused("unique_id_from_bytes of 5", ValueError, library().unique_id_from_bytes, b"short")
    refused("ncclCommInitRank of a rank out of range", RuntimeError, library().ncclCommInitRank, 1,
            library().ncclGetUniqueId(), 1)
    refused("a library that is not there", OSError, wrapper().NCCLLibrary, "/nowhere/libnccl.so.2")


@section
def library_data():
    """Each function that takes buffers, called as PyNcclCommunicator does not."""
    lib, comm, stream = library(), world().comm, ctypes.c_void_p(0)
    for name in TYPES:
        for root in range(SIZE):
            for op in OPS:
                with check(f"ncclReduce {name} {op} to {root}"):
                    t, out = mine(name, op), blank(COUNT, name)
                    before = array(out, name)
                    lib.ncclReduce(pointer(t), pointer(out), COUNT, kind(name), OPS.index(op), root, comm, stream)
                    expect_tensor(out, reduced(name, op) if RANK == root else before, name)
            with check(f"ncclBroadcast {name} of {root}"):
                t, out = mine(name), blank(COUNT, name)
                lib.ncclBroadcast(pointer(t), pointer(out), COUNT, kind(name), root, comm, stream)
                expect_tensor(out, operand(name, root), name)
        with check(f"ncclSend, ncclRecv {name}"):
            t, out = mine(name), blank(COUNT, name)
            lib.ncclGroupStart()
            lib.ncclSend(pointer(t), COUNT, kind(name), 1 - RANK, comm, stream)
            lib.ncclRecv(pointer(out), COUNT, kind(name), 1 - RANK, comm, stream)
            lib.ncclGroupEnd()
            expect_tensor(out, operand(name, 1 - RANK), name)
    t = blank(COUNT, "float32")
    refused("ncclAllReduce of no type", RuntimeError, lib.ncclAllReduce, pointer(t), pointer(t), COUNT, 99, 0, comm,
            stream)
    refused("ncclReduce to no rank", RuntimeError, lib.ncclReduce, pointer(t), pointer(t), COUNT, 7, 0, SIZE, comm,
            stream)
    refused("ncclSend to no rank", RuntimeError, lib.ncclSend, pointer(t), COUNT, 7, -1, comm, stream)
    refused("ncclGroupEnd without ncclGroupStart", RuntimeError, lib.ncclGroupEnd)


# PyNcclCommunicator


@section
def communicator():
    comm = world()
    with check("its state"):
        assert (comm.rank, comm.world_size, comm.available, comm.disabled) == (RANK, SIZE, True, False)
        assert comm.nccl_version == library().ncclGetRawVersion() and bytes(comm.unique_id) != bytes(128)
    with check("of a group of PyTorch"):
        dist = made["torch"].distributed
        store = dist.FileStore(str(checks.FOLDER / "store"), SIZE)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE,
                                timeout=datetime.timedelta(seconds=checks.LIMIT))
        other = made["pynccl"].PyNcclCommunicator(dist.group.WORLD, checks.torch_device())
        expect_tensor(other.all_reduce(mine("float32")), reduced("float32", "sum"), "float32")
        other.destroy()
        dist.destroy_process_group()
    with check("of one rank"):
        alone = StatelessProcessGroup()
        alone.rank, alone.world_size = 0, 1
        one = made["pynccl"].PyNcclCommunicator(alone, 0)
        assert one.disabled and not one.available
    with check("disabled: no call does anything"):
        for call, args in ((one.all_gather, (None, None)), (one.all_gatherv, (None, None, [])),
                           (one.reduce_scatter, (None, None)), (one.reduce_scatterv, (None, None, [])),
                           (one.send, (None, 0)), (one.recv, (None, 0)), (one.broadcast, (None, 0)),
                           (one.all_reduce, (None,)), (one.batch_isend_irecv, ([],))):
            assert call(*args) is None
    elsewhere = made["torch"].empty(3, device="meta")
    refused("a tensor elsewhere", AssertionError, comm.all_reduce, elsewhere)
    with check("destroy"):
        other = new_comm()
        other.destroy()
        assert other.disabled and not other.available


@section
def all_reduce():
    for name in TYPES:
        for op in OPS:
            with check(f"all_reduce {name} {op}"):
                expect_tensor(world().all_reduce(mine(name, op), op=operation(op)), reduced(name, op), name)
        with check(f"all_reduce in place {name}"):
            t = mine(name)
            assert world().all_reduce(t, t) is t
            expect_tensor(t, reduced(name, "sum"), name)
    for count in (1, 2, 7, 65537, 2_000_003):
        with check(f"all_reduce of {count}"):
            expect_tensor(world().all_reduce(mine("bfloat16", count=count)), reduced("bfloat16", "sum", count),
                          "bfloat16")


@section
def reduce_scatter():
    for name in TYPES:
        for op in OPS:
            with check(f"reduce_scatter {name} {op}"):
                out = blank(COUNT, name)
                world().reduce_scatter(out, mine(name, op, SIZE * COUNT), operation(op))
                expect_tensor(out, part(reduced(name, op, SIZE * COUNT), RANK), name)
            with check(f"reduce_scatterv {name} {op}"):
                sizes, ends = [300, COUNT - 300], [0, 300, COUNT]
                out = blank(sizes[RANK], name)
                world().reduce_scatterv(out, mine(name, op), sizes, operation(op))
                expect_tensor(out, reduced(name, op)[ends[RANK]:ends[RANK + 1]], name)


@section
def all_gather():
    for name in TYPES:
        with check(f"all_gather {name}"):
            out = blank(SIZE * COUNT, name)
            world().all_gather(out, mine(name))
            expect_tensor(out, joined(name), name)
        with check(f"all_gatherv {name}"):
            sizes = [300, 501]
            out = blank(sum(sizes), name)
            world().all_gatherv(out, mine(name, count=sizes[RANK]), sizes)
            want = checks.np().concatenate([operand(name, r, count=sizes[r]) for r in range(SIZE)])
            expect_tensor(out, want, name)
    with check("all_gatherv of rows"):
        out = blank(5 * 8, "float32").view(5, 8)
        world().all_gatherv(out, mine("float32", count=8 * (2 + RANK)).view(-1, 8), [2, 3])
        want = checks.np().concatenate([operand("float32", 0, count=16), operand("float32", 1, count=24)])
        expect_tensor(out.view(-1), want, "float32")


@section
def messages():
    for name in TYPES + OTHER_TYPES:
        for sender in range(SIZE):
            with check(f"send and recv {name} from {sender}"):
                t = mine(name) if RANK == sender else blank(COUNT, name)
                (world().send if RANK == sender else world().recv)(t, 1 - RANK)
                expect_tensor(t, operand(name, sender), name)
        with check(f"batch_isend_irecv {name}"):
            dist, outs = made["torch"].distributed, [blank(COUNT, name), blank(COUNT, name)]
            data = [mine(name), mine(name, "prod")]
            ops = [types.SimpleNamespace(op=dist.isend, tensor=t, group_peer=1 - RANK) for t in data]
            ops += [types.SimpleNamespace(op=dist.irecv, tensor=t, group_peer=1 - RANK) for t in outs]
            world().batch_isend_irecv(ops)
            for out, op in zip(outs, ("sum", "prod")):
                expect_tensor(out, operand(name, 1 - RANK, op), name)


@section
def broadcast():
    for root in range(SIZE):
        for name in TYPES:
            with check(f"broadcast {name} of {root}"):
                t = mine(name)
                world().broadcast(t, root)
                expect_tensor(t, operand(name, root), name)
    refused("broadcast of no rank", RuntimeError, world().broadcast, blank(COUNT, "float32"), SIZE)


@section
def groups():
    for name in TYPES:
        with check(f"group_start, group_end {name}"):
            a, b, c = mine(name), mine(name), mine(name)
            out, gathered = blank(COUNT, name), blank(SIZE * COUNT, name)
            world().group_start()
            world().all_reduce(a, out)
            world().broadcast(b, 0)
            world().all_gather(gathered, c)
            world().group_end()
            expect_tensor(out, reduced(name, "sum"), name)
            expect_tensor(b, operand(name, 0), name)
            expect_tensor(gathered, joined(name), name)


@section
def windows():
    for name in TYPES:
        with check(f"register_comm_window {name}"):
            t, out = mine(name), blank(COUNT, name)
            window = world().register_comm_window(t)
            other = world().register_comm_window_raw(out.data_ptr(), out.numel() * out.element_size())
            assert window.value and other.value, window
            expect_tensor(world().all_reduce(t, out), reduced(name, "sum"), name)
            world().deregister_comm_window(window)
            world().deregister_comm_window(other)


@section
def streams():
    torch = made["torch"]
    for name in TYPES:
        with check(f"a stream that is given {name}"):
            t, out, side = mine(name), blank(COUNT, name), torch.cuda.Stream()
            torch.cuda.synchronize()
            world().all_reduce(t, out, stream=side)
            expect_tensor(out, reduced(name, "sum"), name)
    with check("the current stream"):
        with torch.cuda.stream(torch.cuda.Stream()):
            out = world().all_reduce(mine("float32"))
            expect_tensor(out, reduced("float32", "sum"), "float32")


@section
def capture():
    torch = made["torch"]
    with check("CUDA graph"):
        t, out, graph = mine("float32"), blank(COUNT, "float32"), torch.cuda.CUDAGraph()
        world().all_reduce(t, out)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            world().all_reduce(t, out)
        for i in range(3):
            t.copy_(tensor(operand("float32", RANK) + checks.np().float32(i), "float32"))
            graph.replay()
            expect_tensor(out, reduced("float32", "sum") + checks.np().float32(SIZE * i), "float32")


def build_folder():
    """Where the allocator is compiled, of this rank's own; -lnccl must find a library there."""
    folder = checks.FOLDER / f"build-{RANK}"
    folder.mkdir()
    (folder / "libnccl.so").symlink_to(checks.ours())
    os.environ["LIBRARY_PATH"] = f"{folder}:{os.environ.get('LIBRARY_PATH', '')}"
    importlib.import_module("tempfile").tempdir = str(folder)


def symmetric(allocator, name):
    with allocator.nccl_symm_mem_context(world()):
        t = made["torch"].empty(COUNT, dtype=checks.torch_type(name), device="cuda:0")
        out = made["torch"].empty_like(t)
    assert allocator.is_symmetric_memory_tensor(t)
    t.copy_(mine(name))
    expect_tensor(world().all_reduce(t, out), reduced(name, "sum"), name)


@section
def allocator():
    build_folder()
    allocator_ = importlib.import_module(COMMUNICATORS + "pynccl_allocator")
    with check("compile_nccl_allocator", limit=3 * checks.LIMIT):
        faults = []
        allocator_.logger.warning = lambda *args: faults.append(args)
        assert allocator_.is_symmetric_memory_enabled()
        pool = allocator_.get_nccl_mem_pool()
        assert pool is not None, faults
    for name in TYPES:
        with check(f"nccl_symm_mem_context {name}"):
            symmetric(allocator_, name)
    with check("nccl_symm_mem_context, disabled"):
        with allocator_.nccl_symm_mem_context(world(), disabled=True) as context:
            t = mine("float32")
        assert context.disabled and not allocator_.is_symmetric_memory_tensor(t)
    with check("all_reduce_symmetric_with_copy"):
        made["pynccl"].register_nccl_symmetric_ops(world())
        made["pynccl"].register_nccl_symmetric_ops(world())
        out = made["op"]["op_func"](mine("bfloat16"))
        expect_tensor(out, reduced("bfloat16", "sum"), "bfloat16")
        assert made["op"]["op_name"] == "all_reduce_symmetric_with_copy"
        assert made["op"]["fake_impl"](out).shape == out.shape


@section
def end():
    with check("destroy at the end"):
        world().destroy()
        with contextlib.suppress(AttributeError):
            assert world().all_reduce(mine("float32")) is None


if __name__ == "__main__":
    sys.exit(checks.main("pynccl", prepare, sys.argv[2:], GPU_ONLY if checks.HOST else ()))
