"""Steps, which transform one block of rows with the same result in any process.

A stage is a sequence of such steps. It transforms blocks one by one in this process, or several at a
time in worker processes. The caller puts the results in order.

Contract:
1. The result of a block is a function of the block and of `seen` alone.
2. A result has the rows before the first that failed, and that error.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from windrow.engine import execute, record_trace
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.errors import ElementError, PlanError, WorkerError
from windrow.stats.profiler import calling
from windrow.transforms.nodes import (
    EPOCHS,
    STREAM,
    BatchNode,
    EachNode,
    Node,
    Step,
    ToStreamNode,
    ValueNode,
    as_batch,
    as_chain,
    makers,
    may_be_absent,
    no_row,
)
from windrow.transforms.options import DatasetOptions
from windrow.transforms.row_blocks import Block, joined, place_text, places
from windrow.transforms.tables import Listed

if TYPE_CHECKING:
    from windrow.engine.bad_rows import BadRow
    from windrow.transforms.nodes import RowWatch
    from windrow.transforms.nodes.caught import Catch


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of `rows` rows: a block, the error at the row after it, and the time it took.

    Args:
        block: The rows.
        error: The error that the row after them raised.
        rows: The number of input rows.
        took_s: Seconds that it took.
        bytes_read: Bytes read for it.
        worked_s: Seconds of a worker process by activity.
        arrived: The records and their bytes, for each source that it read itself.
        bad: Rows that `on_bad` nodes left out or replaced.
    """

    block: Block
    error: Exception | None
    rows: int
    took_s: float
    bytes_read: int = 0
    worked_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    arrived: tuple[tuple[int, int], ...] = ()
    bad: tuple[BadRow, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ChainStage:
    """Steps after a stream, in their order; `top` is the node that they end with."""

    top: Node
    below: Node
    steps: tuple[Node, ...]

    @property
    def chain(self) -> ToStreamNode | None:
        """The node that makes a stream of a chain with random access, if the stage begins there."""
        return as_chain(self.below)

    @property
    def batch(self) -> BatchNode | None:
        """The first step, if it makes batches by a function."""
        return None if self.first is None else as_batch(self.first)

    @property
    def keeps_rows(self) -> bool:
        """Whether each result row is made of one row: earlier nodes may then know the batches."""
        return not any(step.drops or step.caught for step in self.steps)

    @property
    def first(self) -> Node | None:
        """The first step."""
        return self.steps[0] if self.steps else None

    @property
    def is_apart(self) -> bool:
        """Whether the first step needs finished blocks: their number of rows or their groups."""
        return self.counts or self.takes_groups

    @property
    def counts(self) -> bool:
        """Whether the first step must know how many elements came before."""
        return self.first is not None and self.first.stream_step is Step.NUMBERED

    @property
    def takes_groups(self) -> bool:
        """Whether the first step gets whole groups of rows in one call of its function."""
        return self.first is not None and self.first.stream_step is Step.GROUPS


def stage_of(node: Node) -> ChainStage:
    """The stage that ends with `node`. It has as many steps as can be done block by block."""
    below, steps = node, []
    while (step := below.stream_step) in (Step.ROWS, Step.NOTHING):
        if step is Step.ROWS:
            steps.append(below)
        below = below.parent
    if step in (Step.NUMBERED, Step.GROUPS):
        # A step that must know the number of earlier elements comes first, where it is known.
        steps.append(below)
        below = below.parent
    return ChainStage(node, below, tuple(reversed(steps)))


class WorkItem(abc.ABC):
    """A part of a stage's work, which can be done here, sent to a worker, or halved."""

    @property
    @abc.abstractmethod
    def stage(self) -> ChainStage:
        """The stage."""

    @abc.abstractmethod
    def result(self, thread_map: ThreadMap | None) -> Result:
        """Do it here."""

    @abc.abstractmethod
    def request(self) -> StageTask:
        """The request by which a worker does it. Waits for reads."""

    @abc.abstractmethod
    def halves(self, error: Exception) -> Sequence[WorkItem]:
        """The same work in smaller parts, after it failed; no parts if it cannot be split."""

    @property
    @abc.abstractmethod
    def is_whole(self) -> bool:
        """Whether it cannot be split."""

    @abc.abstractmethod
    def where(self) -> str:
        """The elements it makes and the records they are made of, as text."""

    @abc.abstractmethod
    def records_of(self, number: int, elements: Sequence[int]) -> str:
        """The records behind elements of the chain, or of a lower half of it, as text."""


class StageTask(abc.ABC):
    """A request to a worker."""

    stage: int

    @abc.abstractmethod
    def result(self, stage: Sequence[Node], upper: Node | None, threads: StageThreads) -> Result:
        """Do it with the steps of the stage, and the upper half of its chain if it has one."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockTask(StageTask):
    """A block of rows for the steps of a stage.

    Args:
        stage: Its number.
        block: The rows.
        seen: Elements of the stream before them.
        skip: Rows to leave out once the first step has seen them.
        lane: The lane they are in, where element `k` is element `k * lanes + lane` of the stream.
        lanes: The number of lanes.
    """

    stage: int
    block: Block
    seen: int = 0
    skip: int = 0
    lane: int = 0
    lanes: int = 1

    def result(self, stage: Sequence[Node], upper: Node | None, threads: StageThreads) -> Result:
        return _result(self, stage, threads.thread_map)


def _result(task: BlockTask, steps: Sequence[Node], thread_map: ThreadMap | None) -> Result:
    began = time.perf_counter()
    lane = task.lane, task.lanes
    block, error, bad = done(
        task.block, steps, seen=task.seen, skip=task.skip, lane=lane, thread_map=thread_map
    )
    took_s = time.perf_counter() - began
    return Result(block, error, len(task.block), took_s, bad=tuple(bad))


@dataclasses.dataclass(frozen=True, slots=True)
class BlockItem(WorkItem):
    """A block of rows that goes through the steps of a stage."""

    task: BlockTask
    stage: ChainStage

    def result(self, thread_map: ThreadMap | None) -> Result:
        return _result(self.task, self.stage.steps, thread_map)

    def request(self) -> StageTask:
        return self.task

    @property
    def is_whole(self) -> bool:
        return len(self.task.block) < 2 or self.stage.takes_groups

    def halves(self, error: Exception) -> Sequence[WorkItem]:
        if self.is_whole:
            return ()
        task, rows = self.task, len(self.task.block)
        middle, seen = rows // 2, self.task.seen
        lower = dataclasses.replace(task, block=task.block.sliced(0, middle), seen=seen)
        upper = dataclasses.replace(task, block=task.block.sliced(middle, rows), seen=seen + middle)
        return BlockItem(lower, self.stage), BlockItem(upper, self.stage)

    def where(self) -> str:
        block = self.task.block.of_rows(self.stage.below.counts_rows)
        marks, shown = block.marks, place_text(places(block)[0])
        if len(marks) > 1:
            shown = f"{len(marks)} elements, the first is {shown}"
        alone = marks.shape[1] == 1  # otherwise a position is not an index of one chain
        records = (
            self.records_of(record_trace.OWN_CHAIN, (marks[:, 0] - 1).tolist()) if alone else ""
        )
        return f"{shown}, made of {records}" if records else shown

    def records_of(self, number: int, elements: Sequence[int]) -> str:
        below = self.stage.below
        while len(below.parents) == 1 and below.parent.length == STREAM:
            below = below.parent
        if number != record_trace.OWN_CHAIN or len(below.parents) != 1:
            return ""
        return record_trace.records_of(below.parent, elements)


def is_of_group(error: Exception) -> bool:
    """Whether an error is of a function of a group of rows, or of a worker that ended in one."""
    return execute.OF_GROUP in error.__dict__ or isinstance(error, WorkerError)


def done(
    block: Block,
    steps: Sequence[Node],
    *,
    seen: int,
    skip: int,
    thread_map: ThreadMap | None,
    lane: tuple[int, int] = (0, 1),
) -> tuple[Block, Exception | None, list[BadRow]]:
    """A block after some steps, and the bad rows that they dropped.

    It ends at the first row that failed, and has its error.
    """
    failure: Exception | None = None
    bad: list[BadRow] = []
    for number, step in enumerate(steps):
        block, error = _step(step, block, seen, lane, thread_map, bad)
        failure = error or failure  # an earlier step may have found the error of a later row
        if number == 0 and skip:
            block = block.sliced(min(skip, len(block)), len(block))
    return block, failure, bad


def _step(
    step: Node,
    block: Block,
    seen: int,
    lane: tuple[int, int],
    thread_map: ThreadMap | None,
    bad: list[BadRow],
) -> tuple[Block, Exception | None]:
    indices, marked = places(block), block
    if step.stream_step is Step.NUMBERED:
        numbers = np.arange(seen, seen + len(block))
        indices, marked = numbers * lane[1] + lane[0], block.with_marks(numbers + 1)
    match step:
        case BatchNode():
            return _batched(step, block, bad)
        case EachNode():
            takes = None if step.caught is None else step.caught.takes
            out, error = execute.call(
                step, block.table, indices, on_none=step.drops, thread_map=thread_map, takes=takes
            )
            if step.caught is not None:
                marked, out = _without_failed(step.caught, marked, out, bad)
            if step.drops:
                return _kept(marked, out), error
            return marked.with_table(Listed(out)), error
        case ValueNode():
            return _at_once(step, marked, indices, bad)
        case _:
            raise TypeError(f"{type(step).__name__} is not a step of a stage")


def _without_failed(
    caught: Catch, block: Block, out: list[Any], bad: list[BadRow]
) -> tuple[Block, list[Any]]:
    """The first rows of a block with their results, without those whose function raised."""
    if execute.Failed not in set(map(type, out)):
        return block, out
    failed = [type(each) is execute.Failed for each in out]
    errors = {row: out[row].error for row in np.flatnonzero(failed).tolist()}
    _drop(caught, block, errors, bad)
    good = np.flatnonzero(np.logical_not(failed))
    return block.taken(good), [out[row] for row in good.tolist()]


def _drop(caught: Catch, block: Block, errors: Mapping[int, Exception], bad: list[BadRow]) -> None:
    from windrow.engine.bad_rows import dropped_rows  # few streams drop some

    bad += dropped_rows(caught, block, errors)


def _batched(step: BatchNode, block: Block, bad: list[BadRow]) -> tuple[Block, Exception | None]:
    try:
        return step.batched(block, functools.partial(calling, step)), None
    except Exception as error:
        if step.caught is None or not step.caught.takes(error):
            return block.sliced(0, 0), error
        made_of = None if block.made_of is None else block.made_of.grouped([0, len(block)])
        _drop(step.caught, Block(block.table, block.marks[-1:], made_of), {0: error}, bad)
        return block.sliced(0, 0), None


def _at_once(
    step: ValueNode, block: Block, indices: npt.NDArray[Any], bad: list[BadRow]
) -> tuple[Block, Exception | None]:
    rows = len(block)
    try:
        table = execute.apply_at_once(step, block.table, indices, [0, rows])
    except Exception as error:
        if rows == 1 and step.caught is not None and step.caught.takes(error):
            _drop(step.caught, block, {0: error}, bad)
            return block.sliced(0, 0), None
        if rows < 2 or step.stream_step is Step.GROUPS:
            return block.sliced(0, 0), error
    else:
        return block.with_table(table), None
    # Row by row if needed, to get the rows before the first that fails.
    middle = rows // 2
    first, failure = _at_once(step, block.sliced(0, middle), indices[:middle], bad)
    if failure is not None:
        return first, failure
    second, failure = _at_once(step, block.sliced(middle, rows), indices[middle:], bad)
    parts = [part for part in (first, second) if len(part)]
    return joined(parts or [first]), failure


def _kept(block: Block, verdicts: list[Any]) -> Block:
    """The rows whose verdict is true, among the rows that have one."""
    kept = np.flatnonzero(np.array([bool(v) for v in verdicts], np.bool_))
    if len(kept) == len(block):
        return block
    return block.taken(kept)


# --- stages that give no row ----------------------------------------------------------------------

# Functions may return None at random, so of few elements more are taken.
_LEAST_OF_FUNCTIONS: Final = 10_000


def watch_of_stage(stage: ChainStage, lane: int = 0, lanes: int = 1) -> RowWatch | None:
    """The watch over the rows that a stage makes in a lane; None where it drops none."""
    taken, least = _dropping(stage)
    if taken is None:
        return None
    from windrow.transforms.nodes import RowWatch  # few chains may have no row

    return RowWatch(taken, lambda: never_a_row(stage, lane, lanes), least)


def most_of_stage(stage: ChainStage) -> float:
    """The elements after which a stage that has given no row will give none; infinite if unknown."""
    taken, least = _dropping(stage)
    if taken is None:
        return math.inf
    from windrow.transforms.nodes import most_without_row  # few chains may have no row

    return max(least, most_without_row(taken))


def _dropping(stage: ChainStage) -> tuple[Node | None, int]:
    """What a stage may drop elements of for ever, and how many it may drop at least; else None."""
    chain = stage.chain
    taken = stage.below if chain is None else chain.parent
    if not taken.is_endless():
        return None, 0
    if not stage.keeps_rows or (
        chain is not None and not chain.allow_nones and may_be_absent(taken)
    ):
        return taken, 0
    if chain is not None and not chain.allow_nones and makers(taken):
        return taken, _LEAST_OF_FUNCTIONS
    return None, 0


def never_a_row(stage: ChainStage, lane: int, lanes: int) -> PlanError:
    """The error of a lane whose elements are all dropped."""
    chain = stage.chain
    if not stage.keeps_rows or chain is None or may_be_absent(chain.parent):
        why = f"all of its elements were dropped for {EPOCHS} epochs"
        return no_row(lane, lanes, why, "keep some in filter")
    names = " or ".join(each.written for each in makers(chain.parent))
    why = f"{names} returned None for all of its elements for {EPOCHS} epochs (no return in it?)"
    return no_row(lane, lanes, why)


# --- elements that are left out -------------------------------------------------------------------

# The elements that a warning needs; a stream that ends is also warned of with fewer.
_LEAST_COUNTED: Final = 1000
_PAUSE_S: Final = 60.0
_log = logging.getLogger("windrow.filter")


class DropWatch:
    """Counts the elements that the filters of some steps leave out, or else their functions.

    One that drops everything looks like a hang. A check is made at the end of a block, after 1,000 elements
    or more; no element is changed.
    """

    def __init__(
        self, nodes: Sequence[Node], options: DatasetOptions, clock: Callable[[], float]
    ) -> None:
        self._nodes, self._options, self._clock = nodes, options, clock
        self._filters = any(node.drops for node in nodes)
        self._taken = self._left_out = self._given = 0
        self._warned_s: float | None = None

    def saw(self, taken: int, given: int) -> None:
        """Count a block: the elements that went in, and those that came out.

        Raises:
            ElementError: If filters leave out more than the options allow.
        """
        self._taken += taken
        self._left_out += taken - given
        self._given += given
        if self._taken < _LEAST_COUNTED:
            return
        ratio, taken = self._left_out / self._taken, self._taken
        self._taken = self._left_out = 0
        if not self._filters and self._given:  # None leaves an element out, which may be intended
            return
        if self._filters and ratio >= (self._options.filter_raise_threshold_ratio or 2):
            raise ElementError(
                f"{self._text(ratio, taken)}, or None for filter_raise_threshold_ratio"
            )
        if ratio < (self._options.filter_warn_threshold_ratio or 2):
            return
        now_s = self._clock()
        if self._warned_s is None or now_s - self._warned_s >= _PAUSE_S:
            self._warned_s = now_s
            _log.warning("%s, or None for filter_warn_threshold_ratio", self._text(ratio, taken))

    def ended(self) -> None:
        """Warn if the functions of a stream left out every element from its first one on."""
        is_on = (self._options.filter_warn_threshold_ratio or 2) <= 1 and not self._filters
        if is_on and self._taken and not self._given and self._warned_s is None:
            _log.warning("%s", self._text(1.0, self._taken))

    def _text(self, ratio: float, taken: int) -> str:
        names = " and ".join(each.written for each in self._nodes)
        if not self._filters:
            return (
                f"{names} returned None for {ratio:.2%} of the last {taken:,} elements, which are left"
                " out; does a function lack a return? If it is intended, set another threshold in"
                " windrow.experimental.DatasetOptions"
            )
        return (
            f"{names} left out {ratio:.2%} of the last {taken:,} elements; if that is intended, choose"
            " the elements by index before (ds.slice), or set another threshold in"
            " windrow.experimental.DatasetOptions"
        )
