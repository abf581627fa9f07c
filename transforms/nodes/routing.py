"""Routing nodes: each element is some element of one of several parents."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.text import counted
from windrow.errors import ArgumentError, PlanError, RecordIndexError
from windrow.sources.base import IntArray
from windrow.transforms import layouts, orders, specs
from windrow.transforms.functions import call_without_stop
from windrow.transforms.layouts import Layout
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.mixtures import Mixture, Schedule
from windrow.transforms.nodes.base import ENDLESS, Node
from windrow.transforms.nodes.metadata import epoch_length, known_lengths
from windrow.transforms.positions import Positions, positions
from windrow.transforms.specs import Spec

Weights: TypeAlias = tuple[float, ...] | Schedule | None
"""Weights of a mixture: one for each parent, or some that change; None for equal ones."""


class RoutingNode(Node):
    """Several parents; element `i` of the node is some element of one of them."""

    keeps_values: ClassVar[bool] = True
    keeps_elements: ClassVar[bool] = True
    chooses: ClassVar[bool] = True

    @abc.abstractmethod
    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        """For positions in this node: which parent, and the position in that parent."""

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return spec_of_any(self, parents)

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        which, before = self.route(at)
        found = np.empty(len(at), np.int64)
        # All parents, so that one without lengths is found before its turn comes.
        for number, parent in enumerate(self.parents):
            rows = np.flatnonzero(which == number)
            found[rows] = known_lengths(parent, before.taken(rows), known)
        return found

    def made_from(self, at: Positions) -> tuple[Node, Positions]:
        which, before = self.route(at)
        return self.parents[int(which[0])], before


def spec_of_any(node: Node, parents: Sequence[Spec]) -> Spec:
    """Return the spec that covers the elements of all parents.

    Raises:
        PlanError: If no spec does.
    """
    # Parents without elements do not decide the spec.
    numbers = [n for n, parent in enumerate(node.parents) if parent.length] or list(
        range(len(node.parents))
    )
    found = [parents[number] for number in numbers]
    whole = found[0]
    for number, other in zip(numbers, found, strict=True):
        both = specs.merged(whole, other)
        if both is None:
            raise PlanError(
                f"element_spec: the datasets of {node.label} have different elements\n"
                f"  dataset {numbers[0]}: {whole}\n"
                f"  dataset {number}: {other}\n"
                f"Make their trees, ranks and dtypes alike in a map, {specs.READ_ONE}."
            )
        whole = both
    return whole


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

    def layout(self) -> Layout:
        return layouts.joined([parent.layout() for parent in self.parents])


@dataclasses.dataclass(frozen=True, eq=False)
class MixNode(RoutingNode):
    """The parents in the proportions of `weights`, until the first would run out.

    With `drops_out` a parent that has run out leaves the others, and an epoch has all of all parents.

    Args:
        sizes: Elements of parent `k` count `sizes[k]` each; None if every element counts 1.
    """

    weights: Weights
    drops_out: bool = False
    sizes: tuple[int, ...] | None = None

    @functools.cached_property
    def mixture(self) -> Mixture:
        """The parent of each element; in one epoch, if parents drop out."""
        whole = mixture_of(len(self.parents), self.weights, self.sizes)
        lengths = [parent.length for parent in self.parents]
        return whole.dropping(lengths) if self.drops_out else whole

    def count(self) -> int:
        mixture_of(len(self.parents), self.weights)
        return self._length_over([parent.length for parent in self.parents])

    def _length_over(self, lengths: Sequence[int]) -> int:
        for at, length in enumerate(lengths):
            if length < 1:
                raise PlanError(f"mix: dataset {at} has no elements; leave it out of the mixture")
        if not isinstance(self.weights, Schedule) and not self.drops_out and self.sizes is None:
            return orders.mix_length(lengths, mix_proportions(len(lengths), self.weights))
        whole = mixture_of(len(lengths), self.weights, self.sizes)
        return length_of_mixture(whole, lengths, self.drops_out)

    @property
    def label(self) -> str:
        drops = ", at_end=drop" if self.drops_out else ""
        return f"mix({shares_text(len(self.parents), self.weights)}{drops})"

    def route(self, at: Positions) -> tuple[IntArray, Positions]:
        if self.drops_out:
            which, keys = self.mixture.choose(at.offsets)
            return which, Positions(at.epochs, keys)
        which, keys = self.mixture.choose(_int64(at.flat(self.length)))
        return which, positions(keys, _lengths(self.parents)[which])

    def length_of_pass(self, parents: Sequence[int]) -> int:
        return self._length_over(list(parents))

    def epoch_length(self) -> int:
        if not self.is_endless():
            return self.length
        return sum(epoch_length(parent) for parent in self.parents)


def _int64(indices: npt.NDArray[Any]) -> IntArray:
    try:
        return indices.astype(np.int64, copy=False)
    except OverflowError:
        raise RecordIndexError(
            f"mix: index {max(indices, key=abs)} is beyond 64 bits; ask for earlier epochs"
        ) from None


def _lengths(parents: Sequence[Node]) -> IntArray:
    return np.array([parent.length for parent in parents], np.int64)


def length_of_mixture(mixture: Mixture, lengths: Sequence[int], drops_out: bool) -> int:
    """Elements of a mixture of datasets of these lengths, exactly; at most `sys.maxsize`."""
    return (mixture.dropping(lengths) if drops_out else mixture).end(lengths)


def shares_text(parents: int, weights: Weights) -> str:
    """The proportions of a mixture, for its label."""
    if isinstance(weights, Schedule):
        changes = weights.over(lambda each: shares_text(parents, each)).changes
        return "; ".join(f"from {step}: {shares}" for step, shares in changes)
    return ", ".join(map(str, _proportions(parents, weights)))


def mixture_of(parents: int, weights: Weights, sizes: Sequence[int] | None = None) -> Mixture:
    """The order of a mixture of this many datasets.

    Args:
        parents: The number of datasets.
        weights: As a user gives them, in a tuple.
        sizes: Elements of dataset `k` count `sizes[k]` each, at least 1; by default 1.

    Raises:
        ArgumentError: If a weight is not a number.
        PlanError: If there is no parent, or a weight is missing, too many or out of range.
    """
    if not isinstance(weights, Schedule):
        return Mixture.of([(0, _shares(mix_proportions(parents, weights), sizes))])
    changes = weights.over(lambda each: _shares(_proportions(parents, each), sizes)).changes
    return Mixture.of(changes)


def _shares(proportions: Sequence[int], sizes: Sequence[int] | None) -> Sequence[int]:
    if sizes is None:
        return proportions
    whole = math.lcm(*sizes)
    return [share * (whole // size) for share, size in zip(proportions, sizes, strict=True)]


def _proportions(parents: int, weights: Any) -> tuple[int, ...]:
    """As `mix_proportions`, but weights of a step of a schedule may be 0."""
    if weights is None or len(weights) != parents or all(weights) or not any(weights):
        return mix_proportions(parents, weights)
    taking = [number for number, weight in enumerate(weights) if weight]
    found = [0] * parents
    shares = mix_proportions(len(taking), [weights[number] for number in taking])
    for number, share in zip(taking, shares, strict=True):
        found[number] = share
    return tuple(found)


def mix_proportions(parents: int, weights: Sequence[float] | None) -> tuple[int, ...]:
    """Integers in the proportion of the weights, one for each of at least one parent.

    Raises:
        ArgumentError: If a weight is not a number.
        PlanError: If there is no parent, or a weight is missing, too many or not positive.
    """
    if not parents:
        raise PlanError("mix: needs at least one dataset, got none")
    if weights is None:
        return (1,) * parents
    if len(weights) != parents:
        raise PlanError(
            f"mix: {counted(len(weights), 'weight')} for {counted(parents, 'dataset')}; give one for each"
        )
    for i, weight in enumerate(weights):
        if getattr(weight, "__float__", None) is None:
            raise ArgumentError(f"mix: weight {i} must be a number, got {weight!r}")
    return tuple(orders.mix_weights(weights))


@dataclasses.dataclass(frozen=True, eq=False)
class SelectNode(RoutingNode):
    """The elements that a selection map chooses from the parents."""

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
