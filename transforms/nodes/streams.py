"""Nodes of a stream, which has an order and a position, but no length and no random access.

A node's part of the position is `position_width` integers, after the integers of its parents. Every row
carries the position that follows it, so that a stream can be cut at any row and resume from those
integers alone.

Contract of every `blocks`:
1. Rows come in the stream's order, whatever the sizes of blocks.
2. `marks[r]` is the position at which `blocks` starts with the row after row `r`.
3. When something raises, every whole row before it has been yielded first.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from windrow.errors import PlanError
from windrow.transforms import orders
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import at_least, check_times
from windrow.transforms.moves import Moved, Moves, after_groups
from windrow.transforms.nodes.base import (
    ENDLESS,
    STREAM,
    Node,
    RowShare,
)
from windrow.transforms.nodes.dealing import MakesBoxes, dealing_of, numbers_of
from windrow.transforms.nodes.following import JoinsLanes
from windrow.transforms.nodes.index import RepeatNode, WindowShuffleNode
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.routing import spec_of_any
from windrow.transforms.nodes.same import UnseenNode
from windrow.transforms.nodes.whole_chain import may_be_absent, parents_first, walk
from windrow.transforms.options import DatasetOptions, ReadOptions
from windrow.transforms.row_blocks import (
    Block,
    Blocks,
    Inputs,
    Step,
    check_inside,
    groups,
    marks_in_group,
)
from windrow.transforms.specs import Spec

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes

# Indices of a lane that are worked out together.
_AT_ONCE: Final = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class ToStreamNode(MakesBoxes, Node):
    """The elements of a random-access parent in order, absent ones left out.

    Its own integer is the index of the next element. The engine reads them: see
    `windrow.engine.read_batches`. Each of several `lanes` takes a part of the elements:
    `DealtToLanes`. With `lane` it stands for the elements of one of them. With `share` it has some
    rows of each batch: see `of_shard`.
    """

    read_options: ReadOptions
    allow_nones: bool = False
    lanes: int = 1
    lane: int | None = None
    share: RowShare | None = None

    position_width: ClassVar[int] = 1
    looks_at_values: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = True
    keeps_elements: ClassVar[bool] = True

    def count(self) -> int:
        at_least(1, self.lanes, "to_iter_dataset: lanes")
        return STREAM

    @property
    def label(self) -> str:
        nones = "allow_nones=True" if self.allow_nones else ""
        lanes = f"lanes={self.lanes}" if self.lanes > 1 else ""
        given = ", ".join(filter(None, [nones, lanes]))
        return f"to_iter_dataset({given})" if given else "to_iter_dataset"

    @property
    def written(self) -> str:
        return self.label if self.label.endswith(")") else f"{self.label}()"

    @property
    def follows_batch(self) -> bool:
        return self.lanes == 1

    def elements(self) -> Amount:
        found = self.parent.elements()
        if self.parent.has_gaps:
            return found
        most = found.high
        if self.lane is not None and not math.isinf(most):
            most = dealing_of(self.parent).lane_elements(self.lane, self.lanes)
        gaps = may_be_absent(self.parent) and not self.allow_nones
        return Amount(0, most) if gaps else Amount.exactly(most)

    def in_lane(self, lane: int, lanes: int) -> Node:
        return dataclasses.replace(self, lane=lane)

    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
        # Rows that a plan makes are cut here: the node that makes them comes last before the stream.
        return None if self.parent.has_gaps else ([boxes], boxes)

    def of_shard(self, share: RowShare) -> Node | None:
        """The stream of some rows of each batch, which no other rows are made for; None if it needs all.

        Where a batch has none of them, the stream has the batch's first row. It begins with a batch.
        """
        # Where indices have gaps, rows are planned: none of them is absent.
        is_planned = self.parent.has_gaps and self.lanes == 1
        return dataclasses.replace(self, share=share) if is_planned else None

    def never_ends(self) -> bool:
        return self.parent.length >= ENDLESS

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved | None:
        if may_be_absent(self.parent) and not self.allow_nones:
            return None
        index, lane = position[0], moves.lane
        if lane is None:
            index, passed = numbers_of(self.parent).index_after(index, count)
            return Moved([index], passed)
        passed = 0
        while passed < count:
            wanted = min(_AT_ONCE, count - passed)
            found, _ = dealing_of(self.parent).lane_indices(
                np.array([index]), np.array([wanted]), np.array([lane]), self.lanes
            )
            if len(found):
                index, passed = int(found[-1]) + 1, passed + len(found)
            if len(found) < wanted:
                break
        return Moved([index], passed)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WorkerSettings:
    """Worker processes for a part of a chain.

    Args:
        options: A `windrow.MultiprocessingOptions` with at least one worker.
        init: Called in each worker with its index and the number of workers.
    """

    options: Any
    init: Callable[[int, int], None] | None


class StreamNode(Node):
    """A node whose parents are streams, and which makes its rows itself, in `blocks`."""

    def count(self) -> int:
        return STREAM

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return parents[0]


class SameElementsNode(StreamNode):
    """A node whose elements are its parents', in an order that numbers alone decide."""

    looks_at_values: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = True
    keeps_elements: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, eq=False)
class MixingNode(StreamNode):
    """A mixture of streams, which may have names.

    Its own integers are the elements that were given, and then as many for each parent as
    `integers_of_part` says.

    Args:
        weights: The weights; see `MixNode`.
        drops_out: Whether the mixture continues without a stream that has ended.
        names: Names of the parents, by which a state finds them again; None if they have none.
    """

    weights: Any
    drops_out: bool = False
    names: tuple[str, ...] | None = dataclasses.field(default=None, kw_only=True)

    position_width: ClassVar[int] = 1
    keeps_values: ClassVar[bool] = True
    keeps_integers: ClassVar[bool] = True
    """Whether the integers of a parent mean the same among other parents."""

    def count(self) -> int:
        lanes_of(self.parents, "mix")
        return STREAM

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return spec_of_any(self, parents)

    @property
    @abc.abstractmethod
    def rules(self) -> str:
        """What decides the next parent, but for the weights and the parents themselves."""

    @property
    @abc.abstractmethod
    def integers_of_part(self) -> int:
        """How many of its own integers belong to each parent: 0 or 1."""

    @property
    def width(self) -> int:
        return super().width + self.integers_of_part * len(self.parents)

    def never_ends(self) -> bool:
        ends = any if self.drops_out else all
        return ends(parent.never_ends() for parent in self.parents)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamWindowShuffleNode(SameElementsNode):
    """A shuffle inside windows of consecutive elements of a stream.

    Its own integers are the number of the window, and the number of its elements that were given.
    The parent's position is the begin of the window.
    """

    window_size: int
    seed: int

    position_width: ClassVar[int] = 2
    needs_many: ClassVar[bool] = True

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        # A stream takes the elements of a window from its end, and they are as far apart.
        return WindowShuffleNode(parents, self.window_size, self.seed)

    def count(self) -> int:
        at_least(1, self.window_size, "window_shuffle: window_size")
        return STREAM

    @property
    def label(self) -> str:
        return f"window_shuffle(window_size={self.window_size}, seed={self.seed})"

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        before, window, given = np.array(position[:-2], np.int64), position[-2], position[-1]
        for group in groups(inputs.blocks(0, position[:-2]), self.window_size):
            order = orders.window_order(len(group), (self.seed + inputs.number(window)) % 2**32)
            marks = marks_in_group(before, group.marks[-1], len(group), [window])
            marks[-1, -2] = window + 1
            check_inside(given, len(group))
            shuffled = group.taken(order)
            yield Block(shuffled.table, marks, shuffled.made_of).sliced(given, len(group))
            before, window, given = group.marks[-1], window + 1, 0

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        *before, window, given = position
        found = after_groups(
            before, given, count, self.window_size, lambda at, rows: moves.after(0, at, rows)
        )
        return Moved([*found.position, window + found.groups, found.given], found.passed)


@dataclasses.dataclass(frozen=True, eq=False)
class StreamRepeatNode(SameElementsNode):
    """The stream again from its start, the same each time. Its own integer is the epoch."""

    times: int | None

    position_width: ClassVar[int] = 1

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        # The first pass never ends, even if a batch or a slice made its length smaller.
        if parents[0].length >= ENDLESS or parents[0].is_endless():
            return parents[0]
        return RepeatNode(parents, self.times, reseed=False)

    def count(self) -> int:
        check_times(self.times)
        return STREAM

    @property
    def label(self) -> str:
        return f"repeat({'for ever' if self.times is None else self.times})"

    def elements(self) -> Amount:
        found = self.parent.elements()
        times = math.inf if self.times is None else self.times
        return Amount(found.low and found.low * times, found.high and found.high * times)

    def never_ends(self) -> bool:
        return self.times is None or super().never_ends()

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        begin, epoch = list(position[:-1]), position[-1]
        start = origin(self.parent)
        while self.times is None or epoch < self.times:
            given = False
            for block in inputs.blocks(0, begin):
                given = given or len(block) > 0
                yield block.with_marks(np.full(len(block), epoch))
            if not given and begin == start:
                lane = inputs.number(0)
                self._check_ends(lane, inputs.number(1) - lane)
                return
            begin, epoch = start, epoch + 1

    def _check_ends(self, lane: int = 0, lanes: int = 1) -> None:
        """Raise a PlanError if a pass without an element would be repeated for ever."""
        if self.times is None:
            raise no_row(lane, lanes, "it has no element to repeat", "keep some of its elements")

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        *begin, epoch = position
        start = origin(self.parent)
        moved = moves.after(0, begin, count)
        passed = moved.passed
        while passed < count and (self.times is None or epoch + 1 < self.times):
            if begin == start and moved.passed == 0:
                self._check_ends()
                break
            begin, wanted = start, count - passed
            moved = moves.after(0, start, wanted)
            epoch, passed = epoch + 1, passed + moved.passed
            if 0 < moved.passed < wanted:  # that was a whole epoch, and others are like it
                epochs = (count - passed) // moved.passed
                if self.times is not None:
                    epochs = min(epochs, self.times - 1 - epoch)
                epoch, passed = epoch + epochs, passed + epochs * moved.passed
        return Moved([*moved.position, epoch], passed)


@dataclasses.dataclass(frozen=True, eq=False)
class ProcessNode(UnseenNode):
    """Runs functions of the chain up to here in worker processes, as `options` say."""

    options: Any
    init: Callable[[int, int], None] | None = None

    label: ClassVar[str] = "mp_prefetch"

    @property
    def written(self) -> str:
        return f"mp_prefetch({self.options.num_workers!r})"

    @property
    def workers(self) -> WorkerSettings | None:
        return WorkerSettings(self.options, self.init) if self.options.num_workers else None

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        return inputs.blocks(0, position, unit)


@dataclasses.dataclass(frozen=True, eq=False)
class OptionsNode(UnseenNode):
    """Gives options to the whole stream."""

    options: DatasetOptions

    label: ClassVar[str] = "with_options"
    stream_step: ClassVar[Step] = Step.NOTHING


def options_of(node: Node) -> DatasetOptions:
    """The options of a stream; of those given in several places the later ones count."""
    found = DatasetOptions()
    for each in walk(node):
        if isinstance(each, OptionsNode):
            found = found.merge(each.options)
    return found


def lane_share(count: int, lane: int, lanes: int) -> int:
    """How many of the rows `0, ..., count - 1` are `lane`, `lane + lanes`, ..."""
    return max(0, -((lane - count) // lanes))


def no_row(lane: int, lanes: int, why: str, advice: str = "") -> PlanError:
    """The error of an endless stream that has a lane without a row; with one lane, with advice."""
    if lanes == 1:
        return PlanError(f"to_iter_dataset: the stream has no row: {why}{advice and f'; {advice}'}")
    return PlanError(
        f"to_iter_dataset: lane {lane} of {lanes} has no row: {why}; choose another lanes=, or"
        " shuffle the elements before it"
    )


def lanes_of(nodes: Sequence[Node], who: str) -> int:
    """The number of lanes that streams have, all of them the same.

    It is 1 with random access, and after a batch that joins lanes.

    Raises:
        PlanError: If streams with different numbers of lanes meet.
    """
    found, waiting = set[int](), list(nodes)
    while waiting:
        node = waiting.pop()
        chain = as_chain(node)
        if chain is not None or isinstance(node, JoinsLanes):
            found.add(1 if chain is None else chain.lanes)
        else:
            waiting += node.parents
    if len(found) > 1:
        raise PlanError(
            f"{who}: streams with {' and '.join(map(str, sorted(found)))} lanes cannot be put"
            " together; give each to_iter_dataset the same lanes= (after a batch a stream has one)"
        )
    return found.pop() if found else 1


def workers_of(node: Node) -> WorkerSettings | None:
    """The processes that run functions of the chain up to a node; None for none."""
    return node.workers if isinstance(node, ProcessNode) else None


def origin(node: Node) -> list[int]:
    """The position at which a stream starts."""
    return [0] * node.width


def as_chain(node: Node) -> ToStreamNode | None:
    """The node, if it makes a stream of a chain with random access."""
    return node if isinstance(node, ToStreamNode) else None


def chain_of_rows(node: Node) -> ToStreamNode | None:
    """The chain whose elements become the rows of a stream, one for one in their order.

    None where a node has a position of its own, or drops rows.
    """
    while node.stream_step in (Step.ROWS, Step.NOTHING) and not (node.drops or node.caught):
        node = node.parent
    chain = as_chain(node)
    if chain is None or (may_be_absent(chain.parent) and not chain.allow_nones):
        return None
    return chain


def chains_of(node: Node) -> list[ToStreamNode]:
    """The chains with random access that a stream is made of, one for each way to them."""
    found = map(as_chain, walk(node))
    return [chain for chain in found if chain is not None]


def as_repeat(node: Node) -> RepeatNode | None:
    """The node, if it repeats epochs with random access."""
    return node if isinstance(node, RepeatNode) else None


def of_epochs(node: Node, count: int) -> Node:
    """A node with random access, with `count` epochs of what it repeats for ever."""
    if not node.is_endless():
        return node
    repeat = as_repeat(node)
    if repeat is not None:
        return RepeatNode(repeat.parents, count, repeat.reseed)
    return dataclasses.replace(node, parents=tuple(of_epochs(p, count) for p in node.parents))


def as_batch(node: Node) -> BatchNode | None:
    """The node, if it makes batches of equally many elements."""
    return node if isinstance(node, BatchNode) else None


def topmost_batch(node: Node) -> BatchNode | None:
    """The last batch of a chain up to where datasets meet, whatever follows it; None without one."""
    while len(node.parents) == 1 and as_batch(node) is None:
        node = node.parent
    return as_batch(node)


def random_access_parts(node: Node) -> list[Node]:
    """The chains with random access that a stream begins with, each once, parents first."""
    if node.length != STREAM:
        return [node]
    streams = (each for each in parents_first(node) if each.length == STREAM)
    found = (parent for each in streams for parent in each.parents if parent.length != STREAM)
    return list({id(part): part for part in found}.values())


def undecided(node: Node) -> Node | None:
    """The first node of a stream that decides by values which elements come; None without one."""
    for each in parents_first(node):
        if each.length != STREAM:
            continue
        chain = as_chain(each)
        if chain is not None:
            if may_be_absent(chain.parent) and not chain.allow_nones:
                return next(part for part in parents_first(chain.parent) if part.drops)
        elif _decides_by_values(each):
            return each
    return None


def _decides_by_values(node: Node) -> bool:
    """Whether the elements of its parents, and not their numbers alone, decide which it has."""
    has_known_rows: bool | None = getattr(
        node, "has_known_rows", None
    )  # of what gives rows of elements
    if has_known_rows is not None:
        return not has_known_rows
    return node.drops or (node.looks_at_values and not node.makes_values)


def named_mixture(node: Node) -> MixingNode | None:
    """The mixture with named parents that a stream is made of, with no other mixture around it."""
    while node.length == STREAM and len(node.parents) == 1 and not isinstance(node, MixingNode):
        if node.hides_parents or isinstance(node, JoinsLanes):
            return None
        node = node.parent
    return node if isinstance(node, MixingNode) and node.names is not None else None


def has_own(node: Node) -> bool:
    """Whether a stream has a user's own nodes whose states are JSON."""
    return any(each.hides_parents and each.length == STREAM for each in walk(node))


def passes(node: Node) -> int | None:
    """How often a node gives the epochs of its parent; None for ever."""
    return node.times if isinstance(node, (RepeatNode, StreamRepeatNode)) else 1
