"""One all-reduce over all GPUs by JAX, checked: python3 jax_allreduce.py"""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

devices = jax.devices("gpu")
mesh = Mesh(devices, "gpu")
n, count = len(devices), 1_000_003
total = jax.jit(shard_map(lambda x: jax.lax.psum(x, "gpu"), mesh=mesh,
                          in_specs=PartitionSpec("gpu"), out_specs=PartitionSpec("gpu")))
rows = jnp.broadcast_to(jnp.arange(1, n + 1, dtype=jnp.float32)[:, None], (n, count))
out = total(jax.device_put(rows, NamedSharding(mesh, PartitionSpec("gpu"))))
assert (out == n * (n + 1) / 2).all(), "wrong sum"
print(f"jax {jax.__version__}: {n} GPUs, ok")
