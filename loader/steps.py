"""Steps: what is done to a block of rows by itself, with the same result wherever it is done.

A stage is a run of such steps. It works on blocks one by one, here or in a worker process, several
at a time; whoever asked for them puts the results in order.

Contract:
1. What comes of a block is a function of the block and of `seen` alone.
2. An outcome has the rows before the first that failed, and that error.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windrow import execute
from windrow.meter import calling
from windrow.spread import Spread
from windrow.transforms import tables
from windrow.transforms.halves import has_function
from windrow.transforms.nodes import (
    BatchNode,
    FilterNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    SeedNode,
)
from windrow.transforms.streams import ToStreamNode
from windrow.transforms.tables import Listed, Table

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a stream; `marks` is int64 `(rows, width)`: the position after each row."""

    table: Table
    marks: IntArray

    def __len__(self) -> int:
        return len(self.marks)

    def sliced(self, start: int, stop: int) -> Block:
        """Rows `[start, stop)`."""
        return Block(tables.sliced(self.table, start, stop), self.marks[start:stop])


Blocks: TypeAlias = Generator[Block, None, None]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of `rows` rows: a block, the error at the row behind it, and the time it took.

    Args:
        block: The rows.
        error: What the row behind them raised.
        rows: Rows that it came of.
        took_s: How long that took.
        bytes_read: Bytes that were read for it.
        worked_s: What a worker process was at, in seconds by activity.
        arrived: Of each source that it read itself, the records and their bytes.
    """

    block: Block
    error: Exception | None
    rows: int
    took_s: float
    bytes_read: int = 0
    worked_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    arrived: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Steps on top of a stream, from the bottom up; `top` is the node that they end with."""

    top: Node
    below: Node
    steps: tuple[Node, ...]

    @property
    def keeps_rows(self) -> bool:
        """Whether rows go through one by one, so that what stands below may know batches."""
        return not any(isinstance(step, FilterNode) for step in self.steps)

    @property
    def first(self) -> Node | None:
        """The step at the bottom."""
        return self.steps[0] if self.steps else None

    @property
    def is_apart(self) -> bool:
        """Whether the first step needs blocks that are there: how many rows, or which groups."""
        return self.counts or self.takes_groups

    @property
    def counts(self) -> bool:
        """Whether the first step must know how many elements came before."""
        return isinstance(self.first, (MapWithIndexNode, RandomMapNode))

    @property
    def takes_groups(self) -> bool:
        """Whether the first step gets whole groups of rows in one call of its function."""
        if isinstance(self.first, BatchNode):
            return True
        return isinstance(self.first, MapNode) and self.first.batched


def stage_of(node: Node) -> Stage:
    """The stage that ends with `node`: as many steps as can be done block by block."""
    below, steps = node, []
    while _is_plain_step(below):
        if not isinstance(below, SeedNode):
            steps.append(below)
        below = below.parent
    if has_function(below):
        # A step that must know what came before stands at the bottom, where that is known.
        steps.append(below)
        below = below.parent
    return Stage(node, below, tuple(reversed(steps)))


def _is_plain_step(node: Node) -> bool:
    return isinstance(node, (SeedNode, FilterNode)) or (
        isinstance(node, MapNode) and not node.batched
    )


class Work(abc.ABC):
    """A part of a stage's work: it can be done here, sent to be done elsewhere, or be halved."""

    @abc.abstractmethod
    def outcome(self, spread: Spread | None) -> Outcome:
        """Do it here."""

    @abc.abstractmethod
    def request(self) -> Task:
        """What a worker needs to do it. Waits for reads."""

    @abc.abstractmethod
    def halves(self) -> Sequence[Work]:
        """The same work in smaller parts, after it failed; none where it can not be parted."""

    @property
    @abc.abstractmethod
    def is_whole(self) -> bool:
        """Whether it can not be parted."""

    @abc.abstractmethod
    def where(self) -> str:
        """Which elements it makes, and of which records, in words."""

    @abc.abstractmethod
    def records_of(self, number: int, elements: Sequence[int]) -> str:
        """The records behind elements of the chain, or of a lower half of it, in words."""


class Task(abc.ABC):
    """A request to a worker."""

    stage: int

    @abc.abstractmethod
    def outcome(self, stage: Sequence[Node], upper: Node | None) -> Outcome:
        """Do it with the steps of the stage, and the upper half of its chain if it has one."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTask(Task):
    """A block of rows for the steps of a stage.

    Args:
        stage: Its number.
        block: The rows.
        seen: Elements of the stream before them.
        skip: Rows to leave out once the first step has seen them.
    """

    stage: int
    block: Block
    seen: int = 0
    skip: int = 0

    def outcome(self, stage: Sequence[Node], upper: Node | None = None) -> Outcome:
        return _outcome(self, stage, None)


def _outcome(task: BlockTask, steps: Sequence[Node], spread: Spread | None) -> Outcome:
    began = time.perf_counter()
    block, error = done(task.block, steps, seen=task.seen, skip=task.skip, spread=spread)
    return Outcome(block, error, len(task.block), time.perf_counter() - began)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockWork(Work):
    """A block of rows on its way through the steps of a stage."""

    task: BlockTask
    stage: Stage

    def outcome(self, spread: Spread | None) -> Outcome:
        return _outcome(self.task, self.stage.steps, spread)

    def request(self) -> Task:
        return self.task

    @property
    def is_whole(self) -> bool:
        return len(self.task.block) < 2 or self.stage.takes_groups

    def halves(self) -> Sequence[Work]:
        if self.is_whole:
            return ()
        block, rows = self.task.block, len(self.task.block)
        middle = rows // 2
        lower = BlockTask(self.task.stage, block.sliced(0, middle), self.task.seen)
        upper = BlockTask(self.task.stage, block.sliced(middle, rows), self.task.seen + middle)
        return BlockWork(lower, self.stage), BlockWork(upper, self.stage)

    def where(self) -> str:
        marks = self.task.block.marks
        shown = execute.place_of(places(self.task.block)[0])
        if len(marks) > 1:
            shown = f"{len(marks)} elements, of which the first is {shown}"
        alone = marks.shape[1] == 1  # else a position is no index of one chain
        records = self.records_of(execute.OWN_CHAIN, (marks[:, 0] - 1).tolist()) if alone else ""
        return f"{shown}, made of {records}" if records else shown

    def records_of(self, number: int, elements: Sequence[int]) -> str:
        below = self.stage.below
        while len(below.parents) == 1 and not isinstance(below, ToStreamNode):
            below = below.parent
        if number != execute.OWN_CHAIN or not isinstance(below, ToStreamNode):
            return ""
        return execute.records_of(below.parent, elements)


def places(block: Block) -> IntArray:
    """What an error calls a row: its index, or, of a stream in parts, the position behind it."""
    return block.marks[:, 0] - 1 if block.marks.shape[1] == 1 else block.marks


def done(
    block: Block, steps: Sequence[Node], *, seen: int, skip: int, spread: Spread | None
) -> tuple[Block, Exception | None]:
    """A block after some steps, up to the first row that failed, and that error."""
    failure: Exception | None = None
    for number, step in enumerate(steps):
        block, error = _step(step, block, seen, spread)
        failure = error or failure  # of an earlier row than one that a step below found
        if number == 0 and skip:
            block = block.sliced(min(skip, len(block)), len(block))
    return block, failure


def _step(
    step: Node, block: Block, seen: int, spread: Spread | None
) -> tuple[Block, Exception | None]:
    match step:
        case BatchNode():
            return batched(step, block)
        case MapNode(batched=True):
            return _mapped_at_once(step, block)
        case FilterNode():
            return _filtered(step, block, spread)
        case MapNode():
            out, error = execute.call(step, block.table, places(block), spread=spread)
            return Block(Listed(out), block.marks[: len(out)]), error
        case _:
            numbers = np.arange(seen, seen + len(block))
            out, error = execute.call(step, block.table, numbers, spread=spread)
            marks = np.column_stack([block.marks, numbers + 1])
            return Block(Listed(out), marks[: len(out)]), error


def _mapped_at_once(step: MapNode, block: Block) -> tuple[Block, Exception | None]:
    try:
        table = execute.map_columns(step, block.table, [0, len(block)])
    except Exception as error:
        return block.sliced(0, 0), error
    return Block(table, block.marks), None


def _filtered(
    step: FilterNode, block: Block, spread: Spread | None
) -> tuple[Block, Exception | None]:
    verdicts, error = execute.call(step, block.table, places(block), on_none=True, spread=spread)
    kept = np.flatnonzero(np.array([bool(v) for v in verdicts], np.bool_))
    if len(kept) == len(block):
        return block, error
    return Block(tables.taken(block.table, kept), block.marks[kept]), error


def batched(step: BatchNode, block: Block) -> tuple[Block, Exception | None]:
    """The batches that the rows of a block make; the last may be short."""
    bounds = [*range(0, len(block), step.size), len(block)]
    try:
        with calling(step):
            found = tables.batches(block.table, bounds, step.batch_fn)
    except Exception as error:
        first = execute.place_of(places(block)[0])
        error.add_note(f"windrow: raised in {step.label} for the batch from {first} on")
        return block.sliced(0, 0), error
    return Block(Listed(found), block.marks[np.array(bounds[1:]) - 1]), None
