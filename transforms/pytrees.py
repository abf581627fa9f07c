"""Objects of classes that are registered with JAX as trees, as containers of their children.

Such classes are made by `flax.struct.dataclass` and `jax.tree_util.register_dataclass`, for example.

Invariant: JAX is never imported. In a process that has not imported it, no object is such a tree. A worker process
may lack JAX, or have a class by value, so what it cannot stack is stacked where its results are taken.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from windrow.errors import ElementError

# JAX knows none of them as a tree, and they are frequent.
_LEAVES = (np.ndarray, np.generic, bytes, str, bool, int, float, complex, type, type(None))
_STRINGS = (bytes, str)
_NUMERIC = (np.ndarray, np.generic, bool, int, float, complex)


class Pytree(tuple[Any, ...]):
    """The children of an object that JAX knows as a tree, or what takes their place.

    Children that are None belong to the class of the tree, as in JAX.
    """

    kind: Any  # a PyTreeDef of one level
    keys: tuple[str | int, ...]

    @classmethod
    def of(cls, children: Iterable[Any], kind: Any, keys: tuple[str | int, ...]) -> Pytree:
        """The children, of an object of a kind, with the keys that lead to them."""
        made = cls(children)
        made.kind, made.keys = kind, keys
        return made

    def like(self, children: Iterable[Any]) -> Pytree:
        """Other children of the same kind."""
        return Pytree.of(children, self.kind, self.keys)

    def made(self) -> Any:
        """The object of these children."""
        return self.kind.unflatten(self)


def opened(value: Any) -> Pytree | None:
    """The children of an object that JAX knows as a tree; None for any other, and for dicts, lists and tuples."""
    if isinstance(value, (*_LEAVES, dict, list, tuple)):
        return None
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None:
        return None

    def is_child(other: Any) -> bool:
        return other is not value and other is not None

    children, kind = tree_util.tree_flatten(value, is_leaf=is_child)
    if len(children) == 1 and children[0] is value:
        return None
    paths, _ = tree_util.tree_flatten_with_path(value, is_leaf=is_child)
    return Pytree.of(children, kind, tuple(_key(path[0]) for path, _ in paths))


def _key(entry: Any) -> str | int:
    """The name of a child, for paths and messages."""
    for name in ("name", "key", "idx"):  # of a field, of a dict, of a sequence
        found = getattr(entry, name, None)
        if isinstance(found, str | int):
            return found
    return str(entry)


# --- in worker processes -------------------------------------------------------------------------


class Unstacked:
    """Rows of a leaf of a batch that a worker has made, and which may be a tree where results are taken.

    Functions cannot use it, since they would get something else there.
    """

    __slots__ = ("rows",)
    nbytes = None  # as their fields have

    def __init__(self, rows: list[Any]) -> None:
        """Keep the rows."""
        self.rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        return Unstacked, (self.rows,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a protocol that is asked for
            raise AttributeError(name)
        self.refuse()

    def refuse(self, *_: object) -> NoReturn:
        """Raise the error that says what to write."""
        raise ElementError(
            f"batch: a worker process does not know whether JAX has {type(self.rows[0]).__name__} as a tree, and"
            " the batch is used or padded there; define the class in a module that imports jax, not in the main program,"
            " or put mp_prefetch before the batch, or give batch_fn (batch_fn=list for a list of the objects)"
        )

    __len__ = __iter__ = __getitem__ = __bool__ = __contains__ = refuse


_made: contextvars.ContextVar[list[Unstacked] | None] = contextvars.ContextVar("made", default=None)


@contextlib.contextmanager
def noting_unstacked() -> Iterator[list[Unstacked]]:
    """Note rows of unknown objects that batches are made of meanwhile."""
    found: list[Unstacked] = []
    token = _made.set(found)
    try:
        yield found
    finally:
        _made.reset(token)


def unstacked(rows: list[Any]) -> Any:
    """Rows of a leaf that are not stacked; noted if they are objects and a worker makes them.

    Raises:
        ElementError: If some are strings, and others numbers or arrays.
    """
    kinds = set(map(type, rows))
    numeric = {
        kind for kind in kinds if issubclass(kind, _NUMERIC) and not issubclass(kind, _STRINGS)
    }
    if numeric and any(issubclass(kind, _STRINGS) for kind in kinds):
        named = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ElementError(
            f"batch: one leaf has elements of {named}; strings and numbers have no column together:"
            " convert them in a map before the batch, or pass batch_fn"
        )
    noted = _made.get()
    if noted is None or isinstance(rows[0], (*_LEAVES, dict, list, tuple)):
        return rows
    noted.append(made := Unstacked(rows))
    return made
