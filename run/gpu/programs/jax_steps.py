"""Trains a small network with JAX, jitted and op by op, and prints a digest of the weights.

The environment chooses JAX's allocator: its own by default, or the driver's with XLA_PYTHON_CLIENT_ALLOCATOR=platform.
"""

from __future__ import annotations

import hashlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def digest(arrays: object) -> str:
    """Returns a digest of the bytes of all arrays."""
    found = hashlib.sha256()
    for array in jax.tree_util.tree_leaves(arrays):
        found.update(np.asarray(array).tobytes())
    return found.hexdigest()[:16]


def loss(weights: list[jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the mean squared error of a network of three layers."""
    for weight in weights:
        inputs = jnp.tanh(inputs @ weight)
    return jnp.mean((inputs - targets) ** 2)


def main() -> None:
    """Trains and prints."""
    jitted = sys.argv[1] == "jit"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    width = int(sys.argv[3]) if len(sys.argv) > 3 else 768
    random = np.random.default_rng(3)
    weights = [jnp.asarray(random.standard_normal((width, width), dtype=np.float32) / width**0.5) for _ in range(4)]
    gradient = jax.value_and_grad(loss)
    if jitted:
        gradient = jax.jit(gradient)
    begin = time.perf_counter()
    for step in range(steps):
        # The batch varies, so that sizes vary from step to step.
        batch = 64 + 32 * (step % 3)
        inputs = jnp.asarray(random.standard_normal((batch, width), dtype=np.float32))
        targets = jnp.asarray(random.standard_normal((batch, width), dtype=np.float32))
        value, slopes = gradient(weights, inputs, targets)
        weights = [weight - 0.01 * slope for weight, slope in zip(weights, slopes)]
    value.block_until_ready()
    print(f"seconds {time.perf_counter() - begin:.3f}", file=sys.stderr)
    print(f"jax {digest(weights)} {float(value).hex()}")


if __name__ == "__main__":
    main()
