"""What is known of the elements of a node before one is made: specs, bytes, lengths, epochs.

A node that knows more has the method of a protocol. For others the functions answer from parents and spec,
or return None.

Invariant: nothing here reads a record or calls a function of the user on one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms import specs
from windrow.transforms.amounts import Amount
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.positions import Positions
from windrow.transforms.record_sizes import spec_bytes
from windrow.transforms.specs import Spec


def element_spec(node: Any) -> Spec:
    """The spec of an element. See `windrow.transforms.specs`.

    Raises:
        PlanError: If a source or a function does not declare it, or parents differ.
        ArgumentError: If what one of them returns is not a spec.
    """
    parents = [functools.partial(element_spec, parent) for parent in node.parents]
    found: Spec = node.spec(specs.Lazy(parents))
    return found


def known_spec(node: Any) -> Spec | None:
    """The spec of an element; None if it is not known."""
    try:
        return element_spec(node)
    except Exception:  # of a method `output_spec`, too: a chain runs without
        return None


# --- their sizes ---------------------------------------------------------------------------------


@runtime_checkable
class KnowsBytes(Protocol):
    """A node that knows the bytes of its elements."""

    def element_bytes(self) -> Amount | None:
        """Bytes of an element: see `element_bytes`."""
        ...


def element_bytes(node: Any) -> Amount | None:
    """Bytes of an element, on average; None if they are not known."""
    return node.element_bytes() if isinstance(node, KnowsBytes) else bytes_by_spec(node)


def bytes_by_spec(node: Any) -> Amount | None:
    """Bytes of an element by its spec, or by the parents if the node keeps their values."""
    if node.functions or not node.parents or not node.keeps_values:
        size = spec_bytes(known_spec(node))
        return None if size is None else Amount.exactly(size)
    sizes = [element_bytes(parent) for parent in node.parents]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return Amount(min(size.low for size in known), max(size.high for size in known))


@runtime_checkable
class KnowsLengths(Protocol):
    """A node that knows how long its elements are, if they are sequences."""

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        """Lengths of the elements at some positions: see `known_lengths`."""
        ...


def known_lengths(node: Any, at: Positions, known: RecordLengths) -> IntArray:
    """Lengths of the elements at some positions, int64 `(len(at),)`; with no positions, it is checked.

    Raises:
        PlanError: If they are not known; the message says what to do.
        SourceError: If a source gives wrong ones.
    """
    if isinstance(node, KnowsLengths):
        return node.lengths_of(at, known)
    raise PlanError(
        f"lengths: {node.label} makes elements of unknown length; plan from lengths before it"
    )


# --- epochs --------------------------------------------------------------------------------------


@runtime_checkable
class KnowsEpochs(Protocol):
    """A node with random access that has other numbers of elements than its parents."""

    def length_of_pass(self, parents: Sequence[int]) -> int:
        """Elements in one pass over parents of these lengths; at least one parent is endless."""
        ...

    def epoch_length(self) -> int:
        """Elements in one epoch: see `epoch_length`."""
        ...


def pass_length(node: Any) -> int:
    """Elements of a node with random access in one pass over what it repeats for ever."""
    if not node.is_endless():
        return int(node.length)
    lengths = [pass_length(parent) for parent in node.parents]
    return node.length_of_pass(lengths) if isinstance(node, KnowsEpochs) else min(lengths)


def epoch_length(node: Any) -> int:
    """Elements in one epoch of a node with random access, before what repeats it.

    An endless mixture has as many as one epoch of each of its datasets together.
    """
    if isinstance(node, KnowsEpochs):
        return node.epoch_length()
    over_parent = node.keeps_epochs or (node.parents and node.is_endless())
    return epoch_length(node.parent) if over_parent else int(node.length)
