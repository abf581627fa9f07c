"""Advised room: bytes of `resident_bytes` that are enough for all pieces, or for those in a window.

Invariant: a number that is told was tried on the same chain, by what plans it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

from windrow.budget import MOST_KEPT, USUAL_KEPT, largest_bytes
from windrow.forecast import Forecast, forecast
from windrow.memory import machine_bytes
from windrow.stream_facts import StreamFacts, stream_facts
from windrow.transforms.halves import with_parents
from windrow.transforms.nodes import Node
from windrow.transforms.streams import ToStreamNode

# Of the machine's memory, what may be advised.
_MEMORY: Final = 0.25
# How often a number is tried, each time by half as much again.
_TRIES: Final = 6


def room_for_stores(node: Node, stream: ToStreamNode) -> int | None:
    """What keeps all pieces that a stream of a chain reads; None where that is too much."""
    own = stream_facts(node)[id(stream)]
    most = max((room.part.piece_count for room in own.rooms), default=0)
    wanted_bytes = most * _bytes_together(own) / MOST_KEPT
    return _enough(node, stream, wanted_bytes, lambda _, facts: _fit(facts))


def room_for_pieces(
    node: Node, stream: ToStreamNode, held: int, is_good: Callable[[Forecast], bool]
) -> int | None:
    """What has room for pieces as long as they are wanted; None where that is too much.

    Args:
        node: The chain.
        stream: One of its streams.
        held: Pieces of a part that are wanted at a time, as is thought.
        is_good: Whether the forecast of the chain with that room is what is hoped for.
    """
    streams, whole = stream_facts(node), room_for_stores(node, stream)
    wanted_bytes = held * _bytes_together(streams[id(stream)]) / USUAL_KEPT
    if whole is not None and whole <= wanted_bytes * len(streams):
        return whole
    found = _enough(
        node,
        stream,
        wanted_bytes,
        lambda top, facts: _fit(facts) or _is_roomy(forecast(top), facts, is_good),
    )
    return whole if found is None else found


def _bytes_together(facts: StreamFacts) -> int:
    """Bytes of a piece of each part."""
    return sum(largest_bytes(room.part) for room in facts.rooms)


def _enough(
    node: Node,
    stream: ToStreamNode,
    own_bytes: float,
    is_enough: Callable[[Node, StreamFacts], bool],
) -> int | None:
    """A round number from `own_bytes` for one of several streams on that is enough."""
    wanted_bytes = own_bytes * len(stream_facts(node))
    for _ in range(_TRIES):
        number = _rounded(wanted_bytes)
        if number > _MEMORY * machine_bytes():
            return None
        options = dataclasses.replace(stream.read_options, resident_bytes=number)
        other = dataclasses.replace(stream, read_options=options)
        top = _with(node, stream, other, {})
        if is_enough(top, stream_facts(top)[id(other)]):
            return number
        wanted_bytes *= 1.5
    return None


def _fit(facts: StreamFacts) -> bool:
    return all(room.fits for room in facts.rooms)


def _is_roomy(found: Forecast, facts: StreamFacts, is_good: Callable[[Forecast], bool]) -> bool:
    """Whether no piece of a stream has to make room for others that are wanted too."""
    return is_good(found) and not any(
        look.forecast.is_saturated
        for stretch, looks in found.streams
        if stretch.facts.node is facts.node
        for look in looks
    )


def _rounded(number: float) -> int:
    """Up to two digits, as people write numbers."""
    step: int = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(number / step) * step


def _with(node: Node, stream: Node, other: Node, known: dict[int, Node]) -> Node:
    """The chain with another node for `stream`."""
    if node is stream:
        return other
    if id(node) not in known:
        parents = tuple(_with(parent, stream, other, known) for parent in node.parents)
        changed = any(new is not old for new, old in zip(parents, node.parents, strict=True))
        known[id(node)] = with_parents(node, parents) if changed else node
    return known[id(node)]
