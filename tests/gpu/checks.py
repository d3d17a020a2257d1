"""What the scripts beside it share that check other programs' calls of NCCL: two processes on GPU 0, named checks,
data with what must become of it, and whose NCCL it is.

A script registers sections, functions that make checks, and calls main(). A check that fails is noted, and the next
one runs; where one does not end, or ends its process, both processes start again with the section after it."""
import contextlib
import ctypes
import faulthandler
import functools
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from programs import end_session

SIZE = 2
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",  # the variables of mpirun, 4 and 5
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
LIMIT = 30  # seconds for a check
COUNT = 1003  # elements: odd, and no multiple of anything
INTEGERS = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
SMALL_FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]  # which NumPy has of ml_dtypes
OPS = ["sum", "prod", "max", "min", "avg"]
SECTIONS = []
HOST = os.environ.get("TUTTI_DEVICE") == "host"  # then what needs no GPU runs on host memory


class Missing(Exception):
    """What the checks need is not here."""


def section(function):
    SECTIONS.append(function)
    return function


# In a process that makes checks.

RANK = int(next((os.environ[v] for v in ("CHECKS_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK") if v in os.environ), -1))
FOLDER = pathlib.Path(os.environ.get("CHECKS_FOLDER", "."))
state = {"section": "start", "log": None}


def note(name, text):
    print(json.dumps([state["section"], name, text]), file=state["log"], flush=True)


@contextlib.contextmanager
def check(name, limit=LIMIT):
    """A named check: all that is done under it must work."""
    faulthandler.dump_traceback_later(limit, exit=True)
    note(name, None)
    try:
        yield
        note(name, "ok")
    except Exception as error:  # the others go on
        traceback.print_exc()
        note(name, f"{type(error).__name__}: {error}")
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True)  # for what comes before the next check, or the end


def refused(name, error, call, *args, **kwargs):
    """A check that a call raises an exception of that kind."""
    with check(name):
        try:
            result = call(*args, **kwargs)
        except error:
            return
        raise AssertionError(f"no {getattr(error, '__name__', error)}, but {result!r}")


def put(key, data):
    """Hands bytes to the other rank."""
    part = FOLDER / f"{key}.part"
    part.write_bytes(data)
    part.rename(FOLDER / key)


def get(key):
    deadline = time.monotonic() + LIMIT
    while not (FOLDER / key).exists():
        assert time.monotonic() < deadline, f"the other rank has not said {key}"
        time.sleep(0.002)
    return (FOLDER / key).read_bytes()


def meet(key):
    put(f"{key}-{RANK}", b"")
    get(f"{key}-{1 - RANK}")


def need(*names):
    """Imports modules; the script ends with 77 where one is missing."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as missing:
        raise Missing(str(missing)) from missing


def loaded():
    """The paths of all NCCL libraries in this process."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(p for p in paths if os.path.basename(p).startswith("libnccl"))


def ours():
    """The path of the libnccl.so.2 that LD_PRELOAD names, which must be tutti's."""
    named = [p for p in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if "libnccl" in p]
    assert named, "LD_PRELOAD names no libnccl.so.2: use tutti run"
    path = os.path.realpath(named[0])
    assert path in loaded(), f"{path} is not loaded, but {loaded()}"
    assert b"tutti" in pathlib.Path(path).read_bytes(), f"{path} is not tutti's"
    return path


def only_ours():
    """No other NCCL may be loaded, but by PyTorch and JAX, which load the one that they came with by its path and do
    not call it: names are looked up in ours."""
    path = ours()
    others = [p for p in loaded() if p != path]
    assert not others or {"torch", "jax"} & sys.modules.keys(), f"{others} are loaded too"
    address = ctypes.cast(ctypes.CDLL(None).ncclCommInitRank, ctypes.c_void_p).value
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(a, 16) for a in line.split()[0].split("-"))
        if begin <= address < end:
            assert line.split()[-1] == path, line
            return
    raise AssertionError("ncclCommInitRank is in no library")


@section
def library():
    with check("it is our libnccl.so.2"):
        only_ours()


def child(prepare):
    state["log"] = open(FOLDER / f"log-{RANK}", "w")
    faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
    try:
        prepare()
    except Missing as missing:
        (FOLDER / "missing").write_text(str(missing))
        os._exit(77)
    sections = {s.__name__: s for s in SECTIONS}
    for name in os.environ["CHECKS_SECTIONS"].split():
        state["section"] = name
        note("", None)
        try:
            sections[name]()
        except Exception as error:
            traceback.print_exc()
            note("(outside its checks)", f"{type(error).__name__}: {error}")
    if "CHECKS_RANK" not in os.environ:  # mpirun wants it
        sys.modules["mpi4py.MPI"].Finalize()
    sys.stdout.flush()
    os._exit(0)  # what the communicators' owners do at the end is not checked


# In the process that starts them.


def commands(mpi):
    command = [sys.executable, *sys.argv]
    return [[shutil.which("mpirun"), "-n", str(SIZE), *command]] if mpi else [command] * SIZE


def run_pair(folder, names, mpi):
    """Both processes; returns their exit codes, of mpirun its one."""
    env = {**os.environ, "CHECKS_FOLDER": folder, "CHECKS_SECTIONS": " ".join(names),
           "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0], **MPI}
    processes = []
    try:
        for rank, command in enumerate(commands(mpi)):
            own = env if mpi else {**env, "CHECKS_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=own, start_new_session=True))
        while any(p.poll() is None for p in processes):
            time.sleep(0.05)
            if any(p.poll() for p in processes):  # the other one waits for it in vain
                time.sleep(1)
                break
    finally:
        for p in processes:
            end_session(p.pid)
    return [p.wait() for p in processes]


def read_logs(folder, names, codes, results):
    """Adds what the checks said to results; returns the sections that are left to run."""
    paths = [pathlib.Path(folder, f"log-{rank}") for rank in range(SIZE)]
    logs = [[json.loads(line) for line in p.read_text().splitlines()] if p.exists() else [] for p in paths]
    if not all(logs):
        results["start", "(its processes)"] = {0: f"exit codes {codes}"}
        return []
    broken = any(codes)
    begun, told = min(names.index(log[-1][0]) for log in logs), False  # after it one was alone
    for rank, log in enumerate(logs):
        log = [entry for entry in log if names.index(entry[0]) <= begun]
        for where, name, text in log:
            if name and text is not None:
                results.setdefault((where, name), {})[rank] = text
        where, name, text = log[-1]
        if broken and name and text is None:
            results.setdefault((where, name), {})[rank] = f"it did not end, exit codes {codes}"
            told = True
    if broken and not told:
        results[names[begun], "(its processes)"] = {0: f"exit codes {codes}"}
    return names[begun + 1:] if broken else []


def report(title, results):
    failed = 0
    for (where, name), texts in results.items():
        bad = [f"rank {r}: {t}" for r, t in sorted(texts.items()) if t != "ok"]
        failed += bool(bad)
        if bad:
            print(f"FAILED {where}: {name}", *bad, sep="\n        ")
    print(f"{title}: {len(results) - failed} of {len(results)} checks passed", flush=True)
    return 1 if failed or not results else 0


def parent(title, names, mpi):
    results = {}
    if mpi and not shutil.which("mpirun"):
        print(f"{title}: skipped: no mpirun")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what has been found until then is said
    while names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                codes = run_pair(folder, names, mpi)
            except SystemExit:
                read_logs(folder, names, ["SIGTERM"], results)
                break
            missing = pathlib.Path(folder, "missing")
            if missing.exists():
                print(f"{title}: skipped: {missing.read_text()}")
                return 77
            names = read_logs(folder, names, codes, results)
    return report(title, results)


def wanted(name, names, leave):
    return name in names or name == "library" or (not names and name not in leave)


def main(title, prepare, names=(), leave=(), mpi=False):
    """Runs all sections but leave, or those that are named, in two processes; returns the exit code. prepare imports
    what they need, and raises Missing."""
    if "CHECKS_SECTIONS" in os.environ:
        child(prepare)
    return parent(title, [s.__name__ for s in SECTIONS if wanted(s.__name__, names, leave)], mpi)


# Data. Every value, sum, product and average is one that all types have.


def np():
    return importlib.import_module("numpy")


def numpy_type(name):
    return np().dtype(getattr(importlib.import_module("ml_dtypes"), name) if name in SMALL_FLOATS else name)


def operand(name, rank, op="sum", count=COUNT):
    """What a rank has before a call."""
    numpy, dtype = np(), numpy_type(name)
    i = numpy.arange(count)
    if op == "prod":
        values = 1 + (i // (rank + 2)) % 2
        signs = 1 - 2 * ((i // (2 * rank + 3)) % 2)
        return (values if dtype.kind == "u" else values * signs).astype(dtype)
    values = (i * (rank + 3) + 7 * rank + i // 5) % 5
    if dtype.kind != "u":
        values -= 2
        if dtype.kind == "i" and op == "avg":
            values *= 2  # which way an integer is rounded is not checked
    if dtype.kind in "iu" and dtype.itemsize == 8 and op in ("sum", "max", "min"):
        values += 1 << 55  # a double does not hold it
    return values.astype(dtype)


def reduced(name, op, count=COUNT, scale=None):
    """What an operation makes of the operands of all ranks, each multiplied by scale."""
    numpy, dtype = np(), numpy_type(name)
    wide = dtype if dtype.kind in "iu" else numpy.dtype("float64")
    parts = [operand(name, r, op, count).astype(wide) for r in range(SIZE)]
    if scale is not None:
        parts = [p * numpy.asarray(scale).astype(wide) for p in parts]
    function = {"prod": numpy.multiply, "max": numpy.maximum, "min": numpy.minimum}.get(op, numpy.add)
    result = functools.reduce(function, parts)
    if op == "avg":
        result = result // SIZE if dtype.kind in "iu" else result / SIZE
    return result.astype(dtype)


def joined(name, count=COUNT):
    return np().concatenate([operand(name, r, count=count) for r in range(SIZE)])


def part(array, index):
    return np().split(array, SIZE)[index]


def expect(got, want):
    """Compares arrays of NumPy."""
    numpy = np()
    got = numpy.asarray(got)
    is_so = f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}"
    assert (got.dtype, got.shape) == (want.dtype, want.shape), is_so
    wide = want.dtype if want.dtype.kind in "iub?c" else numpy.dtype("float64")
    wrong = numpy.flatnonzero(got.astype(wide) != want.astype(wide))  # what is no number too
    assert not len(wrong), (f"{len(wrong)} of {want.size} elements are wrong, e.g. [{wrong[0]}] is "
                            f"{got.flat[wrong[0]]}, not {want.flat[wrong[0]]}")


# Tensors of PyTorch.


def torch_device():
    return "cpu" if HOST else "cuda:0"


def torch_ready():
    torch, = need("torch")
    need("numpy", "ml_dtypes")
    if not HOST:
        if not torch.cuda.is_available():
            raise Missing("PyTorch sees no GPU")
        torch.cuda.set_device(0)
        torch.zeros(1, device=torch_device())  # makes the context, which others take
    return torch


def torch_type(name):
    return getattr(importlib.import_module("torch"), name)


def tensor(array, name):
    torch = importlib.import_module("torch")
    numpy = np()
    if not array.size:
        return torch.empty(0, dtype=torch_type(name), device=torch_device())
    raw = torch.from_numpy(numpy.ascontiguousarray(array).view(numpy.uint8).copy())
    return raw.to(torch_device()).view(torch_type(name))


def blank(count, name):
    """A tensor that has nothing yet which could be taken for a result."""
    return tensor(np().full(count, 99, numpy_type(name)), name)


def array(tensor_, name):
    torch = importlib.import_module("torch")
    if not HOST:
        torch.cuda.synchronize()
    if not tensor_.numel():
        return np().empty(0, numpy_type(name))
    return tensor_.contiguous().view(torch.uint8).cpu().numpy().copy().view(numpy_type(name))


def expect_tensor(tensor_, want, name):
    expect(array(tensor_, name), want)
