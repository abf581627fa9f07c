"""Warns of a loop over epochs that gives the same order in each of them.

A dataset gives the same stream each time it is iterated. A chain that shuffles has new orders in later epochs,
and these come with `repeat`.
"""

from __future__ import annotations

import sys
import warnings
from typing import Final

from windrow.transforms.nodes import Node, passes, walk

# Labels begin with the names of methods, and never change.
_ORDERS: Final = {"shuffle", "block_shuffle", "window_shuffle", "sample"}


def warn_of_one_order(node: Node) -> None:
    """Warn that a chain begins again, if it shuffles and does not repeat."""
    methods = {each.label.partition("(")[0] for each in walk(node)}
    if not methods & _ORDERS or not _has_one_epoch(node):
        return
    warnings.warn(
        "this dataset was iterated to its end before, and now gives the same order again: its shuffle has one order"
        " for each epoch, and the chain has one epoch. Write .repeat(epochs) after the shuffle (num_epochs=epochs in"
        " windrow.load and IndexSampler) and iterate once, or .repeat() for ever",
        stacklevel=_depth(),
    )


def _has_one_epoch(node: Node) -> bool:
    """Whether a chain has no repetition, or only one epoch of it, as samplers take for `num_epochs=1`."""
    found = list(walk(node))
    cut = {
        id(each.parent)
        for each in found
        if each.chooses and len(each.parents) == 1 and passes(each.parent) != 1
        if 0 <= each.length <= each.parent.parent.length
    }
    return all(passes(each) == 1 or id(each) in cut for each in found)


def _depth() -> int:
    """The `stacklevel` of the first line outside the package, for the function that calls this."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == "windrow":
        depth, frame = depth + 1, frame.f_back
    return depth
