"""The bad records of an iterator: which rows its `on_bad` nodes left out or replaced, and how many.

A bad row is found when its read batch is made, which is ahead of the loop. It counts once the position of
the stream is past its element. So the counts of a state follow from its position, however far ahead the
run was. What a stream passes again, in `IterDataset.repeat`, counts once.

Invariant: a count follows from the position, the count where the run began, and the data.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.engine.bad_rows import BadRow, Reason
from windrow.engine.index_walk import start
from windrow.engine.record_trace import Recorder, Trace, leaves_of, of_leaf, trace
from windrow.errors import ReadError
from windrow.stats.stats import Stats
from windrow.transforms.nodes import Node, Tail, ToStreamNode, as_chain, random_access_parts
from windrow.transforms.nodes.values import ValueNode
from windrow.transforms.positions import Positions, positions
from windrow.transforms.row_blocks import Block

IntArray = npt.NDArray[np.int64]

# The bad records that an error lists.
_SHOWN = 8
# Elements of a window in which a share of bad records is judged.
_WINDOW = 1000
_log = logging.getLogger("windrow.bad_records")

Counts = Mapping[str, Sequence["int | None"]]
"""For the number of each `on_bad` node, parents first, the bad records of each lane."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _PendingBad:
    """A bad row: the element of the chain that it is part of, its index at the node, and the reason."""

    element: int
    index: int
    reason: Reason = dataclasses.field(compare=False)


class _BadOfLane:
    """The bad rows of one node in one lane, ascending, without those that were passed for good.

    Args:
        passed: The number of rows that were passed.
        recent: How many of them are in the window of the position.
        window: Elements of a window.
    """

    def __init__(self, passed: int, recent: int, window: int) -> None:
        self.passed, self.recent, self.window = passed, recent, window
        self.rows: list[_PendingBad] = []
        self.first: list[_PendingBad] = []  # of all rows of this run

    def add(self, row: _PendingBad) -> None:
        at = bisect.bisect_left(self.rows, row)
        if self.rows[at : at + 1] != [row]:
            self.rows.insert(at, row)
            bisect.insort(self.first, row)
            del self.first[_SHOWN:]

    def before(self, element: float) -> int:
        """The number of rows before an element."""
        return bisect.bisect_left(self.rows, element, key=lambda row: row.element)

    def recent_at(self, counted: float, element: float) -> int:
        """The number of bad rows before an element in its window, where `counted` is passed."""
        if np.isinf(element):
            return 0
        first = element // self.window * self.window
        found = self.before(element) - self.before(first)
        return found + (self.recent if counted >= first else 0)

    def pass_to(self, counted: float, element: float) -> None:
        """Pass the rows before an element for good, where `counted` is passed."""
        self.recent, count = self.recent_at(counted, element), self.before(element)
        self.passed += count
        del self.rows[:count]

    def too_many(self, most: float, counted: float) -> _PendingBad | None:
        """The first row that is one too many."""
        if isinstance(most, int):
            allowed = max(0, most - self.passed)
            return self.rows[allowed] if len(self.rows) > allowed else None
        window, count = counted // self.window, self.recent
        for row in self.rows:
            if row.element // self.window != window:
                window, count = row.element // self.window, 0
            count += 1
            if count > most * _WINDOW:
                return row
        return None


class BadRecords:
    """Counts bad records from a position of an iterator on.

    The thread that makes read batches calls `noted`, and the loop all else.
    """

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
        none, window = [0] * tail.lanes, _WINDOW * tail.lanes
        self._found = [
            [
                _BadOfLane(passed or 0, recent or 0, window)
                for passed, recent in zip(
                    counts.get(f"{number}", none), counts.get(f"{number}w", none), strict=True
                )
            ]
            for number in range(len(self._nodes))
        ]
        # Rows before these places are counted, or are not counted again.
        self._counted = self._reached(position)
        self._lock = threading.Lock()
        self._has_new = self._is_over = False

    def counts(self, position: Sequence[int]) -> dict[str, list[int | None]]:
        """The counts at a position of the chain that runs; None for lanes of other processes."""
        reached, own = self._reached(position), set(self._tail.own_lanes)
        counts = dict[str, list[int | None]]()
        for number, (part, node) in enumerate(self._nodes):
            total, recent = list[int | None](), list[int | None]()
            for lane, found in enumerate(self._found[number]):
                stop, counted = (at[lane].get(id(part), 0) for at in (reached, self._counted))
                total.append(found.passed + found.before(stop) if lane in own else None)
                recent.append(found.recent_at(counted, stop) if lane in own else None)
            counts[f"{number}"] = total
            if isinstance(node.max_bad, float):
                counts[f"{number}w"] = recent
        return counts

    def added_to(self, stats: Stats, position: Sequence[int]) -> Stats:
        """The stats of an iterator at a position, with its bad records."""
        totals: dict[str, int] = {}
        with self._lock:
            counts = self.counts(position)
        for number, (_, node) in enumerate(self._nodes):
            total = sum(count or 0 for count in counts[str(number)])
            if self._is_over:  # no element comes after the rows that are left
                total = sum(each.passed + len(each.rows) for each in self._found[number])
            totals[node.label] = totals.get(node.label, 0) + total
        return dataclasses.replace(stats, bad_records=totals)

    def passed(self, position: Sequence[int], *, is_over: bool = False) -> None:
        """Count rows before a position for good, and report them; at the end of the stream, all."""
        # A row that is being noted lies after the position.
        if not self._has_new or self._is_over or not self._lock.acquire(blocking=is_over):
            return
        try:
            self._is_over, reached, left = is_over, self._reached(position), 0
            for number, (part, _) in enumerate(self._nodes):
                for lane, found in enumerate(self._found[number]):
                    counted, stop = (at[lane].get(id(part), 0) for at in (self._counted, reached))
                    count = len(found.rows) if is_over else found.before(stop)
                    self._report(number, lane, found.rows[:count])
                    found.pass_to(counted, max(counted, stop))
                    left += len(found.rows)
                    self._counted[lane][id(part)] = max(counted, stop)
            self._has_new = left > 0
        finally:
            self._lock.release()

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
        with self._lock:
            for number, reasons in by_node.items():
                own = self._nodes[number][1]
                for which, index in _elements_of(part, own, elements, [*reasons]):
                    lane, element = int(lanes[which]), int(elements[which])
                    if element >= self._counted[lane].get(id(part), 0):
                        self._found[number][lane].add(_PendingBad(element, index, reasons[index]))
                failed += self._too_many(number, np.unique(lanes).tolist())
            self._has_new = True
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
            counted = self._counted[lane].get(id(self._nodes[number][0]), 0)
            last = found.too_many(own.max_bad, counted)
            if last is None:
                continue
            shown = "".join(
                f"\n  element {row.element}, {records_text(own.parent, row.index)}: {row.reason}"
                for row in found.first
                if row <= last
            )
            of_lane = f" of lane {lane}" if self._tail.lanes > 1 else ""
            error = ReadError(
                f"{own.label}: more than max_bad={own.max_bad} {_what(own.max_bad)}{of_lane} are bad. The"
                f" first that this run found:{shown}\nCheck the data with windrow verify, or allow more"
            )
            yield last.element, error

    def _report(self, number: int, lane: int, rows: Sequence[_PendingBad]) -> None:
        """Log rows that were left out, and append them to the file of the node."""
        if not rows:
            return
        own = self._nodes[number][1]
        before = sum(found.passed for found in self._found[number])
        total = before + len(rows)
        if before == 0 or len(str(total)) > len(str(before)):  # at the first, the tenth, ...
            last = rows[-1]
            what = f"{records_text(own.parent, last.index)}: {last.reason}"
            many = f"{total:,} bad record{'s' if total > 1 else ''}"
            _log.warning("%s: %s so far, the last %s", own.label, many, what)
        if own.log is None:
            return
        lines = "".join(f"{json.dumps(_line(own, lane, row))}\n" for row in rows)
        try:
            with open(own.log, "a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:  # a full disk does not end the run
            _log.warning("%s: cannot append to log=%r: %s", own.label, own.log, error)

    def _reached(self, position: Sequence[int]) -> list[dict[int, float]]:
        """For each lane, the index of the next element of each part; infinite after a whole pass."""
        tail = self._tail
        if tail.is_indexed:
            (part,) = random_access_parts(self._node)
            return [{id(part): position[0]}]
        return [
            {} if lane is None else dict(_places(tail.row_node, lane, again=False))
            for lane in tail.rows_of(position).lanes
        ]


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
    return "; ".join(
        f"record{'s' if len(records) > 1 else ''} {', '.join(map(str, records[:_SHOWN]))} of {source}"
        for source, records in _records_of(node, index)
    )


def _records_of(node: Node, index: int) -> list[tuple[str, list[int]]]:
    found, leaves = trace(node, np.array([index]), uneven=True).taken, leaves_of(node)
    return [(leaves[id(each.leaf)].text, each.records.tolist()) for each in found]


def _line(node: Any, lane: int, row: _PendingBad) -> dict[str, Any]:
    """What the file of a node holds of a bad row."""
    return {
        "node": node.label,
        "lane": lane,
        "element": row.element,
        "sources": [
            {"source": source, "records": records}
            for source, records in _records_of(node.parent, row.index)
        ],
        "file": row.reason.file,
        "error": row.reason.kind,
        "reason": row.reason.message,
    }


def _what(max_bad: float) -> str:
    return "records" if isinstance(max_bad, int) else f"of {_WINDOW:,} elements"
