"""Index nodes: elements of one parent, in another order, or some of them.

Invariant: over one epoch an index node that reorders is a permutation, whatever the length.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from windrow.errors import ArgumentError, ArgumentValueError, PlanError
from windrow.sources.base import IntArray
from windrow.transforms import layouts, orders
from windrow.transforms.arguments import at_least, check_times
from windrow.transforms.layouts import Layout
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import ENDLESS, Node
from windrow.transforms.nodes.dealing import DealtToLanes, dealing_of, dealt
from windrow.transforms.nodes.following import group_size, over
from windrow.transforms.nodes.metadata import epoch_length, known_lengths
from windrow.transforms.nodes.same import SameIndices, SameLength
from windrow.transforms.nodes.whole_chain import GivesSeed, earlier_source, walk
from windrow.transforms.positions import Positions, positions
from windrow.transforms.row_blocks import Step


class IndexNode(Node):
    """One parent; element `i` of the node is some element of the parent."""

    keeps_values: ClassVar[bool] = True
    keeps_elements: ClassVar[bool] = True
    chooses: ClassVar[bool] = True

    @abc.abstractmethod
    def to_parent(self, at: Positions) -> Positions:
        """Positions in the parent, for positions in this node."""

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        return known_lengths(self.parent, self.to_parent(at), known)

    def made_from(self, at: Positions) -> tuple[Node, Positions]:
        return self.parent, self.to_parent(at)

    def layout(self) -> Layout:
        raise PlanError(
            f"block_shuffle: {self.label} hides which elements are stored together;"
            " block-shuffle before it, or give block=, the number of consecutive elements that are"
            " read together"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class SeedNode(GivesSeed, SameIndices, IndexNode):
    """Gives a seed to later nodes, which derive their own seeds from it."""

    keeps_epochs: ClassVar[bool] = True
    looks_at_values: ClassVar[bool] = False
    follows_batch: ClassVar[bool] = True
    stream_step: ClassVar[Step] = Step.NOTHING

    seed: int

    @property
    def label(self) -> str:
        return f"seed({self.seed})"

    def to_parent(self, at: Positions) -> Positions:
        return at

    def layout(self) -> Layout:
        return self.parent.layout()


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffleNode(SameLength, IndexNode):
    """A global shuffle: a permutation of each epoch."""

    shuffles: ClassVar[bool] = True

    seed: int

    @property
    def label(self) -> str:
        return f"shuffle(seed={self.seed})"

    def to_parent(self, at: Positions) -> Positions:
        offsets = orders.epoch_shuffled(at.seed_epochs(), at.offsets, self.length, self.seed)
        return Positions(at.epochs, offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class WindowShuffleNode(IndexNode):
    """A shuffle inside windows of consecutive elements; an epoch's last window may be shorter."""

    shuffles: ClassVar[bool] = True

    window_size: int
    seed: int

    def count(self) -> int:
        at_least(1, self.window_size, "window_shuffle: window_size")
        return self.parent.length

    @property
    def label(self) -> str:
        return f"window_shuffle(window_size={self.window_size}, seed={self.seed})"

    def to_parent(self, at: Positions) -> Positions:
        offsets = orders.window_shuffled(
            at.seed_epochs(), at.offsets, self.length, self.window_size, self.seed
        )
        return Positions(at.epochs, offsets)


@dataclasses.dataclass(frozen=True, eq=False)
class SliceNode(IndexNode):
    """Offsets `start, start + step, ...` of each epoch of the parent."""

    start: int
    step: int
    size: int

    def count(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"slice(start={self.start}, step={self.step}, length={self.length})"

    @property
    def is_start(self) -> bool:
        """Whether it has the first elements of its parent."""
        return self.start == 0 and self._used_step == 1

    @property
    def earlier_label(self) -> str | None:
        """The label of a source that had no more elements than these; None if it is not known."""
        return earlier_source(self.parent, self.length) if self.is_start else None

    def to_parent(self, at: Positions) -> Positions:
        return Positions(at.epochs, self.start + at.offsets * self._used_step)

    @property
    def _used_step(self) -> int:
        """Any step may be given; int64 holds the step between two elements."""
        return self.step if self.length > 1 else 1

    def layout(self) -> Layout:
        return layouts.sliced(self.parent.layout(), self.start, self._used_step, self.length)

    def is_endless(self) -> bool:
        is_most = 2 * self.length * abs(self.step) >= self.parent.length
        return is_most and self.parent.is_endless()

    def length_of_pass(self, parents: Sequence[int]) -> int:
        return -(-parents[0] // abs(self.step))

    def epoch_length(self) -> int:
        return epoch_length(self.parent) if self.is_endless() else self.length


@dataclasses.dataclass(frozen=True, eq=False)
class ReindexNode(IndexNode):
    """The listed offsets of each epoch of the parent, in the order of the list."""

    indices: IntArray

    def count(self) -> int:
        return len(self.indices)

    @property
    def label(self) -> str:
        digest = hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()
        return f"slice({len(self.indices)} indices, sha256={digest[:16]})"

    def to_parent(self, at: Positions) -> Positions:
        return Positions(at.epochs, self.indices[at.offsets])

    def layout(self) -> Layout:
        return layouts.listed(self.parent.layout(), self.indices)


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatNode(DealtToLanes, IndexNode):
    """The epochs of the parent, end to end; the same epoch again where `reseed` is False."""

    keeps_epochs: ClassVar[bool] = True

    times: int | None
    reseed: bool = True

    def count(self) -> int:
        check_times(self.times)
        parent = self.parent.length
        if parent >= ENDLESS or self.parent.is_endless():
            raise PlanError("repeat: the dataset is endless already; repeat it once")
        if self.times is not None:
            return min(self.times * parent, ENDLESS)
        if parent:
            return ENDLESS
        for each in walk(self.parent):
            if group_size(each) is not None and each.parent.length:
                raise PlanError(
                    f"repeat: nothing to repeat, since {each.written} makes no batch of"
                    f" {each.parent.length} elements; choose a smaller batch, or keep the remainder"
                )
        return 0

    @property
    def label(self) -> str:
        times = "for ever" if self.times is None else self.times
        return f"repeat({times}{'' if self.reseed else ', reseed_each_epoch=False'})"

    def to_parent(self, at: Positions) -> Positions:
        indices = at.flat(self.length)
        if not self.reseed:
            indices = indices % self.parent.length
        return positions(indices, self.parent.length)

    def dealt(self, lanes: int) -> Node:
        return over(self, (dealt(self.parent, lanes),))

    def _dealt_epoch(self, epoch: int) -> IntArray | None:
        """The index at which each lane begins in an epoch, where lanes take runs of elements."""
        if not self.length:
            return None
        starts = dealing_of(self.parent).lane_starts(epoch if self.reseed else 0)
        return None if starts is None else starts + epoch * self.parent.length

    def lane_indices(
        self, starts: IntArray, counts: IntArray, numbers: IntArray, lanes: int
    ) -> tuple[IntArray, IntArray]:
        if self._dealt_epoch(0) is None:
            return super().lane_indices(starts, counts, numbers, lanes)
        found, taken = [np.zeros(0, np.int64)], counts.copy()
        for k, lane in enumerate(numbers.tolist()):
            start, left = int(starts[k]), int(counts[k])
            for epoch in range(start // self.parent.length, self.length // self.parent.length):
                if not left:
                    break
                bounds = self._dealt_epoch(epoch)
                if bounds is not None:
                    first = max(int(bounds[lane]), start)
                    some = np.arange(first, min(int(bounds[lane + 1]), first + left))
                    found.append(some)
                    left -= len(some)
            taken[k] -= left
        return np.concatenate(found), taken

    def lane_of(self, indices: IntArray, lanes: int) -> IntArray:
        if self._dealt_epoch(0) is None:
            return super().lane_of(indices, lanes)
        found = np.zeros(len(indices), np.int64)
        for epoch, rows in orders.groups(indices // self.parent.length):
            starts = self._dealt_epoch(epoch)
            if starts is not None:
                found[rows] = starts[1:].searchsorted(indices[rows], side="right")
        return found

    def lane_elements(self, lane: int, lanes: int) -> int:
        if self.length >= ENDLESS or self._dealt_epoch(0) is None:
            return super().lane_elements(lane, lanes)
        found = (self._dealt_epoch(epoch) for epoch in range(self.times or 1))
        return sum(int(starts[lane + 1] - starts[lane]) for starts in found if starts is not None)

    def layout(self) -> Layout:
        if self.times is None:
            raise PlanError(
                f"block_shuffle: {self.label} has endlessly many blocks; block-shuffle before"
                " repeat"
            )
        return layouts.repeated(self.parent.layout(), self.times)

    def is_endless(self) -> bool:
        return self.times is None and self.length > 0


def first_elements(node: Node, count: int) -> Node:
    """A node with random access that has only the first `count` elements of `node`."""
    return node if count >= node.length else SliceNode((node,), 0, 1, count)


# --- from what a user gives ----------------------------------------------------------------------


def sliced(node: Node, sl: Any) -> Node:
    """The node of part of each epoch: of a slice, or of a sequence of indices.

    Raises:
        ArgumentError: If it is neither.
        PlanError: If the step is 0, or an index is out of range.
    """
    length = node.length
    if isinstance(sl, slice):
        if sl.step == 0:
            raise PlanError("slice: step must not be 0; leave it out to take every element")
        try:
            start, stop, step = sl.indices(length)
        except TypeError as error:
            raise ArgumentError(f"slice: needs integers, or None, got {sl}") from error
        return SliceNode((node,), start, step, len(range(start, stop, step)))
    indices = np.asarray(sl)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise (ArgumentError if indices.ndim else ArgumentValueError)(
            "slice: needs a slice or a sequence of integers, got"
            f" {type(sl).__name__} of shape {indices.shape} and dtype {indices.dtype}"
        )
    wrong = np.flatnonzero((indices < -length) | (indices >= length))
    if wrong.size:
        raise PlanError(
            f"slice: index {indices[wrong[0]]} at place {wrong[0]} is out of range for"
            f" {length} elements; choose -{length} <= index < {length}"
        )
    indices = indices.astype(np.int64)
    return ReindexNode((node,), np.where(indices < 0, indices + length, indices))
