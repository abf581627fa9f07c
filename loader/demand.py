"""Demand: how many elements an epoch of a stream has, and how many it takes of what is below.

An epoch of an endless stream is one pass over what it repeats.

Invariant: numbers follow from lengths and proportions alone; where a filter decides, they are
intervals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from windrow.costs import Amount
from windrow.transforms import orders
from windrow.transforms.nodes import (
    STREAM,
    BatchNode,
    FilterNode,
    MixNode,
    Node,
    RepeatNode,
    SliceNode,
    SourceNode,
    ValueNode,
    ZipNode,
    may_be_absent,
)
from windrow.transforms.streams import (
    StreamLimitNode,
    StreamMixNode,
    StreamRepeatNode,
    ToStreamNode,
)

# No chain is as long, unless it repeats for ever.
_VAST: Final = 2**48
# Elements of a mixture that are looked at together.
_AT_ONCE: Final = 1 << 12


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What an epoch takes of a chain with random access: its first elements, once or again.

    Args:
        node: The node that makes a stream of the chain.
        is_whole: Whether it is gone through as a whole; else it is read ahead of what is taken.
        elements: How many elements are taken otherwise; an interval where that is unknown.
        times: How often all this is done.
        ends_early: Whether it may be done less often, as a filter may leave nothing to repeat.
    """

    node: ToStreamNode
    is_whole: bool
    elements: Amount
    times: int = 1
    ends_early: bool = False


def all_sources(node: Node) -> list[Any]:
    """The sources of a chain, each once, as they are met from the top, depth first."""
    found: dict[int, Any] = {}
    waiting = [node]
    while waiting:
        below = waiting.pop()
        if isinstance(below, SourceNode):
            found.setdefault(id(below.source), below.source)
        waiting.extend(reversed(below.parents))
    return list(found.values())


def repeats_for_ever(node: Node) -> bool:
    """Whether a chain with random access is endless, or part of what is."""
    match node:
        case RepeatNode():
            return node.times is None and node.length > 0
        case SliceNode():
            goes_on = 2 * node.length * abs(node.step) >= node.parent.length
            return goes_on and repeats_for_ever(node.parent)
        case BatchNode() | ValueNode() | ZipNode():
            return bool(node.length) and all(map(repeats_for_ever, node.parents))
        case _:
            return node.length >= _VAST and any(map(repeats_for_ever, node.parents))


def pass_length(node: Node) -> int:
    """Elements of a chain with random access in one pass over it, or over what it repeats."""
    if not repeats_for_ever(node):
        return node.length
    match node:
        case RepeatNode():
            return node.parent.length
        case BatchNode():
            return -(-pass_length(node.parent) // node.size)
        case SliceNode():
            return -(-pass_length(node.parent) // abs(node.step))
        case MixNode():
            return orders.mix_length(list(map(pass_length, node.parents)), node.proportions)
        case _:
            return min(map(pass_length, node.parents))


def elements(node: Node, *, once: bool = True) -> Amount:
    """Elements of a stream.

    Args:
        node: The stream.
        once: Whether what is endless is gone through once; else infinitely many are told.
    """
    match node:
        case ToStreamNode():
            endless = not once and repeats_for_ever(node.parent)
            most = math.inf if endless else pass_length(node.parent)
            gaps = may_be_absent(node.parent) and not node.allow_nones
            return Amount(0, most) if gaps else Amount.exactly(most)
        case FilterNode():
            return Amount(0, elements(node.parent, once=once).high)
        case BatchNode():
            below = elements(node.parent, once=once)
            return Amount(_batches(node, below.low), _batches(node, below.high))
        case StreamLimitNode():
            below = elements(node.parent, once=False)
            return Amount(min(node.size, below.low), min(node.size, below.high))
        case StreamRepeatNode():
            below = elements(node.parent, once=once)
            times = (1 if once else math.inf) if node.times is None else node.times
            if once and math.isinf(elements(node.parent, once=False).high):
                times = 1  # the first time never ends
            return Amount(below.low and below.low * times, below.high and below.high * times)
        case StreamMixNode():
            return _mixed(node, once)
        case ZipNode():
            # As long as the shortest, of what is endless only beside others that are.
            ends = any(not math.isinf(elements(p, once=False).high) for p in node.parents)
            parts = [elements(parent, once=once and not ends) for parent in node.parents]
            return Amount(min(part.low for part in parts), min(part.high for part in parts))
        case _:
            parts = [elements(parent, once=once) for parent in node.parents]
            return Amount(min(part.low for part in parts), min(part.high for part in parts))


def _batches(node: BatchNode, rows: float) -> float:
    if math.isinf(rows):
        return rows
    return rows // node.size if node.drop_remainder else -(-rows // node.size)


def _mixed(node: StreamMixNode, once: bool) -> Amount:
    lengths = [elements(parent, once=False) for parent in node.parents]
    if once and all(math.isinf(length.high) for length in lengths):
        lengths = [elements(parent, once=True) for parent in node.parents]
    elif not once and all(math.isinf(length.low) for length in lengths):
        return Amount.exactly(math.inf)
    bounds = [part.low for part in lengths], [part.high for part in lengths]
    low, high = (_mixture_length([int(min(b, _VAST)) for b in side], node) for side in bounds)
    never_ends = not once and all(map(math.isinf, bounds[1]))
    return Amount(low, math.inf if never_ends else high)


def _mixture_length(lengths: list[int], node: StreamMixNode) -> int:
    """Elements up to the first that its stream does not have any more."""
    at = orders.mix_length(lengths, node.proportions) if min(lengths) else 0
    ends = np.array(lengths)
    while True:
        which, keys = orders.mix_choose(np.arange(at, at + _AT_ONCE), node.proportions)
        missing = np.flatnonzero(keys >= ends[which])
        if len(missing):
            return at + int(missing[0])
        at += _AT_ONCE


def is_endless(node: Node) -> bool:
    """Whether a stream never ends."""
    return math.isinf(elements(node, once=False).high)


def never_ends(node: Node) -> bool:
    """Whether a chain of either kind never ends."""
    return is_endless(node) if node.length == STREAM else repeats_for_ever(node)


def taken(node: Node) -> list[Taken]:
    """What an epoch of a stream takes of each chain below it, depth first from the top."""
    return list(_taken(node, elements(node)))


def _taken(node: Node, count: Amount) -> Iterator[Taken]:
    """What `count` elements of a stream take."""
    match node:
        case ToStreamNode():
            yield _of_chain(node, count)
        case StreamRepeatNode():
            yield from _taken_again(node, count)
        case BatchNode():
            yield from _taken(node.parent, _below(node, count, node.size))
        case StreamLimitNode():
            yield from _taken(node.parent, count)
        case StreamMixNode():
            whole = sum(node.proportions)
            for parent, own in zip(node.parents, node.proportions, strict=True):
                low, high = count.low * own / whole - 1, count.high * own / whole + 1
                most = elements(parent, once=False).high
                yield from _taken(
                    parent, Amount(min(max(0, math.floor(low)), most), min(math.ceil(high), most))
                )
        case ZipNode():
            for parent in node.parents:
                yield from _taken(parent, count)
        case _:
            for parent in node.parents:
                yield from _taken(parent, _below(node, count, 1))


def _below(node: Node, count: Amount, size: int) -> Amount:
    """What elements of a node take of its parent, where it takes `size` for each."""
    there, own = elements(node.parent, once=False), elements(node, once=False)
    if not math.isinf(own.high) and count.high >= own.high and count.low >= own.low:
        return there  # all of it, however much that is
    low, high = min(count.low * size, there.low), min(count.high * size, there.high)
    if isinstance(node, FilterNode):
        # Of what is endless as if it dropped nothing, and one pass at least.
        one_pass = elements(node.parent, once=True).high
        high = max(high, one_pass) if math.isinf(there.high) else there.high
    return Amount(low, max(low, high))


def _taken_again(node: StreamRepeatNode, count: Amount) -> Iterator[Taken]:
    one = elements(node.parent, once=False)
    if math.isinf(one.high):  # the first time never ends
        yield from _taken(node.parent, count)
        return
    if not one.is_exact or not one.high:
        once = node.times is None or node.times == 1
        for part in _taken(node.parent, one if once else count):
            times = 1 if node.times is None else node.times
            early = part.ends_early or (one.low == 0 and times > 1)
            yield dataclasses.replace(part, times=part.times * times, ends_early=early)
        return
    passes, rest = divmod(count.high, one.high)
    for part in _taken(node.parent, one) if passes else ():
        early = part.ends_early or not count.is_exact
        yield dataclasses.replace(part, times=part.times * int(passes), ends_early=early)
    # Where somebody above ends first, more is read ahead; one pass of an endless stream is an epoch.
    is_epoch = node.times is None and passes == 1
    if rest or (count.high < elements(node, once=False).high and not is_epoch):
        yield from _taken(node.parent, Amount.exactly(rest))


def _of_chain(node: ToStreamNode, count: Amount) -> Taken:
    """`count` elements of a stream of a chain, of which some may be absent."""
    gaps = may_be_absent(node.parent) and not node.allow_nones
    if (
        not repeats_for_ever(node.parent)
        and count.high >= elements(node).high
        and (gaps or count.is_exact)
    ):
        return Taken(node, True, Amount.exactly(0))
    high = count.high
    if gaps:  # of what is endless as many as if none were absent, and one pass at least
        one_pass = float(pass_length(node.parent))
        high = max(high, one_pass) if repeats_for_ever(node.parent) else one_pass
    return Taken(node, False, Amount(count.low, max(count.low, high)))
