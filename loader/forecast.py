"""Forecasts: what reading a chain comes to, worked out from orders and layouts.

Invariant: no record is read, and no function of the user's is called but selection maps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow import demand, execute
from windrow.budget import bytes_per_record
from windrow.costs import Amount, SourceCosts
from windrow.sources import LaidOutSource, Part
from windrow.spread import Spread
from windrow.transforms.halves import GivenNode
from windrow.transforms.nodes import Node, SourceNode
from windrow.transforms.positions import Positions, positions

IntArray = npt.NDArray[np.int64]

_NOTHING = Amount.exactly(0)


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """What a stream comes to: see `windrow.Explanation`."""

    elements: Amount
    is_endless: bool
    epoch: tuple[SourceCosts, ...]
    later_epoch: tuple[SourceCosts, ...]
    buffers_by: Mapping[str, Amount]
    unknown: tuple[str, ...] = ()


class Counted:
    """Leaves that note which records are asked for, and read nothing."""

    spread: Spread | None = None

    def __init__(self) -> None:
        self.asked: dict[int, list[IntArray]] = {}

    def start(self, source: Any, records: IntArray) -> execute.Finish:
        """Note the records."""
        self.asked.setdefault(id(source), []).append(records)
        return _nothing

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> execute.Finish:
        """Nothing is given to a whole chain."""
        raise TypeError(f"{node.label} is no part of a whole chain")


def _nothing() -> Any:
    raise TypeError("nothing is read for a forecast")


def sources_of(node: Node) -> list[Any]:
    """The sources of a chain, each once, as they are met from the top, depth first."""
    found: dict[int, Any] = {}
    waiting = [node]
    while waiting:
        below = waiting.pop()
        if isinstance(below, SourceNode):
            found.setdefault(id(below.source), below.source)
        waiting.extend(reversed(below.parents))
    return list(found.values())


def forecast(node: Node) -> Forecast:
    """What an epoch of the stream of `node` comes to."""
    sources = sources_of(node)
    costs = {id(source): _of_source(source, np.empty(0, np.int64)) for source in sources}
    for taken in demand.taken(node):
        chain = taken.node.parent
        count = demand.pass_length(chain) if taken.passes else int(taken.elements.high)
        if not count:
            continue
        leaves = Counted()
        at = positions(np.arange(count), chain.length)
        execute.start(chain, at, [0, count], leaves)
        for source in sources_of(chain):
            records = leaves.asked.get(id(source), [np.empty(0, np.int64)])
            found = _of_source(source, np.concatenate(records))
            costs[id(source)] = _added(costs[id(source)], found)
    epoch = tuple(costs[id(source)] for source in sources)
    kinds = ("pieces", "planned", "rounds", "queue")
    return Forecast(
        elements=demand.elements(node),
        is_endless=demand.is_endless(node),
        epoch=epoch,
        later_epoch=epoch,
        buffers_by=dict.fromkeys(kinds, _NOTHING),
    )


def _added(one: SourceCosts, other: SourceCosts) -> SourceCosts:
    numbers: dict[str, Any] = {}
    for field in dataclasses.fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Amount) and isinstance(theirs, Amount):
            numbers[field.name] = mine + theirs
    return dataclasses.replace(one, **numbers)


def _of_source(source: Any, records: IntArray) -> SourceCosts:
    count = Amount.exactly(len(records))
    pieces = stored = decoded = delivered = 0
    for part in source.parts if isinstance(source, LaidOutSource) else ():
        numbers = np.unique(part.needs(records).pieces)
        pieces += len(numbers)
        stored += int(part.stored_bytes(numbers).sum())
        decoded += int(part.decoded_bytes(numbers).sum())
        delivered += _record_bytes(part, len(source)) * len(records)
    return SourceCosts(
        source=repr(source),
        records=count,
        pieces=Amount.exactly(pieces),
        reads=Amount.exactly(pieces),
        stored_bytes=Amount.exactly(stored),
        decoded_bytes=Amount.exactly(decoded),
        delivered_bytes=Amount.exactly(delivered),
        hits=_NOTHING,
    )


def _record_bytes(part: Part, records: int) -> int:
    return bytes_per_record(part, records)
