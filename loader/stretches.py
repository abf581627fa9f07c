"""Stretches: some elements of a chain from its start on, what they ask for, and how they are planned.

Of a short epoch that is all of it. Of a long one it is a part, whose second half, when all is
settled, stands for the rest.

Invariant: as for `asked`, nothing is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

from windrow import demand
from windrow.asked import Asked, asked_for, rows_of
from windrow.budget import largest_bytes, rounds_at_once
from windrow.lookahead import FREE_BYTES
from windrow.part_forecast import ROUND_S, SLOW_BYTES_PER_S
from windrow.record_sizes import record_bytes
from windrow.round_plan import RoundPlan, round_plan
from windrow.sources import LaidOutSource
from windrow.stream_facts import StreamFacts
from windrow.transforms.block_nodes import BlockShuffleNode
from windrow.transforms.nodes import (
    Node,
    ReindexNode,
    SelectNode,
    ShuffleNode,
    SliceNode,
    WindowShuffleNode,
)

# Records whose order is worked out; a selection map is asked for them one by one.
MOST_RECORDS: Final = 1 << 20
_MOST_SELECTED: Final = 1 << 15
# A window is shuffled in so long, however small it is; and for how long windows are.
_WINDOW_S: Final = 0.002
_WINDOWS_S: Final = 0.5
_FEWEST_RECORDS: Final = 1 << 8
SLOW_ROUND_BYTES: Final = ROUND_S * SLOW_BYTES_PER_S


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Elements `[0, stop)` of a chain.

    Args:
        facts: How the stream is read.
        count: Elements that it stands for.
        stop: The end of those that are worked out.
        since: The first of those whose reads are counted; 0 where all of them are.
        asked: What they ask of each source, by its `id`.
        short: The plan of rounds that take long.
        long: The plan of rounds that are as long as their bytes allow.
        planned_bytes: Bytes of records of an element, as far as they are planned ahead.
        index_bytes: Bytes of indices to plan an element.
        is_whole: Whether all elements that it stands for are worked out.
        share: The part of each element that is worked out; less than 1 where one is huge.
    """

    facts: StreamFacts
    count: int
    stop: int
    since: int
    asked: Mapping[int, Asked]
    short: RoundPlan
    long: RoundPlan
    planned_bytes: float
    index_bytes: float
    is_whole: bool
    share: float

    @property
    def sources(self) -> list[Any]:
        """The sources of the chain."""
        return demand.all_sources(self.facts.node)

    @property
    def factor(self) -> float:
        """How many times as much happens as what is counted."""
        return self.count / (max(1, self.stop - self.since) * self.share)

    def records_each(self, source: Any) -> float:
        """Records of a source that an element has, on average."""
        asked = self.asked.get(id(source))
        return 0.0 if asked is None else len(asked.records) / (max(1, self.stop) * self.share)


def stretch_of(facts: StreamFacts, count: int, *, again: bool = False) -> Stretch:
    """The first `count` elements of a chain, or as many of them as are worked out.

    With `again` it is as many elements after those: the second epoch.
    """
    chain = facts.node.parent
    most = _MOST_SELECTED if _selects(chain) else MOST_RECORDS
    rows_each = rows_of(chain)
    most = int(min(most, max(_FEWEST_RECORDS, _by_windows(chain))))
    # Of what is huge a part is enough: it comes by so few that there is little to tell.
    share = most / rows_each if rows_each > most + most // 2 else 1.0
    most = max(1, most // rows_each)
    is_whole = count <= most + most // 2 and share == 1
    stop = count * (1 + again) if is_whole else most
    asked = asked_for(chain, 0, stop, share=share)
    elements = max(1, stop) * share
    planned = indices = least = most_read = decoded = 0.0
    for room in facts.rooms:
        own = asked.get(id(room.source))
        each = 0.0 if own is None else len(own.records) / elements
        planned += each * room.record_bytes
        indices += each * room.index_bytes
    for source in demand.all_sources(chain):
        if (own := asked.get(id(source))) is not None:
            size = record_bytes(source)
            each = len(own.records) / elements
            least += 0.0 if size is None else size.low * each
            most_read += 0.0 if size is None else size.high * each
            if isinstance(source, LaidOutSource):
                whole = [part for part in source.parts if not part.alone]
                decoded += each * sum(map(largest_bytes, whole))
    rows = min(facts.goal_bytes / max(1.0, least), facts.most_rows)
    slow_bytes = min(facts.goal_bytes, SLOW_ROUND_BYTES)
    slow_rows = min(rows, slow_bytes / max(1.0, most_read))
    slow_rows = min(slow_rows, SLOW_ROUND_BYTES / max(1.0, decoded))
    full = horizon_elements(facts, planned, indices)

    def plan(rows: float) -> RoundPlan:
        return round_plan(
            stop,
            unit=facts.unit,
            most_rows=int(rows),
            full=full,
            at_once=rounds_at_once(facts.rooms),
            is_ahead=facts.options.ahead,
        )

    return Stretch(
        facts=facts,
        count=count,
        stop=stop,
        since=count * again if is_whole else stop // 2,
        asked=asked,
        short=plan(slow_rows),
        long=plan(rows),
        planned_bytes=planned,
        index_bytes=indices,
        is_whole=is_whole,
        share=share,
    )


def _selects(node: Node) -> bool:
    return isinstance(node, SelectNode) or any(map(_selects, node.parents))


def _by_windows(node: Node, stride: float = 1.0) -> float:
    """Records whose windows can be shuffled in the time there is, `stride` records of a node apart."""
    below = math.inf
    match node:
        case WindowShuffleNode():
            size = min(node.window_size, max(1, node.length))
            below = _WINDOWS_S / _WINDOW_S * max(1.0, size / stride)
            if -(-node.length // size) * _WINDOW_S <= _WINDOWS_S:
                below = max(below, float(node.length))
        case SliceNode():
            stride *= abs(node.step)
        case ShuffleNode() | BlockShuffleNode() | ReindexNode() | SelectNode():
            stride = math.inf
        case _:
            pass
    return min([below, *(_by_windows(parent, stride) for parent in node.parents)])


def horizon_elements(facts: StreamFacts, planned: float, indices: float) -> float:
    """Elements that a horizon has room for, of so many bytes of records and of indices each."""
    if not planned + indices:
        return math.inf
    alone = facts.horizon_bytes / planned if planned else math.inf
    if indices and all(room.fits for room in facts.rooms):
        alone = min(alone, FREE_BYTES / indices)
    return min(alone, (facts.horizon_bytes + FREE_BYTES) / (planned + indices))
