"""Bad rows: evaluation of a chain before an `on_bad` node, which continues after rows that raise.

On a stream rows that raise are dropped where they raise: see `windrow.engine.stages`.

A `Catcher` stands in place of the maker of values in the part of the chain before such a node. Each of
its results is a table and the rows that are lost, which are absent in the table. What raises for a whole
table is done again for parts of it, until each row that raises is alone. At the node the lost rows stay
absent or are replaced, and are noted.

Invariant: where nothing raises, the maker itself makes the tables, by the same calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from windrow.engine.index_walk import start
from windrow.engine.some_rows import merged_some
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.ragged_column import PiecePlaces
from windrow.transforms import tables
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import (
    JoinNode,
    LeafNode,
    Node,
    PieceNode,
    RegroupNode,
    ValueNode,
)
from windrow.transforms.nodes.caught import Catch
from windrow.transforms.nodes.on_bad import TRIES
from windrow.transforms.nodes.split import GivenNode
from windrow.transforms.positions import Positions
from windrow.transforms.row_blocks import Block
from windrow.transforms.tables import Columnar, Table

# Characters of an error's message that are kept.
_MOST = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a row is lost: the class of the error, its message, and the file if it names one."""

    kind: str
    message: str
    file: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Reason:
        """The reason, of the error that the row raised."""
        return cls(type(error).__name__, str(error)[:_MOST], getattr(error, "file", None))

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class BadRow(NamedTuple):
    """A row that was left out or replaced, for the `on_bad` node with this token.

    Args:
        token: Names the node.
        place: The index of the element: at the node or, of a stream, in the chain that it reads.
        reason: Why.
        instead: The index of the element that came in its place.
        made_of: What a row of a later stage of a stream is made of, if that is known.
    """

    token: int
    place: int
    reason: Reason
    instead: int | None = None
    made_of: MadeOf | None = None


def dropped_rows(
    caught: Catch, block: Block, errors: Mapping[int, BaseException]
) -> Iterator[BadRow]:
    """The bad rows among the rows of a block that came to a node of a stream."""
    for row, error in errors.items():
        made_of = None if block.made_of is None else block.made_of.taken(np.array([row]))
        place = int(block.marks[row, 0]) - 1
        yield BadRow(caught.token, place, Reason.of(error), made_of=made_of)


class Caught(NamedTuple):
    """Rows, with those that are lost and absent, by their numbers."""

    table: Table
    lost: Mapping[int, Reason]


class Catcher:
    """Makes the tables before an `on_bad` node: see `windrow.engine.index_walk.Maker`."""

    def __init__(self, inner: Any, node: Any) -> None:
        """Take the place of a maker `inner` before `node`."""
        self._inner, self._node = inner, node

    def before(self, node: ValueNode) -> Catcher:
        """The maker of the parent's tables."""
        return Catcher(self._inner, node) if node.takes_bad else self

    def start(
        self, source: Any, records: IntArray, places: PiecePlaces | None = None
    ) -> Callable[[], Caught]:
        """Start reading records; after an error those are read again that did not raise."""
        finish = self._inner.start_some(source, records)

        def again(rows: IntArray) -> Table:
            found: Table = self._inner.read_alone(source, records[rows])
            return found

        def read() -> Caught:
            try:
                table, errors = finish()
                for lost in errors.values():
                    self._check(lost)
            except Exception as error:
                self._check(error)
                # A planned read fails for all chunks that were read together. Neighbours are lost
                # together, so they stay together.
                parts = _parts(np.argsort(records, kind="stable"), error, records)
            else:
                return Caught(table, {row: Reason.of(lost) for row, lost in errors.items()})
            return self._made(again, len(records), parts, {}, records)

        return read

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Callable[[], Caught]:
        """Tables of another process, which isolates their rows."""
        found: Callable[[], Caught] = self._inner.given_before(self._node, node, at, cuts)
        return found

    def leaf(self, node: LeafNode, at: Positions) -> Callable[[], Caught]:
        """Elements that follow from their positions."""
        finish = self._inner.leaf(node, at)
        return lambda: Caught(finish(), {})

    def merged(self, parts: Sequence[tuple[Caught, IntArray]], count: int) -> Caught:
        """One table of the rows of several."""
        lost = {int(at[row]): why for part, at in parts for row, why in part.lost.items()}
        return Caught(self._inner.merged([(part.table, at) for part, at in parts], count), lost)

    def joined(self, node: JoinNode, parts: Sequence[Caught]) -> Caught:
        """Elements made of the elements of all parents; lost where one of these is."""
        lost = {row: why for part in parts for row, why in part.lost.items()}

        def some(rows: IntArray) -> Table:
            made: Table = self._inner.joined(node, [_taken(part.table, rows) for part in parts])
            return made

        return self._without(some, parts[0].table.rows, lost)

    def gathered(
        self, node: RegroupNode, rows: Caught, bounds: Sequence[int], at: Positions
    ) -> Caught:
        """Elements out of groups of rows; lost where one of these is."""
        edges = np.array(bounds, np.int64)
        lost = {
            int(edges.searchsorted(row, side="right")) - 1: why for row, why in rows.lost.items()
        }

        def some(which: IntArray) -> Table:
            counts = edges[which + 1] - edges[which]
            ends = np.concatenate([[0], np.cumsum(counts)])
            taken = np.arange(ends[-1]) + np.repeat(edges[which] - ends[:-1], counts)
            table = _taken(rows.table, taken)
            made: Table = self._inner.gathered(node, table, ends.tolist(), at.taken(which))
            return made

        return self._without(some, len(at), lost)

    def cut(self, node: PieceNode, whole: Caught, which: IntArray, at: Positions) -> Caught:
        """Parts of elements; lost where the element is."""
        lost = {row: whole.lost[n] for row, n in enumerate(which.tolist()) if n in whole.lost}

        def some(rows: IntArray) -> Table:
            wanted, numbers = np.unique(which[rows], return_inverse=True)
            table = _taken(whole.table, wanted)
            made: Table = self._inner.cut(node, table, numbers, at.taken(rows))
            return made

        return self._without(some, len(at), lost)

    def applied(self, node: ValueNode, rows: Caught, at: Positions, cuts: Sequence[int]) -> Caught:
        """Elements that a function makes; lost where it raises."""
        if node.takes_bad:
            return Caught(settled(self._inner, node, rows, at), {})
        lost, indices = dict(rows.lost), at.flat(node.length)

        def some(which: IntArray) -> Table:
            inner = np.unique(np.searchsorted(which, cuts)).tolist()
            table: Table
            table, failed = self._inner.tried(
                node, _taken(rows.table, which), indices[which], inner, self._node.takes
            )
            lost.update((int(which[row]), Reason.of(error)) for row, error in failed.items())
            return table

        # A function is not called for rows that are absent, so the lost ones may stay.
        return self._made(some, len(at), [np.arange(len(at))], lost)

    def _check(self, error: Exception) -> None:
        """Raise an error that the node does not take."""
        if not self._node.takes(error):
            raise error

    def _without(
        self, some: Callable[[IntArray], Table], count: int, lost: dict[int, Reason]
    ) -> Caught:
        """Rows that `some` makes, without those that are lost already."""
        return self._made(some, count, [np.delete(np.arange(count), [*lost])], lost)

    def _made(
        self,
        some: Callable[[IntArray], Table],
        count: int,
        waiting: list[IntArray],
        lost: dict[int, Reason],
        records: IntArray | None = None,
    ) -> Caught:
        """Rows made at once or, where that raises, in parts.

        Args:
            some: Makes some rows, by their numbers.
            count: The number of rows.
            waiting: The rows to make, in parts; the last part comes first.
            lost: The rows that are lost; what raises alone is added.
            records: The record that each row is, where reading makes them.
        """
        parts = list[tuple[Table, IntArray]]()
        while waiting:
            rows = waiting.pop()
            try:
                if len(rows):
                    parts.append((some(rows), rows))
            except Exception as error:
                self._check(error)
                if len(rows) == 1:
                    lost[int(rows[0])] = Reason.of(error)
                else:
                    waiting += _parts(rows, error, records)
        if len(parts) == 1 and len(parts[0][1]) == count and records is None:
            return Caught(parts[0][0], lost)
        return Caught(merged_some(parts, count), lost)


def settled(inner: Any, node: Any, rows: Caught, at: Positions) -> Table:
    """The elements of an `on_bad` node; its bad rows are noted."""
    if not rows.lost:
        return rows.table
    indices, instead, table = at.flat(node.length), dict[int, int](), rows.table
    if node.action == "replace":
        table, instead = _replaced(inner, node, rows, at)
    inner.noted.extend(
        BadRow(node.token, int(indices[row]), why, instead.get(row))
        for row, why in sorted(rows.lost.items())
    )
    return table


def _replaced(inner: Any, node: Any, rows: Caught, at: Positions) -> tuple[Table, dict[int, int]]:
    """The elements, with others of the parent in place of bad ones; and the indices of these by row."""
    instead, count = dict[int, int](), rows.table.rows
    parts = list[tuple[Table, IntArray]]()
    left = np.array(sorted(rows.lost), np.int64)
    good = np.delete(np.arange(count), left)
    if len(good):
        parts.append((_taken(rows.table, good), good))
    parent: Node = node.parent if node.spare is None else node.spare
    found, reader = rows, Catcher(inner.alone(), node)
    for tried in range(TRIES):
        where = node.other(at.taken(left), tried)
        found = start(parent, where, [0, len(left)], reader)()
        lost = np.array(sorted(found.lost), np.int64)
        kept = np.delete(np.arange(len(left)), lost)
        if len(kept):
            parts.append((_taken(found.table, kept), left[kept]))
            taken = where.taken(kept).flat(node.length)
            instead.update(zip(left[kept].tolist(), taken.tolist(), strict=True))
        left = left[lost]
        if not len(left):
            return merged_some(parts, count), instead
    index, why = at.flat(node.length)[left[0]], next(iter(found.lost.values()))
    raise ReadError(
        f"{node.label}: element {index} is bad, and so are {TRIES} others that were chosen in"
        f" place of it, the last with {why}. Most of the data cannot be read: check it with windrow"
        " verify"
    )


def _parts(rows: IntArray, error: Exception, records: IntArray | None) -> list[IntArray]:
    """Parts of rows that raised: those that the error names and the others, or both halves."""
    if records is not None and isinstance(error, ReadError) and error.records is not None:
        first, stop = error.records
        named = (records[rows] >= first) & (records[rows] < stop)
        if named.any() and not named.all():
            return [rows[~named], rows[named]]
    middle = len(rows) // 2
    return [rows[middle:], rows[:middle]]


def _taken(table: Table, rows: IntArray) -> Table:
    """Some rows of a table, in ascending order."""
    if len(rows) == table.rows:
        return table
    found = tables.taken(table, rows)
    if isinstance(found, Columnar) and found.present is not None and found.present.all():
        return Columnar(found.tree, found.rows)
    return found
