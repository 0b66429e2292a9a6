"""A server with JAX: holds weights, and answers each line of the standard input with a digest.

usage: jax_turns.py MIB
"""

from __future__ import annotations

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy

WIDTH = 4096


def main() -> None:
    """Answers until the input ends."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    layers = max(mib * 2**20 // (WIDTH * WIDTH * 4), 1)
    keys = jax.random.split(jax.random.PRNGKey(5), layers)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / 64 for key in keys]
    value = jnp.ones((8, WIDTH))

    @jax.jit
    def step(value: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.tanh(value @ weight)

    value = step(value, weights[0]).block_until_ready()
    print("ready", flush=True)
    for _ in sys.stdin:
        for weight in weights:
            value = step(value, weight)
        print(hashlib.sha256(numpy.asarray(value).tobytes()).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main()
