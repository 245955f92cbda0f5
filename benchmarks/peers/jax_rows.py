"""The rows in JAX: its own operators eagerly, gradients traced anew and compiled."""

from __future__ import annotations

from typing import Any

from ..cases import SIZE
from .rows import Rows, repeated

__all__ = ["jax_rows"]


def jax_rows() -> Rows:
    """Return the rows in JAX, which traces where the others record."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    x, y = jnp.ones(SIZE), jnp.ones(SIZE)

    def total(a: Any, b: Any) -> Any:
        return repeated(jnp.multiply, a, b).sum()

    one, compiled = jax.grad(total), jax.jit(jax.grad(total))

    return {
        "call": {"native": lambda: jnp.multiply(x, y).block_until_ready()},
        "number": {"native": lambda: (x * 2.0).block_until_ready()},
        "chain_built_in": {
            "grad": lambda: one(x, y).block_until_ready(),
            "jit(grad)": lambda: compiled(x, y).block_until_ready(),
        },
        "view": {"native": lambda: x[1:].block_until_ready()},
        "capture": {"make_jaxpr": lambda: jax.make_jaxpr(total)(x, y)},
    }
