"""Positions: elements of a node, each given by epoch and offset.

A chain is an infinite function of an integer: index `i` of a node of length `n` is offset `i % n` of
epoch `i // n`, and negative indices are negative epochs. Positions keep the two apart, so that no
node can overflow on the way down, however far an endless repeat has come.

Invariant: `0 <= offsets < length` of the node they belong to.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray

_LARGEST = 2**62


@dataclasses.dataclass(frozen=True, slots=True)
class Positions:
    """Elements of one node: int64 `epochs` and `offsets` of the same length.

    Epochs that do not fit are Python ints.
    """

    epochs: npt.NDArray[Any]
    offsets: IntArray

    def __len__(self) -> int:
        return len(self.offsets)

    def flat(self, length: int) -> npt.NDArray[Any]:
        """The indices `epoch * length + offset`: int64, or Python ints where those do not fit."""
        if not self.epochs.any():
            return self.offsets
        # Not abs of the array: -2**63 has none in 64 bits.
        largest = max(-int(self.epochs.min()), int(self.epochs.max())) + 1
        if largest * length < _LARGEST:
            return self.epochs * length + self.offsets
        exact: npt.NDArray[Any] = self.epochs.astype(object) * length + self.offsets.astype(object)
        return exact

    def seed_epochs(self) -> IntArray:
        """The epochs, or integers equal to them modulo 2**32: seeds depend on no more."""
        return (
            (self.epochs % 2**32).astype(np.int64) if self.epochs.dtype == object else self.epochs
        )

    def taken(self, at: IntArray) -> Positions:
        """The positions at `at`."""
        return Positions(self.epochs[at], self.offsets[at])


def positions(indices: npt.NDArray[Any], length: int | IntArray) -> Positions:
    """Flat indices of a node of `length` elements (at least 1), negative ones too, as positions.

    `length` may be an array too: the lengths of the nodes that the indices belong to.
    """
    if isinstance(length, int) and indices.dtype == np.int64 and len(indices):
        low, high = int(indices.min()), int(indices.max())
        epoch = low // length
        if low >= 0 and high // length == epoch:  # as in most reads
            offsets = indices - epoch * length if epoch else indices
            return Positions(np.full(len(indices), epoch), offsets)
    epochs = indices // length
    offsets = indices - epochs * length
    # Parts of endless datasets have epochs as long as those: beyond 64 bits they stay Python ints.
    with contextlib.suppress(OverflowError):
        epochs = epochs.astype(np.int64)
    return Positions(epochs, offsets.astype(np.int64))


def starts_of(counts: IntArray) -> IntArray:
    """Where runs of some lengths begin, one after the other."""
    return np.cumsum(counts) - counts


def run_numbers(counts: IntArray, firsts: IntArray | int = 0, step: int = 1) -> IntArray:
    """The numbers `firsts[k]`, `firsts[k] + step`, ..., `counts[k]` of them, for each `k` in turn.

    Example:
        >>> import numpy as np
        >>> from windrow.transforms.positions import run_numbers
        >>> run_numbers(np.array([2, 3]), np.array([0, 7])).tolist()
        [0, 1, 7, 8, 9]
    """
    spans = counts * step
    return np.arange(0, spans.sum(), step) + np.repeat(firsts - starts_of(spans), counts)
