"""Sampling: elements of one parent drawn at random, with replacement, anew in each epoch.

Invariant: element `i` of epoch `e` is a function of seed, `e`, `i`, weights and the parent's length
alone, written down here to the last bit (see `SampleNode.to_parent`), and stays as it is for ever.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, PlanError
from windrow.transforms.arguments import at_least
from windrow.transforms.blocks import GAMMA, Words, folded, mixed
from windrow.transforms.nodes.base import Node
from windrow.transforms.nodes.index import IndexNode
from windrow.transforms.positions import Positions

_FRACTION_BITS: Final = 53  # of a float64


@dataclasses.dataclass(frozen=True, eq=False)
class SampleNode(IndexNode):
    """Elements of the parent drawn at random, with replacement.

    Args:
        size: Elements in an epoch.
        seed: An integer in `[0, 2**32)`.
        weights: The sums of weights up to each element, or the offsets that may be drawn, all equally
            often; None for all elements.
    """

    size: int
    seed: int
    weights: npt.NDArray[np.float64] | npt.NDArray[np.int64] | None = None

    def count(self) -> int:
        at_least(1, self.size, "sample: num_elements")
        if not self.parent.length:
            raise PlanError("sample: the dataset is empty, so there is no element to draw")
        if self.parent.is_endless():
            raise PlanError("sample: the dataset never ends; sample before repeat()")
        return self.size

    @property
    def label(self) -> str:
        if self.weights is None:
            return f"sample({self.size}, seed={self.seed})"
        little = self.weights.astype(self.weights.dtype.newbyteorder("<"))
        digest = hashlib.sha256(little.tobytes()).hexdigest()[:16]
        return f"sample({self.size}, seed={self.seed}, weights sha256={digest})"

    def to_parent(self, at: Positions) -> Positions:
        """The offset drawn for each position.

        With the key `folded(folded(0, seed), epoch modulo 2**32)`, offset `i` draws the 64-bit number
        `mixed(key + (i + 1) * gamma)`, the `i`-th draw of SplitMix64. Without weights it is taken
        modulo the number of elements. With weights its upper 53 bits are a fraction of their sum.
        """
        zero, seed = np.zeros(1, np.uint64), np.array([self.seed], np.uint64)
        epochs = (at.seed_epochs() % 2**32).astype(np.uint64)
        numbers = (at.offsets.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
        drawn = mixed(folded(folded(zero, seed), epochs) + numbers)
        return Positions(at.epochs, self._offsets(drawn))

    def _offsets(self, drawn: Words) -> npt.NDArray[np.int64]:
        if self.weights is None:
            return (drawn % np.uint64(self.parent.length)).astype(np.int64)
        if self.weights.dtype.kind == "i":
            return np.asarray(self.weights[(drawn % np.uint64(len(self.weights))).astype(np.int64)])
        total = self.weights[-1]
        shares = (drawn >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) * 2.0**-_FRACTION_BITS
        found = np.searchsorted(self.weights, shares * total, side="right")
        # A product may be rounded up to the whole sum.
        last = np.searchsorted(self.weights, total)
        return np.asarray(np.minimum(found, last)).astype(np.int64)


def sample_node(node: Node, size: int, seed: int, weights: Any) -> SampleNode:
    """The node of what a user gives.

    Raises:
        ArgumentError: If weights are not numbers, one for each element.
        PlanError: If a weight is out of range, or all are 0.
    """
    if weights is None:
        return SampleNode((node,), size, seed)
    given = np.asarray(weights)
    if given.dtype.kind not in "biuf":
        raise ArgumentError(f"sample: weights must be numbers or a mask, got dtype {given.dtype}")
    if given.size != node.length:
        raise ArgumentError(
            f"sample: weights have {given.size:,} values, and the dataset has {node.length:,} elements;"
            " give one for each"
        )
    flat = given.ravel()
    if flat.dtype.kind == "b":
        chosen = np.flatnonzero(flat).astype(np.int64)
        if not len(chosen):
            raise PlanError("sample: the mask has no true value, so there is no element to draw")
        return SampleNode((node,), size, seed, chosen)
    wrong = np.flatnonzero(~((flat >= 0) & (flat < np.inf)))
    if len(wrong):
        raise PlanError(
            f"sample: weights[{wrong[0]}] is {flat[wrong[0]]}; choose numbers of at least 0"
        )
    sums = np.cumsum(flat, dtype=np.float64)
    if not len(sums) or not 0 < sums[-1] < np.inf:
        raise PlanError("sample: the sum of the weights must be more than 0, and finite")
    return SampleNode((node,), size, seed, sums)
