"""Sizes: approximate bytes of elements and columns in memory.

Invariant: a size costs little, whatever an element holds: of what is long or nested, a part is looked at.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Collection
from typing import Any, Final

_LEAST: Final = 64
"""Bytes of an object, at least."""

# Long lists are columns or batches of similar rows: a sample suffices.
_SAMPLE: Final = 8
_MOST_DEPTH: Final = 3


def nbytes(tree: Any, depth: int = 0) -> int:
    """Approximate bytes of an element or of columns: of arrays and strings, also in the fields of objects.

    Args:
        tree: An element or columns.
        depth: How many objects it is in.
    """
    if isinstance(tree, dict):
        return _sampled(tree.values(), depth) if depth else sum(map(nbytes, tree.values()))
    if isinstance(tree, (list, tuple)):
        return _sampled(tree, depth)
    if isinstance(tree, (bytes, str, bytearray)):
        return len(tree)
    size = getattr(tree, "nbytes", None)  # of NumPy's arrays, of JAX's, of memoryview
    if isinstance(size, int):
        return size
    return _LEAST if depth > _MOST_DEPTH else max(_LEAST, _of_object(tree, depth + 1))


def _sampled(values: Collection[Any], depth: int) -> int:
    some = list(itertools.islice(values, _SAMPLE))
    return sum(nbytes(each, depth) for each in some) * len(values) // max(1, len(some))


def _of_object(value: Any, depth: int) -> int:
    if isinstance(value, (type, int, float, complex)):
        return 0
    fields = dict(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            fields[name] = getattr(value, name, None)
    inside = value if isinstance(value, (set, frozenset, collections.deque)) else ()
    held = sum(nbytes(each, depth) for each in fields.values()) + _sampled(inside, depth)
    return sys.getsizeof(value, 0) + held
