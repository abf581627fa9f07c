"""Rounds: elements of a chain with random access, read some at a time, in order.

While one round is made the next ones are read, or planned by the look-ahead. A round is work like
any other: it is made here, or its records are read here and its functions called in a worker.

Invariant: which elements come, and what they are made of, does not depend on the sizes of rounds.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windrow import execute
from windrow.crew import resolved
from windrow.lookahead import Lookahead
from windrow.meter import PLANNING, READING, doing
from windrow.run import Run
from windrow.spread import Spread
from windrow.steps import Block, Blocks, Outcome, Stage, Task, Work, done
from windrow.tallies import Tallies
from windrow.transforms import tables
from windrow.transforms.halves import Halves
from windrow.transforms.nodes import BatchNode, MapNode, Node
from windrow.transforms.options import ReadOptions
from windrow.transforms.positions import Positions, positions
from windrow.transforms.streams import ToStreamNode
from windrow.transforms.tables import Listed, Table

IntArray = npt.NDArray[np.int64]

# A consumer waits for a block as a whole, so slow functions get small ones.
_GOAL_S = 0.1

# Rounds that a look-ahead's horizon has room for at least, if a batch is no longer than a round.
ROUNDS_AHEAD = 32

# Rounds planned ahead at most.
MOST_ROUNDS = 512

# Rows that a batched function gets where no batch says how many.
BLOCK_ROWS = 256


class BlockSize:
    """How many rows to make at once: few at first, then as many as the goals allow."""

    def __init__(self, goal_bytes: int, unit: int, most: int) -> None:
        self._goal_bytes = goal_bytes
        self._most = max(unit, most)
        self._unit = unit
        self._rows = self._given = unit

    def next_rows(self) -> int:
        """Rows of the next block: at most four times those of the last one."""
        self._given = self._rows
        return self._given

    def saw(self, rows: int, size_bytes: int, took_s: float, *, too_few: bool = False) -> None:
        """Learn from a block of `rows` rows, of `size_bytes`, that took `took_s` to make.

        Where they were too few for the threads there are, the next block gets twice as many, so
        that slow functions find threads at all.
        """
        by_bytes = self._goal_bytes / max(1, size_bytes)
        by_time = max(_GOAL_S / max(1e-9, took_s), 2 if too_few else 0)
        # Of the last block that was begun: the outcomes of several may come before the next one is.
        wanted = min(int(rows * min(by_bytes, by_time)), 4 * self._given, self._most)
        self._rows = max(1, wanted // self._unit) * self._unit


def block_size(options: ReadOptions, unit: int, lookahead: Lookahead | None) -> BlockSize:
    """The size of rounds with these options."""
    if lookahead:
        # Rounds much shorter than the horizon: reads are planned from one to the next.
        # And half as long as others, since pieces want a place in the processor's cache as well.
        goal_bytes = min(options.block_bytes // 2, lookahead.horizon_bytes // ROUNDS_AHEAD)
        return BlockSize(max(1, goal_bytes), unit, options.prefetch_buffer_size)
    # One read for several batches costs less per record than one for each.
    units = 4 if unit > 1 and options.prefetch_buffer_size else 1
    return BlockSize(options.block_bytes, unit, max(options.prefetch_buffer_size, units * unit))


def random_access(
    node: ToStreamNode, stage: Stage, position: Sequence[int], run: Run, unit: int | None
) -> Blocks:
    """The stage on top of a chain with random access, from an element on."""
    rounds = _Rounds(node, stage, position[0], run, unit)
    crew = run.crew_of(stage)
    for work, found in crew.in_order(rounds):
        for outcome in resolved(crew, work, found):
            rounds.learn(outcome)
            yield from rounds.in_steps(outcome.block)


class _Rounds(Iterator["Round"]):
    """Rounds in order, begun; with threads the next ones are read while one is made."""

    def __init__(
        self, node: ToStreamNode, stage: Stage, first: int, run: Run, unit: int | None
    ) -> None:
        self._run, self._length, self._crew = run, node.parent.length, run.crew_of(stage)
        # Batched functions get the same rows whatever the position, so rounds keep to their bounds.
        rows = (unit or BLOCK_ROWS) if calls_on_rows(node.parent) else 1
        self._options = self._crew.bounded(run.options_of(node))
        self._lookahead = run.lookahead(node)
        self._size = block_size(self._options, unit or rows, self._lookahead)
        self._chain = _Chain(node, stage, *self._crew.part_of(stage), rows, first)
        self._waiting: collections.deque[Round] = collections.deque()
        self._following, self._made, self._reads = first - first % rows, 0, 0
        self._round_bytes = self._rest_bytes = (
            0  # of the last round, and of what is not given of it
        )
        run.maker.watch(self)

    def __next__(self) -> Round:
        # A filter may drop everything for ever, so a run not wanted any more is noticed here.
        if self._run.stopped.is_set():
            raise StopIteration
        with doing(PLANNING):
            return self._next_round()

    def _next_round(self) -> Round:
        self._plan()
        if not self._waiting:
            raise StopIteration
        lookahead = self._lookahead
        if lookahead:
            if self._following == self._length:
                lookahead.end()
            self._reads = lookahead.pace(self._made)
            if not self._crew.is_here:
                lookahead.step(0, 1)  # what is made elsewhere is asked for in rounds, not in rows
        for soon in itertools.islice(self._waiting, 2 if self._options.ahead else 1):
            soon.reader.begin()
        self._made += 1
        return self._waiting.popleft()

    def _plan(self) -> None:
        lookahead, waiting = self._lookahead, self._waiting
        while self._following < self._length and (
            len(waiting) < _planned_rounds(self._options, lookahead, self._made)
        ):
            stop = min(self._length, self._following + self._size.next_rows())
            number = self._made + len(waiting)
            reader = self._run.reader(self._options, lookahead, number)
            waiting.append(Round(self._chain, self._following, stop, reader))
            self._following = stop
            if lookahead and number == 0:
                lookahead.begin()  # what the first round needs is read while more are planned

    def learn(self, outcome: Outcome) -> None:
        size_bytes = max(outcome.bytes_read, tables.nbytes(outcome.block.table))
        self._round_bytes = self._rest_bytes = size_bytes
        self._run.heard(outcome, self._chain.halves)
        too_few = self._crew.wants_more_rows()
        self._size.saw(outcome.rows, size_bytes, outcome.took_s, too_few=too_few)

    def bytes_by(self) -> Mapping[str, int]:
        """Bytes of the rounds that are made or begun, and of what is planned."""
        begun = self._waiting[0].reader.expected_bytes() if self._waiting else 0
        rounds = {"rounds": self._rest_bytes + begun}
        return rounds if self._lookahead is None else {**self._lookahead.bytes_by(), **rounds}

    def in_steps(self, block: Block) -> Blocks:
        """A block's rows, with the reads that are to be started meanwhile spread over them.

        From one element to the next as many are started as come to one element, and one more.
        """
        lookahead = self._lookahead if self._crew.is_here else None
        rows, reads = len(block), self._reads if lookahead else 0
        steps = max(1, min(rows, math.ceil(reads * rows / (reads + rows)) if reads else 0))
        for number in range(steps):
            if lookahead:
                with doing(READING):
                    lookahead.step(number, steps)
            if rows:
                start, stop = (rows * n // steps for n in (number, number + 1))
                self._rest_bytes = self._round_bytes * (rows - stop) // rows
                yield block if steps == 1 else block.sliced(start, stop)


def _planned_rounds(options: ReadOptions, lookahead: Lookahead | None, made: int) -> int:
    """How many rounds to have planned; with a look-ahead ever more, so that the first come soon."""
    if not options.ahead:
        return 1
    if not lookahead or lookahead.is_full:
        return 2
    # Little by little, since all that is planned at once delays the next batch.
    return min(MOST_ROUNDS, 1 + lookahead.rounds_at_once * (1 + made))


def calls_on_rows(node: Node) -> bool:
    """Whether a batched function is called with no batch above it to say on which rows."""
    if isinstance(node, BatchNode):
        return False
    batched = isinstance(node, MapNode) and node.batched
    return batched or any(calls_on_rows(parent) for parent in node.parents)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """What all rounds of a stream share.

    Args:
        node: The node that makes a stream of a chain.
        stage: The steps on top of it.
        number: The stage's number for the workers.
        halves: The chain in two, where workers make the upper half.
        rows: Rounds are parted at multiples of so many elements.
        first: The first element that is wanted.
    """

    node: ToStreamNode
    stage: Stage
    number: int
    halves: Halves | None
    rows: int
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class RoundTask(Task):
    """Elements `[start, stop)` of a chain, from the tables that its lower half made."""

    stage: int
    start: int
    stop: int
    rows: int
    skip: int
    allow_nones: bool
    given: tuple[Table, ...]

    def outcome(self, stage: Sequence[Node], upper: Node | None) -> Outcome:
        if upper is None:
            raise TypeError(f"stage {self.stage} has no chain of its own")
        began = time.perf_counter()
        at, cuts = _asked(upper.length, self.start, self.stop, self.rows)
        given_bytes = sum(map(tables.nbytes, self.given))
        tallies = Tallies(upper)
        handed = execute.Handed(self.given, tallies)
        table = execute.start(upper, at, cuts, handed)()
        found = _outcome(self, table, stage, None, began)
        bytes_read = given_bytes + handed.reader.bytes_read
        return dataclasses.replace(found, bytes_read=bytes_read, arrived=tallies.arrivals())


def _asked(length: int, start: int, stop: int, rows: int) -> tuple[Positions, list[int]]:
    cuts = [*range(0, stop - start, rows), stop - start] if rows > 1 else [0, stop - start]
    return positions(np.arange(start, stop), length), cuts


def _outcome(
    task: RoundTask, table: Table, steps: Sequence[Node], spread: Spread | None, began: float
) -> Outcome:
    block = _as_block(table, task.start, allow_nones=task.allow_nones)
    if task.skip:
        block = block.sliced(int(np.sum(block.marks[:, 0] <= task.start + task.skip)), len(block))
    block, error = done(block, steps, seen=0, skip=0, spread=spread)
    return Outcome(block, error, task.stop - task.start, time.perf_counter() - began)


class Round(Work):
    """Elements `[start, stop)` of a chain, being read."""

    def __init__(self, chain: _Chain, start: int, stop: int, reader: execute.Reader) -> None:
        self._chain, self._start, self._stop = chain, start, stop
        self.reader = reader
        self._lower: list[execute.Finish] = []
        self._finish = self._started()

    def _started(self) -> execute.Finish:
        chain, halves = self._chain, self._chain.halves
        node = chain.node.parent if halves is None else halves.upper
        at, cuts = _asked(node.length, self._start, self._stop, chain.rows)
        leaves = self.reader if halves is None else execute.Lower(self.reader, halves, self._lower)
        try:
            return execute.start(node, at, cuts, leaves)
        except Exception as error:  # of a selection map: it has its place in the order too
            self._leave_plan()
            return functools.partial(_raised, error)

    def _leave_plan(self) -> bool:
        planned = self.reader.lookahead is not None
        if self.reader.lookahead is not None:
            self.reader.lookahead.drop(self.reader.round)
            self.reader.lookahead = None
        return planned

    def _task(self, given: tuple[Table, ...]) -> RoundTask:
        chain = self._chain
        return RoundTask(
            chain.number,
            self._start,
            self._stop,
            chain.rows,
            max(0, chain.first - self._start),
            chain.node.allow_nones,
            given,
        )

    def outcome(self, spread: Spread | None) -> Outcome:
        began = time.perf_counter()
        found = _outcome(self._task(()), self._finish(), self._chain.stage.steps, spread, began)
        # A round is made small where its functions are slow, not where its data come from far away.
        took_s = found.took_s - self.reader.waited_s
        return dataclasses.replace(found, bytes_read=self.reader.bytes_read, took_s=took_s)

    def request(self) -> Task:
        return self._task(tuple(finish() for finish in self._lower))

    @property
    def is_whole(self) -> bool:
        return self._stop - self._start <= self._chain.rows

    def halves(self) -> Sequence[Work]:
        if self._leave_plan():
            # By itself, since a planned read that failed may be of records of other rounds.
            return (Round(self._chain, self._start, self._stop, self.reader),)
        if self.is_whole:
            return ()
        rows = self._chain.rows
        middle = self._start + max(rows, (self._stop - self._start) // 2 // rows * rows)
        bounds = (self._start, middle, self._stop)
        return [Round(self._chain, a, b, self.reader) for a, b in itertools.pairwise(bounds)]

    def where(self) -> str:
        elements = range(self._start, self._stop)
        last = self._stop - 1
        shown = f"element{'' if self._start == last else f's {self._start} to'} {last}"
        records = execute.records_of(self._chain.node.parent, elements)
        return f"{shown}, made of {records}" if records else shown

    def records_of(self, number: int, elements: Sequence[int]) -> str:
        halves = self._chain.halves
        if number == execute.OWN_CHAIN or halves is None:
            return execute.records_of(self._chain.node.parent, elements)
        return execute.records_of(halves.lower[number], elements)


def _raised(error: Exception) -> Table:
    raise error


def _as_block(table: Table, start: int, *, allow_nones: bool) -> Block:
    # Not arange(start + 1, stop + 1), which is no int64 at the end of an endless dataset.
    marks = (np.arange(table.rows) + (start + 1)).reshape(-1, 1)
    if allow_nones:
        return Block(Listed(tables.elements(table)), marks)
    dense, kept = tables.without_absent(table)
    return Block(dense, marks if kept is None else marks[kept])
