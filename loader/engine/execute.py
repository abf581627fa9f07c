"""Execution starts the reads of a chain, and makes values of them.

`start` (see `index_walk`) walks a chain down with whole arrays of positions. `Reader` starts the
reads of its sources, and `Values` makes the elements on the way back up. `ds[i]`,
`ds.read(indices)` and every iterator get their elements only through here.

Invariant: starting calls no function of the user (but a selection map) and waits for nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.threads import DaemonPool
from windrow.engine.budgets import reads_records_alone
from windrow.engine.index_walk import start as start
from windrow.engine.prefetch import Prefetcher
from windrow.engine.record_trace import OWN_CHAIN, origins
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.errors import ElementError, RecordIndexError, WindrowError
from windrow.sources.base import IntArray
from windrow.sources.chunks import ArrayPart, LaidOutSource, Part, parts_read
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.ragged_column import PiecePlaces
from windrow.sources.remote.options import is_remote_source
from windrow.stats.profiler import READING, calling, doing
from windrow.stats.read_counters import ReadCounters
from windrow.transforms import tables
from windrow.transforms.functions import call_without_stop, name_of
from windrow.transforms.nodes import (
    STREAM,
    EachNode,
    JoinNode,
    LeafNode,
    Node,
    PieceNode,
    RegroupNode,
    Step,
    ValueNode,
    walk,
)
from windrow.transforms.nodes.split import GivenNode, Halves
from windrow.transforms.options import ReadOptions
from windrow.transforms.positions import Positions, positions
from windrow.transforms.row_blocks import place_text
from windrow.transforms.tables import Table

if TYPE_CHECKING:
    from windrow.engine.bad_rows import BadRow
    from windrow.engine.some_rows import FinishSome

Finish = Callable[[], Table]
Takes = Callable[[BaseException], bool]
"""Whether an `on_bad` node takes an error."""


class Values:
    """Makes values on the way up a chain. All readers derive from this class."""

    __slots__ = ()
    thread_map: ThreadMap | None = None
    """Threads that call the functions of the user; None for the calling thread."""

    def leaf(self, node: LeafNode, at: Positions) -> Finish:
        """Elements that follow from their positions."""
        table = node.table(at)
        return lambda: table

    def merged(self, parts: Sequence[tuple[Table, IntArray]], count: int) -> Table:
        """One table of the rows of several."""
        return tables.merged(parts, count)

    def joined(self, node: JoinNode, parts: Sequence[Table]) -> Table:
        """Elements made of the parents' elements at the same indices."""
        return node.join(parts)

    def gathered(
        self, node: RegroupNode, rows: Table, bounds: Sequence[int], at: Positions
    ) -> Table:
        """Elements out of groups of rows."""
        return _gathered(node, rows, bounds, at)

    def cut(self, node: PieceNode, whole: Table, which: IntArray, at: Positions) -> Table:
        """Parts of elements."""
        with calling(node):
            return node.cut(whole, which, at)

    def before(self, node: ValueNode) -> Any:
        """The maker of the tables that `applied` gets."""
        if not node.takes_bad:
            return self
        from windrow.engine.bad_rows import Catcher  # few chains need it

        return Catcher(self, node)

    def applied(self, node: ValueNode, rows: Any, at: Positions, cuts: Sequence[int]) -> Table:
        """Elements that the function of a node makes; of rows that were caught, if it takes these."""
        if node.takes_bad:
            from windrow.engine.bad_rows import settled

            return settled(self, node, rows, at)
        return applied(node, rows, at.flat(node.length), cuts, self.thread_map)[0]

    def tried(
        self,
        node: ValueNode,
        table: Table,
        indices: npt.NDArray[Any],
        cuts: Sequence[int],
        takes: Takes,
    ) -> tuple[Table, dict[int, Exception]]:
        """As `applied`, with errors by row: see the function `applied`."""
        return applied(node, table, indices, cuts, self.thread_map, takes)

    def read_alone(self, source: Any, records: IntArray) -> Table:
        """Records of a source, read while the caller waits."""
        return read_alone(source, records)

    def start_some(self: Any, source: Any, records: IntArray) -> FinishSome:
        """As `start`, before a node that takes bad rows."""
        finish = self.start(source, records)
        return lambda: (finish(), {})

    def alone(self) -> Reader:
        """A reader that reads while the caller waits."""
        return Reader(thread_map=self.thread_map)

    @property
    def noted(self) -> list[BadRow]:
        """Takes the bad rows that were left out or replaced."""
        return []

    def given_before(
        self, catching: ValueNode, node: GivenNode, at: Positions, cuts: Sequence[int]
    ) -> Callable[[], Any]:
        """As `given`, of a table before a node that takes bad rows."""
        raise TypeError(f"{node.label} cannot be read as part of a whole chain")


class _Later:
    """A read that starts when `begin` is called, or at the latest when it is waited for."""

    def __init__(
        self, submit: Callable[[], Callable[[], Any]], what: tuple[Any, Sequence[Part], int]
    ) -> None:
        self._submit = submit
        self.what = what  # the source, its parts (or () for all of them), and the records
        self._wait: Callable[[], Any] | None = None

    def begin(self) -> None:
        if self._wait is None:
            self._wait = self._submit()

    def result(self) -> Any:
        wait = self._wait or self._submit()
        return wait()


@dataclasses.dataclass(slots=True)
class Reader(Values):
    """Starts the reads of one read batch, through a prefetcher where a source declares its layout.

    Other reads begin with `begin`, or when they are waited for. With a pool they run in parallel.
    `lane_of` returns the thread on which a source does its batched reads, one after the other. Such
    a read keeps the cores busy by itself, and one thread reuses the memory that its reads free.
    """

    pool: Executor | None = None
    threads: int = 1
    bytes_read: int = 0
    waited_s: float = 0.0  # for sources that are remote
    lane_of: Callable[[Any], Executor] | None = None
    prefetcher: Prefetcher | None = None
    read_batch: int = 0
    thread_map: ThreadMap | None = None
    read_counters: ReadCounters | None = None
    noted: list[BadRow] = dataclasses.field(default_factory=list)
    _later: list[_Later] = dataclasses.field(default_factory=list)
    _begun: list[tuple[Any, Sequence[Part], int]] = dataclasses.field(default_factory=list)

    def begin(self) -> None:
        """Begin the reads that are not planned ahead."""
        for later in self._later:
            later.begin()
            self._begun.append(later.what)
        self._later.clear()

    def expected_bytes(self) -> int:
        """Bytes of reads that are begun and not planned, estimated from earlier reads."""
        if self.read_counters is None:
            return 0
        return sum(self.read_counters.expected_bytes(*read) for read in self._begun)

    def start(self, source: Any, records: IntArray, places: PiecePlaces | None = None) -> Finish:
        """Start, or plan, reading records of a source, or the parts of them with `places`."""
        if not self._takes(source, places):
            places = None
        wait, alone = self._started(source, records, places)
        remote = is_remote_source(source)

        def finish() -> Table:
            with doing(READING):
                began = time.perf_counter()
                found = wait()
                if remote:
                    self.waited_s += time.perf_counter() - began
                table = self._table(source, found, records, places)
                size_bytes = tables.nbytes(table)
                self.bytes_read += size_bytes
                if self.read_counters is not None:
                    self.read_counters.arrived(source, records, size_bytes, alone)
            return table

        return finish

    def start_some(self, source: Any, records: IntArray) -> FinishSome:
        """Start, or plan, reading records of a source before a node that takes bad rows."""
        from windrow.engine.some_rows import started_some  # few chains need it

        return started_some(self, source, records)

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """Nothing is given to a whole chain."""
        raise TypeError(f"{node.label} cannot be read as part of a whole chain")

    def _takes(self, source: Any, places: PiecePlaces | None) -> bool:
        """Whether parts of the records of a source can be read to their places."""
        ahead = self.prefetcher
        if places is None or ahead is None or not isinstance(source, LaidOutSource):
            return False
        return all(
            isinstance(part, ArrayPart)
            and part.lengths is not None
            and ahead.of(source, part) is not None
            for part in source.parts
        )

    def _started(
        self, source: Any, records: IntArray, places: PiecePlaces | None
    ) -> tuple[Callable[[], Any], Sequence[Part]]:
        """The function that waits for records, and the parts that it reads without a plan."""
        if len(records) == 0:
            return list, ()
        if not isinstance(source, LaidOutSource):
            return self._bulk(source, (), source.read, records), ()
        ahead = self.prefetcher
        if ahead is None or not ahead.plans(source):
            return self._bulk(source, source.parts, source.read, records), source.parts
        waits, alone = [], []
        for part in source.parts:
            planned = ahead.of(source, part)
            if planned is None:
                waits.append(self._bulk(source, (part,), part.read, records))
                alone.append(part)
            else:
                waits.append(planned.plan(self.read_batch, records, places))
        return lambda: self._assembled(source, _all_of(waits), records), alone

    def _assembled(self, source: LaidOutSource, columns: list[Any], records: IntArray) -> Any:
        return source.assembled(columns, records)

    def _table(
        self, source: Any, found: Any, records: IntArray, places: PiecePlaces | None
    ) -> Table:
        if places is not None:
            return tables.Columnar(found, len(records))
        return tables.from_source(found, len(records), type(source).__name__)

    def _bulk(
        self,
        source: Any,
        parts: Sequence[Part],
        read: Callable[[IntArray], Any],
        records: IntArray,
    ) -> Callable[[], Any]:
        """Read records in one call, or in parallel if the source has no batched read."""
        pool = self.pool
        if pool is None:
            return lambda: _read(source, read, records)
        if isinstance(source, ForeignDataSource) and not source.batched:
            # Its read is a loop in Python over records: several threads wait at the same time.
            some = np.array_split(records, min(self.threads, len(records)))

            def submit() -> Callable[[], Any]:
                waits = [pool.submit(read, indices).result for indices in some]
                return lambda: [record for wait in waits for record in wait()]

        else:
            lane = pool if self.lane_of is None else self.lane_of(source)

            def submit() -> Callable[[], Any]:
                return lane.submit(_read, source, read, records).result

        later = _Later(submit, (source, parts, len(records)))
        self._later.append(later)
        return later.result


def _all_of(waits: Sequence[Callable[[], Any]]) -> list[Any]:
    """What all of them return. Each is called, also after an error: its read has to end."""
    found, failed = list[Any](), list[Exception]()
    for wait in waits:
        try:
            found.append(wait())
        except Exception as error:
            failed.append(error)
            found.append(error)
    try:
        if failed:
            raise parts_read(found) or failed[0]
        return found
    finally:
        if failed:  # an error holds on to this frame
            failed.clear()
            found.clear()


def read_alone(source: Any, records: IntArray) -> Table:
    """Records of a source, read while the caller waits."""
    found = _read(source, source.read, records)
    return tables.from_source(found, len(records), type(source).__name__)


def _read(source: Any, read: Callable[[IntArray], Any], records: IntArray) -> Any:
    try:
        return call_without_stop(read, records)
    except Exception as error:
        # Windrow's own sources name the record themselves.
        if not isinstance(error, WindrowError) and not isinstance(source, ForeignDataSource):
            error.add_note(
                f"windrow: raised in {type(source).__name__}.read of {len(records)} records, the"
                f" first of them {records[0]}"
            )
        raise


@dataclasses.dataclass(frozen=True, slots=True)
class LowerReader(Values):
    """Starts the lower half of a chain; another process makes the upper half of its tables."""

    reader: Reader
    halves: Halves
    started: list[Finish]

    def start(self, source: Any, records: IntArray, places: PiecePlaces | None = None) -> Finish:
        """Do nothing: another process reads this source."""
        return _elsewhere

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """Start the tables that the upper half gets."""
        self.started.append(start(self.halves.lower[node.number], at, cuts, self.reader))
        return _elsewhere

    @property
    def noted(self) -> list[BadRow]:
        """The bad rows of the reader."""
        return self.reader.noted

    def given_before(
        self, catching: ValueNode, node: GivenNode, at: Positions, cuts: Sequence[int]
    ) -> Callable[[], Any]:
        """Start tables whose bad rows are isolated here, and taken by a node of the upper half."""
        lower, reader = self.halves.lower[node.number], self.reader.before(catching)
        self.started.append(start(lower, at, cuts, reader))
        return _elsewhere


class UpperReader(Values):
    """Hands the tables of the lower half to the upper one, in the order they were started."""

    def __init__(
        self,
        given: Sequence[Table],
        threads: StageThreads | None = None,
        read_counters: ReadCounters | None = None,
    ) -> None:
        self._tables = iter(given)
        self.reader = Reader(read_counters=read_counters)
        if threads is not None:
            self.thread_map = threads.thread_map
            self.reader.pool, self.reader.threads = threads.pool, threads.count

    def start(self, source: Any, records: IntArray, places: PiecePlaces | None = None) -> Finish:
        """Read a source here."""
        return self.reader.start(source, records, places)

    def start_some(self, source: Any, records: IntArray) -> FinishSome:
        """Read a source here."""
        return self.reader.start_some(source, records)

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """The next table."""
        table = next(self._tables)
        return lambda: table

    @property
    def noted(self) -> list[BadRow]:
        """The bad rows of the reader."""
        return self.reader.noted

    def given_before(
        self, catching: ValueNode, node: GivenNode, at: Positions, cuts: Sequence[int]
    ) -> Callable[[], Any]:
        """The next table, whose bad rows were isolated."""
        return self.given(node, at, cuts)


def _elsewhere() -> Table:
    raise TypeError("this half of the chain is made in another process")


def _gathered(node: RegroupNode, table: Table, bounds: Sequence[int], at: Positions) -> Table:
    try:
        with calling(node):
            return node.gather_at(table, bounds, at)
    except Exception as error:
        found = error
        if isinstance(error, ElementError) and not any(each.functions for each in walk(node)):
            found = ElementError(
                str(error).replace(
                    "a function returned None; does it lack a return?", "its record is None"
                )
            )
        if len(at) == 1:  # an iterator narrows an error down to its batch
            found.add_note(f"windrow: raised in {node.label} for batch {at.flat(node.length)[0]}")
        raise found from error.__cause__


OF_GROUP: Final = "windrow_of_group"
"""An attribute of errors of functions that got the rows of a group at once."""


def apply_at_once(
    node: ValueNode, table: Table, indices: npt.NDArray[Any], cuts: Sequence[int]
) -> Table:
    """The elements that a node makes of a whole table; `indices` are the indices of its rows."""
    try:
        with calling(node):
            made = node.apply(table, indices, cuts)
        if made.rows != table.rows:
            raise ElementError(
                f"{node.written}: apply must return a row for each it is given, got {made.rows}"
                f" rows of {table.rows}"
            )
    except Exception as error:
        if not isinstance(error, WindrowError):
            error.add_note(f"windrow: raised in {node.written} for one of {table.rows} rows")
        error.__dict__[OF_GROUP] = True
        raise
    return made


def call(
    node: EachNode,
    table: Table,
    indices: npt.NDArray[Any],
    *,
    on_none: bool = False,
    thread_map: ThreadMap | None = None,
    takes: Takes | None = None,
) -> tuple[list[Any], Exception | None]:
    """Call the function of a node on rows with these indices, one by one.

    With `takes`, an error that it takes is a result: a `Failed`.

    Returns:
        What it returned up to the first element for which it raised, and that error. None for an
        absent element, for which it is not called unless `on_none`.
    """
    values = tables.elements(table)
    if on_none or not tables.any_absent(values):
        with calling(node):
            return _called(node, values, indices, thread_map, takes)
    here = [row for row, value in enumerate(values) if value is not None]
    with calling(node):
        some = [values[row] for row in here]
        made, error = _called(node, some, indices[here], thread_map, takes)
    out: list[Any] = [None] * (len(values) if error is None else here[len(made)])
    for row, value in zip(here, made, strict=False):
        out[row] = value
    return out, error


def _called(
    node: EachNode,
    values: list[Any],
    indices: npt.NDArray[Any],
    thread_map: ThreadMap | None,
    takes: Takes | None,
) -> tuple[list[Any], Exception | None]:
    if thread_map is None:
        return _called_in_turn(node, values, indices, takes)
    parts = thread_map.run(
        node,
        lambda start, stop: _called_in_turn(node, values[start:stop], indices[start:stop], takes),
        len(values),
    )
    out: list[Any] = []
    for made, error in parts:
        out += made
        if error is not None:
            return out, error
    return out, None


def _called_in_turn(
    node: EachNode, values: list[Any], indices: npt.NDArray[Any], takes: Takes | None
) -> tuple[list[Any], Exception | None]:
    results = node.results(values, indices)
    who = f"{node.label}({name_of(node.function)})"
    out, error = tables.gathered(results, len(values), who)
    while error is not None and takes is not None and takes(error):
        out.append(Failed(error))
        rest = node.results(values[len(out) :], indices[len(out) :])
        more, error = tables.gathered(rest, len(values) - len(out), who)
        out += more
    if error is not None:
        element = values[len(out)]
        if isinstance(error, KeyError) and isinstance(element, dict):
            error.add_note(f"windrow: the element has the keys {list(element)}")
        _name_place(error, who, node, indices[len(out)])
    return out, error


def _name_place(error: Exception, who: str, node: Node, index: Any) -> None:
    """Name, in a note of an error, the element that failed and the records it is made of."""
    records, unknown = "", list[tuple[int, list[int]]]()
    if node.length != STREAM:
        records, unknown = origins(node.parent, [index])
    elif np.ndim(index) == 0 and node.stream_step is Step.ROWS:
        unknown = [(OWN_CHAIN, [int(index)])]
    if unknown:
        error.__dict__["windrow_unknown"] = unknown
    made_of = f", made of {records}" if records else ""
    error.add_note(f"windrow: raised in {who} for {place_text(index)}{made_of}")


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The result for an element for which a function raised."""

    error: Exception


def applied(
    node: ValueNode,
    table: Table,
    indices: npt.NDArray[Any],
    cuts: Sequence[int],
    thread_map: ThreadMap | None = None,
    takes: Takes | None = None,
) -> tuple[Table, dict[int, Exception]]:
    """The elements of a node, of a table with these indices.

    With `takes`, errors that it takes of a function of one element are returned by row; the row is
    absent then.
    """
    if not isinstance(node, EachNode):
        return apply_at_once(node, table, indices, cuts), {}
    out, error = call(node, table, indices, thread_map=thread_map, takes=takes)
    if error is not None:
        raise error
    failed: dict[int, Exception] = {}
    if takes is not None and Failed in set(map(type, out)):
        failed = {row: each.error for row, each in enumerate(out) if type(each) is Failed}
        for row in failed:
            out[row] = None
    return node.made(table, out), failed


def read_now(node: Node, indices: npt.NDArray[Any]) -> Table:
    """The elements of a chain at any indices, read while the caller waits.

    Raises:
        RecordIndexError: If an index does not fit into 64 bits.
    """
    if not len(indices):
        return tables.Listed([])
    if indices.dtype.kind == "u" and indices.max() > np.iinfo(np.int64).max:
        raise RecordIndexError(f"index {indices.max()} is too large; choose one below 2**63")
    at = positions(indices.astype(np.int64), node.length)
    if not reads_records_alone(node, len(at)):
        return start(node, at, [0, len(at)], Reader())()
    threads = ReadOptions().num_threads
    with DaemonPool(threads, "windrow-read") as pool:
        return start(node, at, [0, len(at)], Reader(pool, threads))()
