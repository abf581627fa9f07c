"""The indices of a node that have elements, where a stream takes one after the other.

Most nodes have an element at each index. What is planned from lengths has gaps: it numbers its elements by
windows, and a window has as many as its plan makes.

Invariant: indices ascend, and each element has one.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.transforms.amounts import PackCounts

IntArray = npt.NDArray[np.int64]


class Numbers(abc.ABC):
    """A node with random access that says which of its indices have elements."""

    @abc.abstractmethod
    def indices_from(self, start: int, count: int) -> IntArray:
        """The next indices from `start` on at which the node can have elements.

        A stream asks for no others. A node that numbers its elements with gaps leaves out the
        indices in the gaps; all others, absent elements too, are in the order of the stream.

        Args:
            start: From 0 up to the length.
            count: At least 1.

        Returns:
            int64 `(count,)`, ascending, each below the length; fewer only where there are no more.
        """

    @abc.abstractmethod
    def index_after(self, start: int, count: int) -> tuple[int, int]:
        """The index after the next `count` elements, and how many there are."""


class NumbersWithGaps(Numbers):
    """A node that plans its elements from lengths."""

    @abc.abstractmethod
    def planned_counts(self, indices: IntArray) -> Mapping[int, PackCounts]:
        """What becomes of the parent's elements in the windows of some indices, by their numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class AllNumbers(Numbers):
    """All indices below a length."""

    length: int

    def indices_from(self, start: int, count: int) -> IntArray:
        return np.arange(start, min(self.length, start + count))

    def index_after(self, start: int, count: int) -> tuple[int, int]:
        passed = max(0, min(count, self.length - start))
        return start + passed, passed


def numbers_of(node: Any) -> Numbers:
    """The indices of any node with random access that have elements."""
    return node if isinstance(node, Numbers) else AllNumbers(node.length)
