"""Explains a chain: its nodes, how it runs and what it costs, before anything is read.

Invariant: no record is read. The only functions of the user's that are called are selection maps
and those that return specs. Only lengths, layouts and metadata of the sources are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from windrow.engine.budgets import default_options
from windrow.explain.across import SharedStream, across, advice_on_lanes
from windrow.explain.advice import advice_on
from windrow.explain.explanation import Explanation, NodeLine
from windrow.explain.read_costs import Figures, about, at_least, figures_of
from windrow.explain.running import running
from windrow.quality.shuffle_quality import quality_of
from windrow.stats.costs import Amount, SourceCosts, combined
from windrow.transforms.nodes import (
    STREAM,
    VAST,
    Node,
    ToStreamNode,
    parents_first,
    source_of,
    sources_of,
)
from windrow.transforms.nodes.epochs import first_epoch
from windrow.transforms.nodes.metadata import element_bytes, known_spec
from windrow.transforms.nodes.tail import tail_of
from windrow.transforms.record_sizes import record_bytes

_OTHERS_END: Final = (
    "at which batch another shard ends, and with it all of them: numbers are as if at any batch"
)


def explained(node: Node, shared: SharedStream | None = None) -> Explanation:
    """Explain a chain; a chain with random access is explained as the stream of its iterator.

    Args:
        node: The chain.
        shared: The stream that several processes share, if the chain is the part of one of them.

    Raises:
        ReadError: If the layout of a source cannot be read.
    """
    if node.length != STREAM:
        node = ToStreamNode((node,), default_options(node))
    whole, tail = node, tail_of(node)
    node = tail.explained()
    found = figures_of(node)
    order = parents_first(node)
    numbers = {id(each): number for number, each in enumerate(order)}
    sources = {id(source): number for number, source in enumerate(sources_of(node))}
    runs = running(node)
    lines = tuple(_line(each, numbers, sources, runs) for each in order)
    quality = quality_of(whole)
    advice = advice_on(node, numbers, found.costs, quality)
    every = None
    if shared is not None:
        every = across(shared)
        advice += advice_on_lanes(shared, every, numbers)
    batches, endless = first_epoch(node).elements(), node.is_endless()
    others_end = tail.agree is not None and not endless
    epoch = tuple(at_least(0, costs) for costs in found.costs) if others_end else found.costs
    return Explanation(
        nodes=lines,
        spec=lines[-1].spec,
        length=round(batches.low) if batches.is_exact and not endless else None,
        is_endless=endless,
        batch_bytes=lines[-1].element_bytes,
        batches=batches,
        epoch=epoch,
        later_epoch=found.later if endless else epoch,
        batch=tuple(_each(costs, batches) for costs in epoch) if batches.high else (),
        buffers=found.buffers,
        buffers_by=found.buffers_by,
        quality=quality,
        advice=tuple(advice),
        unknown=(*_unknown(node, order, found), *([_OTHERS_END] if others_end else [])),
        across=every,
    )


def _each(costs: SourceCosts, batches: Amount) -> SourceCosts:
    """The costs of one element of the chain."""
    mean = costs.times(1 / batches.high)
    return mean if batches.is_exact else combined(lambda own: about(own.high), [mean])


def _unknown(node: Node, order: list[Node], found: Figures) -> Iterator[str]:
    """Yield a message for each unknown figure."""
    for each in order:
        if each.drops:
            yield (
                f"{each.written} drops an unknown part of its elements: numbers are as if it kept"
                " all of them"
            )
    many = next((each for each in order if _has_any_number(each)), None)
    if many is not None:
        yield f"how many elements {many.written} gives: numbers are as if it gave one of each"
    hidden = next((each for each in order if each.functions and known_spec(each) is None), None)
    if hidden is not None:
        yield (
            f"what {hidden.written} makes: give its function a method output_spec(spec); memory is"
            " as if no element had more than a read batch should"
        )
    for source in sources_of(node):
        size = record_bytes(source)
        if size is None:
            yield f"bytes of the records of {source!r}: not known before a record is read"
        elif not size.is_exact:
            yield f"bytes of the records of {source!r}, which are judged by the first of them"
    for stream, made in found.cut:
        yield (
            f"the order of all {stream.parent.length:,} elements: the first {made:,} were worked"
            " out, and the rest taken to be like them"
        )


def _has_any_number(node: Node) -> bool:
    """Whether a stream has a number of elements that only its functions decide, without a bound."""
    return node.length == STREAM and VAST <= node.elements().high < math.inf


def _line(
    node: Node, numbers: dict[int, int], sources: dict[int, int], runs: dict[int, str]
) -> NodeLine:
    source: Any = source_of(node)
    return NodeLine(
        number=numbers[id(node)],
        label=node.written,
        runs=runs[id(node)],
        spec=known_spec(node),
        length=_length(node),
        is_endless=node.is_endless(),
        element_bytes=element_bytes(node),
        parents=tuple(numbers[id(parent)] for parent in node.parents),
        source=None if source is None else sources[id(source)],
    )


def _length(node: Node) -> int | None:
    if node.length == STREAM or node.has_gaps:
        count = node.elements()
        return None if not count.is_exact or math.isinf(count.high) else round(count.high)
    return None if node.is_endless() else node.length
