"""Warns of a loop over epochs that gives the same order in each of them.

A dataset gives the same stream each time it is iterated. A chain that shuffles has new orders in later epochs,
and these come with `repeat`.

Invariant: a dataset warns once, where an iterator begins at its first element after another one ran to its end.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.iterator import DatasetIterator
    from windrow.transforms.nodes import Node


class Epochs:
    """What a dataset shares with its iterators: whether one of them ran to its end."""

    __slots__ = ("ended", "warned")

    def __init__(self) -> None:
        """Begin with no epoch."""
        self.ended = self.warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Epochs, ()

    def begin(self, node: Node) -> None:
        """Note that an iterator begins at the first element; warn if it gives an order again."""
        if not self.ended or self.warned:
            return
        self.warned = True
        if _gives_one_order(node):
            warnings.warn(
                "this dataset was iterated to its end before, and now gives the same order again: its shuffle has one"
                " order for each epoch, and the chain has one epoch. Write .repeat(epochs) after the shuffle and"
                " iterate once, or .repeat() for ever",
                stacklevel=_depth(),
            )


def iterated(dataset: Any, iterator: DatasetIterator[Any]) -> DatasetIterator[Any]:
    """The iterator, which notes its beginning and its end for the dataset."""
    iterator._epochs = dataset.__dict__.setdefault("_epochs", Epochs())
    return iterator


def _gives_one_order(node: Node) -> bool:
    from windrow.transforms import nodes  # few chains have them all

    found = list(node.walk())
    if any(isinstance(each, (nodes.RepeatNode, nodes.StreamRepeatNode)) for each in found):
        return False
    orders = (nodes.SampleNode, nodes.StreamWindowShuffleNode, nodes.WindowShuffleNode)
    return any(each.shuffles or isinstance(each, orders) for each in found)


def _depth() -> int:
    """The `stacklevel` of the first line outside the package, for the function that calls this."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "windrow":
        depth, frame = depth + 1, frame.f_back
    return depth
