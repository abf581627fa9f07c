"""Record sizes: bytes of records and elements, as far as specs and layouts state them.

Invariant: nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from windrow.sources.base import ArraySpec
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart
from windrow.sources.memory import RangeDataSource
from windrow.sources.part_sizes import bytes_per_record, decoded_per_record
from windrow.transforms.amounts import Amount
from windrow.transforms.sizes import nbytes
from windrow.transforms.specs import Spec

MADE: Final = 16
"""How many times the bytes of its records an element has at most, if nothing else is known of it."""

# The same for bytes that are handed over as they are stored.
_RAW: Final = 2


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
