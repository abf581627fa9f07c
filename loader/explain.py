"""Explaining a chain: what it is, how it runs and what it costs, before anything is read.

Invariant: no record is read and no function of the user's is called but selection maps, and what
tells specs; of the sources, lengths, layouts and metadata are looked at.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from windrow import demand
from windrow.advice import advice_on
from windrow.costs import Amount, SourceCosts
from windrow.defaults import default_options
from windrow.explanation import Explanation, NodeLine
from windrow.forecast import Forecast, forecast
from windrow.record_sizes import element_bytes, record_bytes, spec_of
from windrow.running import label_of, running
from windrow.shuffle_quality import quality_of
from windrow.stream_facts import stream_facts
from windrow.transforms.halves import has_function
from windrow.transforms.nodes import STREAM, FilterNode, Node, SourceNode
from windrow.transforms.streams import ToStreamNode


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
    sources = {id(source): number for number, source in enumerate(demand.all_sources(node))}
    runs = running(node, stream_facts(node))
    lines = tuple(_line(each, numbers, sources, runs) for each in order)
    batches = found.elements
    epoch, later = (
        _with_held(costs, list(sources), found) for costs in (found.epoch, found.later_epoch)
    )
    per_batch = 1 / batches.middle if batches.low else None
    return Explanation(
        nodes=lines,
        spec=lines[-1].spec,
        length=round(batches.low) if batches.is_exact and not found.is_endless else None,
        is_endless=found.is_endless,
        batch_bytes=lines[-1].element_bytes,
        batches=batches,
        epoch=epoch,
        later_epoch=later,
        batch=() if per_batch is None else tuple(c.times(per_batch) for c in epoch),
        buffers=found.buffers.most,
        buffers_by=found.buffers.by,
        quality=quality_of(node),
        advice=tuple(advice_on(node, numbers, found.epoch, found.streams)),
        unknown=tuple(_unknown(node, order, found)),
    )


def _with_held(
    costs: tuple[SourceCosts, ...], sources: list[int], found: Forecast
) -> tuple[SourceCosts, ...]:
    """Costs with what is held of the pieces of each source, whose `id` is in `sources`."""
    held = [found.buffers.held.get(source, Amount.exactly(0)) for source in sources]
    return tuple(
        dataclasses.replace(each, held_bytes=own) for each, own in zip(costs, held, strict=True)
    )


def _unknown(node: Node, order: list[Node], found: Forecast) -> Iterator[str]:
    """What is not known, in words."""
    for each in order:
        if isinstance(each, FilterNode):
            yield (
                f"{label_of(each)} drops an unknown part of its elements: numbers above it are as if"
                " it dropped from none to all of them"
            )
            if not found.is_endless and demand.never_ends(each.parent):
                yield (
                    f"how much of what is endless {label_of(each)} goes through: numbers below it are"
                    " as if it dropped nothing"
                )
    hidden = next((each for each in order if has_function(each) and spec_of(each) is None), None)
    if hidden is not None:
        yield (
            f"what {label_of(hidden)} makes: give its function a method output_spec(spec); buffers are told"
            " as if a round of it had no more than block_bytes, or than 16 times its records"
        )
    for source in demand.all_sources(node):
        size = record_bytes(source)
        if size is None:
            yield f"bytes of the records of {source!r}: nothing tells them before one is read"
        elif not size.is_exact:
            yield f"bytes of the records of {source!r}, which are judged by the first of them"
    for stretch, _ in found.streams:
        if not stretch.is_whole:
            yield (
                f"the order of all {stretch.count:,} elements: the first {stretch.stop:,} were worked"
                " out, and the rest taken to be like them"
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


def _line(
    node: Node, numbers: dict[int, int], sources: dict[int, int], runs: dict[int, str]
) -> NodeLine:
    return NodeLine(
        number=numbers[id(node)],
        label=label_of(node),
        runs=runs[id(node)],
        spec=spec_of(node),
        length=_length(node),
        is_endless=_is_endless(node),
        element_bytes=element_bytes(node),
        parents=tuple(numbers[id(parent)] for parent in node.parents),
        source=sources[id(node.source)] if isinstance(node, SourceNode) else None,
    )


def _is_endless(node: Node) -> bool:
    if node.length == STREAM:
        return demand.is_endless(node)
    return demand.repeats_for_ever(node)


def _length(node: Node) -> int | None:
    if node.length == STREAM:
        count = demand.elements(node, once=False)
        return None if not count.is_exact or math.isinf(count.high) else round(count.high)
    return None if demand.repeats_for_ever(node) else node.length
