"""Explaining a chain: what it is, how it runs and what it costs, before anything is read.

Invariant: no record is read. The only functions of the user's that are called are selection maps
and those that return specs. Only lengths, layouts and metadata of the sources are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from windrow.engine.defaults import default_options
from windrow.explain.advice import advice_on
from windrow.explain.dry_run import is_endless
from windrow.explain.explanation import Explanation, NodeLine
from windrow.explain.prediction import Prediction, predicted
from windrow.explain.record_sizes import element_bytes, record_bytes, spec_of
from windrow.explain.running import label_of, running
from windrow.quality.shuffle_quality import quality_of
from windrow.transforms.nodes import STREAM, Node, ToStreamNode
from windrow.transforms.nodes.split import has_function


def explained(node: Node) -> Explanation:
    """What a chain is and costs; one with random access as the stream that iterating makes of it.

    Raises:
        ReadError: If the layout of a source cannot be read.
    """
    if node.length != STREAM:
        node = ToStreamNode((node,), default_options(node))
    found = predicted(node)
    order = node.parents_first()
    numbers = {id(each): number for number, each in enumerate(order)}
    sources = {id(source): number for number, source in enumerate(node.sources())}
    runs = running(node)
    lines = tuple(_line(each, numbers, sources, runs) for each in order)
    batches, endless = node.elements(), is_endless(node)
    epoch, later = found.epoch, found.later_epoch
    per_batch = 1 / batches.middle if batches.low else None
    return Explanation(
        nodes=lines,
        spec=lines[-1].spec,
        length=round(batches.low) if batches.is_exact and not endless else None,
        is_endless=endless,
        batch_bytes=lines[-1].element_bytes,
        batches=batches,
        epoch=epoch,
        later_epoch=later,
        batch=() if per_batch is None else tuple(c.times(per_batch) for c in epoch),
        buffers=found.peak,
        buffers_by=found.peak_by,
        quality=quality_of(node),
        advice=tuple(advice_on(node, numbers, found)),
        unknown=tuple(_unknown(node, order, found)),
    )


def _unknown(node: Node, order: list[Node], found: Prediction) -> Iterator[str]:
    """Yield a message for each thing that is not known."""
    for each in order:
        if each.drops:
            yield (
                f"{label_of(each)} drops an unknown part of its elements: numbers above it are as if"
                " it dropped from none to all of them"
            )
            if not is_endless(node) and is_endless(each.parent):
                yield (
                    f"how much of what is endless {label_of(each)} goes through: numbers below it are"
                    " as if it dropped nothing"
                )
    hidden = next((each for each in order if has_function(each) and spec_of(each) is None), None)
    if hidden is not None:
        yield (
            f"what {label_of(hidden)} makes: give its function a method output_spec(spec); buffers are"
            " estimated as if a read batch of it had at most block_bytes, or 16 times the bytes of its records"
        )
    for source in node.sources():
        size = record_bytes(source)
        if size is None:
            yield f"bytes of the records of {source!r}: not known before a record is read"
        elif not size.is_exact:
            yield f"bytes of the records of {source!r}, which are judged by the first of them"
    for stream, reached in found.cut:
        yield (
            f"the order of all {stream.parent.length:,} elements: the first {reached:,} were worked"
            " out, and the rest taken to be like them"
        )


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
        source=None if node.data_source is None else sources[id(node.data_source)],
    )


def _is_endless(node: Node) -> bool:
    if node.length == STREAM:
        return is_endless(node)
    return node.is_endless()


def _length(node: Node) -> int | None:
    if node.length == STREAM:
        count = node.elements(once=False)
        return None if not count.is_exact or math.isinf(count.high) else round(count.high)
    return None if node.is_endless() else node.length
