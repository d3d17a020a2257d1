"""One all-reduce over all GPUs by JAX, one process for all of them, checked.

    NCCL_DEBUG=VERSION tutti run -- python3 tests/gpu/jax_allreduce.py

JAX loads the NCCL that was installed with it, if no other is there already: LD_LIBRARY_PATH is not
enough. Exit code 77: there is no JAX here, or no GPU for it."""
import sys

try:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
try:
    from jax import shard_map
except ImportError:  # before JAX 0.6
    from jax.experimental.shard_map import shard_map

try:
    devices = jax.devices("gpu")
except RuntimeError as none:
    print(f"skipped: {none}")
    sys.exit(77)
mesh = Mesh(devices, "gpu")
n, count = len(devices), 1_000_003
total = jax.jit(shard_map(lambda x: jax.lax.psum(x, "gpu"), mesh=mesh,
                          in_specs=PartitionSpec("gpu"), out_specs=PartitionSpec("gpu")))
rows = jnp.broadcast_to(jnp.arange(1, n + 1, dtype=jnp.float32)[:, None], (n, count))
out = total(jax.device_put(rows, NamedSharding(mesh, PartitionSpec("gpu"))))
assert (out == n * (n + 1) / 2).all(), "wrong sum"
print(f"jax {jax.__version__}: {n} GPUs, ok")
