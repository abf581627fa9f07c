"""The bad records of an iterator: which rows its `on_bad` nodes left out or replaced, and how many.

A bad row is found when its read batch is made, which is ahead of the loop. It counts once the position of
the stream is past its element. So the counts of a state follow from its position, however far ahead the
run was. What a stream passes again, in `IterDataset.repeat`, counts once.

Invariant: a count follows from the position, the count where the run began, and the data.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.engine.bad_rows import BadRow, Reason
from windrow.engine.index_walk import start
from windrow.engine.record_trace import Recorder, Trace, of_leaf, trace
from windrow.errors import ReadError
from windrow.stats.stats import Stats
from windrow.transforms.nodes import Node, Tail, ToStreamNode, as_chain, random_access_parts
from windrow.transforms.nodes.values import ValueNode
from windrow.transforms.positions import Positions, positions
from windrow.transforms.row_blocks import Block

IntArray = npt.NDArray[np.int64]

# The bad records that an error lists.
_SHOWN = 8

Counts = Mapping[str, Sequence["int | None"]]
"""For the number of each `on_bad` node, parents first, the bad records of each lane."""


@dataclasses.dataclass(frozen=True, slots=True)
class BadRecord:
    """A record, or several of one element, left out or replaced.

    Args:
        element: The index of the element of the stream's chain that it is part of.
        records: The records, such as `record 3 of ArrayRecordSource(...)`.
        reason: The class of the error, and its message.
        file: The file that the error names; None if it names none.
    """

    element: int
    records: str
    reason: str
    file: str | None

    def __str__(self) -> str:
        of = f", {self.records}" if self.records else ""
        return f"element {self.element}{of}: {self.reason}"


class _Found:
    """The bad rows of one node in one lane, by `(element, index at the node)`.

    One thread adds rows, and others count them.
    """

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []  # ascending
        self.reasons: dict[tuple[int, int], Reason] = {}

    def add(self, place: tuple[int, int], reason: Reason) -> None:
        if place not in self.reasons:
            self.reasons[place] = reason
            bisect.insort(self.places, place)

    def before(self, element: int) -> int:
        return bisect.bisect_left(self.places, (element, -(2**63)))


class BadRecords:
    """Counts bad records from a position of an iterator on."""

    def __init__(self, node: Node, tail: Tail, position: Sequence[int], counts: Counts) -> None:
        """Begin at a position.

        Args:
            node: The chain that the iterator runs.
            tail: Its end.
            position: The position in that chain.
            counts: The counts there; what is missing is 0.
        """
        self._node, self._tail = node, tail
        self._nodes: list[tuple[Node, Any]] = [
            (part, each)
            for part in random_access_parts(node)
            for each in part.parents_first()
            if each.takes_bad
        ]
        self._numbers = {(id(part), each.token): n for n, (part, each) in enumerate(self._nodes)}
        self._base = [
            [int(count or 0) for count in counts.get(str(n), [0] * tail.lanes)]
            for n in range(len(self._nodes))
        ]
        self.is_over = False
        """Whether the stream has ended, so that all that were found are behind its position."""
        self._began = self._reached(position)
        self._found = [[_Found() for _ in range(tail.lanes)] for _ in self._nodes]

    def added_to(self, stats: Stats, position: Sequence[int]) -> Stats:
        """The stats of an iterator at a position, with its bad records."""
        found: dict[str, int] = {}
        for number, lanes in self.counts(position, with_all=self.is_over).items():
            name = self._nodes[int(number)][1].label
            found[name] = found.get(name, 0) + sum(count or 0 for count in lanes)
        return dataclasses.replace(stats, bad_records=found)

    def counts(
        self, position: Sequence[int], *, with_all: bool = False
    ) -> dict[str, list[int | None]]:
        """The counts at a position; None for lanes that other processes run.

        Args:
            position: The position in the chain that the iterator runs.
            with_all: Whether all that were found count, at the end of the stream.
        """
        reached, own = self._reached(position), set(self._tail.own_lanes)
        return {
            str(number): [
                self._count(number, lane, reached[lane], with_all=with_all) if lane in own else None
                for lane in range(self._tail.lanes)
            ]
            for number in range(len(self._nodes))
        }

    def _count(
        self, number: int, lane: int, reached: Mapping[int, float], *, with_all: bool
    ) -> int:
        found, (part, _) = self._found[number][lane], self._nodes[number]
        stop = reached.get(id(part), 0)
        passed = len(found.places) if with_all or stop == np.inf else found.before(int(stop))
        return self._base[number][lane] + passed

    def noted(
        self, chain: ToStreamNode, elements: IntArray, rows: Iterable[BadRow], block: Block
    ) -> tuple[Block, Exception | None]:
        """Note the bad rows of a read batch.

        Args:
            chain: The node that makes a stream of their chain.
            elements: The indices of the elements of the read batch.
            rows: The bad rows.
            block: The rows of the stream that were made of the elements.

        Returns:
            The block; up to the first element at which there are too many, with the error.
        """
        part, by_node = chain.parent, dict[int, dict[int, Reason]]()
        lanes = np.zeros_like(elements)
        if chain.lanes > 1:
            lanes = part.lane_of(elements, chain.lanes)
        for row in rows:
            by_node.setdefault(self._numbers[id(part), row.token], {})[row.place] = row.reason
        failed: list[tuple[int, Exception]] = []
        for number, reasons in by_node.items():
            for which, index in _elements_of(part, self._nodes[number][1], elements, [*reasons]):
                lane, element = int(lanes[which]), int(elements[which])
                if element >= self._began[lane].get(id(part), 0):
                    self._found[number][lane].add((element, index), reasons[index])
            failed += self._too_many(number, np.unique(lanes).tolist())
        here = [each for each in failed if each[0] in elements]
        if not here:
            return block, None
        first, error = min(here, key=lambda each: each[0])
        if len(np.unique(lanes)) > 1:  # each lane is read again alone, up to its own end
            return block.sliced(0, 0), error
        return block.sliced(0, int(np.sum(block.marks[:, 0] <= first))), error

    def _too_many(self, number: int, lanes: Sequence[int]) -> Iterator[tuple[int, Exception]]:
        """The element of some lanes at which there are too many bad records, and the error."""
        own = self._nodes[number][1]
        for lane in lanes if own.max_bad is not None else ():
            found = self._found[number][lane]
            allowed = max(0, own.max_bad - self._base[number][lane])
            if len(found.places) <= allowed:
                continue
            shown = "".join(f"\n  {each}" for each in self._listed(number, lane, allowed + 1))
            of_lane = f" of lane {lane}" if self._tail.lanes > 1 else ""
            error = ReadError(
                f"{own.label}: more than max_bad={own.max_bad} records{of_lane} are bad. The first that"
                f" this run found:{shown}\nCheck the data with windrow verify, or allow more"
            )
            yield found.places[allowed][0], error

    def _listed(self, number: int, lane: int, most: int) -> list[BadRecord]:
        found, own = self._found[number][lane], self._nodes[number][1]
        return [
            BadRecord(place[0], records_text(own.parent, place[1]), str(why), why.file)
            for place in found.places[: min(most, _SHOWN)]
            for why in [found.reasons[place]]
        ]

    def _reached(self, position: Sequence[int]) -> list[dict[int, float]]:
        """For each lane, the index of the next element of each part; infinite after a whole pass."""
        tail = self._tail
        if tail.is_indexed:
            (part,) = random_access_parts(self._node)
            return [{id(part): position[0]}]
        found = []
        for lane in tail.rows_of(position).lanes:
            places = {} if lane is None else dict(_places(tail.row_node, lane, again=False))
            found.append(places)
        return found


def _places(node: Node, position: Sequence[int], *, again: bool) -> Iterator[tuple[int, float]]:
    chain = as_chain(node)
    if chain is not None:
        yield id(chain.parent), np.inf if again else position[0]
        return
    *parts, own = node.split_position(position)
    again = again or (node.passes != 1 and any(own))
    for parent, part in zip(node.parents, parts, strict=True):
        if parent.width:
            yield from _places(parent, part, again=again)


# --- which elements a row is part of --------------------------------------------------------------


class _Finder(Recorder):
    """Notes the indices that elements are made of at one node, in place of records."""

    def __init__(self, node: Any) -> None:
        super().__init__(uneven=True)
        self._wanted = node.token

    def applied(self, node: ValueNode, rows: Trace, at: Positions, cuts: Sequence[int]) -> Trace:
        """The indices at the node."""
        if node.takes_bad and getattr(node, "token", None) == self._wanted:
            return of_leaf(self, at.flat(node.length))
        return rows


def _elements_of(
    part: Node, node: Any, elements: IntArray, indices: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Which of some elements are made of some indices at a node, with each of these indices."""
    finder = _Finder(node)
    at = positions(elements, part.length)
    found: Trace = start(part, at, [0, len(at)], finder)()
    ends = np.cumsum(found.counts)
    for taken in found.taken:
        if taken.leaf is finder:
            for k in np.flatnonzero(np.isin(taken.records, indices)).tolist():
                yield int(ends.searchsorted(taken.rows[k], side="right")), int(taken.records[k])


def records_text(node: Node, index: int) -> str:
    """The records that an element is made of, as text."""
    found = trace(node, np.array([index]), uneven=True).taken
    listed = [(each.leaf, each.records.tolist()) for each in found if len(each.records)]
    return "; ".join(
        f"record{'s' if len(records) > 1 else ''} {', '.join(map(str, records[:_SHOWN]))} of {_named(leaf)}"
        for leaf, records in listed
    )


def _named(leaf: Any) -> str:
    return leaf.label if isinstance(leaf, Node) else repr(leaf)
