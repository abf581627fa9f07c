"""Explaining a chain: what it is, how it runs and what it costs, before anything is read.

Invariant: no record is read and no function of the user's is called but selection maps, and what
tells specs; of the sources, lengths, layouts and metadata are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from windrow import specs
from windrow.budget import bytes_per_record
from windrow.costs import Amount
from windrow.defaults import default_options
from windrow.errors import WindrowError
from windrow.explanation import Explanation, NodeLine
from windrow.forecast import forecast, sources_of
from windrow.sources import (
    ArraySpec,
    LaidOutSource,
)
from windrow.transforms.functions import name_of
from windrow.transforms.halves import has_function
from windrow.transforms.nodes import (
    ENDLESS,
    STREAM,
    BatchNode,
    FilterNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    RangeNode,
    SourceNode,
    ZipNode,
)
from windrow.transforms.streams import (
    ToStreamNode,
)

_INTEGER_BYTES = 8


def explained(node: Node) -> Explanation:
    """What a chain is and costs; one with random access as the stream that iterating makes of it.

    Raises:
        ReadError: If the layout of a source can not be looked at.
    """
    if node.length != STREAM:
        node = ToStreamNode((node,), default_options(node))
    found = forecast(node)
    order = list(_parents_first(node))
    numbers = {id(each): number for number, each in enumerate(order)}
    sources = {id(source): number for number, source in enumerate(sources_of(node))}
    lines = tuple(_line(each, numbers, sources) for each in order)
    batches = found.elements
    per_batch = 1 / batches.middle if batches.low else None
    return Explanation(
        nodes=lines,
        spec=lines[-1].spec,
        length=round(batches.low) if batches.is_exact and not found.is_endless else None,
        is_endless=found.is_endless,
        batch_bytes=lines[-1].element_bytes,
        batches=batches,
        epoch=found.epoch,
        later_epoch=found.later_epoch,
        batch=() if per_batch is None else tuple(c.times(per_batch) for c in found.epoch),
        buffers=sum(found.buffers_by.values(), start=Amount.exactly(0)),
        buffers_by=found.buffers_by,
        unknown=found.unknown,
    )


def _parents_first(node: Node) -> Iterator[Node]:
    seen: set[int] = set()

    def walk(below: Node) -> Iterator[Node]:
        if id(below) in seen:
            return
        seen.add(id(below))
        for parent in below.parents:
            yield from walk(parent)
        yield below

    yield from walk(node)


def _line(node: Node, numbers: dict[int, int], sources: dict[int, int]) -> NodeLine:
    return NodeLine(
        number=numbers[id(node)],
        label=label_of(node),
        runs="",
        spec=spec_of(node),
        length=_length(node),
        element_bytes=element_bytes(node),
        parents=tuple(numbers[id(parent)] for parent in node.parents),
        source=sources[id(node.source)] if isinstance(node, SourceNode) else None,
    )


def label_of(node: Node) -> str:
    """A node as written, with the names of functions."""
    match node:
        case SourceNode():
            return f"source({node.source!r})"
        case MapNode() | MapWithIndexNode() | RandomMapNode() | FilterNode():
            name, _, more = node.label.partition("(")
            return f"{name}({', '.join(filter(None, [name_of(node.function), more.rstrip(')')]))})"
        case _:
            return node.label


def _length(node: Node) -> int | None:
    return None if node.length in (STREAM, ENDLESS) else node.length


# --- bytes ---------------------------------------------------------------------------------------


def spec_of(node: Node) -> Any:
    """The spec of a node's elements; None where nothing tells it."""
    try:
        return specs.element_spec(node)
    except WindrowError:
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
            below = element_bytes(node.parent)
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
    """Bytes of a record of a source, on average; None where nothing tells them."""
    told = getattr(source, "spec", None)
    size = None if told is None else spec_bytes(told)
    if size is None and isinstance(source, LaidOutSource):
        size = sum(bytes_per_record(part, len(source)) for part in source.parts)
    return None if size is None else Amount.exactly(size)
