"""Every collective of JAX, with its data checked: two processes that share GPU 0.

    tutti run -- python3 tests/gpu/jax_calls.py [SECTION]...

Runs all sections, or those whose names are given. Exit code 77: there is no JAX here, or no GPU for it.
JAX_PLATFORMS=cpu has JAX do the same without NCCL, which shows what is JAX's own fault."""
import functools
import operator
import os
import pathlib
import socket
import sys

import checks
from checks import COUNT, RANK, SIZE, check, expect, operand, part, reduced, section

TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]
MOVED = TYPES + ["bool", "int16", "uint16", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]
CPU = os.environ.get("JAX_PLATFORMS") == "cpu"
made = {}  # modules and the mesh


def log():
    return pathlib.Path(checks.FOLDER, f"nccl-{RANK}.log")


def environment():
    os.environ.setdefault("JAX_PLATFORMS", "cuda")
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_ENABLE_X64"] = "true"
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(log()))


def prepare():
    environment()
    jax, made["np"], _ = checks.need("jax", "numpy", "ml_dtypes")
    if RANK == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            checks.put("address", f"127.0.0.1:{free.getsockname()[1]}".encode())
    address = checks.get("address").decode()
    jax.distributed.initialize(address, SIZE, RANK, local_device_ids=None if CPU else [0])
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError) as none:  # the latter where JAX has no CUDA at all
        raise checks.Missing(f"JAX sees no GPU {none}") from none
    assert len(devices) == SIZE and len(jax.local_devices()) == 1, devices
    made.update(jax=jax, lax=jax.lax, jnp=jax.numpy, mesh=jax.sharding.Mesh(devices, "x"))
    made["multihost"], = checks.need("jax.experimental.multihost_utils")


def lax():
    return made["lax"]


def spec(*axes):
    return made["jax"].sharding.PartitionSpec(*axes)


def sharding(*axes):
    return made["jax"].sharding.NamedSharding(made["mesh"], spec(*axes))


def mine(name, op="sum", count=COUNT):
    return data(name, RANK, op, count)


def data(name, rank, op="sum", count=COUNT):
    if name in ("bool", "int16", "uint16"):
        return operand("int32", rank, op, count).astype(name)
    if name.startswith("complex"):
        return (operand("float64", rank, op, count) + 1j * operand("float64", rank + 2, op, count)).astype(name)
    return operand(name, rank, op, count)


def both(name, op="sum", count=COUNT):
    return [data(name, r, op, count) for r in range(SIZE)]


def spread(local):
    """The array of which each process has a row."""
    return made["jax"].make_array_from_process_local_data(sharding("x"), local[None])


def own(whole):
    """This process's row of an array of JAX, for NumPy."""
    return made["np"].asarray(whole.addressable_shards[0].data)


def run(function, local):
    """What a function of each process's array returns here."""
    mapped = made["jax"].shard_map(lambda row: function(row[0])[None], mesh=made["mesh"], in_specs=spec("x"),
                                   out_specs=spec("x"), check_vma=False)
    return own(made["jax"].jit(mapped)(spread(local)))[0]


@section
def sums():
    for name in TYPES + ["complex64", "complex128"]:
        with check(f"psum {name}"):
            want = sum(both(name)) if "complex" in name else reduced(name, "sum")
            expect(run(lambda v: lax().psum(v, "x"), mine(name)), want)
    for name in checks.FLOATS + ["bfloat16"]:
        with check(f"pmean {name}"):
            expect(run(lambda v: lax().pmean(v, "x"), mine(name, "avg")), reduced(name, "avg"))
    for count in (1, 2, 7, 65537, 2_000_003):
        with check(f"psum of {count}"):
            expect(run(lambda v: lax().psum(v, "x"), mine("float32", count=count)), reduced("float32", "sum", count))
    with check("psum of a number"):
        expect(run(lambda v: v * lax().psum(1, "x"), mine("int32")), mine("int32") * made["np"].int32(SIZE))


@section
def extremes():
    for name in TYPES:
        with check(f"pmax {name}"):
            expect(run(lambda v: lax().pmax(v, "x"), mine(name, "max")), reduced(name, "max"))
        with check(f"pmin {name}"):
            expect(run(lambda v: lax().pmin(v, "x"), mine(name, "min")), reduced(name, "min"))


@section
def gathers():
    for name in MOVED:
        with check(f"all_gather {name}"):
            expect(run(lambda v: lax().all_gather(v, "x"), mine(name)), made["np"].stack(both(name)))
        with check(f"all_gather tiled {name}"):
            expect(run(lambda v: lax().all_gather(v, "x", tiled=True), mine(name)), made["np"].concatenate(both(name)))
    with check("all_gather along the second axis"):
        def gather(v):
            return lax().all_gather(v.reshape(10, 20), "x", axis=1, tiled=True)
        want = made["np"].concatenate([d.reshape(10, 20) for d in both("float32", count=200)], axis=1)
        expect(run(gather, mine("float32", count=200)), want)


@section
def scatters():
    for name in TYPES:
        want = part(reduced(name, "sum", SIZE * COUNT), RANK)
        with check(f"psum_scatter {name}"):
            got = run(lambda v: lax().psum_scatter(v.reshape(SIZE, COUNT), "x"), mine(name, count=SIZE * COUNT))
            expect(got, want)
        with check(f"psum_scatter tiled {name}"):
            expect(run(lambda v: lax().psum_scatter(v, "x", tiled=True), mine(name, count=SIZE * COUNT)), want)


@section
def all_to_all():
    for name in MOVED:
        want = [part(d, RANK) for d in both(name, count=SIZE * COUNT)]
        with check(f"all_to_all {name}"):
            got = run(lambda v: lax().all_to_all(v.reshape(SIZE, COUNT), "x", 0, 0), mine(name, count=SIZE * COUNT))
            expect(got, made["np"].stack(want))
        with check(f"all_to_all tiled {name}"):
            got = run(lambda v: lax().all_to_all(v, "x", 0, 0, tiled=True), mine(name, count=SIZE * COUNT))
            expect(got, made["np"].concatenate(want))
    with check("all_to_all from the first axis to the second"):
        got = run(lambda v: lax().all_to_all(v.reshape(4, 6), "x", 0, 1, tiled=True), mine("int32", count=24))
        parts = [d.reshape(4, 6)[2 * RANK:2 * RANK + 2] for d in both("int32", count=24)]
        expect(got, made["np"].concatenate(parts, axis=1))


@section
def permutations():
    for name in MOVED:
        with check(f"ppermute {name}"):
            expect(run(lambda v: lax().ppermute(v, "x", [(0, 1), (1, 0)]), mine(name)), data(name, 1 - RANK))
        with check(f"ppermute of one {name}"):
            want = data(name, 0) if RANK == 1 else made["np"].zeros_like(mine(name))
            expect(run(lambda v: lax().ppermute(v, "x", [(0, 1)]), mine(name)), want)
    for name in TYPES:
        with check(f"pshuffle {name}"):
            expect(run(lambda v: lax().pshuffle(v, "x", [1, 0]), mine(name)), data(name, 1 - RANK))


@section
def mapped():
    jax = made["jax"]
    for name in TYPES:
        with check(f"pmap psum {name}"):
            got = jax.pmap(lambda v: lax().psum(v, "x"), axis_name="x")(mine(name)[None])
            expect(own(got)[0], reduced(name, "sum"))
    with check("pmap all_gather"):
        got = jax.pmap(lambda v: lax().all_gather(v, "x"), axis_name="x")(mine("float32")[None])
        expect(own(got)[0], made["np"].stack(both("float32")))
    with check("pmap ppermute"):
        got = jax.pmap(lambda v: lax().ppermute(v, "x", [(0, 1), (1, 0)]), axis_name="x")(mine("float32")[None])
        expect(own(got)[0], data("float32", 1 - RANK))


@section
def programs():
    """Several collectives in a program."""
    jax, jnp, np = made["jax"], made["jnp"], made["np"]
    with check("psum of several arrays"):
        def several(v):
            a, b, c = lax().psum((v, 2 * v, v[:7]), "x")
            return jnp.concatenate([a, b, c])
        total = reduced("float32", "sum")
        expect(run(several, mine("float32")), np.concatenate([total, 2 * total, total[:7]]))
    with check("a loop of psum"):
        got = run(lambda v: lax().fori_loop(0, 10, lambda _, w: lax().psum(w, "x") / SIZE, v), mine("float32", "avg"))
        expect(got, reduced("float32", "avg"))
    with check("all of them, each with what the other gave"):
        def chain(v):
            v = lax().all_gather(v, "x", tiled=True)
            v = lax().psum_scatter(v, "x", tiled=True)
            v = lax().ppermute(v, "x", [(0, 1), (1, 0)])
            return lax().pmax(v, "x")
        expect(run(chain, mine("float32")), np.maximum(*[SIZE * d for d in both("float32")]))
    with check("gradient of psum"):
        def loss(v):
            return (lax().psum(v, "x") ** 2).sum()
        mapping = jax.shard_map(lambda row: loss(row), mesh=made["mesh"], in_specs=spec("x"), out_specs=spec())
        got = jax.jit(jax.grad(lambda whole: mapping(whole)))(spread(mine("float32")))
        expect(own(got)[0], 2 * reduced("float32", "sum"))
    with check("the same program many times"):
        again = jax.jit(jax.shard_map(lambda v: lax().psum(v, "x"), mesh=made["mesh"], in_specs=spec("x"),
                                      out_specs=spec("x"), check_vma=False))
        whole = spread(mine("int32") % np.int32(2))
        for _ in range(20):
            whole = again(whole)
        expect(own(whole)[0], sum(d % np.int32(2) for d in both("int32")) * np.int32(2 ** 19))


@section
def partitioned():
    """Collectives that XLA puts in by itself."""
    jax, np = made["jax"], made["np"]
    whole = spread(mine("float32", count=64 * 64).reshape(64, 64))
    rows = [d.reshape(64, 64) for d in both("float32", count=64 * 64)]
    everywhere = {"out_shardings": sharding()}
    with check("sum over the axis that is spread"):
        expect(own(jax.jit(lambda w: w.sum(0), **everywhere)(whole)), functools.reduce(operator.add, rows))
    with check("maximum over the axis that is spread"):
        expect(own(jax.jit(lambda w: w.max(0), **everywhere)(whole)), np.maximum(*rows))
    with check("product of matrices over the axis that is spread"):
        got = jax.jit(lambda w: made["jnp"].einsum("rik,rkj->ij", w, w), **everywhere)(whole)
        expect(own(got), functools.reduce(operator.add, [r @ r for r in rows]))
    with check("from spread to everywhere"):
        expect(own(jax.jit(lambda w: w, **everywhere)(whole)), np.stack(rows))
    with check("from one axis to another"):
        got = jax.jit(lambda w: w, out_shardings=sharding(None, "x"))(whole)
        expect(own(got), np.stack(rows)[:, 32 * RANK:32 * RANK + 32])
    with check("device_put to everywhere"):
        expect(own(jax.device_put(whole, sharding())), np.stack(rows))


@section
def hosts():
    utils, np = made["multihost"], made["np"]
    for name in TYPES:
        with check(f"process_allgather {name}"):
            expect(np.asarray(utils.process_allgather(mine(name))), np.stack(both(name)))
        with check(f"process_allgather tiled {name}"):
            expect(np.asarray(utils.process_allgather(mine(name), tiled=True)), np.concatenate(both(name)))
        for source in range(SIZE):
            with check(f"broadcast_one_to_all {name} of {source}"):
                got = utils.broadcast_one_to_all(mine(name), is_source=RANK == source)
                expect(np.asarray(got), data(name, source))
    with check("sync_global_devices"):
        utils.sync_global_devices("here")
    with check("assert_equal"):
        utils.assert_equal(np.arange(5), "the same")
    checks.refused("assert_equal of what is not", AssertionError, utils.assert_equal, np.arange(5) + RANK, "not")


@section
def end():
    if not CPU:
        with check("it is still our libnccl.so.2, and JAX called it"):
            checks.only_ours()
            text = log().read_text()
            assert "TUTTI" in text and f"nranks {SIZE}" in text, text[-2000:]
    with check("shutdown"):
        made["jax"].distributed.shutdown()


if __name__ == "__main__":
    sys.exit(checks.main("jax", prepare, sys.argv[1:]))
