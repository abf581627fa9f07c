"""A watch over nodes that may take elements for ever without giving one.

Invariant: it raises only for endless streams, and only after the elements of many epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms.nodes.base import STREAM, VAST, Node
from windrow.transforms.nodes.epochs import first_epoch
from windrow.transforms.nodes.metadata import epoch_length
from windrow.transforms.nodes.streams import as_chain, no_row, passes
from windrow.transforms.nodes.whole_chain import EPOCHS, walk
from windrow.transforms.row_blocks import Inputs

# How much longer it takes where a part of a mixture comes rarely.
_RARELY: Final = 1000
_NO_MARKS: Final = np.zeros((0, 1), np.int64)


class RowWatch:
    """Counts the elements that were taken of a node since the last one that came into a row."""

    def __init__(self, taken: Node, error: Callable[[], PlanError], least: int = 0) -> None:
        """Begin to count.

        Args:
            taken: What the elements are taken of: a stream, or a chain with random access.
            error: Makes the error of a stream that has no row.
            least: Elements that are always taken without an error.
        """
        self._most, self._error = max(least, most_without_row(taken)), error
        # After a `flat_map`, how many elements an epoch has is not known.
        self._epochs = epochs_in(taken) if VAST <= self._most < math.inf else None
        self._without, self._first = 0, -1

    @property
    def is_needed(self) -> bool:
        """Whether `saw` may raise."""
        return self._most < math.inf

    def saw(self, elements: int, used: bool, marks: IntArray = _NO_MARKS) -> None:
        """Note some elements of a stream with their marks, and whether one of them came into a row.

        Raises:
            PlanError: If elements of an endless stream come into no row, however many are taken.
        """
        self._without = 0 if used else self._without + elements
        is_over = self._without > self._most
        if self._epochs is not None and len(marks):
            column, epoch = self._epochs
            at = int(marks[-1, column])
            self._first = at if used or self._first < 0 else self._first
            is_over = at - self._first > EPOCHS * epoch
        if is_over:
            raise self._error()


def most_without_row(taken: Node) -> float:
    """Elements of an endless node after which what made no row of them will make none.

    Infinite for a node that ends.
    """
    if not taken.is_endless():
        return math.inf
    counted = taken.length != STREAM and not taken.has_gaps
    epoch = epoch_length(taken) if counted else first_epoch(taken).elements().high
    is_mixed = any(len(each.parents) > 1 for each in walk(taken))
    epoch = max(1, epoch)  # it may be less than a batch
    return EPOCHS * epoch * (_RARELY if is_mixed else 1)


def epochs_in(stream: Node) -> tuple[int, int] | None:
    """Where marks of an endless stream count its innermost epochs: a column, and how much it grows in one.

    None for a mixture.
    """
    while len(stream.parents) == 1:
        chain = as_chain(stream)
        if chain is not None:
            return 0, epoch_length(chain.parent)
        if passes(stream) is None and not stream.parent.is_endless():
            return stream.width - 1, 1
        stream = stream.parent
    return None


def watch_of(node: Node, inputs: Inputs) -> RowWatch:
    """The watch over what a node makes of the elements of its parent."""

    def error() -> PlanError:
        lane = inputs.number(0)
        why = f"{node.written} made no row of the elements of {EPOCHS} epochs"
        return no_row(lane, inputs.number(1) - lane, why, "are all of them empty?")

    return RowWatch(node.parent, error)
