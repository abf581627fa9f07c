"""Nodes of a chain: frozen values that check themselves, know their length and map indices.

A `Node` has `parents`, a `length` (elements in one epoch; `STREAM` where nobody can know) and a
`label`, its part of the chain's fingerprint. Index nodes turn positions into their parent's, whole
arrays at once, and touch no data. Nodes do not read and do not run functions: the loader does.

Invariant: over one epoch an index node that reorders is a permutation, whatever the length.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, PlanError, RecordIndexError
from windrow.transforms import orders, random
from windrow.transforms.arguments import at_least, check_times, checked_seed
from windrow.transforms.functions import call_without_stop, name_of
from windrow.transforms.positions import Positions, positions

IntArray = npt.NDArray[np.int64]

STREAM: Final = -1
ENDLESS: Final = sys.maxsize


@dataclasses.dataclass(frozen=True, eq=False)
class Node(abc.ABC):
    """A node of a chain. Immutable; `length` is the elements in one epoch, or `STREAM`."""

    parents: tuple[Node, ...]
    length: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.count())

    @property
    def parent(self) -> Node:
        """The one parent of a node that has one."""
        return self.parents[0]

    @abc.abstractmethod
    def count(self) -> int:
        """Checks the node's arguments, with a PlanError; returns its length. Asked for once."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What it does, with all that decides the order: for printing and the fingerprint."""


class SameLength(Node):
    """A node with one parent, of its parent's length."""

    def count(self) -> int:
        return self.parent.length


class IndexNode(Node):
    """One parent; element `i` of the node is some element of the parent."""

    @abc.abstractmethod
    def to_parent(self, at: Positions) -> Positions:
        """Positions in the parent, for positions in this node."""


class RoutingNode(Node):
    """Several parents; element `i` of the node is some element of one of them."""

    @abc.abstractmethod
    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        """For positions in this node: which parent, and the position in that parent."""


class ValueNode(SameLength):
    """Element `i` of the node is made from element `i` of the parent."""


class UnseenNode(SameLength):
    """Changes how elements are made, and nothing of what comes: no state tells of it."""


# --- leaves --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """The records of a source, in its order."""

    source: Any

    def count(self) -> int:
        return len(self.source)

    @property
    def label(self) -> str:
        return f"source({self.source.fingerprint})"


@dataclasses.dataclass(frozen=True, eq=False)
class RangeNode(Node):
    """The Python ints of a `range`."""

    start: int
    stop: int
    step: int

    def count(self) -> int:
        if self.step == 0:
            raise PlanError("range: step must not be 0")
        if max(abs(self.start), abs(self.stop), abs(self.step)) >= 2**62:
            raise PlanError("range: start, stop and step must be below 2**62 in size")
        return len(range(self.start, self.stop, self.step))

    @property
    def label(self) -> str:
        return f"range({self.start}, {self.stop}, {self.step})"


# --- index nodes ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class SeedNode(SameLength, IndexNode):
    """Gives the nodes above it the seed that theirs are derived from."""

    seed: int

    @property
    def label(self) -> str:
        return f"seed({self.seed})"

    def to_parent(self, at: Positions) -> Positions:
        return at


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffleNode(SameLength, IndexNode):
    """A global shuffle: a permutation of each epoch."""

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

    def to_parent(self, at: Positions) -> Positions:
        # Any step may be given; int64 holds the step between two elements.
        step = self.step if self.length > 1 else 1
        return Positions(at.epochs, self.start + at.offsets * step)


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


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatNode(IndexNode):
    """The epochs of the parent, end to end; the same epoch again where `reseed` is False."""

    times: int | None
    reseed: bool = True

    def count(self) -> int:
        check_times(self.times)
        parent = self.parent.length
        if parent >= ENDLESS:
            raise PlanError("repeat: the dataset is endless already; repeat it once")
        endless = ENDLESS if parent else 0
        return endless if self.times is None else min(self.times * parent, ENDLESS)

    @property
    def label(self) -> str:
        times = "for ever" if self.times is None else self.times
        return f"repeat({times}{'' if self.reseed else ', reseed_each_epoch=False'})"

    def to_parent(self, at: Positions) -> Positions:
        indices = at.flat(self.length)
        if not self.reseed:
            indices = indices % self.parent.length
        return positions(indices, self.parent.length)


# --- routing nodes -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class ConcatenateNode(RoutingNode):
    """The parents one after the other, epoch by epoch."""

    def count(self) -> int:
        if not self.parents:
            raise PlanError("concatenate: needs at least one dataset, got none")
        for i, parent in enumerate(self.parents):
            if parent.length >= ENDLESS:
                raise PlanError(
                    f"concatenate: dataset {i} is endless, so nothing could follow it;"
                    " repeat after concatenating"
                )
        length = sum(parent.length for parent in self.parents)
        if length > ENDLESS:
            raise PlanError(f"concatenate: {length} elements are more than 2**63 - 1")
        return length

    @property
    def label(self) -> str:
        return f"concatenate({', '.join(str(p.length) for p in self.parents)})"

    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        starts = np.concatenate([[0], np.cumsum(_lengths(self.parents))])
        which = np.searchsorted(starts, at.offsets, side="right") - 1
        return which, Positions(at.epochs, at.offsets - starts[which])


@dataclasses.dataclass(frozen=True, eq=False)
class MixNode(RoutingNode):
    """The parents in the proportions of `weights`, until the first would come short."""

    weights: tuple[float, ...] | None

    @property
    def proportions(self) -> tuple[int, ...]:
        """The weights as integers."""
        return mix_proportions(len(self.parents), self.weights)

    def count(self) -> int:
        return orders.mix_length([parent.length for parent in self.parents], self.proportions)

    @property
    def label(self) -> str:
        return f"mix({', '.join(map(str, self.proportions))})"

    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        which, keys = orders.mix_choose(_int64(at.flat(self.length)), self.proportions)
        return which, positions(keys, _lengths(self.parents)[which])


def _int64(indices: npt.NDArray[Any]) -> IntArray:
    try:
        return indices.astype(np.int64, copy=False)
    except OverflowError:
        raise RecordIndexError(
            f"mix: index {max(indices, key=abs)} is beyond 64 bits; ask for earlier epochs"
        ) from None


def _lengths(parents: Sequence[Node]) -> IntArray:
    return np.array([parent.length for parent in parents], np.int64)


def mix_proportions(parents: int, weights: Sequence[float] | None) -> tuple[int, ...]:
    """Integers in the proportion of the weights, one for each of at least one parent.

    Raises:
        ArgumentError: If a weight is no number.
        PlanError: If there is no parent, or a weight is missing, too many or not positive.
    """
    if not parents:
        raise PlanError("mix: needs at least one dataset, got none")
    if weights is None:
        return (1,) * parents
    if len(weights) != parents:
        raise PlanError(f"mix: {len(weights)} weights for {parents} datasets; give one for each")
    for i, weight in enumerate(weights):
        if getattr(weight, "__float__", None) is None:
            raise ArgumentError(f"mix: weight {i} must be a number, got {weight!r}")
    return tuple(orders.mix_weights(weights))


@dataclasses.dataclass(frozen=True, eq=False)
class SelectNode(RoutingNode):
    """Whatever element of whatever parent a selection map names."""

    selection_map: Any

    def count(self) -> int:
        if not self.parents:
            raise PlanError("select_from_datasets: needs at least one dataset, got none")
        for i, parent in enumerate(self.parents):
            if parent.length == 0:
                raise PlanError(f"select_from_datasets: dataset {i} is empty; leave it out")
        try:
            return len(self.selection_map)
        except TypeError as error:
            raise ArgumentError(
                "select_from_datasets: selection_map must be a windrow.transforms"
                f".DatasetSelectionMap or have its two methods, got {self.selection_map!r}"
            ) from error

    @property
    def kind(self) -> str:
        """The name of the selection map's class."""
        return type(self.selection_map).__qualname__

    @property
    def label(self) -> str:
        own = getattr(self.selection_map, "fingerprint", None)
        shown = f", fingerprint={own}" if isinstance(own, str) else ""
        return f"select_from_datasets({self.kind}, length={self.length}{shown})"

    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        pick = self.selection_map.__getitem__
        indices = at.flat(self.length).tolist()
        pairs = [self._pair(i, call_without_stop(pick, i)) for i in indices]
        which, keys = np.array(pairs, np.int64).reshape(-1, 2).T
        return which, positions(keys, _lengths(self.parents)[which])

    def _pair(self, index: int, picked: Any) -> tuple[int, int]:
        """What the selection map holds at `index`, checked."""
        try:
            dataset, key = map(operator.index, picked)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"select_from_datasets: {self.kind} has {picked!r} at index {index}; it must be a"
                " pair of integers: which dataset, and the index in it"
            ) from error
        if not 0 <= dataset < len(self.parents):
            raise PlanError(
                f"select_from_datasets: {self.kind} named dataset {dataset} (key {key}) of"
                f" {len(self.parents)}; they count from 0"
            )
        if not -(2**63) <= key < 2**63:
            raise PlanError(
                f"select_from_datasets: {self.kind} has index {key} at index {index}; it must be"
                " at least -2**63 and below 2**63"
            )
        return dataset, key


@dataclasses.dataclass(frozen=True, eq=False)
class ZipNode(Node):
    """A tuple of the elements that the parents have at one index."""

    strict: bool = True

    def count(self) -> int:
        if not self.parents:
            raise PlanError("zip: needs at least one dataset, got none")
        lengths = [parent.length for parent in self.parents]
        if len(set(lengths)) > 1:
            raise PlanError(
                f"zip: datasets must have one length, got {lengths}; slice them to the shortest"
            )
        return self.parent.length

    @property
    def label(self) -> str:
        return f"zip({len(self.parents)}{'' if self.strict else ', strict=False'})"


# --- value nodes ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class MapNode(ValueNode):
    """A function of one element, or of the columns of many."""

    function: Callable[..., Any]
    batched: bool = False

    @property
    def label(self) -> str:
        return "map(batched=True)" if self.batched else "map"


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexNode(ValueNode):
    """A function of an element's index and the element."""

    function: Callable[..., Any]

    @property
    def label(self) -> str:
        return "map_with_index"


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapNode(ValueNode):
    """A function of an element and a generator that depends on seed and index alone."""

    function: Callable[..., Any]
    seed: int

    @property
    def label(self) -> str:
        return f"random_map(seed={self.seed})"


@dataclasses.dataclass(frozen=True, eq=False)
class FilterNode(ValueNode):
    """Makes elements absent that a predicate turns down; the length stays."""

    function: Callable[..., Any]

    @property
    def label(self) -> str:
        return "filter"


@dataclasses.dataclass(frozen=True, eq=False)
class BatchNode(Node):
    """Consecutive elements stacked; batches do not cross an epoch of a random-access parent."""

    size: int
    drop_remainder: bool = False
    batch_fn: Callable[[list[Any]], Any] | None = None

    def count(self) -> int:
        at_least(1, self.size, "batch: batch_size")
        n = self.parent.length
        if n == STREAM:
            return STREAM
        return n // self.size if self.drop_remainder else -(-n // self.size)

    @property
    def label(self) -> str:
        drop = ", drop_remainder=True" if self.drop_remainder else ""
        own = ", batch_fn" if self.batch_fn is not None else ""
        return f"batch({self.size}{drop}{own})"

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        """The parent's positions for batches, and the bounds of each batch in them."""
        size = min(self.size, self.parent.length)  # any integer may be given, int64 holds this
        starts = at.offsets * size
        counts = np.minimum(size, self.parent.length - starts)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
        rows = Positions(np.repeat(at.epochs, counts), np.repeat(starts, counts) + inside)
        return rows, bounds


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
        start, stop, step = sl.indices(length)
        return SliceNode((node,), start, step, len(range(start, stop, step)))
    indices = np.asarray(sl)
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ArgumentError(
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


def seed_for(node: Node, seed: int | None, who: str, stop: int) -> int:
    """The seed of a node on top of `node`: the one given, in `[0, stop)`, or one derived.

    Raises:
        ArgumentError: If it is no integer.
        PlanError: If it is out of range, or there is none.
    """
    if seed is not None:
        return checked_seed(seed, who, stop)
    found = default_seed(node)
    if found is None:
        raise PlanError(f"{who}: has no seed; pass seed=..., or put .seed(...) further down")
    return found


# --- over a whole chain --------------------------------------------------------------------------


def default_seed(node: Node) -> int | None:
    """The seed that a node on top of `node` gets when it is given none.

    Derived from the nearest `seed(...)` below and its depth, breadth first, as Grain does: adding a
    node to the chain changes it. None where the chain has no seed.
    """
    found: list[tuple[int, int]] = []
    queue: list[tuple[Node, int]] = [(node, 1)]
    for below, depth in queue:  # grows while it is walked: breadth first
        if isinstance(below, SeedNode):
            found.append((below.seed, depth))
        else:
            queue.extend((parent, depth + 1) for parent in below.parents)
    return random.default_seed(found) if found else None


def may_be_absent(node: Node) -> bool:
    """Whether a filter in the chain can make elements absent."""
    return isinstance(node, FilterNode) or any(may_be_absent(p) for p in node.parents)


def function_names(node: Node) -> list[str]:
    """Names of the user's functions in the chain, parents first."""
    names = [name for parent in node.parents for name in function_names(parent)]
    match node:
        case MapNode() | MapWithIndexNode() | RandomMapNode() | FilterNode():
            names.append(name_of(node.function))
        case BatchNode(batch_fn=own) if own is not None:
            names.append(name_of(own))
        case _:
            pass
    return names


def described(node: Node) -> str:
    """The chain as one line, from the source upwards."""
    parents = [described(parent) for parent in node.parents]
    if not parents:
        return node.label
    below = parents[0] if len(parents) == 1 else "[" + "; ".join(parents) + "]"
    return f"{below} > {node.label}"


def fingerprint(node: Node) -> str:
    """Names the chain and its data: 16 hex digits of a hash over every node's label and length."""
    return hashlib.sha256(_canonical(node).encode()).hexdigest()[:16]


def _canonical(node: Node) -> str:
    if isinstance(node, UnseenNode):
        return _canonical(node.parent)
    inside = ",".join(_canonical(parent) for parent in node.parents)
    return f"{node.label}#{node.length}({inside})"
