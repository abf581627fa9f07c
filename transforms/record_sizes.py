"""Record sizes: bytes of records and elements, as far as specs and layouts state them, and of elements in memory.

Invariant: nothing is read, and a size costs little: of what is long or nested, a part is examined.
"""

from __future__ import annotations

import collections
import itertools
import math
import sys
from collections.abc import Collection, Sequence
from typing import Any, Final

from windrow.sources.base import ArraySpec
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart
from windrow.sources.memory import RangeDataSource
from windrow.sources.part_sizes import bytes_per_record, decoded_per_record
from windrow.transforms.amounts import Amount
from windrow.transforms.specs import Spec

MADE: Final = 16
"""How many times the bytes of its records an element has at most, if nothing else is known of it."""

# The same for bytes that are handed over as they are stored.
_RAW: Final = 2

_LEAST: Final = 64
"""Bytes of an object, at least."""

# Long lists are columns or batches of similar rows: a sample suffices.
_SAMPLE: Final = 8
_MOST_DEPTH: Final = 3


def spec_bytes(spec: Spec) -> int | None:
    """Bytes of an element of a spec; None where they differ or are not known."""
    if isinstance(spec, ArraySpec):
        if None in spec.shape or spec.dtype.hasobject:
            return None
        return math.prod(n for n in spec.shape if n is not None) * spec.dtype.itemsize
    children: Sequence[Any]
    if isinstance(spec, dict):
        children = list(spec.values())
    elif isinstance(spec, (list, tuple)):
        children = spec
    else:
        return None
    sizes = [spec_bytes(child) for child in children]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def record_bytes(source: Any) -> Amount | None:
    """Bytes of a record of a source, on average; None if they are not known."""
    if isinstance(source, RangeDataSource):
        return Amount.exactly(nbytes([0]))  # integers as objects
    declared = getattr(source, "spec", None)
    size = None if declared is None else spec_bytes(declared)
    if size is not None:
        return Amount.exactly(size)
    if not isinstance(source, LaidOutSource):
        return None
    found = Amount.exactly(0)
    for part in source.parts:
        if isinstance(part, (ArrayPart, BoxPart)):
            found += Amount.exactly(bytes_per_record(part, len(source)))
        elif declared is bytes and isinstance(part, ListPart) and part.record_bytes is not None:
            found += Amount.exactly(part.record_bytes)
        else:
            # The bytes of lists are estimated by the first; what is made of them may have more.
            mean, factor = (
                decoded_per_record(part, len(source)),
                _RAW if declared is bytes else MADE,
            )
            found += Amount(mean / factor, mean * factor)
    return found


# --- in memory ---------------------------------------------------------------------------------


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
    if depth > _MOST_DEPTH or isinstance(tree, (type, int, float, complex)):
        return _LEAST
    return max(_LEAST, _of_object(tree, depth + 1))


def _sampled(values: Collection[Any], depth: int) -> int:
    some = list(itertools.islice(values, _SAMPLE))
    return sum(nbytes(each, depth) for each in some) * len(values) // max(1, len(some))


def _of_object(value: Any, depth: int) -> int:
    fields = dict(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            fields[name] = getattr(value, name, None)
    inside = value if isinstance(value, (set, frozenset, collections.deque)) else ()
    held = sum(nbytes(each, depth) for each in fields.values()) + _sampled(inside, depth)
    return sys.getsizeof(value, 0) + held
