"""Record sizes: bytes of records and elements, as far as specs and layouts state them.

Invariant: nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from windrow.sources.base import ArraySpec
from windrow.sources.boxes import BoxPart
from windrow.sources.chunks import ArrayPart, LaidOutSource
from windrow.sources.memory import RangeDataSource
from windrow.sources.part_sizes import bytes_per_record
from windrow.stats.costs import Amount
from windrow.transforms.columns import nbytes
from windrow.transforms.nodes import STREAM, BatchNode, Node, RangeNode, SourceNode, ZipNode
from windrow.transforms.nodes.split import has_function

_INTEGER_BYTES: Final = 8
# How much more or less than judged records may have.
_RAW: Final = 2
MADE: Final = 16


def spec_of(node: Node) -> Any:
    """The spec of a node's elements; None if it is not known."""
    try:
        return node.element_spec()
    except Exception:  # of a method `output_spec`, too: a chain runs without
        return None


def spec_bytes(spec: Any) -> int | None:
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


def element_bytes(node: Node) -> Amount | None:
    """Bytes of an element of a node, on average; None where they are not known."""
    match node:
        case SourceNode():
            return record_bytes(node.source)
        case RangeNode():
            return Amount.exactly(_INTEGER_BYTES)
        case BatchNode(batch_fn=None):
            # A number takes less in an array than as an object.
            size = spec_bytes(spec_of(node.parent))
            below = element_bytes(node.parent) if size is None else Amount.exactly(size)
            most = node.size if node.parent.length == STREAM else min(node.size, node.parent.length)
            return None if below is None else below.times(most)
        case ZipNode():
            parts = [element_bytes(parent) for parent in node.parents]
            known = [part for part in parts if part is not None]
            return sum(known, start=Amount.exactly(0)) if len(known) == len(parts) else None
        case _ if has_function(node):
            size = spec_bytes(spec_of(node))
            return None if size is None else Amount.exactly(size)
        case _:
            parts = [element_bytes(parent) for parent in node.parents]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts) or not known:
                return None
            return Amount(min(part.low for part in known), max(part.high for part in known))


def record_bytes(source: Any) -> Amount | None:
    """Bytes of a record of a source, on average; None if they are not known."""
    if isinstance(source, RangeDataSource):
        return Amount.exactly(nbytes([0]))  # integers as objects
    told = getattr(source, "spec", None)
    size = None if told is None else spec_bytes(told)
    if size is not None:
        return Amount.exactly(size)
    if not isinstance(source, LaidOutSource):
        return None
    found = Amount.exactly(0)
    for part in source.parts:
        mean = Amount.exactly(bytes_per_record(part, len(source)))
        if not isinstance(part, (ArrayPart, BoxPart)):
            # What lists of records take is judged by the first; what is made of them may be more.
            factor = _RAW if told is bytes else MADE
            mean = Amount(mean.low / factor, mean.low * factor)
        found += mean
    return found
