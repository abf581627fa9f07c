"""Execution: indices flow down, values flow up.

`start(node, at, ...)` walks the chain downwards with whole arrays of positions and starts every
read; the function it returns waits for them and walks upwards with the values. There is no other
way to an element: `ds[i]`, `ds.read(indices)` and every iterator come through here.

Invariant: starting runs no function of the user's (but a selection map) and waits for nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from windrow.errors import WindrowError
from windrow.lookahead import Lookahead
from windrow.meter import READING, calling, doing
from windrow.sources import ForeignDataSource, LaidOutSource, Part, is_far
from windrow.spread import Spread
from windrow.tallies import Tallies
from windrow.transforms import columns, tables
from windrow.transforms.functions import call_without_stop, name_of
from windrow.transforms.halves import GivenNode, Halves
from windrow.transforms.nodes import (
    STREAM,
    BatchNode,
    FilterNode,
    IndexNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    RangeNode,
    RoutingNode,
    SourceNode,
    ZipNode,
)
from windrow.transforms.positions import Positions, positions
from windrow.transforms.random import IndexedRandom
from windrow.transforms.tables import Columnar, Listed, Table

IntArray = npt.NDArray[np.int64]
Finish = Callable[[], Table]


class Leaves(Protocol):
    """Where the leaves of a chain get their elements from."""

    @property
    def spread(self) -> Spread | None:
        """Threads for functions; None for none."""
        ...

    def start(self, source: Any, records: IntArray) -> Finish:
        """Start, or plan, reading records of a source."""
        ...

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """Start making what another process gives, or take it."""
        ...


class _Later:
    """A read that is started when it is told to, or at the latest when it is waited for."""

    def __init__(
        self, submit: Callable[[], Callable[[], Any]], what: tuple[Any, Sequence[Part], int]
    ) -> None:
        self._submit = submit
        self.what = what  # the source, parts of it or () for all that it gives, and the records
        self._wait: Callable[[], Any] | None = None

    def begin(self) -> None:
        if self._wait is None:
            self._wait = self._submit()

    def result(self) -> Any:
        wait = self._wait or self._submit()
        return wait()


@dataclasses.dataclass(slots=True)
class Reader:
    """Starts the reads of one round: through a look-ahead where a source tells its layout.

    Other reads begin with `begin`, or when they are waited for; with a pool beside each other.
    `lane_of` gives the thread on which a source does its batched reads, one after the other: such
    a read keeps the cores busy by itself, and on one thread memory that it frees is used again.
    """

    pool: Executor | None = None
    threads: int = 1
    bytes_read: int = 0
    waited_s: float = 0.0  # for sources that are far away
    lane_of: Callable[[Any], Executor] | None = None
    lookahead: Lookahead | None = None
    round: int = 0
    spread: Spread | None = None
    tallies: Tallies | None = None
    _later: list[_Later] = dataclasses.field(default_factory=list)
    _begun: list[tuple[Any, Sequence[Part], int]] = dataclasses.field(default_factory=list)

    def begin(self) -> None:
        """Begin the reads that are not planned ahead."""
        for later in self._later:
            later.begin()
            self._begun.append(later.what)
        self._later.clear()

    def expected_bytes(self) -> int:
        """Bytes of the reads that are begun and not planned, judged by what came before."""
        if self.tallies is None:
            return 0
        return sum(self.tallies.expected_bytes(*read) for read in self._begun)

    def start(self, source: Any, records: IntArray) -> Finish:
        """Start, or plan, reading records of a source."""
        wait, alone = self._started(source, records)
        far = is_far(source)

        def finish() -> Table:
            with doing(READING):
                began = time.perf_counter()
                found = wait()
                if far:
                    self.waited_s += time.perf_counter() - began
                table = tables.from_source(found, len(records), type(source).__name__)
                size_bytes = tables.nbytes(table)
                self.bytes_read += size_bytes
                if self.tallies is not None:
                    self.tallies.arrived(source, records, size_bytes, alone)
            return table

        return finish

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """Nothing is given to a whole chain."""
        raise TypeError(f"{node.label} is no part of a whole chain")

    def _started(self, source: Any, records: IntArray) -> tuple[Callable[[], Any], Sequence[Part]]:
        """What waits for records, and the parts of the source that are not planned for it."""
        if len(records) == 0:
            return list, ()
        if not isinstance(source, LaidOutSource):
            return self._bulk(source, (), source.read, records), ()
        ahead = self.lookahead
        if ahead is None or not ahead.plans(source):
            return self._bulk(source, source.parts, source.read, records), source.parts
        waits, alone = [], []
        for part in source.parts:
            planned = ahead.of(source, part)
            if planned is None:
                waits.append(self._bulk(source, (part,), part.read, records))
                alone.append(part)
            else:
                waits.append(planned.plan(self.round, records))
        return lambda: source.assembled([wait() for wait in waits], records), alone

    def _bulk(
        self,
        source: Any,
        parts: Sequence[Part],
        read: Callable[[IntArray], Any],
        records: IntArray,
    ) -> Callable[[], Any]:
        """Records read in one call, or side by side where a source has no batched read."""
        pool = self.pool
        if pool is None:
            return lambda: _read(source, read, records)
        if isinstance(source, ForeignDataSource) and not source.batched:
            # Its read is a loop in Python over records: let several threads wait side by side.
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
class Lower:
    """Starts the lower half of a chain; what it makes is given to the upper one elsewhere."""

    reader: Reader
    halves: Halves
    started: list[Finish]
    spread: Spread | None = None

    def start(self, source: Any, records: IntArray) -> Finish:
        """A source that is read elsewhere: nothing to do here."""
        return _elsewhere

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """Start what the upper half is given."""
        self.started.append(start(self.halves.lower[node.number], at, cuts, self.reader))
        return _elsewhere


class Handed:
    """Hands the tables of the lower half to the upper one, in the order they were started."""

    spread: Spread | None = None

    def __init__(self, given: Sequence[Table], tallies: Tallies | None = None) -> None:
        self._tables = iter(given)
        self.reader = Reader(tallies=tallies)

    def start(self, source: Any, records: IntArray) -> Finish:
        """Read a source here."""
        return self.reader.start(source, records)

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        """The next table."""
        table = next(self._tables)
        return lambda: table


def _elsewhere() -> Table:
    raise TypeError("this half of the chain is made in another process")


def start(node: Node, at: Positions, cuts: Sequence[int], reader: Leaves) -> Finish:
    """Start making the elements of `node` at positions `at`.

    Args:
        node: A node with random access.
        at: Positions in it.
        cuts: Bounds in `at` of the rows that a batched function gets in one call.
        reader: Reads the sources.

    Returns:
        A function that waits and returns the table of elements, to be called once.
    """
    match node:
        case SourceNode():
            return reader.start(node.source, at.offsets)
        case GivenNode():
            return reader.given(node, at, cuts)
        case RangeNode():
            values = (node.start + at.offsets * node.step).view(columns.PythonInts)
            return lambda: Columnar(values, len(at))
        case IndexNode():
            return start(node.parent, node.to_parent(at), cuts, reader)
        case RoutingNode():
            return _start_routed(node, at, cuts, reader)
        case ZipNode():
            finishes = [start(parent, at, cuts, reader) for parent in node.parents]
            return lambda: zipped([finish() for finish in finishes])
        case BatchNode():
            rows, bounds = node.to_rows(at)
            inner = bounds.tolist()
            below = start(node.parent, rows, inner, reader)
            return lambda: _batches(node, below(), inner, at)
        case MapNode(batched=True):
            below = start(node.parent, at, cuts, reader)
            return lambda: map_columns(node, below(), cuts)
        case _:
            below = start(node.parent, at, cuts, reader)
            return lambda: apply(node, below(), at.flat(node.length), reader.spread)


def _start_routed(node: RoutingNode, at: Positions, cuts: Sequence[int], reader: Leaves) -> Finish:
    which, below = node.route(at)
    started: list[tuple[Finish, IntArray]] = []
    for number in np.unique(which).tolist():
        rows = np.flatnonzero(which == number)
        inner = np.unique(np.searchsorted(rows, cuts)).tolist()
        finish = start(node.parents[number], below.taken(rows), inner, reader)
        started.append((finish, rows))
    if len(started) == 1:
        return started[0][0]
    return lambda: tables.merged([(finish(), rows) for finish, rows in started], len(at))


def _batches(node: BatchNode, table: Table, bounds: Sequence[int], at: Positions) -> Table:
    try:
        with calling(node):
            return Listed(tables.batches(table, bounds, node.batch_fn))
    except Exception as error:
        if len(at) == 1:  # an iterator narrows an error down to its batch
            error.add_note(f"windrow: raised in {node.label} for batch {at.flat(node.length)[0]}")
        raise


def zipped(parts: Sequence[Table]) -> Table:
    """Tuples of the elements that tables of the same rows have."""
    singles = [tables.single(part) for part in parts]
    trees = [t.tree for t in singles if isinstance(t, Columnar) and t.present is None]
    if len(trees) == len(singles):
        return Columnar(tuple(trees), singles[0].rows)
    return Listed(list(zip(*(tables.elements(part) for part in singles), strict=True)))


def map_columns(node: MapNode, table: Table, cuts: Sequence[int]) -> Table:
    """A batched map over a table."""
    who = f"map({name_of(node.function)}, batched=True)"
    try:
        with calling(node):
            return tables.map_segments(node.function, table, cuts, who)
    except Exception as error:
        if not isinstance(error, WindrowError):
            error.add_note(f"windrow: raised in {who} for one of {table.rows} rows")
        raise


def call(
    node: Node,
    table: Table,
    indices: npt.NDArray[Any],
    *,
    on_none: bool = False,
    spread: Spread | None = None,
) -> tuple[list[Any], Exception | None]:
    """The function of a node that looks at elements one by one, called on rows with these indices.

    Returns:
        What it returned up to the first element for which it raised, and that error. None for an
        absent element, for which it is not called unless `on_none`.
    """
    values = tables.elements(table)
    if on_none or not tables.any_absent(values):
        with calling(node):
            return _called(node, values, indices, spread)
    here = [row for row, value in enumerate(values) if value is not None]
    with calling(node):
        made, error = _called(node, [values[row] for row in here], indices[here], spread)
    out: list[Any] = [None] * (len(values) if error is None else here[len(made)])
    for row, value in zip(here, made, strict=False):
        out[row] = value
    return out, error


def _called(
    node: Node, values: list[Any], indices: npt.NDArray[Any], spread: Spread | None
) -> tuple[list[Any], Exception | None]:
    if spread is None:
        return _called_in_turn(node, values, indices)
    parts = spread.run(
        node,
        lambda start, stop: _called_in_turn(node, values[start:stop], indices[start:stop]),
        len(values),
    )
    out: list[Any] = []
    for made, error in parts:
        out += made
        if error is not None:
            return out, error
    return out, None


def _called_in_turn(
    node: Node, values: list[Any], indices: npt.NDArray[Any]
) -> tuple[list[Any], Exception | None]:
    results: Iterator[Any]
    match node:
        case MapNode():
            results = map(node.function, values)
        case FilterNode():
            results = map(bool, map(node.function, values))
        case MapWithIndexNode():
            results = map(node.function, indices.tolist(), values)
        case RandomMapNode():
            generators = map(IndexedRandom(node.seed).at, indices.tolist())
            results = map(node.function, values, generators)
        case _:
            raise TypeError(f"{type(node).__name__} does not look at elements one by one")
    who = f"{node.label}({name_of(node.function)})"
    out, error = tables.gathered(results, len(values), who)
    if error is not None:
        _name_place(error, who, node, indices[len(out)])
    return out, error


def _name_place(error: Exception, who: str, node: Node, index: Any) -> None:
    """Say in a note of an error which element it is about, and of which records that is made."""
    note, origins = f"windrow: raised in {who} for {place_of(index)}", _Origins()
    if node.length != STREAM:
        origins.look(node.parent, [index])
    elif np.ndim(index) == 0 and isinstance(node, (MapNode, FilterNode)):
        origins.unknown.append((OWN_CHAIN, [int(index)]))
    if origins.known:
        note += f", made of {'; '.join(origins.known)}"
    if origins.unknown:
        error.__dict__["windrow_unknown"] = origins.unknown
    error.add_note(note)


def place_of(index: Any) -> str:
    """An element in words: by its index, or by the position behind it in a stream of parts."""
    if np.ndim(index) == 0:
        return f"element {index}"
    return f"the element before position {index.tolist()}"


def apply(
    node: Node, table: Table, indices: npt.NDArray[Any], spread: Spread | None = None
) -> Table:
    """A node that looks at elements one by one, over a table whose rows have these indices."""
    out, error = call(node, table, indices, spread=spread)
    if error is not None:
        raise error
    return tables.filtered(table, out) if isinstance(node, FilterNode) else Listed(out)


# Where a stage stands for the chain beneath it, in `Unknown`.
OWN_CHAIN = -1

# Elements that only whoever has the whole chain can name: number of a `GivenNode`, and indices.
Unknown = list[tuple[int, list[int]]]


class _Origins:
    """Collects which records of which sources elements are made of."""

    spread: Spread | None = None

    def __init__(self) -> None:
        self.known: list[str] = []
        self.unknown: Unknown = []

    def look(self, node: Node, elements: Sequence[int]) -> None:
        """Find the origins of elements of a chain with random access."""
        with contextlib.suppress(Exception):  # of a selection map
            at = positions(np.array(elements), node.length)
            start(node, at, [0, len(elements)], self)

    def start(self, source: Any, records: IntArray) -> Finish:
        if len(records):
            self.known.append(f"{_listed(records)} of {source!r}")
        return _elsewhere

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Finish:
        if len(at):
            self.unknown.append((node.number, at.flat(node.length).tolist()))
        return _elsewhere


def records_of(node: Node, elements: Sequence[int]) -> str:
    """The records that elements of a chain are made of, in words; empty for none."""
    origins = _Origins()
    origins.look(node, elements)
    return "; ".join(origins.known)


def _listed(records: IntArray) -> str:
    some = ", ".join(map(str, records[:8].tolist()))
    more = ", ..." if len(records) > 8 else ""
    return f"record {some}" if len(records) == 1 else f"records {some}{more}"
