"""The bad records of an iterator: which rows its `on_bad` nodes left out or replaced, and how many.

A bad row is found when its read batch is made, which is ahead of the loop. It counts once the position of
the stream is past its place: the index of its element in its chain or, after nodes of a stream that put
rows in another order, the number of the row there. So the counts of a state follow from its position,
however far ahead the run was. What a stream passes again, in `IterDataset.repeat`, counts once.

Invariant: a count follows from the position, the count where the run began, and the data.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from windrow.engine.bad_rows import BadRow, DroppedRow, Reason
from windrow.engine.index_walk import start
from windrow.engine.record_trace import Recorder, Trace, leaves_of, of_leaf, trace
from windrow.errors import ReadError, StateError
from windrow.stats.stats import Stats
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import (
    Node,
    Tail,
    ToStreamNode,
    as_chain,
    places_before,
    random_access_parts,
    shard_of,
    share_of,
)
from windrow.transforms.nodes.dealing import dealing_of
from windrow.transforms.nodes.following import shard_names
from windrow.transforms.nodes.values import ValueNode
from windrow.transforms.positions import Positions, positions
from windrow.transforms.row_blocks import Block

IntArray = npt.NDArray[np.int64]

# The bad records that an error lists.
_SHOWN = 8
# Elements of a window in which a share of bad records is judged.
_WINDOW = 1000
_log = logging.getLogger("windrow.bad_records")
# The longest wait of a last report. Rows are noted in much less.
_LAST_S = 60.0

Counts = Mapping[str, Sequence["int | None"]]
"""For the number of each `on_bad` node, parents first, the bad records of each lane.

Under the number and "w" these are of the present window, where a share is the limit. Under the number,
"@" and a share (`share_of`) it is the part that this shard counted since states were merged.
"""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _PendingBad:
    """A bad row: its place, its index at the node of its chain, and the reason.

    For a row that was dropped in a stream, the index is the place again; `made_of` is what the row is
    made of, if that is known. `instead` is the index of the element that came in its place.
    """

    element: int
    index: int
    reason: Reason = dataclasses.field(compare=False)
    in_stream: bool = dataclasses.field(default=False, compare=False)
    made_of: MadeOf | None = dataclasses.field(default=None, compare=False)
    instead: int | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """What is counted together: the bad rows of one `on_bad` node that have places of one kind.

    Args:
        places: The chain whose elements are the places, or the node of a stream that counts rows.
        node: The `on_bad` node.
        is_chain: Whether places are elements of a chain.
    """

    places: Node
    node: Any
    is_chain: bool = True

    @property
    def key(self) -> tuple[int, int]:
        """Names it in this run."""
        return id(self.places), self.node.token


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
        if self.rows and not self.rows[-1] < row:  # most come in order
            at = bisect.bisect_left(self.rows, row)
            if self.rows[at : at + 1] == [row]:
                return
            self.rows.insert(at, row)
        else:
            self.rows.append(row)
        if len(self.first) < _SHOWN or row < self.first[-1]:
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
        recent, count = self.recent_at(counted, element), self.before(element)
        # In one statement, which no interrupt divides.
        self.recent, self.passed, self.rows[:count] = recent, self.passed + count, []

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
        self._all = _all_counted(node)
        self._numbers = {each.key: number for number, each in enumerate(self._all)}
        kinds = {place.key: place for place in _places(node, position)}
        first = _Place(0, 0, tail.lanes, 0, None)
        kind_of = [kinds.get(id(each.places), first) for each in self._all]
        self._found = [
            [
                # Elements of a chain are numbered through all lanes.
                _BadOfLane(passed or 0, recent or 0, _WINDOW * (kind.lanes if each.is_chain else 1))
                for passed, recent in zip(
                    _of_lanes(counts, f"{number}", kind.lanes),
                    _of_lanes(counts, f"{number}w", kind.lanes),
                    strict=True,
                )
            ]
            for number, (each, kind) in enumerate(zip(self._all, kind_of, strict=True))
        ]
        # The part of each lane's count that this shard makes; None where no other shard makes others.
        self._own = [
            None if kind.share is None else f"{number}@{kind.share}"
            for number, kind in enumerate(kind_of)
        ]
        # What other shards have counted, and of each lane all that this one has not.
        self._parts = {
            key: [*n] for key, n in counts.items() if "@" in key and key not in self._own
        }
        self._others = [
            [
                lane.passed - (count or 0)
                for lane, count in zip(found, _of_lanes(counts, str(key), len(found)), strict=True)
            ]
            for key, found in zip(self._own, self._found, strict=True)
        ]
        # Rows before these places are counted, or are not counted again.
        self._counted = {at: stop or 0 for at, stop in self._reached(position).items()}
        self._lock = threading.Lock()
        self._has_new = self._is_over = False
        self._position = position  # where rows were passed last
        self._unwritten = set[int]()  # nodes whose file could not be written the last time
        self._cut_short = set[int]()  # nodes whose file took a part

    def counts(self, position: Sequence[int]) -> dict[str, list[int | None]]:
        """The counts at a position of the chain that runs; None for lanes of other processes."""
        reached = self._reached(position)
        counts = dict[str, list[int | None]]()
        for number, each in enumerate(self._all):
            total, recent = list[int | None](), list[int | None]()
            for lane, found in enumerate(self._found[number]):
                place = id(each.places), lane
                stop, counted = reached.get(place, 0), self._counted.get(place, 0)
                total.append(None if stop is None else found.passed + found.before(stop))
                recent.append(None if stop is None else found.recent_at(counted, stop))
            counts[f"{number}"] = total
            pairs = zip(total, self._others[number], strict=True)
            mine = [None if count is None else count - others for count, others in pairs]
            own = self._own[number]
            if own is not None and any(mine):
                counts[own] = mine
            if isinstance(each.node.max_bad, float):
                counts[f"{number}w"] = recent
        return {**counts, **self._parts}

    def added_to(self, stats: Stats, position: Sequence[int]) -> Stats:
        """The stats of an iterator at a position, with its bad records."""
        totals: dict[str, int] = {}
        with self._lock:
            counts = self.counts(position)
        for number, counted in enumerate(self._all):
            total = sum(count or 0 for count in counts[str(number)])
            if self._is_over:  # no element comes after the rows that are left
                total = sum(each.passed + len(each.rows) for each in self._found[number])
            totals[counted.node.label] = totals.get(counted.node.label, 0) + total
        return dataclasses.replace(stats, bad_records=totals)

    def passed(
        self, position: Sequence[int], *, is_over: bool = False, is_last: bool = False
    ) -> None:
        """Count rows before a position for good, and report them; at the end of the stream, all.

        While rows are being noted, it leaves that to the next call, unless this `is_last`.
        """
        # A row that is being noted lies after the position.
        wait_s = _LAST_S if is_over or is_last else 0.0
        if not self._has_new or self._is_over or not self._lock.acquire(timeout=wait_s):
            return
        try:
            self._is_over, reached, left = is_over, self._reached(position), 0
            self._position = position
            for number, each in enumerate(self._all):
                for lane, found in enumerate(self._found[number]):
                    place = id(each.places), lane
                    counted, stop = self._counted.get(place, 0), reached.get(place, 0) or 0
                    count = len(found.rows) if is_over else found.before(stop)
                    self._report(number, lane, found.rows[:count])
                    found.pass_to(counted, max(counted, stop))
                    left += len(found.rows)
                    self._counted[place] = max(counted, stop)
            self._has_new = left > 0
        finally:
            self._lock.release()

    def noted(
        self,
        chain: ToStreamNode,
        elements: IntArray,
        rows: Iterable[BadRow],
        dropped: Iterable[DroppedRow],
        block: Block,
    ) -> tuple[Block, Exception | None]:
        """Note the bad rows of a read batch.

        Args:
            chain: The node that makes a stream of their chain.
            elements: The indices of the elements of the read batch.
            rows: The bad rows of the chain.
            dropped: Those that were dropped in steps after it, where places are elements of the chain.
            block: The rows of the stream that were made of the elements.

        Returns:
            The block; up to the first element at which there are too many, with the error.
        """
        part, by_node = chain.parent, dict[int, dict[int, BadRow]]()
        lanes = np.zeros_like(elements)
        if chain.lanes > 1:
            lanes = dealing_of(part).lane_of(elements, chain.lanes)
        for row in rows:
            number = self._numbers[id(part), row.token]
            by_node.setdefault(number, {})[row.place] = row
        found = list[tuple[int, int, _PendingBad]]()
        for number, bad in by_node.items():
            own = self._all[number].node
            for which, index in _elements_of(part, own, elements, [*bad]):
                row = bad[index]
                pending = _PendingBad(int(elements[which]), index, row.reason, instead=row.instead)
                found.append((number, int(lanes[which]), pending))
        for each in dropped:
            lane = (
                int(dealing_of(part).lane_of(np.array([each.place]), chain.lanes)[0])
                if chain.lanes > 1
                else 0
            )
            found.append((self._numbers[id(part), each.token], lane, _pending(each)))
        failed = self._added(found, np.unique(lanes).tolist())
        here = [each for each in failed if each[0] in elements]
        if not here:
            return block, None
        first, error = min(here, key=lambda each: each[0])
        if len(np.unique(lanes)) > 1:  # each lane is read again alone, up to its own end
            return block.sliced(0, 0), error
        return block.sliced(0, int(np.sum(block.marks[:, 0] <= first))), error

    def dropped(
        self, top: Node, lane: int, rows: Iterable[DroppedRow], block: Block
    ) -> tuple[Block, Exception | None]:
        """As `noted`, of a block of a lane after the steps of a stage that ends with `top`."""
        places = places_before(top)
        if places is None:
            raise TypeError(f"{top.label} has no places")
        chain = as_chain(places)
        key = id(places if chain is None else chain.parent)
        found = [(self._numbers[key, row.token], lane, _pending(row)) for row in rows]
        failed = self._added(found, [lane])
        if not failed:
            return block, None
        first, error = min(failed, key=lambda each: each[0])
        column = block.marks[:, places.width - 1]
        return block.sliced(0, int(np.sum(column <= first))), error

    def _added(
        self, found: Sequence[tuple[int, int, _PendingBad]], lanes: Sequence[int]
    ) -> list[tuple[int, Exception]]:
        """Add rows, each with its number in `_all` and its lane; the places where they are too many."""
        failed: list[tuple[int, Exception]] = []
        with self._lock:
            for number, lane, row in found:
                if row.element >= self._counted.get((id(self._all[number].places), lane), 0):
                    self._found[number][lane].add(row)
            for number in {each[0] for each in found}:
                failed += self._too_many(number, lanes)
            self._has_new = True
        return failed

    def _too_many(self, number: int, lanes: Sequence[int]) -> Iterator[tuple[int, Exception]]:
        """The element of some lanes at which there are too many bad records, and the error."""
        own, key = self._all[number].node, id(self._all[number].places)
        for lane in lanes if own.max_bad is not None else ():
            found = self._found[number][lane]
            counted = self._counted.get((key, lane), 0)
            last = found.too_many(own.max_bad, counted)
            if last is None:
                continue
            shown = "".join(
                f"\n  element {row.element}, {self._records_text(number, row)}: {row.reason}"
                for row in found.first
                if row <= last
            )
            of_lane = f" of lane {lane}" if len(self._found[number]) > 1 else ""
            error = ReadError(
                f"{own.label}: more than max_bad={own.max_bad} {_what(own.max_bad)}{of_lane} are bad. The"
                f" first that this run found:{shown}\nCheck the data with windrow verify, or allow more"
            )
            yield last.element, error

    def _report(self, number: int, lane: int, rows: Sequence[_PendingBad]) -> None:
        """Log rows that were left out, and append them to the file of the node."""
        if not rows:
            return
        own = self._all[number].node
        before = sum(found.passed for found in self._found[number])
        total = before + len(rows)
        if before == 0 or len(str(total)) > len(str(before)):  # at the first, the tenth, ...
            last = rows[-1]
            what = f"{self._records_text(number, last)}: {last.reason}"
            many = f"{total:,} bad record{'s' if total > 1 else ''}"
            _log.warning("%s: %s so far, the last %s", own.label, many, what)
        if own.log is None:
            return
        lines = "".join(f"{json.dumps(self._line(number, lane, row))}\n" for row in rows)
        try:
            # In one write, so that lines of several processes do not mix.
            with open(own.log, "ab", buffering=0) as file:
                rest = lines.encode()
                if number in self._cut_short:  # it ends in a part of a line
                    rest = b"\n" + rest
                while rest:
                    written = file.write(rest)
                    rest = rest[written:]
                    self._cut_short.add(number)
        except OSError as error:  # a full disk does not end the run
            if number not in self._unwritten:
                _log.warning("%s: cannot append to log=%r: %s", own.label, own.log, error)
            self._unwritten.add(number)
        else:
            self._unwritten.discard(number)
            self._cut_short.discard(number)

    def _records_of(self, number: int, row: _PendingBad) -> list[tuple[str, list[int]]]:
        """The records that a bad row is made of, by source."""
        counted = self._all[number]
        if row.made_of is not None:
            chains, found = random_access_parts(self._node), dict[str, list[int]]()
            for _, chain, element, *_ in row.made_of.items.tolist():
                for source, records in _records_of(chains[chain], element):
                    found.setdefault(source, []).extend(records)
            return list(found.items())
        if row.in_stream:
            return _records_of(counted.places, row.element) if counted.is_chain else []
        return _records_of(counted.node.parent, row.index)

    def _records_text(self, number: int, row: _PendingBad) -> str:
        shown = "; ".join(
            f"record{'s' if len(records) > 1 else ''} {', '.join(map(str, records[:_SHOWN]))} of {source}"
            for source, records in self._records_of(number, row)
        )
        return shown or "of unknown records"

    def _line(self, number: int, lane: int, row: _PendingBad) -> dict[str, Any]:
        """What the file of a node holds of a bad row."""
        node = self._all[number].node
        instead = [] if row.instead is None else _records_of(node.parent, row.instead)
        return {
            "node": node.label,
            "lane": lane,
            "element": row.element,
            "rows": self._tail.rows_of(self._position).rows,
            "sources": _listed(self._records_of(number, row)),
            **({} if row.instead is None else {"instead": _listed(instead)}),
            "file": row.reason.file,
            "error": row.reason.kind,
            "reason": row.reason.message,
        }

    def _reached(self, position: Sequence[int]) -> dict[tuple[int, int], float | None]:
        """For each kind of places and each lane, the next place; infinite after a whole pass.

        None for lanes of other processes.
        """
        return {(each.key, each.lane): each.stop for each in _places(self._node, position)}


def _all_counted(node: Node) -> list[_Counted]:
    """What is counted of the chain that an iterator runs, in the order of the numbers in states."""
    found = [
        _Counted(part, each)
        for part in random_access_parts(node)
        for each in part.parents_first()
        if each.takes_bad
    ]
    known, walked = {each.key for each in found}, cast("Iterable[Any]", node.walk())
    on_bad = {each.token: each for each in walked if each.takes_bad}
    for each in node.parents_first():
        places = None if each.caught is None else places_before(each)
        if each.caught is None or places is None:
            continue
        chain = as_chain(places)
        own = on_bad[each.caught.token]
        counted = _Counted(places if chain is None else chain.parent, own, chain is not None)
        if counted.key not in known:
            known.add(counted.key)
            found.append(counted)
    return found


def _pending(row: DroppedRow) -> _PendingBad:
    return _PendingBad(row.place, row.place, row.reason, True, row.made_of)


class _Place(NamedTuple):
    """Where a stream is in a lane, of `lanes`: see `_reached`. `share` is as in `share_of`."""

    key: int
    lane: int
    lanes: int
    stop: float | None
    share: str | None


_START = _Place(0, 0, 1, 0, None)


def _places(
    node: Node,
    position: Sequence[int],
    within: _Place = _START,
    *,
    again: bool = False,
) -> Iterator[_Place]:
    """The places of a stream at a position.

    Args:
        node: The stream, as it runs.
        position: The position.
        within: The lane that it is in.
        again: Whether it was passed as a whole.
    """

    def at(key: int, number: float) -> _Place:
        stop = within.stop if within.stop is None else np.inf if again else number
        return within._replace(key=key, stop=stop)

    chain = as_chain(node)
    if chain is not None:
        found, shard = at(id(chain.parent), position[0]), shard_of(chain.parent)
        yield found if shard is None else found._replace(share=shard.shard_names)
        return
    if shard_names(node) is not None:
        within = within._replace(share=share_of(node))
    if node.run_lanes is not None:
        (own, lanes), width = node.run_lanes, node.parent.width
        for lane in range(lanes):
            part = position[lane * width : (lane + 1) * width]
            stop = 0 if lane in own else None
            inside = within._replace(lane=lane, lanes=lanes, stop=stop)
            yield from _places(node.parent, part, inside, again=again)
        return
    *parts, own_integers = node.split_position(position)
    again = again or (node.passes != 1 and any(own_integers))
    if node.counts_places:
        yield at(id(node), own_integers[0])
    for parent, part in zip(node.parents, parts, strict=True):
        if parent.width:
            yield from _places(parent, part, within, again=again)


def _of_lanes(counts: Counts, key: str, lanes: int) -> Sequence[int | None]:
    """The counts of each lane; 0 without any."""
    found = counts.get(key, [0] * lanes)
    if len(found) != lanes:
        raise StateError(
            f"state has {len(found)} counts of bad records, of {lanes} lanes. It is damaged: restore"
            " another one."
        )
    return found


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
    if node is part:
        for k in np.flatnonzero(np.isin(elements, indices)).tolist():
            yield k, int(elements[k])
        return
    finder = _Finder(node)
    at = positions(elements, part.length)
    found: Trace = start(part, at, [0, len(at)], finder)()
    ends = np.cumsum(found.counts)
    for taken in found.taken:
        if taken.leaf is finder:
            for k in np.flatnonzero(np.isin(taken.records, indices)).tolist():
                yield int(ends.searchsorted(taken.rows[k], side="right")), int(taken.records[k])


def _records_of(node: Node, index: int) -> list[tuple[str, list[int]]]:
    found, leaves = trace(node, np.array([index]), uneven=True).taken, leaves_of(node)
    return [(leaves[id(each.leaf)].text, each.records.tolist()) for each in found]


def _listed(records: Iterable[tuple[str, list[int]]]) -> list[dict[str, Any]]:
    return [{"source": source, "records": found} for source, found in records]


def _what(max_bad: float) -> str:
    return "records" if isinstance(max_bad, int) else f"of {_WINDOW:,} elements"
