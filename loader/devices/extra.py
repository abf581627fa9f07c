"""JAX, which only this room and checkpoints need, or an error that names the extra."""

from __future__ import annotations

from windrow.errors import missing_extra

try:
    import jax
except ImportError as error:
    raise missing_extra("to_jax", "jax") from error

__all__ = ["jax"]
